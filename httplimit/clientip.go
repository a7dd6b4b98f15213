package httplimit

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"github.com/weir-rl/weir/internal/util/clientip"
)

// The fields of a request that list those whom it has passed through.
const (
	headerForwardedFor = "X-Forwarded-For"
	headerForwarded    = "Forwarded" // RFC 7239
)

// ClientIP finds the address of the client of a request. The zero value believes no header: the
// client is the peer of the connection. Safe for concurrent use.
type ClientIP struct {
	// Trusted are the proxies whose word for the client is believed; none by default.
	Trusted []netip.Prefix
	// TrustUnix believes also peers without an address, as on a unix socket.
	TrustUnix bool
	// Header is the field in which they name the client: X-Forwarded-For, which "" is, or Forwarded
	// (RFC 7239), to both of which each proxy appends its peer; or another one that holds a single
	// address, such as CF-Connecting-IP or X-Real-IP. No other is looked at.
	Header string
	// Hops is how many proxies there are in front. The client is then the one that the outermost of
	// them has named: so many from the right of the list. Of a shorter list it is the left-most. A
	// request that comes round the outermost one chooses its address itself. 0 reads the list by
	// Trusted instead.
	Hops int
}

// Check returns an error that describes a fault of c.
func (c ClientIP) Check() error {
	switch {
	case !isToken(c.Header):
		return fmt.Errorf("%q is no name of a header field", c.Header)
	case c.Hops < 0:
		return fmt.Errorf("%d hops; there are 0 or more", c.Hops)
	case c.Hops > 0 && !c.lists():
		return fmt.Errorf("hops count the entries of a list, and %s holds one address", c.Header)
	case (c.Hops > 0 || c.Header != "" && c.Header != headerForwardedFor) && len(c.Trusted) == 0 && !c.TrustUnix:
		return errors.New("no proxy is trusted, so that no header is believed")
	}
	return nil
}

// Remark returns a doubt about c; "" if there is none. If all addresses of a private network are
// trusted, and a list is read by them, a client with such an address is taken for one more proxy,
// so that the address it sent itself counts.
func (c ClientIP) Remark() string {
	if c.Hops > 0 || !c.lists() {
		return ""
	}
	for _, block := range blocks["private"] {
		private := netip.MustParsePrefix(block)
		for _, p := range c.Trusted {
			if p.Bits() <= private.Bits() && p.Contains(private.Addr()) {
				return fmt.Sprintf(
					"all of %v is trusted, so that a client which has such an address itself can name any other one; "+
						"list the addresses of the proxies, or say how many there are (hops)", private)
			}
		}
	}
	return ""
}

// isToken reports whether s may be the name of a field, or is empty.
func isToken(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c >= 0x7f || strings.IndexByte("\"(),/:;<=>?@[\\]{}", c) >= 0 {
			return false
		}
	}
	return true
}

// The names of blocks of addresses.
var blocks = map[string][]string{
	"loopback": {"127.0.0.0/8", "::1/128"},
	"private":  {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"},
}

// ParseTrusted reads a list of trusted proxies: prefixes such as 10.0.0.0/8, single addresses, and
// the names loopback (127.0.0.0/8, ::1) and private (10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16,
// fc00::/7).
func ParseTrusted(list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range list {
		s = strings.TrimSpace(s)
		if named := blocks[s]; named != nil {
			for _, text := range named {
				out = append(out, netip.MustParsePrefix(text))
			}
			continue
		}
		p, err := netip.ParsePrefix(s)
		if err != nil {
			a, aerr := netip.ParseAddr(s)
			if aerr != nil || a.Zone() != "" {
				return nil, fmt.Errorf(
					"%q is neither an address prefix such as 10.0.0.0/8, nor an address such as 192.0.2.1, nor private or loopback", s)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		if p, err = clientip.Prefix(p); err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// Of returns the client's address: the peer's, or the one that a trusted peer reports. It is the
// zero Addr if the peer is no address (a unix socket) and is not trusted, or says nothing that is
// one.
//
// All lines of a list are read as one, from the right: each address that is itself a trusted
// proxy's gives way to the one before it; the first that is not is the client, and if all are, the
// left-most is. An element that is no address ends the walk at the last good one. Of a field that
// holds a single address the client is the peer if it is missing, is there twice, or is no address.
// Addresses may carry a port, brackets and a zone, which are dropped; what stands for an IPv4
// address is taken as that (clientip.Addr).
func (c ClientIP) Of(r *http.Request) netip.Addr {
	addr, _ := c.find(r)
	return addr
}

// Told reports whether r has the field in which the client is named.
func (c ClientIP) Told(r *http.Request) bool { return len(r.Header[c.Field()]) > 0 }

// Field is the name of the field in which the client is named, in its canonical form.
func (c ClientIP) Field() string {
	if c.Header == "" {
		return headerForwardedFor
	}
	return http.CanonicalHeaderKey(c.Header)
}

// lists reports whether the field is a list.
func (c ClientIP) lists() bool {
	field := c.Field()
	return field == headerForwardedFor || field == headerForwarded
}

// Chain returns the lines of X-Forwarded-For that are believed of a trusted peer: the peer's own
// lines, or where another field names the client, that address. The peer itself is not among them.
func (c ClientIP) Chain(r *http.Request) []string {
	if c.Field() == headerForwardedFor {
		return r.Header[headerForwardedFor]
	}
	peer, _, _ := clientip.ParseNode(r.RemoteAddr)
	if addr, _ := c.find(r); addr.IsValid() && addr != peer {
		return []string{addr.String()}
	}
	return nil
}

// Single returns the name of the field in which the client is named if that is no list, and else
// "". Programs that pass requests on remove this field from strangers' requests, who could name
// anybody in it.
func (c ClientIP) Single() string {
	if c.lists() {
		return ""
	}
	return c.Field()
}

// TrustedPeer reports whether the peer of the connection itself is a trusted proxy.
func (c ClientIP) TrustedPeer(r *http.Request) bool {
	if len(c.Trusted) == 0 && !c.TrustUnix {
		return false
	}
	addr, _, ok := clientip.ParseNode(r.RemoteAddr)
	return c.trustsPeer(addr, ok)
}

// trustsPeer is trusts for the peer of a connection, which has no address on a unix socket.
func (c ClientIP) trustsPeer(a netip.Addr, isAddress bool) bool {
	if !isAddress {
		return c.TrustUnix
	}
	return c.trusts(a)
}

// find also returns the text that the address was read from.
func (c ClientIP) find(r *http.Request) (netip.Addr, string) {
	addr, text, isAddress := clientip.ParseNode(r.RemoteAddr)
	field := c.Field()
	lines := r.Header[field]
	if len(lines) == 0 || !c.trustsPeer(addr, isAddress) {
		return addr, text
	}
	if field != headerForwardedFor && field != headerForwarded {
		if a, t, ok := clientip.ParseNode(strings.Trim(lines[0], " \t")); ok && len(lines) == 1 {
			return a, t
		}
		return addr, text
	}
	list := clientip.Nodes{Lines: lines, Forwarded: field == headerForwarded}
	for hop := 1; ; hop++ {
		node, ok := list.Last()
		if !ok {
			return addr, text
		}
		a, t, ok := clientip.ParseNode(node)
		if !ok {
			return addr, text
		}
		addr, text = a, t
		if c.Hops > 0 && hop == c.Hops || c.Hops == 0 && !c.trusts(a) {
			return addr, text
		}
	}
}

// text returns the address of Of as text in its canonical form (RFC 5952), "" if there is none. It
// allocates only if the form in which the address came was another.
func (c ClientIP) text(r *http.Request) string {
	if len(c.Trusted) == 0 || !c.Told(r) {
		if text := clientip.PlainIPv4(r.RemoteAddr); text != "" {
			return text
		}
	}
	addr, text := c.find(r)
	if !addr.IsValid() {
		return ""
	}
	var b [64]byte
	if string(addr.AppendTo(b[:0])) == text {
		return text
	}
	return addr.String()
}

func (c ClientIP) trusts(a netip.Addr) bool {
	for _, p := range c.Trusted {
		if p.Addr().Is6() { // as the addresses of clients are taken
			p, _ = clientip.Prefix(p)
		}
		if p.Contains(a) {
			return true
		}
	}
	return false
}
