package upstream

import (
	"bytes"
	"net/http"
	"net/textproto"
	"strings"
)

// maxFields is how many fields a plain header has at most.
const maxFields = 64

// field is where a field of a header stands in the read buffer.
type field struct{ name, nameEnd, value, valueEnd uint16 }

// scanHead finds the fields of a complete header in buf, which is at most readBuffer long: its
// text is buf[start:end], to which the places of the fields relate. It returns status 0 for a
// header that is incomplete, invalid or unusual.
func scanHead(buf []byte, room *[maxFields]field) (status int, fields []field, start, end int) {
	const line = "HTTP/1.1 200 "
	if len(buf) < len(line) || len(buf) > readBuffer || string(buf[:9]) != line[:9] || buf[12] != ' ' {
		return 0, nil, 0, 0
	}
	for _, c := range buf[9:12] {
		if c < '0' || c > '9' {
			return 0, nil, 0, 0
		}
		status = 10*status + int(c-'0')
	}
	start = bytes.IndexByte(buf, '\n') + 1
	if start == 0 {
		return 0, nil, 0, 0
	}
	text := buf[start:]
	n, at := 0, 0
	for {
		size := bytes.IndexByte(text[at:], '\n')
		if size < 0 {
			return 0, nil, 0, 0
		}
		next := at + size + 1
		stop := next - 1
		if stop > at && text[stop-1] == '\r' {
			stop--
		}
		if stop == at {
			return status, room[:n], start, start + next
		}
		if n == maxFields {
			return 0, nil, 0, 0
		}
		name := at
		for at < stop && tokenByte[text[at]] {
			at++
		}
		if at == name || at == stop || text[at] != ':' {
			return 0, nil, 0, 0
		}
		f := field{name: uint16(name), nameEnd: uint16(at)}
		for at++; at < stop && (text[at] == ' ' || text[at] == '\t'); at++ {
		}
		for stop > at && (text[stop-1] == ' ' || text[stop-1] == '\t') {
			stop--
		}
		f.value, f.valueEnd = uint16(at), uint16(stop)
		for _, c := range text[at:stop] {
			if c < ' ' && c != '\t' || c == 0x7f {
				return 0, nil, 0, 0
			}
		}
		room[n] = f
		n++
		at = next
	}
}

// tokenByte says which bytes may stand in the name of a field (RFC 9110 5.6.2).
var tokenByte = func() (table [256]bool) {
	for _, c := range []byte("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		table[c] = true
	}
	return table
}()

// validName reports whether s is the name of a field.
func validName(s string) bool {
	for i := range len(s) {
		if !tokenByte[s[i]] {
			return false
		}
	}
	return s != ""
}

// visible reports whether s holds neither spaces nor control characters, so that it stays one word
// of a line.
func visible(s string) bool {
	for i := range len(s) {
		if c := s[i]; c <= ' ' || c == 0x7f {
			return false
		}
	}
	return true
}

// validValue reports whether s may be the value of a field: no line end, and no other control
// character but a tab.
func validValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// removeHopByHop removes the fields that are meant for the connection they came by (RFC 9110
// 7.6.1).
func removeHopByHop(h http.Header) {
	for _, line := range h["Connection"] {
		for name := range strings.SplitSeq(line, ",") {
			if name = textproto.TrimString(name); name != "" {
				h.Del(name)
			}
		}
	}
	for _, name := range []string{"Connection", "Proxy-Connection", "Keep-Alive", "Proxy-Authenticate",
		"Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade"} {
		delete(h, name)
	}
}

// mayTellLength reports whether a header that begins with buf has a Content-Length, as far as can
// be seen: if buf does not hold all of it, it may.
func mayTellLength(buf []byte) bool {
	end := bytes.Index(buf, []byte("\n\r\n"))
	if bare := bytes.Index(buf, []byte("\n\n")); bare >= 0 && (end < 0 || bare < end) {
		end = bare
	}
	return end < 0 || bytes.Contains(bytes.ToLower(buf[:end]), []byte("\ncontent-length"))
}
