package clientip

import (
	"net/netip"
	"testing"
)

func TestAddr(t *testing.T) {
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
		if got := Addr(netip.MustParseAddr(text)); got != netip.MustParseAddr(want) {
			t.Errorf("%s: %v, want %s", text, got, want)
		}
	}
	if got := Addr(netip.Addr{}); got.IsValid() {
		t.Errorf("none is %v", got)
	}
	for text, want := range map[string]string{"192.0.2.9": "192.0.2.9", "64:ff9b::192.0.2.9": "192.0.2.9",
		"2001:db8:1:2:3::4%x": "2001:db8:1:2::", "64:ff9b::10.0.0.1": "64:ff9b::"} {
		if got := Network(netip.MustParseAddr(text)); got != netip.MustParseAddr(want) {
			t.Errorf("the network of %s: %v, want %s", text, got, want)
		}
	}
}
