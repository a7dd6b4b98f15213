package admin

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-rl/weir/internal/observe/recent"
)

// naming is a key that support has named. It unmasks decisions on that counter only. ?key= may find
// other decisions as well: by any attribute that a rule looked at, or by a part of a key.
type naming struct {
	parts []string
	keys  *keyNames
}

// newNaming reads a key as people write it.
func newNaming(key string, keys *keyNames) *naming { return &naming{partsOf(key, keys.names), keys} }

// decision reports whether a limit that e met counts for the named key.
func (n *naming) decision(e *recent.Entry) bool {
	return slices.ContainsFunc(e.Limits, func(l recent.Limit) bool { return n.key(l.Key) })
}

// key reports whether a counter's key was named: it has parts that identify a client, and each of
// them was named.
func (n *naming) key(text string) bool {
	client := false
	for _, part := range partsOf(text, n.keys.names) {
		switch {
		case n.keys.tellsWhat(part):
		case n.part(part):
			client = true
		default:
			return false
		}
	}
	return client
}

// part reports whether a part of a key was named. A counter's key holds the network of an IPv6
// address. An address in that network names it.
func (n *naming) part(part string) bool {
	if slices.Contains(n.parts, part) {
		return true
	}
	name, v, _ := strings.Cut(part, "=")
	block, err := netip.ParsePrefix(v)
	return err == nil && slices.ContainsFunc(n.parts, func(p string) bool {
		x, v, _ := strings.Cut(p, "=")
		a, err := netip.ParseAddr(v)
		return x == name && err == nil && block.Contains(a)
	})
}

// value reports whether a value was named, so that it need not be masked.
func (n *naming) value(name, v string) bool {
	return n != nil && slices.Contains(n.parts, name+"="+v)
}

// tellsWhat reports whether a part of a key says what was asked for, and not who asked, so that
// many clients share it. Such a part belongs to the target, or has a value that the rules
// themselves name.
func (k *keyNames) tellsWhat(part string) bool {
	name, _, _ := strings.Cut(part, "=")
	return name == "method" || name == "path" || name == "host" || k.values[part]
}
