package h2

import (
	"net/http"
	"time"

	"golang.org/x/net/http/httpguts"
)

// Indexes of names in the static table of HPACK (RFC 7541, appendix A).
const (
	staticContentLength = 28
	staticContentType   = 31
	staticDate          = 33
)

// staticNames are the names of that table that answers have, as net/http spells them.
var staticNames = map[string]byte{
	"Accept-Ranges": 18, "Access-Control-Allow-Origin": 20, "Age": 21, "Allow": 22, "Cache-Control": 24, "Content-Disposition": 25,
	"Content-Encoding": 26, "Content-Language": 27, "Content-Length": staticContentLength, "Content-Location": 29, "Content-Range": 30,
	"Content-Type": staticContentType, "Date": staticDate, "Etag": 34, "Expires": 36, "Last-Modified": 44, "Link": 45, "Location": 46,
	"Retry-After": 53, "Server": 54, "Set-Cookie": 55, "Strict-Transport-Security": 56, "Vary": 59, "Via": 60, "Www-Authenticate": 61,
}

// appendKnown appends a field whose name is in the static table, and leaves the dynamic table as it
// is.
func appendKnown(b []byte, index byte, value string) []byte {
	b = appendInt(append(b, 0), 4, int(index))
	b = appendInt(append(b, 0), 7, len(value))
	return append(b, value...)
}

// appendAnyField is appendField for a name in any spelling; false if HTTP/2 does not allow it.
func appendAnyField(b []byte, name, value string) ([]byte, bool) {
	if index := staticNames[name]; index > 0 {
		return appendKnown(b, index, value), true
	}
	if name == "" {
		return b, false
	}
	start := len(b)
	b = appendInt(append(b, 0, 0), 7, len(name))
	for i := range len(name) {
		char := name[i]
		if !httpguts.IsTokenRune(rune(char)) {
			return b[:start], false
		}
		if char >= 'A' && char <= 'Z' {
			char += 'a' - 'A'
		}
		b = append(b, char)
	}
	b = appendInt(append(b, 0), 7, len(value))
	return append(b, value...), true
}

// dateText is the field Date of a second.
type dateText struct {
	second int64
	text   string
}

// date is the field Date of now. It is written once a second.
func (s *Server) date() string {
	now := time.Now()
	d := s.dated.Load()
	if d == nil || d.second != now.Unix() {
		d = &dateText{now.Unix(), now.UTC().Format(http.TimeFormat)}
		s.dated.Store(d)
	}
	return d.text
}
