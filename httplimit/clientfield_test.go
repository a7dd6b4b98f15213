package httplimit

import (
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

// TestClientFields: the client is read from the one field that is named, of trusted peers alone,
// and nothing that a client writes in front of a proxy's element changes it.
func TestClientFields(t *testing.T) {
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8:ffff::/48")}
	others := func(field string) http.Header {
		h := http.Header{}
		for _, name := range []string{"X-Forwarded-For", "X-Real-Ip", "Cf-Connecting-Ip"} {
			h[name] = []string{"203.0.113.99"}
		}
		h["Forwarded"] = []string{"for=203.0.113.99"}
		delete(h, http.CanonicalHeaderKey(field))
		return h
	}
	for _, c := range []struct {
		name, header string
		hops         int
		peer         string
		lines        []string
		want         string
	}{
		{"Forwarded", "Forwarded", 0, "10.0.0.1:1", []string{"for=198.51.100.7"}, "198.51.100.7"},
		{"Forwarded of a stranger", "Forwarded", 0, "192.0.2.1:1", []string{"for=198.51.100.7"}, "192.0.2.1"},
		{"no Forwarded", "Forwarded", 0, "10.0.0.1:1", nil, "10.0.0.1"},
		{"more parameters", "forwarded", 0, "10.0.0.1:1", []string{`By=203.0.113.43;Proto=https; For = "198.51.100.7:4711" ;host=a.example`}, "198.51.100.7"},
		{"IPv6", "Forwarded", 0, "10.0.0.1:1", []string{`for="[2001:db8:cafe::17]:4711"`}, "2001:db8:cafe::17"},
		{"IPv6 without a port", "Forwarded", 0, "10.0.0.1:1", []string{`for="[2001:db8:cafe::17]"`}, "2001:db8:cafe::17"},
		{"several elements", "Forwarded", 0, "10.0.0.1:1", []string{"for=1.2.3.4, for=198.51.100.7;proto=http,for=10.9.9.9"}, "198.51.100.7"},
		{"several lines", "Forwarded", 0, "10.0.0.1:1", []string{"for=1.2.3.4", "for=198.51.100.7", "for=10.9.9.9"}, "198.51.100.7"},
		{"a quote that the client left open", "Forwarded", 0, "10.0.0.1:1", []string{`for="1.2.3.4, for=198.51.100.7`}, "198.51.100.7"},
		{"the same in a proxy's value", "Forwarded", 0, "10.0.0.1:1", []string{`for="1.2.3.4, for="[2001:db8::7]"`}, "2001:db8::7"},
		{"an escaped quote", "Forwarded", 0, "10.0.0.1:1", []string{`for=1.2.3.4;x="\", for=1.2.3.5, \"", for=10.2.2.2`}, "1.2.3.4"},
		{"a comma within quotes", "Forwarded", 0, "10.0.0.1:1", []string{`for=198.51.100.7;x="a,for=1.2.3.4;for=1.2.3.5"`}, "198.51.100.7"},
		{"for twice", "Forwarded", 0, "10.0.0.1:1", []string{"for=1.2.3.4;for=198.51.100.7"}, "10.0.0.1"},
		{"no for", "Forwarded", 0, "10.0.0.1:1", []string{"for=1.2.3.4, proto=https"}, "10.0.0.1"},
		{"unknown", "Forwarded", 0, "10.0.0.1:1", []string{"for=1.2.3.4, for=unknown, for=10.2.2.2"}, "10.2.2.2"},
		{"a hidden name", "Forwarded", 0, "10.0.0.1:1", []string{"for=_secret"}, "10.0.0.1"},
		{"an element that looks like X-Forwarded-For", "Forwarded", 0, "10.0.0.1:1", []string{"198.51.100.7"}, "10.0.0.1"},
		{"another name that ends in for", "Forwarded", 0, "10.0.0.1:1", []string{"xfor=198.51.100.7"}, "10.0.0.1"},

		{"a single address", "CF-Connecting-IP", 0, "10.0.0.1:1", []string{" 198.51.100.7"}, "198.51.100.7"},
		{"in any case", "x-real-ip", 0, "10.0.0.1:1", []string{"2001:DB8::7"}, "2001:db8::7"},
		{"one that is trusted itself", "X-Real-IP", 0, "10.0.0.1:1", []string{"10.5.5.5"}, "10.5.5.5"},
		{"of a stranger", "X-Real-IP", 0, "192.0.2.1:1", []string{"198.51.100.7"}, "192.0.2.1"},
		{"twice", "X-Real-IP", 0, "10.0.0.1:1", []string{"198.51.100.7", "198.51.100.8"}, "10.0.0.1"},
		{"a list", "X-Real-IP", 0, "10.0.0.1:1", []string{"198.51.100.7, 198.51.100.8"}, "10.0.0.1"},
		{"missing", "X-Real-IP", 0, "10.0.0.1:1", nil, "10.0.0.1"},
		{"no address", "X-Real-IP", 0, "10.0.0.1:1", []string{"ada"}, "10.0.0.1"},
		{"an IPv6 proxy", "X-Real-IP", 0, "[2001:db8:ffff::1]:1", []string{"198.51.100.7"}, "198.51.100.7"},

		{"one hop", "", 1, "10.0.0.1:1", []string{"1.2.3.4, 198.51.100.7"}, "198.51.100.7"},
		{"two hops", "", 2, "10.0.0.1:1", []string{"1.2.3.4, 198.51.100.7, 203.0.113.5"}, "198.51.100.7"},
		{"two hops over lines", "X-Forwarded-For", 2, "10.0.0.1:1", []string{"1.2.3.4", "198.51.100.7", "203.0.113.5"}, "198.51.100.7"},
		{"hops count trusted addresses, too", "", 1, "10.0.0.1:1", []string{"198.51.100.7, 10.9.9.9"}, "10.9.9.9"},
		{"fewer elements than hops", "", 3, "10.0.0.1:1", []string{"198.51.100.7, 203.0.113.5"}, "198.51.100.7"},
		{"an element that is none", "", 2, "10.0.0.1:1", []string{"198.51.100.7, x, 203.0.113.5"}, "203.0.113.5"},
		{"hops of a stranger", "", 1, "192.0.2.1:1", []string{"198.51.100.7"}, "192.0.2.1"},
		{"hops without a header", "", 2, "10.0.0.1:1", nil, "10.0.0.1"},
		{"hops of Forwarded", "Forwarded", 2, "10.0.0.1:1", []string{`for=1.2.3.4, for="[2001:db8::7]:1"`, "for=203.0.113.5"}, "2001:db8::7"},

		{"NAT64", "", 0, "[64:ff9b::c000:201]:1", nil, "192.0.2.1"},
		{"NAT64 behind a proxy", "", 0, "10.0.0.1:1", []string{"64:ff9b::198.51.100.7"}, "198.51.100.7"},
		{"NAT64 in Forwarded", "Forwarded", 0, "10.0.0.1:1", []string{`for="[64:ff9b::c633:6407]:99"`}, "198.51.100.7"},
		{"NAT64 of a private address is none of ours", "", 0, "[64:ff9b::a00:1]:1", []string{"198.51.100.7"}, "64:ff9b::a00:1"},
	} {
		ip := ClientIP{Trusted: trusted, Header: c.header, Hops: c.hops}
		if err := ip.Check(); err != nil {
			t.Fatal(err)
		}
		field := ip.Field()
		r := &http.Request{RemoteAddr: c.peer, Header: others(field)}
		if c.lines != nil {
			r.Header[field] = c.lines
		}
		if got := ip.Of(r); got != netip.MustParseAddr(c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
		if got := ip.text(r); got != c.want {
			t.Errorf("%s: as text %q, want %q", c.name, got, c.want)
		}
		if ip.Told(r) != (c.lines != nil) {
			t.Errorf("%s: told %v", c.name, ip.Told(r))
		}
	}
	for field, line := range map[string]string{"Forwarded": `for=1.2.3.4, for="[2001:db8::7]:1";proto=https, for=10.9.9.9`, "X-Real-Ip": "198.51.100.7"} {
		ip, r := ClientIP{Trusted: trusted, Header: field},
			&http.Request{RemoteAddr: "10.0.0.1:1", Header: http.Header{field: {line}}}
		if n := testing.AllocsPerRun(100, func() { ip.text(r) }); n != 0 {
			t.Errorf("%s: %v allocations", field, n)
		}
	}
	for want, ip := range map[string]ClientIP{
		"no name of a header":    {Trusted: trusted, Header: "X Real"},
		"0 or more":              {Trusted: trusted, Hops: -1},
		"holds one address":      {Trusted: trusted, Header: "X-Real-IP", Hops: 1},
		"no proxy is trusted":    {Header: "X-Real-IP"},
		"no header is believed":  {Hops: 1},
		"so that no header is b": {Header: "Forwarded"},
	} {
		if err := ip.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", ip, err, want)
		}
	}
	for _, ip := range []ClientIP{{}, {Header: "X-Forwarded-For"}, {TrustUnix: true, Header: "X-Real-IP"}} {
		if err := ip.Check(); err != nil {
			t.Errorf("%+v: %v", ip, err)
		}
	}
}

// TestTrustedNames: names stand for blocks of addresses, and what stands for IPv4 is that.
func TestTrustedNames(t *testing.T) {
	got, err := ParseTrusted([]string{"loopback", "private", "64:ff9b::192.0.2.0/120", "64:ff9b::10.0.0.0/104"})
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, p := range got {
		text = append(text, p.String())
	}
	want := "127.0.0.0/8 ::1/128 10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7 192.0.2.0/24 64:ff9b::a00:0/104"
	if s := strings.Join(text, " "); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
	for _, bad := range []string{"64:ff9b::/96", "64:ff9b::8.0.0.0/100", "::ffff:0:0/95", "Private"} {
		if p, err := ParseTrusted([]string{bad}); err == nil {
			t.Errorf("%s is taken as %v", bad, p)
		}
	}
}

// FuzzForwarded: whatever stands to the left of a proxy's element, the client is the one that it
// has named.
func FuzzForwarded(f *testing.F) {
	for _, s := range []string{"", `for="`, `"`, `\`, `for="\"`, "for=1.2.3.4;", `a="b\\"`, "for=10.0.0.1"} {
		f.Add(s)
	}
	ip := ClientIP{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, Header: "Forwarded"}
	f.Fuzz(func(t *testing.T, left string) {
		for _, element := range []string{"for=198.51.100.7", `for="198.51.100.7:80";proto=https;by="[2001:db8::1]"`} {
			r := &http.Request{RemoteAddr: "10.0.0.1:1", Header: http.Header{"Forwarded": {left + ", " + element}}}
			if got := ip.Of(r); got != netip.MustParseAddr("198.51.100.7") {
				t.Errorf("%q: %v", r.Header["Forwarded"], got)
			}
			r.Header["Forwarded"] = []string{left, element}
			if got := ip.Of(r); got != netip.MustParseAddr("198.51.100.7") {
				t.Errorf("%q: %v", r.Header["Forwarded"], got)
			}
		}
	})
}
