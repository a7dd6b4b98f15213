package door

import (
	"net/url"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestValidHost(t *testing.T) {
	for host, want := range map[string]bool{
		"": true, "shop.example": true, "Shop.example.:8080": true, "[2001:db8::1]": true, "[::1]:80": true, "a_b-c.d": true, "shop.example:": true,
		"shop.example:80x": false, "shop.example:80:81": false, "[::1": false, "[::1]x": false, "a b": false, "a,b": false, "a/b": false, "a@b": false, "bücher.example": false,
		"shop.example..": false, "shop.example..:80": false, ".shop.example": false, "a..b": false, ".": false, ":80": false,
		"a:0": true, "a:00080": true, "a:65535": true, "a:65536": false, "[::ffff:192.0.2.1]:80": true, "[192.0.2.1]": false, "[abc.de]": false,
		"[fe80::1%eth0]": false, "[fe80::1%25eth0]": false, "a%2Eb": false, "u@a": false, "[]": false,
		"a\x00": false, "[zz]": false, "a?b": false, "a#b": false,
	} {
		if got := ValidHost(host); got != want {
			t.Errorf("%q: %v", host, got)
		}
	}
}

func TestAmbiguousPath(t *testing.T) {
	for path, want := range map[string][2]string{ // by default, and where slashes are kept
		"/": {}, "": {}, "/a/b": {}, "/a%20b": {}, "/%2": {}, "/%": {}, "/%252F": {}, "/a;b=c": {}, "/%2E%2e/login": {}, "/%zz%2": {},
		"/%2Flogin": {"%2F", ""}, "/x%2f..%2flogin": {"%2F", ""}, `/\login`: {`\`, ""}, "/%5Clogin": {"%5C", ""}, "/%5clogin": {"%5C", ""}, "/%%2F": {"%2F", ""},
		"/login%0a": {"%0A", "%0A"}, "/%1Fx": {"%1F", "%1F"}, "/x%7f": {"%7F", "%7F"}, "/%20%zz%0": {"", ""}, "/%0g": {"", ""},
		"/login%00": {"%00", "%00"}, "/%2F%00": {"%2F", "%00"}, "/%00%2F": {"%00", "%00"},
		"/x#/../login": {"#", "#"}, "/login#": {"#", "#"}, "#": {"#", "#"}, "/%2F#": {"#", "#"}, "/x%23/../login": {},
		"/x/..;/login": {"..;", "..;"}, "/x/..;a=b/login": {"..;", "..;"}, "/x/%2e.;/login": {"..;", "..;"}, "/x/..%3B/login": {"..;", "..;"}, "/x/..;": {"..;", "..;"},
		"/.;/login": {".;", ".;"}, "/%2E%3ba/login": {".;", ".;"}, "/;/login": {"/;", "/;"}, "/;a=b/login": {"/;", "/;"}, "/a//;/b": {"/;", "/;"}, "/%3B/login": {"/;", "/;"},
		"/;jsessionid=1": {}, "/shop/;jsessionid=1": {}, "/a;b=c/d;e": {}, "/...;/a": {}, "/a..;/b": {}, "/.a;/b": {}, "/..a;": {}, "/a;/../b": {}, "/a%3Bb/c": {},
		"/x%2F..;/login": {"%2F", ""},
	} {
		if got := [2]string{AmbiguousPath(path, false), AmbiguousPath(path, true)}; got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}

// A path that is not ambiguous has the same segments before and after its escapes are resolved, and
// no backslash, NUL, newline or raw #; and none of them, except the last, is nothing or dots when
// the text behind a semicolon is taken off.
func TestAmbiguousPathProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		path := "/" +
			strings.Join(
				rapid.SliceOf(rapid.SampledFrom([]string{"a", "/", "%2", "%2F", "%2f", "F", "%5C", "5c", "%", "\\",
					"%00",
					"00", "%0A", "0a", ".", "%25", "%2E", ";", "%3B", "#", "%23"})).Draw(t, "path"), "")
		bare, err := url.PathUnescape(path)
		if err != nil {
			return // no server takes it
		}
		same := strings.Count(bare, "/") == strings.Count(path, "/") && !strings.ContainsAny(bare, "\\\x00\n") &&
			!strings.Contains(path, "#")
		segments := strings.Split(bare, "/")[1:]
		for i, segment := range segments {
			name, _, found := strings.Cut(segment, ";")
			if found && (name == "." || name == ".." || name == "" && i < len(segments)-1) {
				same = false
			}
		}
		if got := AmbiguousPath(path, false); (got == "") != same {
			t.Fatalf("%s: %q, but it is %q", path, got, bare)
		}
	})
}

// FuzzValidHost: in a host that ValidHost accepts, net/url and net/http find one host, and no label
// is empty.
func FuzzValidHost(f *testing.F) {
	for _, seed := range []string{"", "shop.example", "shop.example.:80", "shop.example..", "[::1]:80", "[::1%25a]",
		"a:b", "a:80:90", ".a", "\u00fc", "a%2eb", "[abc.de]:1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, host string) {
		if !ValidHost(host) || host == "" {
			return
		}
		u, err := url.Parse("http://" + host + "/x")
		if err != nil || u.Host != host || u.User != nil || u.Path != "/x" {
			t.Fatalf("%q: %v, %v", host, u, err)
		}
		name := u.Hostname()
		if host[0] != '[' && (strings.Contains(name, "..") || strings.HasPrefix(name, ".") ||
			strings.Trim(name, ".") == "") {
			t.Errorf("%q has an empty label", host)
		}
	})
}
