package rule_test

import (
	"bytes"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/rule"
)

// The key of an address, cut to a network's size, is the network's key if, and only if, the network
// holds the block by which the address is counted.
func TestNetworkOfKey(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		v6 := rapid.Bool().Draw(rt, "v6")
		size, least, full := 4, 16, 32
		if v6 {
			size, least, full = 16, 32, 64
		}
		draw := func(name string) netip.Addr {
			b := rapid.SliceOfN(rapid.SampledFrom([]byte{0x20, 0x01, 0x80, 0xff}), size, size).Draw(rt, name)
			if v6 {
				b[0] = 0x20 // global
			}
			a, _ := netip.AddrFromSlice(b)
			return a
		}
		bits := rapid.IntRange(least, full-1).Draw(rt, "bits")
		network, address := netip.PrefixFrom(draw("network"), bits), draw("address")
		w := oneLimit(t, "ip")
		key, text, ok, err := w.AppendNetwork(nil, []string{"ip=" + network.String()})
		if err != nil || !ok || text != "ip="+network.Masked().String() || rule.NetworkOfIPv6(key) != v6 {
			rt.Fatalf("%v: %q, %v, %v", network, text, ok, err)
		}
		of, err := w.AppendKey(nil, []string{address.String()})
		if err != nil {
			rt.Fatal(err)
		}
		cut, ok := rule.AppendNetworkOf(nil, of, bits, v6)
		if !ok || bytes.Equal(cut, key) != network.Contains(address) {
			rt.Fatalf("%v in %v: % x, % x, %v", address, network, cut, key, ok)
		}
		if _, ok := rule.AppendNetworkOf(nil, of, bits, !v6); ok {
			rt.Fatal("an address of the other family was cut")
		}
	})
}

// oneLimit returns a window of a limit with such a key.
func oneLimit(t *testing.T, per ...string) *rule.Window {
	t.Helper()
	set, err := rule.Of(rule.Spec{Name: "x", Allow: "5/min", Per: per})
	if err != nil {
		t.Fatal(err)
	}
	return set.Rules()[0].Windows[0]
}

// Texts and hashes, which may begin like addresses, are in no network.
func TestNoNetworkOfKey(t *testing.T) {
	w := oneLimit(t, "user|ip")
	for _, part := range []string{"user=\x02\xc6\x33", "user=ada", "user=198.51.100.1", "user=" + string(make([]byte, 300))} {
		key, err := w.AppendKey(nil, []string{part})
		if err != nil {
			t.Fatal(err)
		}
		for _, v6 := range []bool{false, true} {
			if _, ok := rule.AppendNetworkOf(nil, key, 24, v6); ok {
				t.Errorf("%.20q is in a network", part)
			}
		}
	}
	if _, _, ok, err := oneLimit(t, "user").AppendNetwork(nil, []string{"198.51.100.0/24"}); ok || err != nil {
		t.Errorf("a user of the name of a network is one: %v", err)
	}
}
