package httplimit

import (
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/weir-rl/weir/internal/door"
)

// Identity maps attributes to their sources in a request ("user": "header:X-User-Id"). Make one
// with ParseIdentity. The zero value, and nil, name no attributes. Safe for concurrent use.
//
// Which sources can be believed:
//
//   - header:NAME and cookie:NAME come from the client. They identify a user only if a proxy in
//     front sets or checks them: a client can invent as many values as it likes.
//   - basic is the user name of HTTP Basic authentication. The password is NOT checked here. Unless
//     the service behind refuses wrong passwords, the name is worth no more than a header; even
//     then a stranger can use up another user's limit.
//   - tls is the subject of a client certificate that the server has verified: its common name or,
//     if it has none, its first subject alternative name (DNS, e-mail, URI, IP, in that order). It
//     needs a client CA; unverified certificates count as absent.
//   - jwt:CLAIM is a claim of a bearer token (RFC 6750) whose signature, exp and nbf have been
//     verified with a key of the JWKS file. A token with another signature algorithm than the
//     key's, or with "none", counts as absent, and so does a claim that is no string, number or
//     boolean.
//
// Of several Authorization headers, and of several cookies of one name, the first counts. An empty
// value counts as absent.
type Identity struct {
	names   []string // sorted
	sources []source // by the same index
	keys    *keySet  // nil without a jwt source
}

type source struct {
	kind sourceKind
	arg  string                     // canonical header name, cookie name or claim
	get  func(*http.Request) string // of fromProgram
}

type sourceKind uint8

const (
	fromHeader sourceKind = iota
	fromCookie
	fromBasic
	fromTLS
	fromJWT
	fromProgram
)

// ParseIdentity checks sources: attribute → header:NAME, cookie:NAME, basic, tls, jwt:CLAIM
// (needs keys, a JWKS file's path). The file is read now, and again when it has changed, looked at
// every two seconds at most; a broken change leaves the old keys in force (see Identity.KeysError).
func ParseIdentity(sources map[string]string, jwks string) (*Identity, error) {
	id := &Identity{}
	var claims []string
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		if err := checkAttributeName(name); err != nil {
			return nil, err
		}
		s, err := parseSource(name, strings.TrimSpace(sources[name]))
		if err != nil {
			return nil, err
		}
		if s.kind == fromJWT {
			if jwks == "" {
				return nil, fmt.Errorf("identity.%s: %s needs keys to verify tokens with; set jwt.jwks to the path of a JWKS file", name, sources[name])
			}
			if !slices.Contains(claims, s.arg) {
				claims = append(claims, s.arg)
			}
		}
		id.names = append(id.names, name)
		id.sources = append(id.sources, s)
	}
	if len(claims) > 0 {
		keys, err := openKeySet(jwks, claims)
		if err != nil {
			return nil, fmt.Errorf("jwt.jwks: %w", err)
		}
		id.keys = keys
	}
	return id, nil
}

// with returns an Identity that also supplies the attributes of the functions. It is id itself if
// there are none.
func (id *Identity) with(more map[string]func(*http.Request) string) (*Identity, error) {
	if len(more) == 0 {
		return id, nil
	}
	out := &Identity{}
	if id != nil {
		out = &Identity{names: slices.Clone(id.names), sources: slices.Clone(id.sources), keys: id.keys}
	}
	for _, name := range slices.Sorted(maps.Keys(more)) {
		switch err := checkAttributeName(name); {
		case err != nil:
			return nil, err
		case more[name] == nil:
			return nil, fmt.Errorf("attributes: the function for %q is nil", name)
		}
		i, found := slices.BinarySearch(out.names, name)
		if found {
			return nil, fmt.Errorf("attributes: %q is in the identity as well; remove one of them", name)
		}
		out.names = slices.Insert(out.names, i, name)
		out.sources = slices.Insert(out.sources, i, source{kind: fromProgram, get: more[name]})
	}
	return out, nil
}

func checkAttributeName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("identity: an attribute without a name; write for example user: \"header:X-User-Id\"")
	case name == "method", name == "path", name == "host", name == "ip", strings.HasPrefix(name, "header."), strings.HasPrefix(name, "query."):
		return fmt.Errorf("identity.%s: every request has this attribute of itself; choose another name, such as user", name)
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '|' || r == '=' }):
		return fmt.Errorf("identity: %q is no name of an attribute; spaces, control characters, | and = are not allowed", name)
	}
	return nil
}

func parseSource(name, s string) (source, error) {
	kind, arg, hasArg := strings.Cut(s, ":")
	switch kind {
	case "header":
		if arg == "" || !door.IsToken(arg) {
			return source{}, fmt.Errorf("identity.%s: %q names no header; write header:NAME, such as header:X-User-Id", name, s)
		}
		return source{kind: fromHeader, arg: textproto.CanonicalMIMEHeaderKey(arg)}, nil
	case "cookie":
		if arg == "" || !door.IsToken(arg) {
			return source{}, fmt.Errorf("identity.%s: %q names no cookie; write cookie:NAME, such as cookie:session", name, s)
		}
		return source{kind: fromCookie, arg: arg}, nil
	case "jwt":
		if arg == "" {
			return source{}, fmt.Errorf("identity.%s: %q names no claim; write jwt:CLAIM, such as jwt:sub", name, s)
		}
		return source{kind: fromJWT, arg: arg}, nil
	case "basic", "tls":
		if hasArg {
			return source{}, fmt.Errorf("identity.%s: %s takes nothing after it; write %s: %s", name, kind, name, kind)
		}
		if kind == "tls" {
			return source{kind: fromTLS}, nil
		}
		return source{kind: fromBasic}, nil
	}
	return source{}, fmt.Errorf("identity.%s: %q is no source; use header:NAME, cookie:NAME, basic, tls or jwt:CLAIM", name, s)
}

// has reports whether the identity supplies an attribute.
func (id *Identity) has(name string) bool {
	return id != nil && slices.Contains(id.names, name)
}

// Names returns the attributes that id supplies, sorted.
func (id *Identity) Names() []string {
	if id == nil {
		return nil
	}
	return slices.Clone(id.names)
}

// Value returns the value of the attribute name in r; ok is false if r has none, or it could not be
// verified, or id does not know the name.
func (id *Identity) Value(r *http.Request, name string) (value string, ok bool) {
	i := id.index(name)
	if i < 0 {
		return "", false
	}
	return id.value(r, i)
}

// KeysError returns why the last change of the JWKS file could not be taken over; nil if the keys
// in force are those of the file.
func (id *Identity) KeysError() error {
	if id == nil || id.keys == nil {
		return nil
	}
	if err := id.keys.failure.Load(); err != nil {
		return *err
	}
	return nil
}

func (id *Identity) index(name string) int {
	if id == nil {
		return -1
	}
	for i, n := range id.names { // a handful
		if n == name {
			return i
		}
	}
	return -1
}

func (id *Identity) value(r *http.Request, i int) (value string, ok bool) {
	s := &id.sources[i]
	switch s.kind {
	case fromHeader:
		value, _ = headerValue(r, s.arg)
	case fromCookie:
		if c, err := r.Cookie(s.arg); err == nil {
			value = c.Value
		}
	case fromBasic:
		value, _, _ = r.BasicAuth()
	case fromTLS:
		value = certificateName(r)
	case fromJWT:
		if token, has := bearer(r); has {
			value = id.keys.claim(token, s.arg)
		}
	case fromProgram:
		value = s.get(r)
	}
	return value, value != ""
}

// headerValue returns the value of the header with the canonical name key; several lines are joined
// as in RFC 9110 5.3.
func headerValue(r *http.Request, key string) (string, bool) {
	if key == "Host" {
		return r.Host, r.Host != ""
	}
	return joined(r.Header[key])
}

// joined makes one value of the lines of a header; ok is false if there are none.
func joined(lines []string) (value string, ok bool) {
	if len(lines) == 1 {
		return lines[0], true
	}
	return strings.Join(lines, ", "), len(lines) > 0
}

func certificateName(r *http.Request) string {
	if r.TLS == nil || len(r.TLS.VerifiedChains) == 0 || len(r.TLS.PeerCertificates) == 0 {
		return ""
	}
	c := r.TLS.PeerCertificates[0]
	switch {
	case c.Subject.CommonName != "":
		return c.Subject.CommonName
	case len(c.DNSNames) > 0:
		return c.DNSNames[0]
	case len(c.EmailAddresses) > 0:
		return c.EmailAddresses[0]
	case len(c.URIs) > 0:
		return c.URIs[0].String()
	case len(c.IPAddresses) > 0:
		return c.IPAddresses[0].String()
	}
	return ""
}

// bearer returns the token of `Authorization: Bearer`. Of several Authorization headers it is the
// first that counts, as for Request.BasicAuth and for handlers that use Header.Get: if such a
// request had no user, it would meet no limit per user.
func bearer(r *http.Request) (string, bool) {
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return "", false
	}
	return strings.TrimSpace(token), true
}
