package httplimit

import (
	"crypto/sha256"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
)

func hashOf(key string) string { return fmt.Sprintf("sha256:%x", sha256.Sum256([]byte(key))) }

const awsSignature = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260101/us-east-1/bedrock/aws4_request, SignedHeaders=host;x-amz-date, Signature="

// An API key has one hash wherever it stands, the same as a bearer token has.
func TestAPIKey(t *testing.T) {
	for _, c := range []struct {
		target string
		lines  []string
		want   string
	}{
		{"/", []string{"Authorization: Bearer sk-1"}, hashOf("sk-1")},
		{"/", []string{"Authorization: bearer   sk-1"}, hashOf("sk-1")},
		{"/", []string{"X-Api-Key: sk-1"}, hashOf("sk-1")},
		{"/", []string{"Api-Key: sk-1"}, hashOf("sk-1")},
		{"/", []string{"apikey: sk-1"}, hashOf("sk-1")},
		{"/", []string{"X-Goog-Api-Key:  sk-1 "}, hashOf("sk-1")},
		{"/v1beta/models?alt=sse&key=sk-1", nil, hashOf("sk-1")},
		{"/v1beta/models?key=sk%2D1", nil, hashOf("sk-1")},
		{"/", []string{"Authorization: " + awsSignature + "aaaa"}, hashOf("AKIDEXAMPLE")},
		{"/", []string{"Authorization: " + awsSignature + "bbbb"}, hashOf("AKIDEXAMPLE")},
		{"/", []string{"Authorization: AWS4-ECDSA-P256-SHA256 SignedHeaders=host, Credential=AKIDEXAMPLE/20260101/s3/aws4_request,Signature=a"}, hashOf("AKIDEXAMPLE")},
		{"/", []string{"Authorization: Basic YWRhOnB3"}, ""},
		{"/", []string{"Authorization: Digest x"}, ""},
		{"/", []string{"X-Api-Key: "}, ""},
		{"/?key=", nil, ""},
		{"/?keys=1", nil, ""},
		{"/", nil, ""},
	} {
		id, err := ParseIdentity(map[string]string{"client": "apikey"}, "")
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest("GET", c.target, nil)
		for _, line := range c.lines {
			name, value, _ := strings.Cut(line, ": ")
			r.Header.Add(name, value)
		}
		if got, ok := id.Value(r, "client"); got != c.want || ok != (c.want != "") {
			t.Errorf("%s %q: %q, want %q", c.target, c.lines, got, c.want)
		}
		var a Attributes
		a.Reset(r, ClientIP{}, id)
		if got, ok := a.Attribute("client"); got != c.want || ok != (c.want != "") {
			t.Errorf("%s %q: the attribute is %q, want %q", c.target, c.lines, got, c.want)
		}
	}
}

// What the values of hash: are, and what it does not take.
func TestHashedSources(t *testing.T) {
	id, err := ParseIdentity(map[string]string{"a": "hash:header:X-Token", "b": "hash:cookie:session",
		"c": "hash:header:Authorization"}, "")
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("X-Token", "t")
	r.Header.Set("Cookie", "session=s")
	r.Header.Set("Authorization", "bearer  k")
	var a Attributes
	a.Reset(r, ClientIP{}, id)
	for name, want := range map[string]string{"a": hashOf("t"), "b": hashOf("s"), "c": hashOf("Bearer k")} {
		if got, _ := a.Attribute(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	a.Reset(httptest.NewRequest("GET", "/", nil), ClientIP{}, id)
	if got, ok := a.Attribute("a"); ok || got != "" {
		t.Errorf("of nothing: %q", got)
	}
	for _, wrong := range []string{"hash", "hash:", "hash:X-Token", "hash:bearer", "hash:hash:header:X", "hash:header:",
		"apikey:X"} {
		if _, err := ParseIdentity(map[string]string{"a": wrong}, ""); err == nil {
			t.Errorf("%s is taken", wrong)
		}
	}
}

// A request with several API keys is charged under each; what servers read in different ways is
// refused.
func TestSeveralAPIKeys(t *testing.T) {
	const rules = "limits: [{name: key, per: [client], allow: 1/day}]"
	g := newGuarded(t, rules, map[string]string{"client": "apikey"}, "")
	for _, c := range []struct {
		what, target string
		lines        []string
		want         int
	}{
		{"one", "/", []string{"X-Api-Key: a"}, 200},
		{"the same elsewhere", "/", []string{"Authorization: Bearer a"}, 429},
		{"with one that is made up", "/", []string{"Authorization: Bearer a", "X-Goog-Api-Key: invented"}, 429},
		{"with one that is made up before it", "/", []string{"Authorization: Bearer invented", "X-Api-Key: a"}, 429},
		{"and in the query", "/?key=invented", []string{"X-Api-Key: a"}, 429},
		{"the one that was made up is free", "/", []string{"X-Api-Key: invented"}, 200},
		{"twice the same", "/?key=b", []string{"X-Api-Key: b", "Authorization: Bearer b"}, 200},
		{"two, each of which is used then", "/", []string{"X-Api-Key: c", "Authorization: Bearer d"}, 200},
		{"the first of them", "/", []string{"X-Api-Key: c"}, 429},
		{"the second of them", "/", []string{"X-Api-Key: d"}, 429},
		{"five", "/?key=5", []string{"Authorization: Bearer 1", "X-Api-Key: 2", "Api-Key: 3", "Apikey: 4"}, 400},
		{"a field twice", "/", []string{"X-Api-Key: e", "X-Api-Key: f"}, 400},
		{"another name for one", "/", []string{"X_Api_Key: e"}, 400},
		{"a parameter twice", "/?key=e&key=f", nil, 400},
		{"another name for it", "/?KEY=e", nil, 400},
		{"a bearer token that is none", "/", []string{"Authorization: Bearer e f"}, 401},
		{"a signature without a key", "/", []string{"Authorization: AWS4-HMAC-SHA256 Signature=a"}, 400},
		{"a signature with two", "/", []string{"Authorization: AWS4-HMAC-SHA256 Credential=e/1, Credential=f/1"}, 400},
		{"none", "/", nil, 200},
		{"none again, which meets no limit", "/", nil, 200},
	} {
		if got := g.status(c.target, c.lines...); got != c.want {
			t.Errorf("%s: %d, want %d", c.what, got, c.want)
		}
	}
	if s := g.gate.FieldStats(); s.Several != 4 || s.Cookies != 1 || s.Repeated != 2 || s.Lookalike != 2 ||
		s.Unreadable != 3 {
		t.Errorf("%+v", s)
	}
	keep := newGuarded(t, rules, map[string]string{"client": "apikey"}, "", func(o *Options) {
		o.Fields = &FieldGuard{Repeated: KeepRepeatedFields, Lookalikes: KeepLookalikeFields}
	})
	// Several keys are no field that comes twice.
	for i, want := range []int{200, 429, 429, 429} {
		lines := [][]string{{"Authorization: Bearer a", "X-Api-Key: b"}, {"Authorization: Bearer a"}, {"X-Api-Key: b"},
			{"Authorization: Bearer c", "X-Api-Key: b"}}[i]
		if got := keep.status("/", lines...); got != want {
			t.Errorf("kept, request %d: %d, want %d", i, got, want)
		}
	}
}

// A session that is kept as a hash has several readings, too.
func TestHashedCookie(t *testing.T) {
	g := newGuarded(t, "limits: [{name: key, per: [client], allow: 1/day}]",
		map[string]string{"client": "hash:cookie:sid"}, "")
	for i, want := range []int{200, 429, 429, 200} {
		cookie := []string{"sid=a", "sid=b; sid=a", "sid=%61", "sid=b"}[i]
		if got := g.status("/", "Cookie: "+cookie); got != want {
			t.Errorf("%s: %d, want %d", cookie, got, want)
		}
	}
}

// To read an API key allocates nothing.
func TestAPIKeyAllocates(t *testing.T) {
	id, err := ParseIdentity(map[string]string{"client": "apikey", "session": "hash:cookie:sid"}, "")
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/x?page=1", nil)
	r.Header.Set("Authorization", "Bearer sk-1")
	r.Header.Set("Cookie", "sid=a")
	var a Attributes
	guard := &FieldGuard{}
	if n := testing.AllocsPerRun(100, func() {
		a.Reset(r, ClientIP{}, id)
		if _, ok := guard.Check(&a, nil); !ok {
			t.Fatal("refused")
		}
		for _, name := range []string{"client", "session"} {
			if _, ok := a.Attribute(name); !ok {
				t.Fatal("none")
			}
		}
	}); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
