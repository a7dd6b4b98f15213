package rule

import (
	"net/netip"
	"slices"
	"strings"
)

// ExemptKey reports whether the domain exempts every request with a key, as far as the key alone
// shows: an exempt entry for one of its attributes holds. parts are as Window.KeyParts has them.
// All addresses of a block must be exempt; ExemptKey looks at its first and its last one.
func (s *Set) ExemptKey(domain string, parts []string) bool {
	d := s.domain(domain)
	if d == nil || len(d.exempt) == 0 {
		return false
	}
	first, last := make(Map, len(parts)), make(Map, len(parts))
	for _, part := range parts {
		name, value, _ := strings.Cut(part, "=")
		if strings.HasPrefix(value, "sha256:") {
			continue // of a long value only the hash is known
		}
		first[name], last[name] = value, value
		if p, err := netip.ParsePrefix(value); err == nil && kindOf(name) == kindIP {
			first[name], last[name] = p.Masked().Addr().String(), lastAddr(p).String()
		}
	}
	var m Matches
	// One condition must hold for both ends: between two networks there may be other addresses.
	holds := func(c Condition, attributes Map) bool {
		m.begin(d, &Query{Domain: domain, Attributes: attributes})
		defer m.end()
		_, has := attributes[c.Attribute]
		return has && c.match(&m)
	}
	return slices.ContainsFunc(d.exempt, func(c Condition) bool { return holds(c, first) && holds(c, last) })
}

// lastAddr returns the last address of a block.
func lastAddr(p netip.Prefix) netip.Addr {
	if p.Addr().Is4() {
		a := p.Masked().Addr().As4()
		for bit := p.Bits(); bit < 32; bit++ {
			a[bit/8] |= 0x80 >> (bit % 8)
		}
		return netip.AddrFrom4(a)
	}
	a := p.Masked().Addr().As16()
	for bit := p.Bits(); bit < 128; bit++ {
		a[bit/8] |= 0x80 >> (bit % 8)
	}
	return netip.AddrFrom16(a)
}
