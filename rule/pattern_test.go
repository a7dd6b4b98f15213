package rule

import (
	"net/netip"
	"strings"
	"testing"
)

func TestPattern(t *testing.T) {
	for _, c := range []struct {
		attribute, pattern string
		match, other       []string
	}{
		{"plan", "free", []string{"free"}, []string{"Free", "free ", "fre"}},
		{"plan", "!free", []string{"paid", "Free"}, []string{"free"}},
		{"plan", `\!free`, []string{"!free"}, []string{"free", `\!free`}},
		{"plan", `\~free`, []string{"~free"}, []string{"free"}},
		{"plan", `\\free`, []string{`\free`}, []string{"free", `\\free`}},
		{"plan", `!\!free`, []string{"free"}, []string{"!free"}},
		{"plan", `a\b`, []string{`a\b`}, []string{"ab"}},
		{"plan", `~^fr+ee$`, []string{"free", "frree"}, []string{"free2"}},
		{"plan", `~re`, []string{"free"}, []string{"RE"}},
		{"plan", `!~re`, []string{"paid"}, []string{"free"}},
		{"plan", "10.0.0.0/8", []string{"10.0.0.0/8"}, []string{"10.0.0.1"}},
		{"ip", "10.0.0.0/8", []string{"10.0.0.1", "10.255.0.0"}, []string{"11.0.0.1", "x", "::1"}},
		{"ip", "10.1.2.3/8", []string{"10.0.0.1"}, []string{"11.0.0.1"}},
		{"ip", "10.0.0.7", []string{"10.0.0.7"}, []string{"10.0.0.70"}},
		{"ip", "::ffff:10.0.0.7", []string{"10.0.0.7"}, []string{"10.0.0.8"}},
		{"ip", "::ffff:10.0.0.0/104", []string{"10.0.0.7"}, []string{"11.0.0.8"}},
		{"ip", "2001:DB8::/32", []string{"2001:db8::1"}, []string{"2001:db9::1", "10.0.0.1"}},
		{"ip", "2001:db8:0:0:0:0:0:1", []string{"2001:db8::1"}, []string{"2001:db8::2"}},
		{"ip", "!10.0.0.0/8", []string{"11.0.0.1", "host.example"}, []string{"10.0.0.1"}},
		{"ip", "10.*", []string{"10.0.0.1"}, []string{"110.0.0.1"}},
		{"ip", "gw.example.com", []string{"gw.example.com"}, []string{"10.0.0.1"}},
		{"method", "post", []string{"POST"}, []string{"post", "PUT"}},
		{"method", "P*", []string{"POST", "PUT"}, []string{"GET"}},
		{"host", "Shop.Example.com", []string{"shop.example.com"}, []string{"example.com"}},
		{"host", "*.Example.com", []string{"a.example.com"}, []string{"example.com"}},
		{"path", "/%6cogin", []string{"/login"}, nil},
		{"path", "//a/./b/../c", []string{"/a/c"}, nil},
		{"path", "/café/*", []string{"/caf%C3%A9/x"}, []string{"/cafe/x"}},
		{"path", "**/%61dmin", []string{"/x/admin"}, []string{"/admin/x"}},
		{"path", "/a//**", []string{"/a", "/a/b"}, []string{"/ab"}},
	} {
		p, err := ParsePattern(c.attribute, c.pattern)
		if err != nil {
			t.Errorf("%s: %s: %v", c.attribute, c.pattern, err)
			continue
		}
		for _, v := range c.match {
			if !p.Match(v) {
				t.Errorf("%s: %s should match %q", c.attribute, c.pattern, v)
			}
		}
		for _, v := range c.other {
			if p.Match(v) {
				t.Errorf("%s: %s should not match %q", c.attribute, c.pattern, v)
			}
		}
	}
}

// A host is matched by its name alone, however it is written.
func TestBareHost(t *testing.T) {
	for host, want := range map[string]string{
		"shop.example": "shop.example", "shop.example:80": "shop.example", "shop.example:": "shop.example", "shop.example:http": "shop.example",
		"shop.example.": "shop.example", "shop.example..": "shop.example", "shop.example..:80": "shop.example", ".": ".", "": "", ":80": "",
		"[::1]": "[::1]", "[::1]:80": "[::1]", "[::1]:http": "[::1]", "[::1": "[::1", "2001:db8::1": "2001:db8::1", "192.0.2.1:80": "192.0.2.1",
	} {
		if got := bareHost(host); got != want {
			t.Errorf("%s: %s, want %s", host, got, want)
		}
	}
}

func TestPatternErrors(t *testing.T) {
	for _, c := range []struct{ attribute, pattern, want string }{
		{"plan", "", "counts as absent"},
		{"host", "shop.example.", `without its final dot: write "shop.example"`},
		{"host", "https://shop.example", `without scheme, port and path: write "shop.example"`},
		{"host", "!http://*.shop.example:8080/x?y", `write "*.shop.example"`},
		{"host", "https://", "without a scheme"},
		{"host", "shop.example:http", `without its port: write "shop.example"`},
		{"plan", "!", "negates nothing"},
		{"plan", "!!x", "negated once"},
		{"plan", "~", "needs a regular expression"},
		{"plan", "~(", "missing closing )"},
		{"plan", "~a(?=b)", "RE2"},
		{"plan", `\x`, `must stand before`},
		{"plan", `\`, `must stand before`},
		{"plan", strings.Repeat("x", maxPattern+1), "at most"},
		{"ip", "10.0.0.0/33", "CIDR"},
		{"ip", "10.0.0/8", "CIDR"},
		{"ip", "::ffff:10.0.0.0/80", "0.0.0.0/0"},
		{"host", "example.com:8080", `write "example.com"`},
		{"path", "login", `write "/login"`},
		{"path", "/login?next=1", `write "/login"`},
		{"path", "/a#b", `write "/a"`},
	} {
		_, err := ParsePattern(c.attribute, c.pattern)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %.20q: error %v, want one with %q", c.attribute, c.pattern, err, c.want)
		}
	}
}

func TestParseIP(t *testing.T) {
	for _, s := range []string{"1.2.3.4", "0.0.0.0", "255.255.255.255", "256.1.1.1", "1.2.3", "1.2.3.4.5", "01.2.3.4",
		"1.2.3.04", "1..2.3", ".1.2.3", "1.2.3.", "1.2.3.4 ", "", "a", "1.2.3.0000", "::1", "::ffff:1.2.3.4", "1:2", "1.2.3.4:80"} {
		want, err := netip.ParseAddr(s)
		if err == nil {
			want = want.Unmap()
		}
		if got := parseIP(s); got != want {
			t.Errorf("parseIP(%q) = %v, want %v", s, got, want)
		}
	}
	if got := parseIP("fe80::1%eth0"); got != netip.MustParseAddr("fe80::1") {
		t.Errorf("with a zone: %v", got)
	}
}

func FuzzPattern(f *testing.F) {
	for _, s := range []string{"free", "!free", `\!x`, "~^a+$", "/api/**", "10.0.0.0/8", "::1", "**/x", "*a*b*", "",
		"!", "~("} {
		f.Add("path", s, "/api/x")
		f.Add("ip", s, "10.0.0.1")
		f.Add("plan", s, "free")
	}
	f.Fuzz(func(t *testing.T, attribute, source, value string) {
		p, err := ParsePattern(attribute, source)
		if err != nil {
			if err.Error() == "" {
				t.Fatal("an error without words")
			}
			return
		}
		if p.Source != source {
			t.Fatalf("source %q became %q", source, p.Source)
		}
		var scratch []byte
		v, addr := normalText(kindOf(attribute), value, &scratch)
		got := p.Match(v)
		if !strings.HasPrefix(source, "!") {
			if n, err := ParsePattern(attribute, "!"+source); err != nil || n.Match(v) == got {
				t.Fatalf("!%s on %q: %v, %v", source, v, n.Match(v), err)
			}
		}
		// Whatever literals an index looks for must be in every value that matches.
		if v != "" && p.positive(v, addr) {
			for _, choice := range anchorChoices(&p) {
				var x valueIndex
				for _, a := range choice {
					x.add(a, 7)
				}
				x.finish()
				if len(x.appendIDs(&Matches{}, nil, v, addr)) == 0 {
					t.Fatalf("%s: %q matches %q but its anchors %v are not in it", attribute, source, v, choice)
				}
			}
		}
	})
}

// parseIPv4 takes what netip takes, and nothing else.
func TestParseIPv4(t *testing.T) {
	parts := []string{"", "0", "00", "01", "7", "10", "99", "255", "256", "300", "999", "1000", "4294967297", "a", " 1",
		"+1", "1."}
	for _, a := range parts {
		for _, b := range parts {
			for _, s := range []string{a + "." + b + ".0.1", "10." + a + ".2." + b, a + ".1.1." + b, a + "." + b,
				"1.2.3.4." + a, a + "1.2.3" + b} {
				want, err := netip.ParseAddr(s)
				if err != nil || !want.Is4() {
					want = netip.Addr{}
				}
				if got := parseIPv4(s); got != want {
					t.Errorf("%q is read as %v, want %v", s, got, want)
				}
			}
		}
	}
}
