package accesslog

import "bytes"

// commonScanner scans the common and combined formats of Apache and nginx:
//
//	host ident user [02/Jan/2006:15:04:05 -0700] "METHOD target PROTOCOL" status bytes "referer" "user agent"
//
// Everything up to the status is required. The rest is optional. A third quoted value that is a
// list of addresses is X-Forwarded-For.
type commonScanner struct {
	clocked
	unescaper
	lead style // what comes first: styleVhost, styleForwarded, or nothing
}

func (s *commonScanner) scan(line []byte, e *Entry) bool {
	s.scratch = s.scratch[:0]
	rest := line
	var vhost, forwarded []byte
	switch s.lead {
	case styleVhost:
		if vhost, rest = word(rest); len(rest) == 0 {
			return false
		}
		vhost = withoutPort(vhost)
	case styleForwarded:
		if forwarded, rest = listOf(rest); len(rest) == 0 || rest[0] == '-' {
			return false
		}
	}
	host, rest := listOf(rest)
	if len(host) == 0 || len(rest) == 0 {
		return false
	}
	i := bytes.IndexByte(rest, ' ')
	if i <= 0 {
		return false
	}
	ident, rest := rest[:i], rest[i+1:]
	// The user may hold spaces.
	var user []byte
	for from := 0; ; {
		i = bytes.IndexByte(rest[from:], '[')
		if i < 0 {
			return false
		}
		if i += from; i > 0 && rest[i-1] == ' ' {
			user = rest[:i-1]
			break
		}
		from = i + 1
	}
	rest = rest[i+1:]
	i = bytes.IndexByte(rest, ']')
	if i < 0 || len(rest) < i+3 || rest[i+1] != ' ' || rest[i+2] != '"' {
		return false
	}
	var ok bool
	if e.Time, ok = s.time.parse(rest[:i]); !ok {
		return false
	}
	request, rest, ok := quotedBeforeStatus(rest[i+3:])
	if !ok {
		return false
	}
	e.add(FieldIP, client(host))
	e.add(FieldForwarded, forwarded)
	e.add(FieldHost, vhost)
	e.add(FieldIdent, ident)
	e.add(FieldUser, s.unescape(user))
	e.addRequest(s.unescape(request))

	rest = rest[1:]
	status, rest := word(rest)
	size, rest := word(rest)
	e.add(FieldStatus, status)
	e.add(FieldBytes, size)
	for _, name := range [...]string{FieldReferer, FieldUserAgent, FieldForwarded} {
		if len(rest) == 0 || rest[0] != '"' {
			break
		}
		end := closingQuote(rest[1:])
		if end < 0 {
			break
		}
		value := s.unescape(rest[1 : 1+end])
		if name != FieldForwarded {
			e.add(name, value)
		} else if forwarded == nil && isList(value) {
			e.add(name, value)
		}
		if rest = rest[end+2:]; len(rest) > 0 && rest[0] == ' ' {
			rest = rest[1:]
		}
	}
	return true
}

// quotedBeforeStatus splits `request" 200 …` at the quote that precedes a status, so that a stray
// quote in the request does no harm.
func quotedBeforeStatus(b []byte) (request, rest []byte, ok bool) {
	for from := 0; ; {
		end := closingQuote(b[from:])
		if end < 0 {
			return nil, nil, false
		}
		end += from
		if isStatus(b[end+1:]) {
			return b[:end], b[end+1:], true
		}
		from = end + 1
	}
}

// isStatus reports whether b begins with " 200" or " -", followed by a space or the end.
func isStatus(b []byte) bool {
	if len(b) < 2 || b[0] != ' ' {
		return false
	}
	if b[1] == '-' {
		return len(b) == 2 || b[2] == ' '
	}
	return len(b) >= 4 && b[1]-'0' <= 9 && b[2]-'0' <= 9 && b[3]-'0' <= 9 && (len(b) == 4 || b[4] == ' ')
}

// closingQuote returns the index of the first quote that no backslash escapes, -1 if there is none.
func closingQuote(b []byte) int {
	for i := 0; ; {
		q := bytes.IndexByte(b[i:], '"')
		if q < 0 {
			return -1
		}
		q += i
		slashes := 0
		for q-slashes > 0 && b[q-slashes-1] == '\\' {
			slashes++
		}
		if slashes%2 == 0 {
			return q
		}
		i = q + 1
	}
}

func word(b []byte) (word, rest []byte) {
	i := bytes.IndexByte(b, ' ')
	if i < 0 {
		return b, nil
	}
	return b[:i], b[i+1:]
}

// unescaper resolves escape sequences, in memory of its own.
type unescaper struct {
	scratch []byte // the resolved text of the line
}

// unescape resolves \" \\ \n \r \t \b \f \v and \xhh as Apache and nginx write them.
func (s *unescaper) unescape(b []byte) []byte {
	i := bytes.IndexByte(b, '\\')
	if i < 0 {
		return b
	}
	start := len(s.scratch)
	s.scratch = append(s.scratch, b[:i]...)
	for i < len(b) {
		c := b[i]
		if c != '\\' || i+1 == len(b) {
			s.scratch = append(s.scratch, c)
			i++
			continue
		}
		i += 2
		switch c = b[i-1]; c {
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 't':
			c = '\t'
		case 'b':
			c = '\b'
		case 'f':
			c = '\f'
		case 'v':
			c = '\v'
		case 'x':
			if i+2 <= len(b) && hex(b[i]) >= 0 && hex(b[i+1]) >= 0 {
				c = byte(hex(b[i])<<4 | hex(b[i+1]))
				i += 2
			} else {
				s.scratch = append(s.scratch, '\\')
			}
		case '"', '\\':
		default:
			s.scratch = append(s.scratch, '\\')
		}
		s.scratch = append(s.scratch, c)
	}
	return s.scratch[start:len(s.scratch):len(s.scratch)]
}

func hex(c byte) int {
	switch {
	case c-'0' <= 9:
		return int(c - '0')
	case c-'a' <= 5:
		return int(c-'a') + 10
	case c-'A' <= 5:
		return int(c-'A') + 10
	}
	return -1
}

// addRequest splits a request line and adds its parts. Anything else ("-", a TLS handshake on a
// plain port) adds nothing.
func (e *Entry) addRequest(b []byte) {
	i := bytes.IndexByte(b, ' ')
	if i <= 0 || !isToken(b[:i]) {
		return
	}
	method, target := b[:i], b[i+1:]
	if k := bytes.LastIndexByte(target, ' '); k >= 0 && bytes.HasPrefix(target[k+1:], []byte("HTTP/")) {
		e.add(FieldProtocol, target[k+1:])
		target = target[:k]
	}
	e.add(FieldMethod, method)
	e.addTarget(target)
}

// addTarget adds the path of a request target, and the host of an absolute one.
func (e *Entry) addTarget(b []byte) {
	path, host := splitTarget(b)
	e.add(FieldPath, path)
	if e.Get(FieldHost) == nil {
		e.add(FieldHost, host)
	}
}

// splitTarget reduces an absolute request target (RFC 9112 3.2.2) to its path. For any other target
// host is nil.
func splitTarget(b []byte) (path, host []byte) {
	if len(b) > 0 && b[0] == '/' {
		return b, nil
	}
	i := bytes.Index(b, []byte("://"))
	if i <= 0 || !isToken(b[:i]) {
		return b, nil
	}
	host, path = b[i+3:], []byte("/")
	if k := bytes.IndexAny(host, "/?#"); k >= 0 {
		if host[k] == '/' {
			path = host[k:]
		}
		host = host[:k]
	}
	if k := bytes.LastIndexByte(host, '@'); k >= 0 {
		host = host[k+1:]
	}
	return path, host
}

// isToken reports whether b is a token of RFC 9110 5.6.2.
func isToken(b []byte) bool {
	for _, c := range b {
		if c|0x20 >= 'a' && c|0x20 <= 'z' || c-'0' <= 9 {
			continue
		}
		if bytes.IndexByte([]byte("!#$%&'*+-.^_`|~"), c) < 0 {
			return false
		}
	}
	return len(b) > 0
}
