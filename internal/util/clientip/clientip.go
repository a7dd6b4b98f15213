// Package clientip makes one form of the addresses by which clients are told apart: a client that
// comes over IPv4, over IPv6 or over a translator between them is one client. It also reads
// the addresses that fields list.
package clientip

import (
	"fmt"
	"net/netip"
)

// nat64 is the well-known prefix of NAT64 (RFC 6052): its last four bytes are an IPv4 address.
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// local are the blocks of IPv4 addresses that no translator makes addresses of nat64 from (RFC
// 6052, 3.1), as far as they mean a machine of somebody's own network.
var local = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("127.0.0.0/8"),
	netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("224.0.0.0/3"),
}

// Addr returns the address by which a client is told apart: without a zone, and the IPv4 address
// that an IPv6 one stands for. The latter are ::ffff:0:0/96 and 64:ff9b::/96, by which clients with
// IPv4 reach servers with IPv6 alone over NAT64. Addresses in 64:ff9b::/96 that stand for a private
// one stay as they are: no translator makes them, and somebody on the line could, to be taken for a
// machine that is trusted.
func Addr(a netip.Addr) netip.Addr {
	if !a.Is6() {
		return a
	}
	a = a.Unmap().WithZone("")
	if !nat64.Contains(a) {
		return a
	}
	b := a.As16()
	v4 := netip.AddrFrom4([4]byte(b[12:]))
	for _, p := range local {
		if p.Contains(v4) {
			return a
		}
	}
	return v4
}

// Network returns what clients are bounded by: Addr, or of an IPv6 address the first
// one of its /64, which one client can have all of.
func Network(a netip.Addr) netip.Addr {
	if a = Addr(a); a.Is6() {
		return netip.PrefixFrom(a, 64).Masked().Addr()
	}
	return a
}

// Prefix returns the block of addresses that Addr makes of those in p. It is an error
// if these are no single block.
func Prefix(p netip.Prefix) (netip.Prefix, error) {
	switch a := p.Addr(); {
	case a.Is4In6() && p.Bits() < 96:
		return p, fmt.Errorf("%v holds more than the IPv4-mapped addresses, which are taken as IPv4: write 0.0.0.0/0",
			p)
	case a.Is4In6():
		return netip.PrefixFrom(a.Unmap(), p.Bits()-96).Masked(), nil
	case p.Bits() >= nat64.Bits() && nat64.Contains(a):
		b := a.As16()
		v4 := netip.PrefixFrom(netip.AddrFrom4([4]byte(b[12:])), p.Bits()-96).Masked()
		for _, l := range local {
			if l.Bits() <= v4.Bits() && l.Contains(v4.Addr()) {
				return p.Masked(), nil // these stay as they are
			}
			if v4.Overlaps(l) {
				return p, fmt.Errorf(
					"%v: clients behind NAT64 are known by their IPv4 addresses, and this holds private ones besides, which are not: write the IPv4 networks", p)
			}
		}
		return v4, nil
	}
	return p.Masked(), nil
}

// StandsForIPv4 reports whether a block holds addresses of clients behind NAT64, where many clients
// share each /64.
func StandsForIPv4(p netip.Prefix) bool { return p.Overlaps(nat64) }
