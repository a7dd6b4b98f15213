package accesslog

import (
	"bytes"
	"net/netip"

	"github.com/weir-rl/weir/internal/util/chars"
)

// client cuts the port off an address: 192.0.2.1:80, [2001:db8::1]:80. An IPv4 address in the form
// of an IPv6 one is the IPv4 address.
func client(b []byte) []byte {
	i := bytes.LastIndexByte(b, ':')
	if i < 0 {
		return b
	}
	if bytes.HasPrefix(b, mapped4) && bytes.IndexByte(b[len(mapped4):], '.') > 0 {
		if b = b[len(mapped4):]; bytes.IndexByte(b, ':') < 0 {
			return b
		}
		i -= len(mapped4)
	}
	if i <= 0 {
		return b
	}
	if b[0] == '[' {
		if k := bytes.IndexByte(b, ']'); k > 1 {
			return client(b[1:k])
		}
		return b
	}
	if bytes.IndexByte(b, ':') != i || i+1 == len(b) {
		return b // IPv6
	}
	for _, c := range b[i+1:] {
		if c-'0' > 9 {
			return b
		}
	}
	for _, c := range b[:i] {
		if c-'0' > 9 && c != '.' {
			return b
		}
	}
	return b[:i]
}

var mapped4 = []byte("::ffff:")

// withoutPort cuts the port off the name of a host: www.example.com:443.
func withoutPort(b []byte) []byte {
	i := bytes.LastIndexByte(b, ':')
	if i <= 0 || i+1 == len(b) || bytes.IndexByte(b, ':') != i && b[i-1] != ']' {
		return b
	}
	for _, c := range b[i+1:] {
		if c-'0' > 9 {
			return b
		}
	}
	return b[:i]
}

// listOf cuts the first word off b, or a list of words with a comma and a space between them.
func listOf(b []byte) (list, rest []byte) {
	for from := 0; ; {
		i := bytes.IndexByte(b[from:], ' ')
		if i < 0 {
			return b, nil
		}
		if i += from; i == 0 || b[i-1] != ',' {
			return b[:i], b[i+1:]
		}
		from = i + 1
	}
}

// isAddr reports whether b is an address, without a port.
func isAddr(b []byte) bool {
	if len(b) < 2 || len(b) > 64 {
		return false
	}
	_, err := netip.ParseAddr(chars.View(b))
	return err == nil
}

// isList reports whether b is an address, or a list of some.
func isList(b []byte) bool {
	for {
		one, rest, more := bytes.Cut(b, []byte(","))
		if !isAddr(bytes.TrimSpace(one)) {
			return false
		}
		if !more {
			return true
		}
		b = rest
	}
}

// firstOf returns the left-most address of a list, or the left-most element if none is an address.
func firstOf(list []byte) []byte {
	var first []byte
	for rest, more := list, true; more; {
		var one []byte
		one, rest, more = bytes.Cut(rest, []byte(","))
		if one = client(bytes.Trim(one, " \t\"")); isAddr(one) {
			return one
		}
		if first == nil {
			first = one
		}
	}
	return first
}

// isHost reports whether b looks like a host name: labels of letters, digits, dashes and
// underscores, separated by dots, with a letter in the last one. localhost counts, too.
func isHost(b []byte) bool {
	if string(b) == "localhost" {
		return true
	}
	b = bytes.TrimSuffix(b, []byte("."))
	if len(b) > 253 {
		return false
	}
	dots, letter, start := 0, false, true
	for _, c := range b {
		switch {
		case c == '.':
			if start {
				return false
			}
			dots, letter, start = dots+1, false, true
			continue
		case c|0x20 >= 'a' && c|0x20 <= 'z':
			letter = true
		case c-'0' > 9 && c != '-' && c != '_':
			return false
		}
		start = false
	}
	return dots > 0 && letter && !start
}

// isClient reports whether b may be a client: an address, or the name of a host.
func isClient(b []byte) bool { return isAddr(b) || isHost(b) }

// isNoClient reports whether b cannot be a client under any naming scheme, such as numbers: b is a
// target, a method, or a day and its time.
func isNoClient(b []byte) bool {
	if len(b) > 0 && b[0] == '/' || isMethod(string(b)) {
		return true
	}
	var p timeParser
	_, isTime := p.parse(b)
	return isTime && bytes.IndexByte(b, ':') > 0
}

// clients finds the client of each line. As at the doors, this is the peer of the connection, or
// the client that a trusted peer names in X-Forwarded-For.
type clients struct {
	// find returns the client for a peer and the list. The peer is "" if it is trusted and not in
	// the log.
	find    func(peer, list string) netip.Addr
	scratch []byte
	unused  int64 // lines with a list that was not believed
	guessed int64 // lines whose client is the left-most of a list
}

// settle puts the client into the field ip.
func (c *clients) settle(e *Entry) {
	ip, list := -1, -1
	for i := range e.Fields {
		switch e.Fields[i].Name {
		case FieldIP:
			if ip < 0 {
				ip = i
			}
		case FieldForwarded:
			if list < 0 {
				list = i
			}
		}
	}
	var peer, names []byte
	if list >= 0 {
		names = e.Fields[list].Value
	}
	if ip >= 0 {
		if peer = e.Fields[ip].Value; bytes.IndexByte(peer, ',') >= 0 {
			peer, names = nil, peer // the client of a log that names the list itself
		}
	}
	var client []byte
	switch {
	case c.find != nil && (peer != nil || names != nil):
		a := c.find(chars.View(peer), chars.View(names))
		if !a.IsValid() {
			if client = peer; client == nil {
				client = firstOf(names)
			}
			break
		}
		c.scratch = a.AppendTo(c.scratch[:0])
		client = c.scratch
	case peer != nil:
		if names != nil && !bytes.Contains(names, peer) { // else the server has believed it
			c.unused++
		}
		return
	case names != nil:
		if client = firstOf(names); bytes.IndexByte(names, ',') >= 0 {
			c.guessed++
		}
	default:
		return
	}
	switch {
	case ip >= 0:
		e.Fields[ip].Value = client
	case len(client) > 0:
		e.Fields = append(e.Fields, Field{FieldIP, client})
	}
}
