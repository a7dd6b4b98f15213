package httplimit

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-jose/go-jose/v4"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/httplimit/internal/spelling"
	"github.com/weir-rl/weir/rule"
)

// guarded serves a handler behind the middleware, and sends requests to it.
type guarded struct {
	t    *testing.T
	gate *Gate
	h    http.Handler
}

func newGuarded(t *testing.T, yaml string, identity map[string]string, jwks string, change ...func(*Options)) *guarded {
	t.Helper()
	o := Options{}
	if identity != nil {
		id, err := ParseIdentity(identity, jwks)
		if err != nil {
			t.Fatal(err)
		}
		o.Identity = id
	}
	for _, f := range change {
		f(&o)
	}
	gate, err := NewGate(newLimiter(t, new(clock), yaml), o)
	if err != nil {
		t.Fatal(err)
	}
	return &guarded{t, gate, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := gate.Enter(w, r)
		if p == nil {
			return
		}
		defer p.Leave()
		fmt.Fprint(w, "passed ", strings.Join(r.Header["X_api_key"], ","))
	})}
}

// send sends a request with these lines of the header, "Name: value" each.
func (g *guarded) send(target string, lines ...string) *httptest.ResponseRecorder {
	g.t.Helper()
	r := httptest.NewRequest("GET", target, nil)
	for _, line := range lines {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	w := httptest.NewRecorder()
	g.h.ServeHTTP(w, r)
	return w
}

// status is send for the status of the answer alone.
func (g *guarded) status(target string, lines ...string) int {
	g.t.Helper()
	return g.send(target, lines...).Code
}

// One credential is one key, however it is spelled, and what cannot be read is refused.
func TestOneCredential(t *testing.T) {
	k := newJWTKeys(t)
	jwks := filepath.Join(t.TempDir(), "jwks.json")
	writeJWKS(t, jwks, jose.JSONWebKey{KeyID: "h", Key: k.hmac})
	token := sign(t, jose.HS256, k.hmac, "h", map[string]any{"sub": "ada"})
	foreign := sign(t, jose.HS256, []byte("ffffffffffffffffffffffffffffffff"), "x", map[string]any{"sub": "ada"})
	basic := base64.StdEncoding.EncodeToString([]byte("ada:x"))
	bare := strings.TrimRight(basic, "=")
	perUser := "limits: [{name: user, per: [user], allow: 1/day}]"
	for _, c := range []struct {
		source     string
		same       []string // spellings of one credential
		unreadable []string
		absent     []string
		status     int
		challenge  string
	}{
		{"basic",
			[]string{"Basic " + basic, "basic " + basic, "BASIC  \t " + basic, "Basic\t" + basic, "Basic " + bare,
				"Basic " + bare + "==="},
			[]string{"Basic " + bare + "=x", "Basic " + basic[:3] + " " + basic[3:], "Basic:" + basic,
				"Basic\xa0" + basic, "Basic " + bare + "!", "BasicX" + basic},
			[]string{"Bearer " + token, "Digest a", "Basic"},
			401, `Basic realm="limited"`},
		{"jwt:sub",
			[]string{"Bearer " + token, "bearer\t" + token, "BEARER   " + token, "Bearer " + token + "=",
				"Bearer " + token + "=="},
			[]string{"Bearer " + token + "~", "Bearer\xa0" + token, "Bearer:" + token, "Bearer " + token + " x",
				"Bearer " + token + "!", "BearerX " + token},
			[]string{"Basic " + basic, "Bearer opaque", "Bearer " + foreign, "Bearer a.b.c", "Bearer"},
			401, `Bearer error="invalid_token"`},
		{"bearer",
			[]string{"Bearer " + token, "bearer \t" + token, "Bearer " + token + "=", "Bearer " + token[:len(token)-3]},
			[]string{"Bearer " + token + "~", "Bearer " + token + ";x", "Bearer\x0b" + token},
			[]string{"Basic " + basic, "Bearer"},
			401, `Bearer error="invalid_token"`},
		{"header:Authorization",
			[]string{"Bearer k", "bearer  k", "BEARER\tk"},
			[]string{"Bearer k k", "Bearer:k", "Basic !"},
			nil, 400, ""},
		{"header:Authorization",
			[]string{"Basic " + basic, "basic  " + bare},
			nil, nil, 400, ""},
	} {
		g := newGuarded(t, perUser, map[string]string{"user": c.source}, jwks)
		for i, value := range c.same {
			want := http.StatusTooManyRequests
			if i == 0 {
				want = http.StatusOK
			}
			if got := g.status("/", "Authorization: "+value); got != want {
				t.Errorf("%s: %q: %d, want %d", c.source, value, got, want)
			}
		}
		for _, value := range c.unreadable {
			w := g.send("/", "Authorization: "+value)
			if w.Code != c.status || w.Header().Get("WWW-Authenticate") != c.challenge {
				t.Errorf("%s: %q: %d %q, want %d", c.source, value, w.Code, w.Header(), c.status)
			}
		}
		for _, value := range c.absent {
			for range 2 {
				if got := g.status("/", "Authorization: "+value); got != http.StatusOK {
					t.Errorf("%s: %q: %d, want 200", c.source, value, got)
				}
			}
		}
		if got := g.gate.FieldStats().Unreadable; got != uint64(len(c.unreadable)) {
			t.Errorf("%s: %d counted", c.source, got)
		}
	}
}

// A token that does not hold is nobody's: it is counted, and the address takes its place.
func TestUnverifiedToken(t *testing.T) {
	k := newJWTKeys(t)
	jwks := filepath.Join(t.TempDir(), "jwks.json")
	writeJWKS(t, jwks, jose.JSONWebKey{KeyID: "h", Key: k.hmac})
	g := newGuarded(t, "limits: [{name: a, per: [user|ip], allow: 2/day}, {name: b, per: [plan], allow: 9/day}]",
		map[string]string{"user": "jwt:sub", "plan": "jwt:plan"}, jwks)
	expired := sign(t, jose.HS256, k.hmac, "h", map[string]any{"sub": "ada", "exp": 1})
	for i, token := range []string{"opaque", expired, "another"} {
		want := 200
		if i == 2 {
			want = 429
		}
		if got := g.status("/", "Authorization: Bearer "+token); got != want {
			t.Errorf("request %d: %d, want %d", i, got, want)
		}
	}
	if got := g.gate.o.Identity.Unverified(); got != 3 {
		t.Errorf("%d tokens did not hold", got)
	}
}

// A bearer token is known by its hash, which nobody can log in with.
func TestBearerIsHashed(t *testing.T) {
	id, err := ParseIdentity(map[string]string{"user": "bearer"}, "")
	if err != nil {
		t.Fatal(err)
	}
	const want = "sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b" // of "secret"
	if got, _ := id.Value(bearerRequest("secret"), "user"); got != want {
		t.Errorf("%q", got)
	}
	var a Attributes
	a.Reset(bearerRequest("secret"), ClientIP{}, id)
	if got, ok := a.Attribute("user"); got != want || !ok {
		t.Errorf("%q", got)
	}
	all := map[string]string{}
	for name, value := range a.All() {
		all[name] = value
	}
	a.Reset(bearerRequest("other"), ClientIP{}, id)
	_, _ = a.Attribute("user")
	if all["user"] != want {
		t.Errorf("a value that was kept has become %q", all["user"])
	}
}

func TestRepeatedFields(t *testing.T) {
	const rules = `
exempt: { header.x-probe: ["on"] }
limits:
  - { name: key, per: [header.x-api-key], allow: 3/day }
  - { name: page, when: { query.page: "1" }, allow: 9/day }
  - { name: accept, when: { header.accept: "*" }, allow: 99/day }
  - { name: trial, when: { header.x-trial: "1" }, allow: 9/day, on_limit: shadow }
`
	g := newGuarded(t, rules, map[string]string{"user": "header:X-User"}, "")
	for _, c := range []struct {
		what, target string
		lines        []string
		want         int
	}{
		{"once", "/", []string{"X-Api-Key: a"}, 200},
		{"twice", "/", []string{"X-Api-Key: a", "X-Api-Key: b"}, 400},
		{"twice the same", "/", []string{"X-Api-Key: a", "X-Api-Key: a"}, 400},
		{"read by the identity", "/", []string{"X-User: a", "X-User: b"}, 400},
		{"read by an exemption", "/", []string{"X-Probe: on", "X-Probe: off"}, 400},
		{"read in shadow only", "/", []string{"X-Trial: a", "X-Trial: b"}, 200},
		{"read by nobody", "/", []string{"X-Other: a", "X-Other: b"}, 200},
		{"a list", "/", []string{"Accept: a/b", "Accept: c/d", "X-Forwarded-For: 192.0.2.1", "X-Forwarded-For: 192.0.2.2"}, 200},
		{"a parameter", "/?page=1", nil, 200},
		{"a parameter twice", "/?page=1&page=2", nil, 400},
		{"a parameter twice, once escaped", "/?page=2&p%61ge=1", nil, 400},
		{"a parameter that nobody reads", "/?tag=1&tag=2&page=2", nil, 200},
		{"a list of parameters", "/?page[]=1", nil, 400},
		{"another case", "/?PAGE=1", nil, 400},
		{"parts of another parameter, as JSON:API has them", "/?page[size]=5&page%5Bnumber%5D=2", nil, 200},
		{"a parameter and a part of it", "/?page=1&page[size]=5", nil, 400},
		{"a part of a parameter, and that", "/?page[size]=5&page=1", nil, 400},
		{"behind a semicolon", "/?x=1;page=1", nil, 400},
		{"a value with a semicolon", "/?page=1;", nil, 400},
		{"a value with an escaped one", "/?page=1%3B", nil, 200},
		{"a semicolon that nobody reads", "/?tag=1;&page=1", nil, 200},
		{"a name that goes on", "/?pages=1&page_size=2", nil, 200},
		{"a blank of Latin-1", "/", []string{"X-Api-Key: a\xa0"}, 400},
		{"a blank of Latin-1 before", "/", []string{"X-Api-Key: \x85a"}, 400},
		{"a blank of Unicode", "/", []string{"X-Api-Key: a\u00a0"}, 400},
		{"letters of Unicode", "/", []string{"X-User: voil\u00e0"}, 200},
		{"an underscore", "/", []string{"X_Api_Key: a"}, 400},
		{"an underscore and a dash", "/", []string{"X-Api_Key: a", "X-Api-Key: b"}, 400},
		{"a dot", "/", []string{"X.Api.Key: a"}, 400},
		{"an underscore that nobody could mean", "/", []string{"X_Other: a"}, 200},
		{"an underscore for the identity", "/", []string{"X_User: a"}, 400},
		{"another sign, of which lighttpd makes an underscore", "/", []string{"X!Api+Key: a"}, 400},
		{"underscores for the address of the client", "/", []string{"X_Forwarded_For: 192.0.2.1"}, 400},
		{"an underscore for another field of proxies", "/", []string{"X-Forwarded_Host: a"}, 400},
	} {
		w := g.send(c.target, c.lines...)
		if w.Code != c.want {
			t.Errorf("%s: %d, want %d: %s", c.what, w.Code, c.want, w.Body)
		}
		if w.Code == 400 && !strings.Contains(w.Body.String(), "fields.") && !strings.Contains(c.what, "blank") {
			t.Errorf("%s: the answer names no setting: %s", c.what, w.Body)
		}
	}
	if s := g.gate.FieldStats(); s.Repeated != 6 || s.Lookalike != 13 || s.Unreadable != 3 {
		t.Errorf("%+v", s)
	}
}

func TestKeepFields(t *testing.T) {
	const rules = "limits: [{name: key, per: [header.x-api-key], allow: 1/day}, {name: q, per: [query.key], allow: 1/day}]"
	keep := newGuarded(t, rules, nil, "", func(o *Options) {
		o.Fields = &FieldGuard{Repeated: KeepRepeatedFields, Lookalikes: KeepLookalikeFields}
	})
	for i, want := range []int{200, 429} {
		if got := keep.status("/", "X-Api-Key: a", "X-Api-Key: b", "X_api_key: c"); got != want {
			t.Errorf("request %d: %d", i, got)
		}
		if got := keep.status(fmt.Sprintf("/?key=a&key=%d&KEY=%d", i, i)); got != want {
			t.Errorf("parameter, request %d: %d", i, got)
		}
	}
	drop := newGuarded(t, rules, nil, "", func(o *Options) { o.Fields = &FieldGuard{Lookalikes: DropLookalikeFields} })
	if w := drop.send("/", "X_Api_Key: c"); w.Code != 200 || w.Body.String() != "passed " ||
		drop.gate.FieldStats().Dropped != 1 {
		t.Errorf("%d %q %+v", w.Code, w.Body, drop.gate.FieldStats())
	}
	if w := keep.send("/", "X_Api_Key: c"); w.Body.String() != "passed c" {
		t.Errorf("%q", w.Body)
	}
}

// A cookie that comes with several values is charged under each, since servers take different ones.
func TestSeveralCookies(t *testing.T) {
	const rules = "limits: [{name: session, per: [session], allow: 2/day}]"
	g := newGuarded(t, rules, map[string]string{"session": "cookie:sid", "device": "cookie:dev"}, "")
	for _, c := range []struct {
		what  string
		lines []string
		want  int
	}{
		{"a", []string{"Cookie: sid=a"}, 200},
		{"b and a", []string{"Cookie: sid=b; sid=a"}, 200},
		{"c and a, which is used up", []string{"Cookie: sid=c; sid=a"}, 429},
		{"c in a line of its own", []string{"Cookie: sid=c", "Cookie: x=y"}, 200},
		{"c, and b in another line", []string{"Cookie: sid=c", "Cookie: sid=b"}, 200},
		{"b", []string{"Cookie: sid=b"}, 429},
		{"c", []string{"Cookie: sid=c"}, 429},
		{"a, escaped", []string{"Cookie: sid=%61"}, 429},
		{"a, in quotes", []string{`Cookie: sid="a"`}, 429},
		{"a, with blanks", []string{"Cookie: x=1;\tsid = a "}, 429},
		{"a, by a name in another case", []string{"Cookie: SID=a"}, 429},
		{"a, by an escaped name", []string{"Cookie: s%69d=a"}, 429},
		{"the same twice", []string{"Cookie: sid=d; sid=d; sid=%64"}, 200},
		{"d once more", []string{"Cookie: sid=d"}, 200},
		{"d for the third time", []string{"Cookie: sid=d"}, 429},
		{"none", []string{"Cookie: x=y; sid="}, 200},
		{"four", []string{"Cookie: sid=1; sid=2; sid=3; sid=4"}, 200},
		{"five", []string{"Cookie: sid=1; sid=2; sid=3; sid=4; sid=5"}, 400},
		{"two of each", []string{"Cookie: sid=6; sid=7; dev=1; dev=2"}, 200},
		{"three by two", []string{"Cookie: sid=6; sid=7; sid=8; dev=1; dev=2"}, 400},
		{"a quote within", []string{`Cookie: sid=a"b`}, 400},
		{"an octal escape", []string{`Cookie: sid="\141"`}, 400},
		{"a blank within", []string{"Cookie: sid=a b"}, 400},
		{"no escape", []string{"Cookie: sid=%u0061"}, 400},
		{"a control character", []string{"Cookie: sid=a%00b"}, 400},
		{"a blank of Latin-1", []string{"Cookie: sid=a\xa0"}, 400},
		{"behind a word that is none", []string{"Cookie: secure sid=z"}, 400},
		{"behind a version", []string{"Cookie: $Version=1; $a sid=z"}, 400},
		{"within another cookie", []string{"Cookie: x=1 sid=z"}, 400},
		{"the name within another value", []string{"Cookie: x=sid"}, 200},
	} {
		if w := g.send("/", c.lines...); w.Code != c.want {
			t.Errorf("%s: %d, want %d: %s", c.what, w.Code, c.want, w.Body)
		}
	}
	if s := g.gate.FieldStats(); s.Cookies != 2 || s.Unreadable != 9 || s.Several != 5 {
		t.Errorf("%+v", s)
	}
	first := newGuarded(t, rules, map[string]string{"session": "cookie:sid"}, "",
		func(o *Options) { o.Fields = &FieldGuard{Repeated: KeepRepeatedFields} })
	for i, want := range []int{200, 200, 429} {
		if got := first.status("/", fmt.Sprintf("Cookie: sid=a; sid=%d", i)); got != want {
			t.Errorf("the first alone, request %d: %d", i, got)
		}
	}
}

// The log mentions such requests once in a minute, without a client's long texts.
func TestFieldLog(t *testing.T) {
	var log bytes.Buffer
	g := newGuarded(t, "limits: [{name: key, per: [header.x-api-key], allow: 3/day}]", nil, "", func(o *Options) {
		o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	})
	for range 3 {
		g.status("/", "X-Api-Key: a", "X-Api-Key: "+strings.Repeat("b", 9000))
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "fields.repeated") ||
		!strings.Contains(text, "latest=X-Api-Key") || len(text) > 400 {
		t.Errorf("%s", text)
	}
}

// A request without anything odd costs no allocation, whatever rules and the identity read.
func TestFieldGuardAllocs(t *testing.T) {
	k := newJWTKeys(t)
	jwks := filepath.Join(t.TempDir(), "jwks.json")
	writeJWKS(t, jwks, jose.JSONWebKey{KeyID: "h", Key: k.hmac})
	id, err := ParseIdentity(map[string]string{"user": "jwt:sub", "login": "basic", "token": "bearer",
		"session": "cookie:sid", "other": "header:Authorization"}, jwks)
	if err != nil {
		t.Fatal(err)
	}
	l := newLimiter(t, new(clock), "limits: [{name: key, per: [header.x-api-key, query.key, token], allow: 3/day}]")
	r := bearerRequest(sign(t, jose.HS256, k.hmac, "h", map[string]any{"sub": "ada"}))
	r.URL.RawQuery = "key=1&other=2"
	for _, line := range []string{"X-Api-Key: a", "Accept: */*", "User-Agent: x", "Cookie: a=b; sid=c", "X_y: z"} {
		name, value, _ := strings.Cut(line, ": ")
		r.Header.Add(name, value)
	}
	var a Attributes
	g := &FieldGuard{}
	if n := testing.AllocsPerRun(100, func() {
		a.Reset(r, ClientIP{}, id)
		if p, ok := g.Check(&a, fields(l)); !ok {
			t.Fatal(p.Detail)
		}
		if v, ok := a.Attribute("token"); !ok {
			t.Fatal(v)
		}
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

// fields are those by which l's rules decide.
func fields(l *weir.Limiter) *rule.Fields {
	set, _ := l.Rules()
	return set.Fields("")
}

func BenchmarkFieldGuard(b *testing.B) {
	for _, c := range []struct{ name, rules string }{
		{"none", "limits: [{name: a, per: [ip], allow: 10/s}]"},
		{"header", "limits: [{name: a, per: [header.x-api-key], allow: 10/s}]"},
		{"query", "limits: [{name: a, per: [query.key], allow: 10/s}]"},
	} {
		b.Run(c.name, func(b *testing.B) {
			l := newLimiter(b, nil, c.rules)
			r := httptest.NewRequest("GET", "/?page=3&key=ada&sort=asc", nil)
			for _, name := range []string{"X-Api-Key", "Accept", "User-Agent", "Accept-Encoding", "Accept-Language",
				"Referer", "Cookie", "Connection", "Cache-Control", "Origin"} {
				r.Header.Set(name, "value")
			}
			var a Attributes
			g := &FieldGuard{}
			a.Reset(r, ClientIP{}, nil)
			for b.Loop() {
				if _, ok := g.Check(&a, fields(l)); !ok {
					b.Fatal("refused")
				}
			}
		})
	}
}

// Parameters that servers take for another one, and some that they do not.
func TestLikeParameter(t *testing.T) {
	list := []string{"key", "a.b"}
	for name, want := range map[string]string{
		"KEY": "key", "key[]": "key", "key[0]": "key", "key[ a]": "key", "key[a": "key", "key[$a]": "key", " key": "key", "[key]": "key", "[key][a]": "key", " [key]": "key",
		"key\x00x": "key", "\x00": "", "a_b": "a.b", "a b": "a.b",
		"key": "", "keys": "", "[keys]": "", "[]": "", "[": "", "": "", "x[key]": "", "mykey": "",
		"key[a]": "a part of key", "KEY[size]": "a part of key", " key[a-b_1]": "a part of key", "key[a][]": "a part of key", "a_b[c]": "a part of a.b", "x[a]": "",
	} {
		got := ""
		if i, inside := spelling.LikeParameter(list, name); inside {
			got = "a part of " + list[i]
		} else if i >= 0 {
			got = list[i]
		}
		if got != want {
			t.Errorf("%q is taken for %q, want %q", name, got, want)
		}
	}
}
