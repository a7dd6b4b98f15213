package httplimit

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/util/clientip"
)

func TestParseTrusted(t *testing.T) {
	got, err := ParseTrusted([]string{"10.1.2.3/8", " 192.0.2.1", "::ffff:172.16.0.0/108", "2001:db8::/32", "::1"})
	if err != nil {
		t.Fatal(err)
	}
	want := "10.0.0.0/8 192.0.2.1/32 172.16.0.0/12 2001:db8::/32 ::1/128"
	var all []string
	for _, p := range got {
		all = append(all, p.String())
	}
	if s := strings.Join(all, " "); s != want {
		t.Errorf("got %s, want %s", s, want)
	}
	for _, bad := range []string{"", "10.0.0.0/33", "localhost", "fe80::1%eth0"} {
		if _, err := ParseTrusted([]string{bad}); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

func TestClientIP(t *testing.T) {
	for _, c := range []struct {
		name, trusted, peer string
		xff                 []string
		want                string
	}{
		{"no proxy", "", "192.0.2.1:5000", nil, "192.0.2.1"},
		{"nobody is trusted", "", "192.0.2.1:5000", []string{"198.51.100.7"}, "192.0.2.1"},
		{"a stranger's header", "10.0.0.0/8", "192.0.2.1:5000", []string{"198.51.100.7"}, "192.0.2.1"},
		{"a trusted proxy", "10.0.0.0/8", "10.0.0.1:5000", []string{"198.51.100.7"}, "198.51.100.7"},
		{"a trusted proxy that says nothing", "10.0.0.0/8", "10.0.0.1:5000", nil, "10.0.0.1"},
		{"the client's own lies are on the left", "10.0.0.0/8", "10.0.0.1:5000", []string{"1.2.3.4, 198.51.100.7"}, "198.51.100.7"},
		{"two proxies", "10.0.0.0/8", "10.0.0.1:5000", []string{"1.2.3.4, 198.51.100.7, 10.9.9.9"}, "198.51.100.7"},
		{"all trusted: the left-most", "10.0.0.0/8", "10.0.0.1:5000", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"several lines are one list", "10.0.0.0/8", "10.0.0.1:5000", []string{"1.2.3.4", "198.51.100.7", "10.0.0.2"}, "198.51.100.7"},
		{"a malformed element stops the walk", "10.0.0.0/8", "10.0.0.1:5000", []string{"198.51.100.7, unknown, 10.0.0.2"}, "10.0.0.2"},
		{"a malformed last element", "10.0.0.0/8", "10.0.0.1:5000", []string{"198.51.100.7, x"}, "10.0.0.1"},
		{"an empty element", "10.0.0.0/8", "10.0.0.1:5000", []string{"198.51.100.7,"}, "10.0.0.1"},
		{"an empty line", "10.0.0.0/8", "10.0.0.1:5000", []string{"198.51.100.7", ""}, "10.0.0.1"},
		{"an element with a port", "10.0.0.0/8", "10.0.0.1:5000", []string{"198.51.100.7:1234"}, "198.51.100.7"},
		{"a bad port", "10.0.0.0/8", "10.0.0.1:5000", []string{"198.51.100.7:99999"}, "10.0.0.1"},
		{"IPv6", "::1", "[::1]:5000", []string{"2001:DB8:0::7"}, "2001:db8::7"},
		{"IPv6 in brackets", "::1", "[::1]:5000", []string{"[2001:db8::7]"}, "2001:db8::7"},
		{"IPv6 in brackets with a port", "::1", "[::1]:5000", []string{"[2001:db8::7]:443"}, "2001:db8::7"},
		{"a zone is dropped", "::1", "[::1]:5000", []string{"fe80::7%eth0"}, "fe80::7"},
		{"a zone of the peer is dropped", "", "[fe80::7%eth0]:5000", nil, "fe80::7"},
		{"mapped addresses are unmapped", "10.0.0.0/8", "[::ffff:10.0.0.1]:5000", []string{"::ffff:198.51.100.7"}, "198.51.100.7"},
		{"a mapped prefix", "::ffff:10.0.0.0/104", "10.0.0.1:5000", []string{"198.51.100.7"}, "198.51.100.7"},
		{"IPv4 in brackets is malformed", "10.0.0.0/8", "10.0.0.1:5000", []string{"[198.51.100.7]"}, "10.0.0.1"},
		{"leading zeros are malformed", "10.0.0.0/8", "10.0.0.1:5000", []string{"198.051.100.7"}, "10.0.0.1"},
		{"blanks", "10.0.0.0/8", "10.0.0.1:5000", []string{"  198.51.100.7\t"}, "198.51.100.7"},
		{"a unix socket", "10.0.0.0/8", "@", []string{"198.51.100.7"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			ip := ClientIP{}
			if c.trusted != "" {
				ip.Trusted = []netip.Prefix{netip.MustParsePrefix(withBits(c.trusted))}
			}
			r := &http.Request{RemoteAddr: c.peer, Header: http.Header{"X-Forwarded-For": c.xff,
				"X-Real-Ip": {"203.0.113.99"}, "Forwarded": {"for=203.0.113.99"}}}
			var want netip.Addr
			if c.want != "" {
				want = netip.MustParseAddr(c.want)
			}
			if got := ip.Of(r); got != want {
				t.Errorf("got %v, want %v", got, want)
			}
			if got := ip.text(r); got != c.want {
				t.Errorf("as text %q, want %q", got, c.want)
			}
		})
	}
}

func withBits(s string) string {
	if strings.Contains(s, "/") {
		return s
	}
	return s + "/128"
}

func TestClientIPAllocations(t *testing.T) {
	ip := ClientIP{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	for _, r := range []*http.Request{
		{RemoteAddr: "192.0.2.1:5000"}, {RemoteAddr: "[2001:db8::7]:5000"},
		{RemoteAddr: "10.0.0.1:5000", Header: http.Header{"X-Forwarded-For": {"1.2.3.4, 198.51.100.7, 10.0.0.2"}}},
	} {
		if n := testing.AllocsPerRun(100, func() { ip.text(r) }); n != 0 {
			t.Errorf("%s: %v allocations", r.RemoteAddr, n)
		}
	}
}

// Whatever the headers hold: the result is an address of the peer or of the header, without a zone
// and unmapped, and what an untrusted peer sends changes nothing.
func FuzzClientIP(f *testing.F) {
	f.Add("10.0.0.1:80", "1.2.3.4, 198.51.100.7, 10.9.9.9", "10.0.0.2")
	f.Add("[::1]:80", "[2001:db8::7]:443, fe80::1%eth0", "::ffff:10.0.0.1")
	f.Add("@", ",,", " ")
	f.Add("[::1", "[1.2.3.4]:x, [", "]")
	for _, peer := range []string{
		"198.51.100.7:65535", "0.0.0.0:0", "010.0.0.1:80", "256.0.0.1:80", "1.2.3.4:65536", "1.2.3.4:",
		"1.2.3:80", "1.2.3.4.5:80", "1..3.4:80", ".1.2.3:80", "1.2.3.4", "1.2.3.4:80:80", "00.0.0.0:1",
	} {
		f.Add(peer, "", "")
	}
	f.Fuzz(func(t *testing.T, peer, first, second string) {
		for _, c := range []ClientIP{{}, {Trusted: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}}} {
			r := &http.Request{RemoteAddr: peer}
			if got, want := c.text(r), c.Of(r); want.IsValid() && got != want.String() || !want.IsValid() && got != "" {
				t.Fatalf("text %q of %v", got, want)
			}
		}
		r := &http.Request{RemoteAddr: peer, Header: http.Header{"X-Forwarded-For": {first, second}}}
		own := ClientIP{}.Of(r)
		for _, c := range []ClientIP{
			{},
			{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
			{Trusted: []netip.Prefix{netip.MustParsePrefix("::/0"), netip.MustParsePrefix("0.0.0.0/0")}},
		} {
			got := c.Of(r)
			if got.Zone() != "" || got.Is4In6() {
				t.Fatalf("not normal: %v", got)
			}
			if got.IsValid() != own.IsValid() {
				t.Fatalf("%v of the peer %v", got, own)
			}
			if own.IsValid() && !c.trusts(own) && got != own {
				t.Fatalf("an untrusted %v could say %v", own, got)
			}
			if text := c.text(r); got.IsValid() && text != got.String() || !got.IsValid() && text != "" {
				t.Fatalf("text %q of %v", text, got)
			}
			if !got.IsValid() || got == own {
				continue
			}
			found := false
			for element := range strings.SplitSeq(first+","+second, ",") {
				if a, _, ok := clientip.ParseNode(strings.Trim(element, " \t")); ok && a == got {
					found = true
				}
			}
			if !found {
				t.Fatalf("%v stands nowhere in %q, %q", got, first, second)
			}
		}
	})
}

// What a peer without an address says is believed only if that is configured.
func TestClientIPUnix(t *testing.T) {
	for _, c := range []struct {
		name  string
		trust bool
		peer  string
		xff   []string
		want  string
	}{
		{"not trusted", false, "@", []string{"198.51.100.7"}, ""},
		{"trusted", true, "@", []string{"198.51.100.7"}, "198.51.100.7"},
		{"without a name", true, "", []string{"198.51.100.7"}, "198.51.100.7"},
		{"trusted, behind a proxy", true, "@", []string{"1.2.3.4, 198.51.100.7, 10.0.0.2"}, "198.51.100.7"},
		{"trusted, that says nothing", true, "@", nil, ""},
		{"trusted, that says what is no address", true, "@", []string{"198.51.100.7, x"}, ""},
		{"an address is no unix socket", true, "192.0.2.1:5", []string{"198.51.100.7"}, "192.0.2.1"},
	} {
		ip := ClientIP{TrustUnix: c.trust, Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
		r := &http.Request{RemoteAddr: c.peer, Header: http.Header{"X-Forwarded-For": c.xff}}
		if got := ip.text(r); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
		if got := ip.TrustedPeer(r); got != (c.trust && c.peer != "192.0.2.1:5") {
			t.Errorf("%s: trusted %v", c.name, got)
		}
	}
}
