package httpfield

import (
	"slices"
	"strings"
)

// HeaderField is a field of a header that has one value.
type HeaderField struct {
	Name      string // as in rules: in lower case
	Canonical string // as http.Header has it
	// Dashed says that the name has a character that is neither a letter nor a digit. Programs
	// behind CGI, WSGI and FastCGI know a field by its name with an underscore for each of these
	// (RFC 3875, 4.1.18, and what came of it), so that other names may be taken for this one. Odd
	// says that one of them is no dash.
	Dashed, Odd bool
}

// NewHeaderField returns the field of a name in any case; ok is false if it may come in several
// lines.
func NewHeaderField(name string) (f HeaderField, ok bool) {
	f.Name = strings.ToLower(name)
	f.Canonical = canonicalField(f.Name)
	for i := range len(f.Name) {
		if c := f.Name[i]; !isAlphanumeric[c] {
			f.Dashed, f.Odd = true, f.Odd || c != '-'
		}
	}
	return f, !ListField(f.Name)
}

var isAlphanumeric = tableOf(letters)

// canonicalField returns the name of a field as http.CanonicalHeaderKey does. This package does not
// import net/http.
func canonicalField(name string) string {
	b, upper := []byte(name), true
	for i, c := range b {
		if upper && 'a' <= c && c <= 'z' {
			b[i] = c - 'a' + 'A'
		}
		upper = c == '-'
	}
	return string(b)
}

// ListField reports whether a field, by its name in lower case, may come in several lines, which
// mean the same as one with commas between them (RFC 9110 5.3): its definition says that it is a
// list. All others have one value.
func ListField(name string) bool {
	_, found := slices.BinarySearch(listFields[:], name)
	return found
}

// listFields are in order. The X-Forwarded fields are lists by use: each proxy adds to them.
var listFields = [...]string{
	"accept", "accept-ch", "accept-charset", "accept-encoding", "accept-language", "accept-patch",
	"accept-post", "accept-ranges", "access-control-request-headers", "allow", "alt-svc",
	"baggage", "cache-control", "cdn-loop", "client-cert-chain", "connection", "content-encoding", "content-language", "expect",
	"forwarded", "if-match", "if-none-match", "link", "pragma", "prefer", "priority",
	"sec-ch-ua", "sec-ch-ua-form-factors", "sec-ch-ua-full-version-list", "sec-websocket-extensions", "sec-websocket-protocol", "signature", "signature-input", "te",
	"tracestate", "trailer", "transfer-encoding", "upgrade", "vary", "via", "want-content-digest",
	"want-repr-digest", "warning", "x-forwarded-for",
}

// secretNames are parts of the names of attributes that hold what lets somebody in.
var secretNames = [...]string{
	"authorization", "cookie", "token", "secret", "passw", "pwd", "api-key", "api_key", "apikey", "access-key", "access_key", "session", "credential",
	"signature", "jwt", "x-auth",
}

// SecretAttribute reports whether the name of an attribute shows that its values are secret, so
// that they should not be shown or kept: header.authorization, cookie.sid, header.x-api-key,
// query.access_token and their like. It is for logs and pages that show requests.
func SecretAttribute(name string) bool {
	lower := strings.ToLower(name)
	return slices.ContainsFunc(secretNames[:], func(part string) bool { return strings.Contains(lower, part) })
}

// HiddenAttribute reports whether the values of an attribute are not to be shown or kept: hide
// names it, in any case of letters, or SecretAttribute holds.
func HiddenAttribute(hide []string, name string) bool {
	return SecretAttribute(name) || slices.ContainsFunc(hide, func(h string) bool { return strings.EqualFold(h, name) })
}

// RequestAttribute reports whether name is an attribute of every HTTP request, which the proxy, the
// middleware and forward auth know without any identity settings.
func RequestAttribute(name string) bool {
	switch name {
	case "method", "path", "host", "ip":
		return true
	}
	return strings.HasPrefix(name, "header.") || strings.HasPrefix(name, "query.")
}
