package listen

import (
	"net"
	"net/netip"
	"testing"
)

// TestClient: connections count under the address of their peer, an IPv6 one under its /64;
// connections of proxies and of unix sockets under none.
func TestClient(t *testing.T) {
	exempt := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	for peer, want := range map[string]string{
		"192.0.2.1:80":            "192.0.2.1",
		"[::ffff:192.0.2.1]:80":   "192.0.2.1",
		"[2001:db8:1:2:3:4::]:80": "2001:db8:1:2::",
		"10.1.2.3:80":             "",
	} {
		var address netip.Addr
		if want != "" {
			address = netip.MustParseAddr(want)
		}
		if got := Client(net.TCPAddrFromAddrPort(netip.MustParseAddrPort(peer)), exempt); got != address {
			t.Errorf("%s: %v, want %v", peer, got, address)
		}
	}
	if got := Client(UnixPeer, nil); got.IsValid() {
		t.Errorf("a unix socket: %v", got)
	}
}
