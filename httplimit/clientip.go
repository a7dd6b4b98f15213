package httplimit

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
)

// ClientIP finds the address of the client of a request. The zero value believes no header: the
// client is the peer of the connection. Safe for concurrent use.
type ClientIP struct {
	// Trusted are the proxies whose X-Forwarded-For is believed; none by default.
	Trusted []netip.Prefix
	// TrustUnix believes X-Forwarded-For also of peers that have no address: those of a unix
	// socket.
	TrustUnix bool
}

// ParseTrusted reads a list of trusted proxies: prefixes such as 10.0.0.0/8, or single addresses.
func ParseTrusted(list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range list {
		s = strings.TrimSpace(s)
		p, err := netip.ParsePrefix(s)
		if err != nil {
			a, aerr := netip.ParseAddr(s)
			if aerr != nil || a.Zone() != "" {
				return nil, fmt.Errorf("%q is neither an address prefix such as 10.0.0.0/8 nor an address such as 192.0.2.1", s)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		out = append(out, unmapPrefix(p).Masked())
	}
	return out, nil
}

// Of returns the client's address: the peer's, or the one that trusted proxies report, read from
// the right of X-Forwarded-For. It is the zero Addr if the peer is no address (a unix socket) and
// is not trusted, or says nothing that is one.
//
// All lines of X-Forwarded-For are read as one list. From the right, each address that is itself a
// trusted proxy's gives way to the one before it; the first that is not is the client, and if all
// are, the left-most is. An element that is no address ends the walk at the last good one.
// Addresses may carry a port, brackets and a zone, which are dropped; IPv4-mapped IPv6 addresses
// are unmapped.
func (c ClientIP) Of(r *http.Request) netip.Addr {
	addr, _ := c.find(r)
	return addr
}

// TrustedPeer reports whether the peer of the connection itself is a trusted proxy.
func (c ClientIP) TrustedPeer(r *http.Request) bool {
	if len(c.Trusted) == 0 && !c.TrustUnix {
		return false
	}
	addr, _, ok := parseNode(r.RemoteAddr)
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
	addr, text, isAddress := parseNode(r.RemoteAddr)
	lines := r.Header["X-Forwarded-For"]
	for i := len(lines) - 1; i >= 0; i-- {
		for line, more := lines[i], true; more; {
			if !c.trustsPeer(addr, isAddress) {
				return addr, text
			}
			element := line
			var comma int
			if comma = strings.LastIndexByte(line, ','); comma >= 0 {
				line, element = line[:comma], line[comma+1:]
			}
			more = comma >= 0
			a, t, ok := parseNode(strings.Trim(element, " \t"))
			if !ok {
				return addr, text
			}
			addr, text, isAddress = a, t, true
		}
	}
	return addr, text
}

// text returns the address of Of as text in its canonical form (RFC 5952), "" if there is none. It
// allocates only if the form in which the address came was another.
func (c ClientIP) text(r *http.Request) string {
	if len(c.Trusted) == 0 || len(r.Header["X-Forwarded-For"]) == 0 {
		if text := plainIPv4(r.RemoteAddr); text != "" {
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
		if unmapPrefix(p).Contains(a) {
			return true
		}
	}
	return false
}

// unmapPrefix turns ::ffff:10.0.0.0/104 into 10.0.0.0/8, since addresses are unmapped before they
// are compared.
func unmapPrefix(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

// parseNode reads v4, v4:port, v6, [v6] and [v6]:port, with or without a zone. text is the
// address's part of s.
func parseNode(s string) (addr netip.Addr, text string, ok bool) {
	text = s
	if strings.HasPrefix(s, "[") {
		end := strings.IndexByte(s, ']')
		if end < 0 {
			return netip.Addr{}, "", false
		}
		rest := s[end+1:]
		if text = s[1:end]; strings.IndexByte(text, ':') < 0 || rest != "" && (rest[0] != ':' || !isPort(rest[1:])) {
			return netip.Addr{}, "", false
		}
	} else if colon := strings.IndexByte(s, ':'); colon >= 0 && strings.IndexByte(s[colon+1:], ':') < 0 {
		if text = s[:colon]; !isPort(s[colon+1:]) {
			return netip.Addr{}, "", false
		}
	}
	if len(text) > 64 {
		return netip.Addr{}, "", false
	}
	a, err := netip.ParseAddr(text)
	if err != nil {
		return netip.Addr{}, "", false
	}
	return a.WithZone("").Unmap(), text, true
}

// plainIPv4 returns the address of s if s is an IPv4 address in its canonical form, with a port, as
// net/http writes it; else "". It tells in a tenth of the time that it takes to read an address and
// write it again.
func plainIPv4(s string) string {
	numbers, number, digits := 0, 0, 0
	for i := range len(s) {
		switch c := s[i]; {
		case c >= '0' && c <= '9':
			if digits > 0 && number == 0 {
				return "" // a leading zero
			}
			if number = number*10 + int(c-'0'); number > 255 {
				return ""
			}
			digits++
		case digits > 0 && (c == '.' && numbers < 3 || c == ':' && numbers == 3 && isPort(s[i+1:])):
			if c == ':' {
				return s[:i]
			}
			numbers, number, digits = numbers+1, 0, 0
		default:
			return ""
		}
	}
	return ""
}

func isPort(s string) bool {
	if len(s) == 0 || len(s) > 5 {
		return false
	}
	n := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
		n = n*10 + int(s[i]-'0')
	}
	return n <= 65535
}
