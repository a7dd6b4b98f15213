package httplimit

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/weir-rl/weir/httplimit/internal/jwt"
)

func TestParseIdentityErrors(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty.json")
	short := filepath.Join(t.TempDir(), "short.json")
	text := filepath.Join(t.TempDir(), "text.json")
	for path, s := range map[string]string{empty: `{"keys": []}`, text: "hello",
		short: `{"keys": [{"kty": "oct", "k": "AAAA", "kid": "s"}]}`} {
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ name, source, jwks, want string }{
		{"user", "headers:X-User", "", `identity.user: "headers:X-User" is no source; use header:NAME, cookie:NAME, hash:header:NAME, hash:cookie:NAME, apikey, basic, bearer, tls or jwt:CLAIM`},
		{"user", "", "", `identity.user: "" is no source`},
		{"user", "header:", "", "write header:NAME"},
		{"user", "header:X User", "", "write header:NAME"},
		{"user", "cookie:a;b", "", "write cookie:NAME"},
		{"user", "basic:x", "", "basic takes nothing after it"},
		{"plan", "jwt:plan", "", "identity.plan: jwt:plan needs keys to verify tokens with; set jwt.jwks"},
		{"plan", "jwt:", "x", "write jwt:CLAIM"},
		{"plan", "jwt:plan", "/nowhere/jwks.json", "jwt.jwks: "},
		{"plan", "jwt:plan", empty, "no key to verify signatures with"},
		{"plan", "jwt:plan", text, "not a JWKS file"},
		{"plan", "jwt:plan", short, `keys[0] (kid "s"): a symmetric key of 3 bytes is too short`},
		{"path", "header:X", "", "identity.path: every request has this attribute"},
		{"header.x", "header:X", "", "every request has this attribute"},
		{"a b", "header:X", "", "is no name of an attribute"},
		{"", "header:X", "", "an attribute without a name"},
	} {
		if _, err := ParseIdentity(map[string]string{c.name: c.source}, c.jwks); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %q: got %v, want %s", c.name, c.source, err, c.want)
		}
	}
}

func TestIdentity(t *testing.T) {
	id, err := ParseIdentity(map[string]string{"user": "header:x-user-id", "session": "cookie:sid", "login": "basic",
		"client": "tls"}, "")
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(id.Names(), " "); got != "client login session user" {
		t.Errorf("names: %s", got)
	}
	r := httptest.NewRequest("GET", "/", nil)
	for _, name := range append(id.Names(), "plan", "") {
		if v, ok := id.Value(r, name); ok {
			t.Errorf("%s is %q in an empty request", name, v)
		}
	}
	r.Header.Set("X-User-Id", "ada")
	r.AddCookie(&http.Cookie{Name: "sid", Value: "s1"})
	r.SetBasicAuth("bob", "whatever")
	leaf := &x509.Certificate{Subject: pkix.Name{CommonName: "device-7"}, DNSNames: []string{"d7.example"}}
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
	if v, ok := id.Value(r, "client"); ok {
		t.Errorf("an unverified certificate names %q", v)
	}
	r.TLS.VerifiedChains = [][]*x509.Certificate{{leaf}}
	for name, want := range map[string]string{"user": "ada", "session": "s1", "login": "bob", "client": "device-7"} {
		if v, ok := id.Value(r, name); !ok || v != want {
			t.Errorf("%s is %q, %v; want %q", name, v, ok, want)
		}
	}
	leaf.Subject.CommonName = ""
	if v, _ := id.Value(r, "client"); v != "d7.example" {
		t.Errorf("without a common name: %q", v)
	}
	leaf.DNSNames, leaf.URIs = nil, []*url.URL{{Scheme: "spiffe", Host: "x", Path: "/y"}}
	if v, _ := id.Value(r, "client"); v != "spiffe://x/y" {
		t.Errorf("a URI: %q", v)
	}
	r.Header.Set("X-User-Id", "")
	if _, ok := id.Value(r, "user"); ok {
		t.Error("an empty value is present")
	}
	r.Header["X-User-Id"] = []string{"a", "b"}
	if v, _ := id.Value(r, "user"); v != "a, b" {
		t.Errorf("two lines: %q", v)
	}
	var none *Identity
	if _, ok := none.Value(r, "user"); ok || none.Names() != nil || none.KeysError() != nil {
		t.Error("a nil Identity names something")
	}
}

type jwtKeys struct {
	rsa  *rsa.PrivateKey
	ec   *ecdsa.PrivateKey
	ed   ed25519.PrivateKey
	hmac []byte
}

func newJWTKeys(t *testing.T) *jwtKeys {
	t.Helper()
	var k jwtKeys
	var err error
	if k.rsa, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		t.Fatal(err)
	}
	if k.ec, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	if _, k.ed, err = ed25519.GenerateKey(rand.Reader); err != nil {
		t.Fatal(err)
	}
	k.hmac = []byte("0123456789abcdef0123456789abcdef")
	return &k
}

func writeJWKS(t *testing.T, path string, keys ...jose.JSONWebKey) {
	t.Helper()
	data, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

func sign(t *testing.T, alg jose.SignatureAlgorithm, key any, kid string, claims any) string {
	t.Helper()
	o := (&jose.SignerOptions{}).WithType("JWT")
	if kid != "" {
		o = o.WithHeader("kid", kid)
	}
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: key}, o)
	if err != nil {
		t.Fatal(err)
	}
	payload, err := json.Marshal(claims)
	if err != nil {
		t.Fatal(err)
	}
	sig, err := s.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	token, err := sig.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func bearerRequest(token string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	return r
}

func TestJWT(t *testing.T) {
	k := newJWTKeys(t)
	path := filepath.Join(t.TempDir(), "jwks.json")
	writeJWKS(t, path,
		jose.JSONWebKey{KeyID: "r", Key: k.rsa.Public(), Use: "sig", Algorithm: "RS256"},
		jose.JSONWebKey{KeyID: "e", Key: k.ec.Public()},
		jose.JSONWebKey{KeyID: "d", Key: k.ed.Public()},
		jose.JSONWebKey{KeyID: "h", Key: k.hmac},
	)
	id, err := ParseIdentity(map[string]string{"user": "jwt:sub", "plan": "jwt:plan", "level": "jwt:level",
		"admin": "jwt:admin", "list": "jwt:list"}, path)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now().Unix()
	claims := func(more ...any) map[string]any {
		m := map[string]any{"sub": "ada", "plan": "gold", "level": 7, "admin": true, "list": []int{1},
			"exp": now + 3600}
		for i := 0; i < len(more); i += 2 {
			m[more[i].(string)] = more[i+1]
		}
		return m
	}
	other, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	b64 := base64.RawURLEncoding.EncodeToString
	payload, err := json.Marshal(claims())
	if err != nil {
		t.Fatal(err)
	}
	good := sign(t, jose.RS256, k.rsa, "r", claims())
	parts := strings.Split(good, ".")
	forged, err := json.Marshal(claims("sub", "eve"))
	if err != nil {
		t.Fatal(err)
	}
	// The confusion of old libraries: the public RSA key taken for a secret.
	public, err := x509.MarshalPKIXPublicKey(k.rsa.Public())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, token, want string
	}{
		{"RSA", good, "ada"},
		{"RSA without a key id", sign(t, jose.RS256, k.rsa, "", claims()), "ada"},
		{"EC", sign(t, jose.ES256, k.ec, "e", claims()), "ada"},
		{"Ed25519", sign(t, jose.EdDSA, k.ed, "d", claims()), "ada"},
		{"a shared secret", sign(t, jose.HS256, k.hmac, "h", claims()), "ada"},
		{"no expiry", sign(t, jose.ES256, k.ec, "e", map[string]any{"sub": "ada"}), "ada"},
		{"a valid nbf", sign(t, jose.ES256, k.ec, "e", claims("nbf", now-10)), "ada"},
		{"expired", sign(t, jose.ES256, k.ec, "e", claims("exp", now-1)), ""},
		{"expired at the epoch", sign(t, jose.ES256, k.ec, "e", claims("exp", 0)), ""},
		{"an exp that is no number", sign(t, jose.ES256, k.ec, "e", claims("exp", "tomorrow")), ""},
		{"not yet valid", sign(t, jose.ES256, k.ec, "e", claims("nbf", now+600)), ""},
		{"another algorithm than the key names", sign(t, jose.RS512, k.rsa, "r", claims()), ""},
		{"another key's id", sign(t, jose.RS256, k.rsa, "e", claims()), ""},
		{"an unknown key id", sign(t, jose.RS256, k.rsa, "x", claims()), ""},
		{"another key", sign(t, jose.RS256, other, "r", claims()), ""},
		{"the public key as a secret", sign(t, jose.HS256, public, "r", claims()), ""},
		{"none", b64([]byte(`{"alg":"none"}`)) + "." + b64(payload) + ".", ""},
		{"None", b64([]byte(`{"alg":"None","kid":"r"}`)) + "." + b64(payload) + "." + parts[2], ""},
		{"another payload", parts[0] + "." + b64(forged) + "." + parts[2], ""},
		{"no signature", parts[0] + "." + parts[1] + ".", ""},
		{"no token", "hello", ""},
		{"empty", "", ""},
		{"payload that is no object", sign(t, jose.ES256, k.ec, "e", []int{1}), ""},
		{"huge", strings.Repeat("a", jwt.MaxToken+1), ""},
	} {
		for range 2 { // the second time from memory
			if got, ok := id.Value(bearerRequest(c.token), "user"); got != c.want || ok != (c.want != "") {
				t.Errorf("%s: user is %q, %v; want %q", c.name, got, ok, c.want)
			}
		}
	}
	for name, want := range map[string]string{"plan": "gold", "level": "7", "admin": "true", "list": ""} {
		if got, _ := id.Value(bearerRequest(good), name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	twice := bearerRequest(good)
	twice.Header.Add("Authorization", "Bearer x")
	if v, _ := id.Value(twice, "plan"); v != "gold" {
		t.Errorf("of two Authorization headers the second counts: %q", v)
	}
	basic := httptest.NewRequest("GET", "/", nil)
	basic.Header.Set("Authorization", "Basic "+good)
	if _, ok := id.Value(basic, "user"); ok {
		t.Error("a Basic header is taken for a token")
	}
}

// A token that was good goes when it expires, and when its key goes; a broken file keeps the keys
// in force.
func TestJWTFollowsFileAndTime(t *testing.T) {
	k := newJWTKeys(t)
	path := filepath.Join(t.TempDir(), "jwks.json")
	synctest.Test(t, func(t *testing.T) {
		ec := jose.JSONWebKey{KeyID: "e", Key: k.ec.Public()}
		writeJWKS(t, path, ec)
		id, err := ParseIdentity(map[string]string{"user": "jwt:sub"}, path)
		if err != nil {
			t.Fatal(err)
		}
		r := bearerRequest(sign(t, jose.ES256, k.ec, "e",
			map[string]any{"sub": "ada", "exp": time.Now().Add(time.Minute).Unix()}))
		edTok := bearerRequest(sign(t, jose.EdDSA, k.ed, "d", map[string]any{"sub": "bob"}))
		check := func(when string, r *http.Request, want string) {
			t.Helper()
			if got, _ := id.Value(r, "user"); got != want {
				t.Errorf("%s: %q, want %q", when, got, want)
			}
		}
		check("at first", r, "ada")
		check("an unknown key", edTok, "")

		writeJWKS(t, path, ec, jose.JSONWebKey{KeyID: "d", Key: k.ed.Public()})
		time.Sleep(jwt.Recheck)
		check("a key was added", edTok, "bob")

		if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		time.Sleep(jwt.Recheck)
		check("a broken file", edTok, "bob")
		if err := id.KeysError(); err == nil || !strings.Contains(err.Error(), "not a JWKS file") {
			t.Errorf("KeysError: %v", err)
		}

		writeJWKS(t, path, ec)
		time.Sleep(jwt.Recheck)
		check("its key was removed", edTok, "")
		check("its key is still there", r, "ada")
		if err := id.KeysError(); err != nil {
			t.Errorf("KeysError: %v", err)
		}
		time.Sleep(time.Minute)
		check("expired", r, "")
	})
}

func FuzzParseIdentity(f *testing.F) {
	f.Add("user", "header:X-User-Id")
	f.Add("a b", "jwt:")
	f.Add("", "cookie:;")
	f.Fuzz(func(t *testing.T, name, s string) {
		id, err := ParseIdentity(map[string]string{name: s}, "")
		if err != nil {
			return
		}
		r := httptest.NewRequest("GET", "/", nil)
		if _, ok := id.Value(r, name); ok {
			t.Fatalf("%q: %q names somebody in an empty request", name, s)
		}
	})
}

func FuzzBearer(f *testing.F) {
	path := filepath.Join(f.TempDir(), "jwks.json")
	if err := os.WriteFile(path, []byte(`{"keys":[{"kty":"oct","kid":"h","k":"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY"}]}`), 0o600); err != nil {
		f.Fatal(err)
	}
	id, err := ParseIdentity(map[string]string{"user": "jwt:sub"}, path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add("Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.")
	f.Add("Bearer a.b.c")
	f.Add("bearer  ")
	f.Fuzz(func(t *testing.T, authorization string) {
		r := &http.Request{Header: http.Header{"Authorization": {authorization}}}
		if v, ok := id.Value(r, "user"); ok {
			t.Fatalf("%q names %q without the key", authorization, v)
		}
	})
}
