package rule

import (
	"fmt"
	"net/netip"

	"github.com/weir-rl/weir/internal/util/clientip"
)

// A network is a block of addresses that is larger than what a rule counts together. Requests never
// have the key of one: it is what the key of each of its addresses is cut to, with the number of
// its bits behind it.

// The largest networks, in bits: a shorter prefix is more likely a slip than meant.
const (
	leastBits4 = 16
	leastBits6 = 32
)

// AppendNetwork makes the key of a network of addresses, given as the parts of a key (AppendKey):
// one part such as 192.0.2.0/24 or ip=2001:db8::/48. network is the one that is meant, with its
// attribute. ok is false if parts name no network, but a key that requests can have, or none at
// all. The error says why the network does not fit: it is too large, or the key of w's rule is not
// the address alone.
func (w *Window) AppendNetwork(dst []byte, parts []string) (key []byte, network string, ok bool, err error) {
	r := w.Rule.compiled
	if r == nil || r.entries || r.byPath() {
		return dst, "", false, nil
	}
	if len(r.per) > 1 && len(parts) == 1 {
		parts = r.cutParts(parts[0], len(r.per))
	}
	for i, part := range parts {
		alt, p, is := r.networkIn(i, part)
		switch {
		case !is:
			continue
		case len(r.per) != 1:
			return dst, "", false, fmt.Errorf(
				"%s is a network: one can be banned under a limit whose key is the address alone (per: [ip])", shorten(part))
		}
		if p, err = clientip.Prefix(p); err != nil {
			return dst, "", false, err
		}
		if full := r.fullBits(p); p.Bits() >= full {
			return dst, "", false, nil
		}
		if p.Addr().Is4() && p.Bits() < leastBits4 || !p.Addr().Is4() && p.Bits() < leastBits6 {
			return dst, "", false, fmt.Errorf("%s has too many addresses: at most a /%d of IPv4 or a /%d of IPv6 can be banned",
				shorten(part), leastBits4, leastBits6)
		}
		if p.Addr().Is6() && (p.Overlaps(mapped4) || p.Overlaps(nat64)) {
			return dst, "", false, fmt.Errorf("%s holds IPv4 addresses, which are counted as such: ban their IPv4 networks",
				shorten(part))
		}
		dst = appendAddr(dst, alt, p.Addr(), int(r.ipv6Prefix))
		return append(dst, byte(p.Bits())), r.per[0][alt].name + "=" + p.String(), true, nil
	}
	return dst, "", false, nil
}

// Blocks of IPv6 whose addresses stand for IPv4 ones (RFC 4291, 2.5.5.2; RFC 6052, 2.1).
var (
	mapped4 = netip.MustParsePrefix("::ffff:0:0/96")
	nat64   = netip.MustParsePrefix("64:ff9b::/96")
)

// networkIn returns the block of addresses that a part of a key names, and its place among the
// alternatives.
func (r *matchRule) networkIn(i int, part string) (alt int, p netip.Prefix, ok bool) {
	if i >= len(r.per) {
		return 0, p, false
	}
	name, value, ok := cutEntry(r, i, part)
	if !ok {
		return 0, p, false
	}
	p, err := netip.ParsePrefix(value)
	if err != nil || p.Bits() == r.fullBits(p) {
		return 0, p, false // no network, or what is counted together
	}
	for alt, a := range r.per[i] {
		if a.name == name && a.kind == kindIP {
			return alt, p, true
		}
	}
	return 0, p, false
}

// fullBits is how many bits tell apart the addresses that r counts together.
func (r *matchRule) fullBits(p netip.Prefix) int {
	if p.Addr().Is4() {
		return 32
	}
	return int(r.ipv6Prefix)
}

// NetworkOfIPv6 reports whether the key of a network (AppendNetwork) is of IPv6.
func NetworkOfIPv6(key []byte) bool { return len(key) > 0 && key[0]&3 == tagIPv6 }

// AppendNetworkOf makes the key of the network with so many bits that holds the address which is
// all of key, as Match made it. ok is false if it is an address of the other family, or none. The
// key must be of a limit whose key is one part. It allocates nothing if dst has room.
func AppendNetworkOf(dst, key []byte, bits int, v6 bool) (network []byte, ok bool) {
	if len(key) < 5 || bits <= 0 {
		return dst, false
	}
	switch tag := key[0] & 3; {
	case v6 && tag != tagIPv6, !v6 && (tag != tagIPv4 || len(key) != 5):
		return dst, false
	case bits > 8*(len(key)-1):
		return dst, false
	}
	begin := len(dst)
	dst = append(dst, key...)
	address := dst[begin+1:]
	for i := range address {
		switch left := bits - 8*i; {
		case left <= 0:
			address[i] = 0
		case left < 8:
			address[i] &= 0xff << (8 - left)
		}
	}
	return append(dst, byte(bits)), true
}
