package httplimit

import (
	"fmt"
	"maps"
	"net/http"
	"net/textproto"
	"slices"
	"strings"

	"github.com/weir-rl/weir/httplimit/internal/jwt"
	"github.com/weir-rl/weir/httplimit/internal/spelling"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/util/chars"
	"github.com/weir-rl/weir/internal/util/httpfield"
	"github.com/weir-rl/weir/rule"
)

// Identity maps attributes to their sources in a request ("user": "header:X-User-Id"). Make one
// with ParseIdentity. The zero value, and nil, name no attributes. Safe for concurrent use.
//
// Which sources can be believed:
//
//   - header:NAME and cookie:NAME come from the client. They identify a user only if a proxy in
//     front sets or checks them: a client can invent as many values as it likes.
//   - bearer is a bearer token (RFC 6750) of any kind. The value is the SHA-256 of the token
//     ("sha256:" and hexadecimal digits), so that nobody reads a token in a store or on a page. The
//     token is NOT checked here: a client can invent as many as it likes, unless the service behind
//     refuses them.
//   - apikey is an API key of any kind: a bearer token, the access key id of a signature of AWS
//     (version 4), or what stands in X-Api-Key, Api-Key, Apikey, X-Goog-Api-Key or the parameter
//     key of the query. The value is a hash, as with bearer, and the same for one key wherever it
//     stands. A request with several different ones is charged under each (see FieldGuard). The key
//     is NOT checked here, as for bearer.
//   - hash:header:NAME and hash:cookie:NAME are hashes of header:NAME and cookie:NAME, where
//     these are credentials.
//   - basic is the user name of HTTP Basic authentication. The password is NOT checked here. Unless
//     the service behind refuses wrong passwords, the name is worth no more than a header; even
//     then a stranger can use up another user's limit.
//   - tls is the subject of a client certificate that the server has verified: its common name or,
//     if it has none, its first subject alternative name (DNS, e-mail, URI, IP, in that order). It
//     needs a client CA; unverified certificates count as absent.
//   - jwt:CLAIM is a claim of a bearer token (RFC 6750) whose signature, exp and nbf have been
//     verified with a key of the JWKS file. A token with another signature algorithm than the
//     key's, or with "none", counts as absent, and so does a claim that is no string, number or
//     boolean. Unverified counts the tokens that did not hold.
//
// A signed token in a header, in a cookie or as a bearer token counts as httpfield.CutSigned has
// it. An empty value counts as absent. Credentials are read as servers read them: the case of the
// scheme, the number of blanks and missing padding do not matter. A FieldGuard refuses credentials
// that a server may understand and the Identity does not, before anybody asks for them. Where
// nobody has looked, the first of several Authorization fields counts, and the first of several
// cookies of one name.
type Identity struct {
	names   []string  // sorted
	sources []source  // by the same index
	keys    *jwt.Keys // nil without a jwt source
	reads   fieldReads
}

type source struct {
	kind   sourceKind
	arg    string                     // canonical header name, cookie name or claim
	folded string                     // the cookie's name as spelling.FoldCookie makes it
	hashed bool                       // the value is kept as its hash
	get    func(*http.Request) string // of fromProgram
}

type sourceKind uint8

const (
	fromHeader sourceKind = iota
	fromCookie
	fromBasic
	fromTLS
	fromJWT
	fromBearer
	fromAPIKey
	fromProgram
)

// ParseIdentity checks sources: attribute → header:NAME, cookie:NAME, hash:header:NAME,
// hash:cookie:NAME, apikey, basic, bearer, tls or jwt:CLAIM (needs keys, a JWKS file's path). The
// file is read now, and again when it has changed, looked at every two seconds at most; a broken
// change leaves the old keys in force (see Identity.KeysError).
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
				return nil, fmt.Errorf(
					"identity.%s: %s needs keys to verify tokens with; set jwt.jwks to the path of a JWKS file", name, sources[name])
			}
			if !slices.Contains(claims, s.arg) {
				claims = append(claims, s.arg)
			}
		}
		id.names = append(id.names, name)
		id.sources = append(id.sources, s)
	}
	if len(claims) > 0 {
		keys, err := jwt.Open(jwks, claims)
		if err != nil {
			return nil, fmt.Errorf("jwt.jwks: %w", err)
		}
		id.keys = keys
	}
	id.findReads()
	return id, nil
}

// findReads finds the fields that the sources read.
func (id *Identity) findReads() {
	r := &id.reads
	add := func(name string) {
		field, single := httpfield.NewHeaderField(name)
		if single && !hasField(r.headers, field.Name) {
			r.headers = append(r.headers, field)
		}
	}
	for _, s := range id.sources {
		switch s.kind {
		case fromHeader:
			add(s.arg)
			if s.arg == "Authorization" {
				r.authorization |= readsWhole
			}
		case fromCookie:
			r.cookies = true
		case fromBasic:
			add("Authorization")
			r.authorization |= readsBasic
		case fromJWT, fromBearer:
			add("Authorization")
			r.authorization |= readsBearer
		case fromAPIKey:
			for _, name := range door.APIKeyFields {
				add(name)
			}
			r.authorization |= readsBearer | readsSignature
			r.query = &apiKeyQuery
		}
	}
}

// with returns an Identity that also supplies the attributes of the functions. It is id itself if
// there are none.
func (id *Identity) with(more map[string]func(*http.Request) string) (*Identity, error) {
	if len(more) == 0 {
		return id, nil
	}
	out := &Identity{}
	if id != nil {
		out = &Identity{names: slices.Clone(id.names), sources: slices.Clone(id.sources), keys: id.keys,
			reads: id.reads}
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
	case name == "method", name == "path", name == "host", name == "ip", strings.HasPrefix(name, "header."),
		strings.HasPrefix(name, "query."):
		return fmt.Errorf("identity.%s: every request has this attribute of itself; choose another name, such as user",
			name)
	case strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == 0x7f || r == '|' || r == '=' }):
		return fmt.Errorf(
			"identity: %q is no name of an attribute; spaces, control characters, | and = are not allowed", name)
	}
	return nil
}

func parseSource(name, s string) (source, error) {
	kind, arg, hasArg := strings.Cut(s, ":")
	switch kind {
	case "hash":
		of, err := parseSource(name, arg)
		if err != nil || of.hashed || of.kind != fromHeader && of.kind != fromCookie {
			return source{}, fmt.Errorf(
				"identity.%s: %q: hash takes a header or a cookie; write hash:header:NAME or hash:cookie:NAME", name, s)
		}
		of.hashed = true
		return of, nil
	case "header":
		if arg == "" || !chars.IsToken(arg) {
			return source{}, fmt.Errorf("identity.%s: %q names no header; write header:NAME, such as header:X-User-Id",
				name, s)
		}
		return source{kind: fromHeader, arg: textproto.CanonicalMIMEHeaderKey(arg)}, nil
	case "cookie":
		if arg == "" || !chars.IsToken(arg) {
			return source{}, fmt.Errorf("identity.%s: %q names no cookie; write cookie:NAME, such as cookie:session",
				name, s)
		}
		return source{kind: fromCookie, arg: arg, folded: spelling.FoldCookie(arg)}, nil
	case "jwt":
		if arg == "" {
			return source{}, fmt.Errorf("identity.%s: %q names no claim; write jwt:CLAIM, such as jwt:sub", name, s)
		}
		return source{kind: fromJWT, arg: arg}, nil
	case "basic", "bearer", "apikey", "tls":
		if hasArg {
			return source{}, fmt.Errorf("identity.%s: %s takes nothing after it; write %s: %s", name, kind, name, kind)
		}
		return source{kind: map[string]sourceKind{"basic": fromBasic, "bearer": fromBearer, "apikey": fromAPIKey,
			"tls": fromTLS}[kind]}, nil
	}
	return source{}, fmt.Errorf(
		"identity.%s: %q is no source; use header:NAME, cookie:NAME, hash:header:NAME, hash:cookie:NAME, apikey, basic, bearer, tls or jwt:CLAIM", name, s)
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
// in force are the file's.
func (id *Identity) KeysError() error {
	if id == nil || id.keys == nil {
		return nil
	}
	return id.keys.Failure()
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

// Unverified returns how many bearer tokens were read for a jwt source and did not hold: expired,
// of an unknown key, or no JSON Web Token at all. Requests with such a token have no such user.
func (id *Identity) Unverified() uint64 {
	if id == nil || id.keys == nil {
		return 0
	}
	return id.keys.Unverified.Load()
}

func (id *Identity) value(r *http.Request, i int) (value string, ok bool) {
	var told bool
	query := ""
	if r.URL != nil {
		query = r.URL.RawQuery
	}
	value, _ = id.read(r, query, i, nil, &told)
	return value, value != ""
}

// read reads the source of the value by its index; query is the one of the request that is decided.
// A hash is appended to scratch, and the value a view of it. told says that a token which does not
// hold has been counted for r.
func (id *Identity) read(r *http.Request, query string, i int, scratch []byte, told *bool) (value string, _ []byte) {
	s := &id.sources[i]
	switch s.kind {
	case fromHeader:
		if value, _ = headerValue(r, s.arg); s.arg == "Authorization" || s.arg == "Proxy-Authorization" {
			value = rule.NormalValue("header.authorization", value)
		} else {
			value, _ = httpfield.CutSigned(value)
		}
	case fromCookie:
		var room [1]string
		c := spelling.Cookie{Name: s.arg, Folded: s.folded}
		if values, _ := c.Values(r.Header["Cookie"], maxReadings, room[:0]); len(values) > 0 {
			value = values[0]
		}
	case fromBasic:
		if c, ok := credentialsOf(r, "Basic"); ok {
			var room [192]byte // most fit in
			if name, ok := c.User(room[:0]); ok {
				value = string(name)
			}
		}
	case fromTLS:
		value = certificateName(r)
	case fromJWT, fromBearer:
		c, ok := credentialsOf(r, "Bearer")
		token, readable := "", false
		if ok {
			token, readable = c.Bearer()
		}
		switch {
		case !readable:
		case s.kind == fromBearer:
			token, _ = httpfield.CutSigned(token)
			return hashed(token, scratch)
		default:
			var holds bool
			if value, holds = id.keys.Claim(token, s.arg); !holds && !*told {
				id.keys.Unverified.Add(1)
				*told = true
			}
		}
	case fromAPIKey:
		var room [1]string
		if keys := apiKeys(r, query, room[:0]); len(keys) > 0 {
			return hashed(keys[0], scratch)
		}
	case fromProgram:
		value = s.get(r)
	}
	if s.hashed && value != "" {
		return hashed(value, scratch)
	}
	return value, scratch
}

// headerValue returns the value of the header with the canonical name key; several lines are joined
// as in RFC 9110 5.3.
func headerValue(r *http.Request, key string) (string, bool) {
	if key == "Host" {
		return r.Host, r.Host != ""
	}
	return joined(r.Header[key])
}

// joined makes one value of the lines of a header; ok is false if there are none. Blanks around the
// value are not part of it (RFC 9110 5.5), though net/http leaves them there over HTTP/2.
func joined(lines []string) (value string, ok bool) {
	if len(lines) == 1 {
		if value = lines[0]; value == "" || value[0] > ' ' && value[len(value)-1] > ' ' {
			return value, true
		}
		return strings.Trim(value, " \t"), true
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
