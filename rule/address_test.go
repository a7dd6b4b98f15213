package rule

import (
	"net/netip"
	"testing"

	"github.com/weir-rl/weir/internal/util/clientip"
)

// TestNAT64Rules: clients behind NAT64 have keys of their own, and lists hold for them.
func TestNAT64Rules(t *testing.T) {
	p, err := ParsePattern("ip", "192.0.2.0/24")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"192.0.2.7", "64:ff9b::c000:207", "::ffff:192.0.2.7"} {
		if got := parseIP(text); got != clientip.Addr(netip.MustParseAddr(text)) {
			t.Errorf("%s in a request: %v", text, got)
		}
		if !p.Match(text) {
			t.Errorf("192.0.2.0/24 does not hold %s", text)
		}
	}
	if p, err = ParsePattern("ip", "64:ff9b::192.0.2.0/120"); err != nil || !p.Match("192.0.2.7") ||
		!p.Match("64:ff9b::c000:207") || p.Match("192.0.3.7") {
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
	}{{"64:ff9b::192.0.2.1", "192.0.2.1", true}, {"64:ff9b::192.0.2.1", "64:ff9b::192.0.2.2", false},
		{"64:ff9b::10.0.0.1", "10.0.0.1", false}, {"2001:db8::1", "2001:db8::2", true}} {
		r := &matchRule{keyForm: &keyForm{ipv6Prefix: 64}}
		x, y := r.appendPart(nil, 0, kindIP, c.x, false), r.appendPart(nil, 0, kindIP, c.y, false)
		if (string(x) == string(y)) != c.same {
			t.Errorf("%s and %s: %x, %x", c.x, c.y, x, y)
		}
	}
}
