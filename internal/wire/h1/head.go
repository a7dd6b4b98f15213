package h1

import (
	"bytes"
	"net/http"
	"net/url"
	"strings"

	"github.com/weir-rl/weir/internal/util/chars"
)

// head is the head of a request, as far as it has come in. The zero value is ready. It is stricter
// than RFC 9112, and than net/http: a head that it takes has one reading only.
type head struct {
	next int // where the next line begins
	seen int // up to where it was searched for its end

	method      string
	target      span
	fields      []field
	host        int // its index in fields; -1 for none
	length      int64
	hasLength   bool
	hasPragma   bool
	connection  bool // there is one
	close       bool // the connection ends with the answer
	requestLine bool // it has come in
}

// span is a part of the bytes that a head was read from.
type span struct{ from, to int }

func (s span) of(b []byte) []byte { return b[s.from:s.to] }

// field is a line of a head.
type field struct{ name, value span }

// state is the state of the bytes that have come in.
type state uint8

const (
	partial state = iota // they may become a request that is served here
	whole                // the head is there
	odd                  // they are none
)

// reset makes h ready for the next request.
func (h *head) reset() { *h = head{fields: h.fields[:0], host: -1} }

// read goes on in b, which holds what h has read before and more.
func (h *head) read(b []byte) state {
	for {
		i := bytes.IndexByte(b[h.seen:], '\n')
		if i < 0 {
			h.seen = len(b)
			if h.requestLine {
				return partial
			}
			if method, may := methodOf(b); method == "" && !may {
				return odd
			}
			return partial
		}
		end := h.seen + i
		if end == h.next || b[end-1] != '\r' {
			return odd
		}
		line := span{h.next, end - 1}
		h.next, h.seen = end+1, end+1
		switch {
		case !h.requestLine:
			if !h.request(b, line) {
				return odd
			}
			h.requestLine = true
		case line.from == line.to:
			if h.host < 0 {
				return odd
			}
			return whole
		default:
			if !h.line(b, line) {
				return odd
			}
		}
	}
}

// methods are the methods that are served here, each with the space behind it.
var methods = []string{"GET ", "POST ", "HEAD ", "PUT ", "PATCH ", "DELETE ", "OPTIONS "}

// methodOf returns the method that b begins with; "" if there is none that is served here, or only
// the beginning of one, which then is may.
func methodOf(b []byte) (method string, may bool) {
	for _, m := range methods {
		n := min(len(b), len(m))
		switch {
		case string(b[:n]) != m[:n]:
		case n == len(m):
			return m[:n-1], false
		default:
			return "", true
		}
	}
	return "", false
}

const version = " HTTP/1.1"

// request reads the request line.
func (h *head) request(b []byte, line span) bool {
	s := line.of(b)
	h.method, _ = methodOf(s)
	method := len(h.method) + 1
	if h.method == "" || len(s) <= method+len(version) || string(s[len(s)-len(version):]) != version ||
		s[method] != '/' {
		return false
	}
	h.target = span{line.from + method, line.to - len(version)}
	for _, c := range h.target.of(b) {
		// A request's target has no fragment, and a target that is not ASCII has more than one
		// reading.
		if c <= ' ' || c >= 0x7f || c == '#' {
			return false
		}
	}
	return true
}

// line reads a line with a field.
func (h *head) line(b []byte, line span) bool {
	if len(h.fields) == maxFields {
		return false
	}
	s := line.of(b)
	colon := 0
	for colon < len(s) && token[s[colon]] {
		colon++
	}
	if colon == 0 || colon == len(s) || s[colon] != ':' { // a folded line, too
		return false
	}
	from, to := colon+1, len(s)
	for from < to && (s[from] == ' ' || s[from] == '\t') {
		from++
	}
	for from < to && (s[to-1] == ' ' || s[to-1] == '\t') {
		to--
	}
	value := s[from:to]
	for _, c := range value {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	h.fields = append(h.fields, field{span{line.from, line.from + colon}, span{line.from + from, line.from + to}})
	return h.special(s[:colon], value)
}

// special looks at the fields that say how the request is to be read, or that change the
// connection.
func (h *head) special(name, value []byte) bool {
	is := func(s string) bool { return isFold(name, s) }
	switch len(name) {
	case len("Host"):
		if is("Host") {
			if h.host >= 0 || !validHost(value) {
				return false
			}
			h.host = len(h.fields) - 1
		}
	case len("Expect"): // as long as Pragma
		h.hasPragma = h.hasPragma || is("Pragma")
		return !is("Expect")
	case len("Upgrade"): // as long as Trailer
		return !is("Upgrade") && !is("Trailer")
	case len("Connection"):
		if is("Connection") {
			if h.connection {
				return false
			}
			h.connection = true
			h.close = isFold(value, "close")
			return h.close || isFold(value, "keep-alive")
		}
	case len("Content-Length"): // as long as HTTP2-Settings
		if is("Content-Length") {
			return h.contentLength(value)
		}
		return !is("HTTP2-Settings")
	case len("Transfer-Encoding"):
		return !is("Transfer-Encoding")
	}
	return true
}

// isFold reports whether b is s, which is ASCII, in any case. Letters beyond ASCII that fold to
// one, such as the sign of the Kelvin, are longer.
func isFold(b []byte, s string) bool { return len(b) == len(s) && strings.EqualFold(chars.View(b), s) }

func (h *head) contentLength(value []byte) bool {
	if h.hasLength || len(value) == 0 || len(value) > 18 {
		return false
	}
	h.hasLength = true
	for _, c := range value {
		if c < '0' || c > '9' {
			return false
		}
		h.length = 10*h.length + int64(c-'0')
	}
	return true
}

// validHost reports whether all servers read a Host alike. It may be empty.
func validHost(b []byte) bool {
	for _, c := range b {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '.', c == '-', c == ':', c == '[', c == ']', c == '_':
		default:
			return false
		}
	}
	return true
}

// token are the bytes of a name of a field (RFC 9110).
var token = func() (t [256]bool) {
	for c := range 256 {
		t[c] = chars.IsToken(string([]byte{byte(c)}))
	}
	return t
}()

// fill makes r the request of the head that b begins with. It returns false if net/http has to
// judge its target. values is where the values of the fields are kept, for as long as r is used.
func (h *head) fill(r *http.Request, u *url.URL, values []string, b []byte) ([]string, bool) {
	// One copy holds all strings, so that they may be kept.
	text := make([]byte, h.next)
	copy(text, b)
	for i := range h.fields {
		canonical(h.fields[i].name.of(text))
	}
	all := chars.View(text)
	part := func(s span) string { return all[s.from:s.to] }

	r.Method = h.method
	r.RequestURI = part(h.target)
	if !parseTarget(u, r.RequestURI) {
		return values, false
	}
	r.URL = u
	r.Proto, r.ProtoMajor, r.ProtoMinor = "HTTP/1.1", 1, 1
	for i := range h.fields {
		f := &h.fields[i]
		if i == h.host {
			r.Host = part(f.value)
			continue
		}
		name := part(f.name)
		if more, ok := r.Header[name]; ok {
			r.Header[name] = append(more, part(f.value))
			continue
		}
		values = append(values, part(f.value))
		n := len(values)
		r.Header[name] = values[n-1 : n : n]
	}
	if h.hasPragma { // as net/http does (RFC 9111, 5.4)
		if pragma := r.Header["Pragma"]; len(pragma) > 0 && pragma[0] == "no-cache" &&
			r.Header["Cache-Control"] == nil {
			r.Header["Cache-Control"] = []string{"no-cache"}
		}
	}
	r.ContentLength, r.Close = h.length, h.close
	return values, true
}

// parseTarget is url.ParseRequestURI of an absolute path.
func parseTarget(u *url.URL, s string) bool {
	path, query, found := strings.Cut(s, "?")
	plain := !found || query != "" // an empty one sets ForceQuery
	for i := 0; plain && i < len(path); i++ {
		c := path[i]
		plain = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '/' || c == '-' ||
			c == '.' || c == '_' || c == '~'
	}
	if plain {
		*u = url.URL{Path: path, RawQuery: query}
		return true
	}
	parsed, err := url.ParseRequestURI(s)
	if err != nil {
		return false
	}
	*u = *parsed
	return true
}

// canonical writes the name of a field as net/http does.
func canonical(name []byte) {
	upper := true
	for i, c := range name {
		switch {
		case upper && c >= 'a' && c <= 'z':
			name[i] = c - ('a' - 'A')
		case !upper && c >= 'A' && c <= 'Z':
			name[i] = c + ('a' - 'A')
		}
		upper = c == '-'
	}
}
