package rule

import (
	"net/netip"
	"testing"
)

func TestClientAddr(t *testing.T) {
	for text, want := range map[string]string{
		"192.0.2.1":             "192.0.2.1",
		"::ffff:192.0.2.1":      "192.0.2.1",
		"::ffff:10.0.0.1":       "10.0.0.1",
		"64:ff9b::192.0.2.1":    "192.0.2.1",
		"64:ff9b::8.8.8.8%eth0": "8.8.8.8",
		"2001:db8::1%eth0":      "2001:db8::1",
		"2001:db8::c000:201":    "2001:db8::c000:201",
		"64:ff9b:0:0:0:1::1":    "64:ff9b::1:0:1", // beyond the /96
		"64:ff9b:1::192.0.2.1":  "64:ff9b:1::c000:201",
		// No translator makes these of addresses that somebody could be trusted by.
		"64:ff9b::127.0.0.1":       "64:ff9b::7f00:1",
		"64:ff9b::10.1.2.3":        "64:ff9b::a01:203",
		"64:ff9b::172.16.0.1":      "64:ff9b::ac10:1",
		"64:ff9b::192.168.0.1":     "64:ff9b::c0a8:1",
		"64:ff9b::169.254.169.254": "64:ff9b::a9fe:a9fe",
		"64:ff9b::100.64.0.1":      "64:ff9b::6440:1",
		"64:ff9b::":                "64:ff9b::",
		"64:ff9b::255.255.255.255": "64:ff9b::ffff:ffff",
		"64:ff9b::172.32.0.1":      "172.32.0.1",
	} {
		if got := ClientAddr(netip.MustParseAddr(text)); got != netip.MustParseAddr(want) {
			t.Errorf("%s: %v, want %s", text, got, want)
		}
		if got := parseIP(text); got != netip.MustParseAddr(want) {
			t.Errorf("%s in a request: %v, want %s", text, got, want)
		}
	}
	if got := ClientAddr(netip.Addr{}); got.IsValid() {
		t.Errorf("none is %v", got)
	}
	for text, want := range map[string]string{"192.0.2.9": "192.0.2.9", "64:ff9b::192.0.2.9": "192.0.2.9", "2001:db8:1:2:3::4%x": "2001:db8:1:2::", "64:ff9b::10.0.0.1": "64:ff9b::"} {
		if got := ClientNetwork(netip.MustParseAddr(text)); got != netip.MustParseAddr(want) {
			t.Errorf("the network of %s: %v, want %s", text, got, want)
		}
	}
}

// TestNAT64Rules: clients behind NAT64 have keys of their own, and lists hold for them.
func TestNAT64Rules(t *testing.T) {
	p, err := ParsePattern("ip", "192.0.2.0/24")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"192.0.2.7", "64:ff9b::c000:207", "::ffff:192.0.2.7"} {
		if !p.Match(text) {
			t.Errorf("192.0.2.0/24 does not hold %s", text)
		}
	}
	if p, err = ParsePattern("ip", "64:ff9b::192.0.2.0/120"); err != nil || !p.Match("192.0.2.7") || !p.Match("64:ff9b::c000:207") || p.Match("192.0.3.7") {
		t.Errorf("a block behind NAT64: %v, %v", p.Block(), err)
	}
	for _, text := range []string{"64:ff9b::/96", "64:ff9b::/97", "::ffff:0:0/90"} {
		if _, err := ParsePattern("ip", text); err == nil {
			t.Errorf("%s is taken", text)
		}
	}
	for _, c := range []struct {
		x, y string
		same bool
	}{{"64:ff9b::192.0.2.1", "192.0.2.1", true}, {"64:ff9b::192.0.2.1", "64:ff9b::192.0.2.2", false}, {"64:ff9b::10.0.0.1", "10.0.0.1", false}, {"2001:db8::1", "2001:db8::2", true}} {
		x, y := appendValue(nil, 0, kindIP, c.x, 64), appendValue(nil, 0, kindIP, c.y, 64)
		if (string(x) == string(y)) != c.same {
			t.Errorf("%s and %s: %x, %x", c.x, c.y, x, y)
		}
	}
}
