package redis

import (
	"reflect"
	"strings"
	"testing"
)

func TestParseURL(t *testing.T) {
	for _, test := range []struct {
		url  string
		want target
	}{
		{"redis://localhost", target{addresses: []string{"localhost:6379"}}},
		{"redis://10.0.0.1:7000/3", target{addresses: []string{"10.0.0.1:7000"}, database: 3}},
		{"redis://[::1]:7000", target{addresses: []string{"[::1]:7000"}}},
		{"redis://[2001:db8::1]", target{addresses: []string{"[2001:db8::1]:6379"}}},
		{"redis://weir:p%40ss%2Fword@h:1/", target{addresses: []string{"h:1"}, user: "weir", password: "p@ss/word"}},
		{"redis://:only@h", target{addresses: []string{"h:6379"}, password: "only"}},
		{"redis+cluster://u:p@a:1,b,c:3", target{addresses: []string{"a:1", "b:6379", "c:3"}, cluster: true, user: "u", password: "p"}},
		{"redis+sentinel://a,b:2/mymaster/5?sentinel_user=s&sentinel_password=t",
			target{addresses: []string{"a:26379", "b:2"}, master: "mymaster", database: 5, sentinelUser: "s",
				sentinelPassword: "t"}},
	} {
		got, err := parseURL(test.url)
		if err != nil {
			t.Errorf("%s: %v", test.url, err)
		} else if !reflect.DeepEqual(*got, test.want) {
			t.Errorf("%s:\n got %+v\nwant %+v", test.url, *got, test.want)
		}
	}
	got, err := parseURL("rediss://h:1?server_name=other")
	if err != nil || got.tls == nil || got.tls.ServerName != "other" {
		t.Errorf("rediss: %+v, %v", got, err)
	}
}

func TestParseURLErrors(t *testing.T) {
	for url, part := range map[string]string{
		"":                                  "no scheme",
		"localhost:6379":                    "no scheme",
		"http://secret@h":                   `"http"`,
		"redis+ring://:secret@h":            `"redis+ring"`,
		"redis://":                          "host is missing",
		"redis://:secret@":                  "host is missing",
		"redis://a,b":                       "several hosts",
		"redis+cluster://a,,b":              "host is missing",
		"redis://h:port":                    "HOST:PORT",
		"redis://h:0":                       "HOST:PORT",
		"redis://h:70000":                   "HOST:PORT",
		"redis://:secret@h:1:2":             "HOST:PORT",
		"redis://h/one":                     `"one" is no number`,
		"redis://h/-1":                      "no number",
		"redis+cluster://h/1":               "database 0 only",
		"redis+sentinel://h":                "name of the master",
		"redis+sentinel://h/m/x":            "no number",
		"redis://h?timeout=3":               `"timeout" is not known`,
		"rediss://h?ca=a&ca=b":              "twice",
		"redis://h?ca=a":                    "for TLS",
		"rediss://h?ca=/nonexistent/ca.pem": "ca:",
		"rediss://h?cert=/nonexistent":      "cert and key",
		"redis://u:%zz@h":                   "percent-encode",
		"redis://:secret@h/%zz":             "cannot be read",
		"redis://:secret/part@h":            "percent-encode",
		"redis://u:sec?ret@h":               "percent-encode",
		"redis://h#x":                       "cannot be read",
	} {
		err := CheckURL(url)
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: %v, want an error with %q", url, err, part)
		} else if strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: the error shows the password: %v", url, err)
		}
	}
}

func FuzzURL(f *testing.F) {
	f.Add("redis://u:secretpw@h:1/2?server_name=x")
	f.Add("rediss+sentinel://a,b:2/m/5?sentinel_password=secretpw")
	f.Add("redis+cluster://:secretpw@[::1]:1,b")
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseURL(text)
		if err != nil {
			return
		}
		if len(got.addresses) == 0 || got.password != "" && len(got.password) > 3 &&
			strings.Contains(got.String(), got.password) &&
			!strings.Contains(strings.Join(got.addresses, ","), got.password) {
			t.Errorf("%q gives %v", text, got)
		}
	})
}

func TestHashTags(t *testing.T) {
	if got := slotOf("123456789"); got != 0x31C3 { // the check value of CRC-16/XMODEM
		t.Errorf("slotOf: %#x", got)
	}
	for _, n := range []int{1, 3, 32, 1000} {
		tags := hashTags(n)
		if len(tags) != n {
			t.Fatalf("%d tags of %d", len(tags), n)
		}
		for i, tag := range tags {
			if at := slotOf(strings.Trim(tag, "{}")) * n / slots; at != i {
				t.Errorf("tag %d of %d, %s, lies in part %d", i, n, tag, at)
			}
		}
	}
}
