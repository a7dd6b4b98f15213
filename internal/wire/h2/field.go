package h2

import (
	"net/http"
	"time"

	"golang.org/x/net/http/httpguts"
)

// staticNames are the names of HPACK's static table (RFC 7541, appendix A) that answers have, as
// net/http spells them, with their indexes there.
var staticNames = map[string]byte{
	"Accept-Ranges": 18, "Access-Control-Allow-Origin": 20, "Age": 21, "Allow": 22, "Cache-Control": 24,
	"Content-Disposition": 25,
	"Content-Encoding":    26, "Content-Language": 27, "Content-Length": 28, "Content-Location": 29, "Content-Range": 30,
	"Content-Type": 31, "Date": 33, "Etag": 34, "Expires": 36, "Last-Modified": 44, "Link": 45, "Location": 46,
	"Retry-After": 53, "Server": 54, "Set-Cookie": 55, "Strict-Transport-Security": 56, "Vary": 59, "Via": 60,
	"Www-Authenticate": 61,
}

// sharedNames are those whose values may go into the client's dynamic table. The first is none.
var sharedNames = [...]string{
	"", "accept-ranges", "access-control-allow-credentials", "access-control-allow-headers",
	"access-control-allow-methods",
	"access-control-allow-origin", "access-control-expose-headers", "allow", "alt-svc", "cache-control",
	"content-encoding",
	"content-language", "content-type", "date", "expires", "permissions-policy", "ratelimit", "ratelimit-limit",
	"ratelimit-policy",
	"ratelimit-remaining", "ratelimit-reset", "referrer-policy", "retry-after", "server", "strict-transport-security",
	"vary", "via",
	"x-content-type-options", "x-frame-options", "x-powered-by", "x-ratelimit-limit", "x-ratelimit-remaining",
	"x-ratelimit-reset",
}

// fieldCodes has the codes of both.
var fieldCodes = func() map[string]fieldCode {
	all := map[string]fieldCode{}
	for name, index := range staticNames {
		all[name] = fieldCode{static: index}
	}
	for i, name := range sharedNames[1:] {
		name = http.CanonicalHeaderKey(name)
		all[name] = fieldCode{static: staticNames[name], shared: byte(i + 1)}
	}
	return all
}()

var (
	codeContentType   = fieldCodes["Content-Type"]
	codeDate          = fieldCodes["Date"]
	codeContentLength = fieldCodes["Content-Length"]
	codeSetCookie     = fieldCodes["Set-Cookie"]
)

// appendLiteral appends a field in any spelling, and leaves the dynamic table as it is; false if
// HTTP/2 does not allow its name.
func appendLiteral(b []byte, code fieldCode, name, value string) ([]byte, bool) {
	if code.static > 0 {
		kind := byte(0)
		if code == codeSetCookie {
			kind = 0x10 // nor may anybody on its way put it into one
		}
		return appendName(b, kind, 4, int(code.static), "", value), true
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
	return appendString(b, value), true
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
