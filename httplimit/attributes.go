package httplimit

import (
	"iter"
	"net/http"
	"net/url"
	"strings"

	"github.com/weir-rl/weir/httplimit/internal/spelling"
	"github.com/weir-rl/weir/rule"
)

// Attributes are the attributes of an HTTP request, as rule.Attributes: method, path (in the
// normal form of rule.NormalPath), host, ip, header.* (names in lower case; several lines joined by
// ", "), query.* (the first value) and the names of an Identity. Everything is looked up when it is
// asked for. The zero value is ready for Reset. Not safe for concurrent use.
type Attributes struct {
	r        *http.Request
	clientIP ClientIP
	identity *Identity

	method, host  string
	path, rawPath string
	query         string // as it came over the wire
	ip            string
	hasPath       bool
	hasIP         bool
	elsewhere     bool            // r is not the request itself: see SetTarget
	unverified    bool            // a token that does not hold has been counted
	known         []identityValue // by the index of Identity.names
	also          []rule.Attributes
	scratch       []byte // of values that are made anew
}

type identityValue struct {
	value     string
	ok, asked bool
}

// Reset makes a the attributes of r. It may be called any number of times; Reset(nil, …) forgets
// the last request.
func (a *Attributes) Reset(r *http.Request, c ClientIP, id *Identity) {
	known := a.known[:0]
	if r != nil && id != nil {
		if cap(known) < len(id.names) {
			known = make([]identityValue, 0, len(id.names))
		}
	}
	known = known[:cap(known)]
	clear(known)
	*a = Attributes{r: r, clientIP: c, identity: id, known: known, scratch: a.scratch[:0]}
	if r != nil {
		a.method, a.host, a.rawPath, a.query = r.Method, withoutRootDot(r.Host), rawPath(r.URL), r.URL.RawQuery
	}
}

// SetTarget makes a the attributes of another request than the one that Reset was given, for a door
// that a proxy asks about it (forward auth): of its method, its host ("" for none) and its uri, a
// path with or without a query. The headers, and who sent them, belong to the request that asks,
// which repeats the client's; its TLS connection is the proxy's, and says nothing about the client.
// To be called right after Reset.
//
// A uri that holds a # is to be refused before: the server behind the proxy, which gets the uri as
// it is, may cut it off there or not. See door.AmbiguousPath.
func (a *Attributes) SetTarget(method, host, uri string) {
	a.method, a.host, a.elsewhere = method, withoutRootDot(host), true
	a.rawPath, a.query, _ = strings.Cut(uri, "?")
	a.hasPath = false
}

// Host returns the host, its port included, as the client gave it, but without the final dot of an
// absolute name: servers answer to shop.example. as to shop.example, so a rule must meet both.
func (a *Attributes) Host() string { return a.host }

// withoutRootDot returns host without the final dot of its name.
func withoutRootDot(host string) string {
	name, port := host, ""
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		name, port = host[:i], host[i:]
	}
	if bare, ok := strings.CutSuffix(name, "."); ok && bare != "" {
		return bare + port
	}
	return host
}

// Path returns the path in its normal form.
func (a *Attributes) Path() string {
	if !a.hasPath {
		a.path, a.hasPath = rule.NormalPath(a.rawPath), true
	}
	return a.path
}

// rawPath returns the path of u as it came over the wire. (URL.EscapedPath would write a path with
// an unusual character anew, and a %2F in it as a slash.)
func rawPath(u *url.URL) string {
	if u.RawPath != "" {
		if p, err := url.PathUnescape(u.RawPath); err == nil && p == u.Path {
			return u.RawPath
		}
	}
	if u.Path == "" {
		return "/"
	}
	return u.EscapedPath()
}

// Attribute implements rule.Attributes.
func (a *Attributes) Attribute(name string) (string, bool) {
	switch name {
	case "path":
		return a.Path(), true
	case "method":
		return a.method, true
	case "host":
		return a.host, a.host != ""
	case "ip":
		if !a.hasIP {
			a.ip, a.hasIP = a.clientIP.text(a.r), true
		}
		return a.ip, a.ip != ""
	}
	if i := a.identity.index(name); i >= 0 {
		return a.identityValue(i)
	}
	if rest, ok := strings.CutPrefix(name, "header."); ok {
		return a.header(rest)
	}
	if rest, ok := strings.CutPrefix(name, "query."); ok {
		return spelling.QueryValue(a.query, rest)
	}
	return "", false
}

func (a *Attributes) identityValue(i int) (string, bool) {
	v := &a.known[i]
	if v.asked {
		return v.value, v.ok
	}
	v.asked = true
	switch s := &a.identity.sources[i]; {
	case a.elsewhere && s.kind == fromTLS: // a certificate would be the proxy's
	case a.elsewhere && s.kind == fromHeader && s.arg == "Host":
		v.value, v.ok = a.host, a.host != ""
	default:
		v.value, a.scratch = a.identity.read(a.r, a.query, i, a.scratch, &a.unverified)
		v.ok = v.value != ""
	}
	return v.value, v.ok
}

// header looks a header up by its lower-case name, without allocating.
func (a *Attributes) header(name string) (string, bool) {
	var b [64]byte
	switch {
	case name == "host": // HTTP/2 may carry a Host line beside :authority, which says nothing
		return a.host, a.host != ""
	case len(name) > len(b):
		return joined(a.r.Header[http.CanonicalHeaderKey(name)])
	}
	upper := true
	for i := range len(name) {
		c := name[i]
		switch {
		case c >= 'A' && c <= 'Z':
			return "", false // names are in lower case
		case upper && c >= 'a' && c <= 'z':
			c -= 'a' - 'A'
		}
		upper = c == '-'
		b[i] = c
	}
	return joined(a.r.Header[string(b[:len(name)])])
}

// All implements rule.Attributes.
func (a *Attributes) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, name := range [...]string{"method", "path", "host", "ip"} {
			if v, ok := a.Attribute(name); ok && !yield(name, v) {
				return
			}
		}
		if a.identity != nil {
			for i, name := range a.identity.names {
				v, ok := a.identityValue(i)
				if a.identity.sources[i].inScratch() {
					v = strings.Clone(v) // who asks for all of them may keep them
				}
				if ok && !yield(name, v) {
					return
				}
			}
		}
		for key, lines := range a.r.Header {
			if v, ok := joined(lines); ok && key != "Host" && !yield("header."+strings.ToLower(key), v) {
				return
			}
		}
		if a.host != "" && !yield("header.host", a.host) {
			return
		}
		seen := map[string]bool{}
		for query := a.query; query != ""; {
			var pair string
			pair, query, _ = strings.Cut(query, "&")
			key, value, _ := strings.Cut(pair, "=")
			if key = spelling.UnescapeQuery(key); pair == "" || seen[key] {
				continue
			}
			seen[key] = true
			if !yield("query."+key, spelling.UnescapeQuery(value)) {
				return
			}
		}
	}
}
