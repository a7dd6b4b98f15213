package server

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/memory"
)

const shopRules = `
domain: shop
limits:
  - name: api-per-user
    when: { path: "/api/**" }
    per: [user]
    allow: { rate: 10/min, burst: 10 }
  - name: two
    when: { kind: two }
    per: [user]
    allow: [2/min, 500/hour]
    algorithm: sliding_log
  - name: seen
    when: { kind: shadow }
    allow: 1/min
    on_limit: shadow
  - name: queue
    when: { kind: queue }
    allow: { rate: 1/s, burst: 4 }
    algorithm: leaky_bucket
  - name: slots
    when: { kind: slots }
    allow: 1
  - name: never
    when: { kind: never }
    allow: 0/min
  - name: gentle
    when: { kind: soft }
    allow: 10/min
    throttle: { soft: 10% }
    algorithm: sliding_log
`

// testClock is a store's clock that stands still until a test moves it.
type testClock struct{ us int64 }

func (c *testClock) now() int64 { return c.us }

func newTestLimiter(t testing.TB, rules ...string) (*weir.Limiter, *memory.Store, *testClock) {
	t.Helper()
	clock := &testClock{us: 1_767_225_600_000_000}
	store, err := memory.New(memory.Options{Clock: clock.now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	l, err := weir.New(store, weir.WithRules(loadRules(t, rules...)))
	if err != nil {
		t.Fatal(err)
	}
	return l, store, clock
}

func loadRules(t testing.TB, rules ...string) *rule.Set {
	t.Helper()
	var files []rule.Source
	for i, r := range rules {
		files = append(files, rule.Source{Name: fmt.Sprintf("%d.yaml", i), Data: []byte(r)})
	}
	set, _, err := rule.Load(files, rule.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

var loopback = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}

// answer is what a client got.
type answer struct {
	status int
	header http.Header
	body   string
}

// ask sends one request to h as if from peer.
func ask(h http.Handler, peer, method, target, body string, headers ...string) answer {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	if body == "" {
		r.Body = http.NoBody
	}
	r.RemoteAddr = peer
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return answer{w.Code, w.Result().Header, w.Body.String()}
}

const (
	friend   = "127.0.0.1:4711"
	stranger = "192.0.2.9:4711"
)

// equalJSON compares two JSON texts by value.
func equalJSON(t *testing.T, got, want string) {
	t.Helper()
	var g, w any
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		t.Fatalf("%v in %s", err, got)
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatalf("%v in %s", err, want)
	}
	gb, _ := json.Marshal(g)
	wb, _ := json.Marshal(w)
	if string(gb) != string(wb) {
		t.Errorf("got  %s\nwant %s", gb, wb)
	}
}

// TestLimitAnswer is the example of the specification.
func TestLimitAnswer(t *testing.T) {
	l, _, _ := newTestLimiter(t, shopRules)
	h := NewHTTP(l, HTTPOptions{})
	const question = `{"domain": "shop", "attributes": {"user": "ada", "path": "/api/x"}, "hits": 1}`
	for i := range 10 {
		a := ask(h, stranger, "POST", "/api/v1/limit", question)
		if a.status != 200 {
			t.Fatalf("request %d: %d %s", i, a.status, a.body)
		}
		if i == 0 {
			equalJSON(t, a.body, `{"allowed": true, "domain": "shop", "limited_by": [], "retry_after": 0,
				"limits": [{"name": "api-per-user", "algorithm": "token_bucket", "allowed": true, "limit": 10, "window": 60, "remaining": 9,
				"retry_after": 0, "reset_after": 6, "near_limit": false, "soft_exceeded": false, "shadow": false, "delay": 0}]}`)
		}
	}
	a := ask(h, stranger, "POST", "/api/v1/limit", question)
	if a.status != 429 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	id := a.header.Get("X-RateLimit-Decision")
	if _, err := weir.ParseDecisionID(id); err != nil {
		t.Error(err)
	}
	equalJSON(t, a.body, `{"allowed": false, "domain": "shop", "limited_by": ["api-per-user"], "retry_after": 6, "decision": "`+id+`",
		"limits": [{"name": "api-per-user", "algorithm": "token_bucket", "allowed": false, "limit": 10, "window": 60, "remaining": 0,
		"retry_after": 6, "reset_after": 60, "near_limit": true, "soft_exceeded": false, "shadow": false, "delay": 0}]}`)
	for name, want := range map[string]string{
		"Content-Type": "application/json", "Cache-Control": "no-store", "Retry-After": "6", "X-RateLimit-Limit": "10",
		"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "60", "X-RateLimit-Retry-After": "6",
		"RateLimit-Policy": `"api-per-user";q=10;w=60`, "RateLimit": `"api-per-user";r=0;t=6`,
	} {
		if got := a.header.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

func TestLimitSteps(t *testing.T) {
	type step struct {
		body   string
		after  time.Duration // before the request
		status int
		has    string // in the body
	}
	for name, steps := range map[string][]step{
		"two windows": {
			{body: `{"attributes":{"user":"a","kind":"two"},"hits":2}`, status: 200, has: `"name":"two:60s"`},
			{body: `{"attributes":{"user":"a","kind":"two"}}`, after: 1500 * time.Millisecond, status: 429, has: `"limited_by":["two"],"retry_after":58.5,`},
			{body: `{"attributes":{"user":"b","kind":"two"}}`, status: 200, has: `"name":"two:3600s","algorithm":"sliding_log","allowed":true,"limit":500,"window":3600,"remaining":499`},
		},
		"shadow": {
			{body: `{"attributes":{"kind":"shadow"}}`, status: 200, has: `"shadow":true`},
			{body: `{"attributes":{"kind":"shadow"}}`, status: 200, has: `"limited_by":[],"retry_after":0,"limits":[{"name":"seen","algorithm":"sliding_window","allowed":false`},
		},
		"delay": {
			{body: `{"attributes":{"kind":"queue"}}`, status: 200, has: `"delay":0}`},
			{body: `{"attributes":{"kind":"queue"}}`, status: 200, has: `"delay":1}`},
			{body: `{"attributes":{"kind":"queue"},"max_delay":0.5}`, status: 429, has: `"retry_after":1.5`},
			{body: `{"attributes":{"kind":"queue"},"max_delay":0}`, status: 429, has: `"retry_after":2,`},
			{body: `{"attributes":{"kind":"queue"},"max_delay":2}`, status: 200, has: `"delay":2}`},
			{body: `{"attributes":{"kind":"queue"},"max_delay":1e300}`, status: 200, has: `"delay":3}`},
		},
		"never": {
			{body: `{"attributes":{"kind":"never"}}`, status: 429, has: `"limited_by":["never"],"retry_after":null`},
			{body: `{"attributes":{"kind":"never"},"hits":0}`, status: 200, has: `"retry_after":0`},
		},
		"peek": {
			{body: `{"attributes":{"user":"c","kind":"two"},"hits":0}`, status: 200, has: `"remaining":2`},
			{body: `{"attributes":{"user":"c","kind":"two"},"hits":0}`, status: 200, has: `"remaining":2`},
		},
		"soft": {
			{body: `{"attributes":{"kind":"soft"},"hits":11}`, status: 200, has: `"remaining":0,"retry_after":0,"reset_after":60,"near_limit":true,"soft_exceeded":true,"soft_limit":11`},
			{body: `{"attributes":{"kind":"soft"}}`, status: 429, has: `"soft_exceeded":false`},
		},
		"nothing met": {
			{body: `{}`, status: 200, has: `{"allowed":true,"domain":"shop","limited_by":[],"retry_after":0,"limits":[]}`},
			{body: `{"domain":""}`, status: 200, has: `"domain":"shop"`},
			{body: `{"domain":"un\"known\u0001é\\"}`, status: 200, has: `"domain":"un\"known\u0001é\\"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, _, clock := newTestLimiter(t, shopRules)
			h := NewHTTP(l, HTTPOptions{})
			for i, s := range steps {
				clock.us += s.after.Microseconds()
				a := ask(h, stranger, "POST", "/api/v1/limit", s.body)
				if a.status != s.status || !strings.Contains(a.body, s.has) {
					t.Errorf("step %d: got %d %s, want %d with %s", i, a.status, a.body, s.status, s.has)
				}
				if !json.Valid([]byte(a.body)) {
					t.Errorf("step %d: not JSON: %s", i, a.body)
				}
			}
		})
	}
}

func TestLimitByQuery(t *testing.T) {
	l, _, _ := newTestLimiter(t, shopRules)
	h := NewHTTP(l, HTTPOptions{})
	for _, c := range []struct {
		query, accept string
		status        int
		has           string
	}{
		{"user=a&path=/api/x&hits=10", "", 200, `"remaining":0`},
		{"user=a&path=%2Fapi%2Fx", "", 429, `"limited_by":["api-per-user"]`},
		{"user=a&path=/api/x", "text/plain", 429, "false"},
		{"user=b&path=/api/x", "text/plain; q=0.9, application/json;q=0.5", 200, "true"},
		{"user=b&path=/api/x", "application/json, text/plain, */*", 200, `"remaining":8`},
		{"user=b&path=/api/x", "text/html, */*", 200, `"remaining":7`},
		{"", "", 200, `"limits":[]`},
		{"&&user=%F0%9F%98%80&&", "", 200, `"limits":[]`},
		{"domain=other", "", 200, `"domain":"other"`},
		{"kind=queue&max_delay=0", "", 200, `"delay":0`},
		{"kind=queue&max_delay=0", "", 429, `"retry_after":1`},
		{"user=a&user=b", "", 400, `"field":"user"`},
		{"user=a&us%65r=b", "", 400, "user: is given twice"},
		{"hits=1&hits=2", "", 400, `"field":"hits"`},
		{"domain=a&domain=a", "", 400, `"field":"domain"`},
		{"max_delay=1&max_delay=1", "", 400, `"field":"max_delay"`},
		{"hits=", "", 400, `"field":"hits"`},
		{"hits=1.0", "", 400, `"field":"hits"`},
		{"hits=NaN", "", 400, `"field":"hits"`},
		{"hits=%2B1", "", 400, `"field":"hits"`},
		{"hits=2147483648", "", 400, `"field":"hits"`},
		{"max_delay=-1", "", 400, `"field":"max_delay"`},
		{"max_delay=NaN", "", 400, `"field":"max_delay"`},
		{"max_delay=Inf", "", 400, `"field":"max_delay"`},
		{"max_delay=0x1", "", 400, `"field":"max_delay"`},
		{"max_delay=1e999", "", 400, `"field":"max_delay"`},
		{"user=%zz", "", 400, `"field":"user"`},
		{"%zz=1", "", 400, `"field":"query"`},
		{"user=%ff", "", 400, `"field":"user"`},
		{"=1", "", 400, `"field":"query"`},
	} {
		var headers []string
		if c.accept != "" {
			headers = []string{"Accept", c.accept}
		}
		a := ask(h, stranger, "GET", "/api/v1/limit?"+c.query, "", headers...)
		if a.status != c.status || !strings.Contains(a.body, c.has) {
			t.Errorf("%s (%s): got %d %s, want %d with %s", c.query, c.accept, a.status, a.body, c.status, c.has)
		}
		if a.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: Cache-Control %q", c.query, a.header.Get("Cache-Control"))
		}
	}
}

// TestBadBodies holds that whatever a client sends is a 4xx that names the field.
func TestBadBodies(t *testing.T) {
	l, _, _ := newTestLimiter(t, shopRules)
	h := NewHTTP(l, HTTPOptions{Trust: Trust{Peers: loopback}})
	deep := strings.Repeat(`{"attributes":`, 50_000)
	for _, c := range []struct{ path, body, field string }{
		{"limit", ``, "body"},
		{"limit", ` `, "body"},
		{"limit", `[]`, "body"},
		{"limit", `"x"`, "body"},
		{"limit", `null`, "body"},
		{"limit", `{`, "body"},
		{"limit", `{}x`, "body"},
		{"limit", `{} {}`, "body"},
		{"limit", `{,}`, "body"},
		{"limit", `{"hits":1,}`, "body"},
		{"limit", `{"hits" 1}`, "body"},
		{"limit", `{hits:1}`, "body"},
		{"limit", "\ufeff{}", "body"},
		{"limit", `{"domain":null}`, "domain"},
		{"limit", `{"domain":1}`, "domain"},
		{"limit", `{"domain":"a","domain":"a"}`, "domain"},
		{"limit", `{"Domain":"a"}`, "Domain"},
		{"limit", `{"atributes":{}}`, "atributes"},
		{"limit", `{"attributes":null}`, "attributes"},
		{"limit", `{"attributes":[]}`, "attributes"},
		{"limit", `{"attributes":{"user":1}}`, "attributes.user"},
		{"limit", `{"attributes":{"user":null}}`, "attributes.user"},
		{"limit", `{"attributes":{"user":["a"]}}`, "attributes.user"},
		{"limit", `{"attributes":{"user":{"a":{}}}}`, "attributes.user"},
		{"limit", `{"attributes":{"user":"a","user":"b"}}`, "attributes.user"},
		{"limit", `{"attributes":{"user":"a","\u0075ser":"b"}}`, "attributes.user"},
		{"limit", `{"attributes":{"":"a"}}`, "attributes"},
		{"limit", `{"attributes":{},"attributes":{}}`, "attributes"},
		{"limit", `{"attributes":{"user":"a` + "\n" + `"}}`, "body"},
		{"limit", `{"attributes":{"user":"\x"}}`, "body"},
		{"limit", `{"attributes":{"user":"\ud800"}}`, "body"},
		{"limit", `{"attributes":{"user":"\ud800\u0041"}}`, "body"},
		{"limit", `{"attributes":{"user":"\udc00\ud800"}}`, "body"},
		{"limit", `{"attributes":{"user":"\u12"}}`, "body"},
		{"limit", `{"attributes":{"user":"` + "\xff" + `"}}`, "body"},
		{"limit", `{"attributes":{"user":"\n` + "\xff" + `"}}`, "body"},
		{"limit", `{"attributes":{"user":"a`, "body"},
		{"limit", `{"attributes":{"user":"a\`, "body"},
		{"limit", `{"hits":"1"}`, "hits"},
		{"limit", `{"hits":1.5}`, "hits"},
		{"limit", `{"hits":1.0}`, "hits"},
		{"limit", `{"hits":1e2}`, "hits"},
		{"limit", `{"hits":01}`, "hits"},
		{"limit", `{"hits":+1}`, "hits"},
		{"limit", `{"hits":-}`, "hits"},
		{"limit", `{"hits":null}`, "hits"},
		{"limit", `{"hits":true}`, "hits"},
		{"limit", `{"hits":NaN}`, "hits"},
		{"limit", `{"hits":2147483648}`, "hits"},
		{"limit", `{"hits":-2147483648}`, "hits"},
		{"limit", `{"hits":99999999999999999999999}`, "hits"},
		{"limit", `{"hits":1,"hits":1}`, "hits"},
		{"limit", `{"hits":{}}`, "hits"},
		{"limit", `{"max_delay":-1}`, "max_delay"},
		{"limit", `{"max_delay":-0.0000001}`, "max_delay"},
		{"limit", `{"max_delay":NaN}`, "max_delay"},
		{"limit", `{"max_delay":1e999}`, "max_delay"},
		{"limit", `{"max_delay":"1"}`, "max_delay"},
		{"limit", `{"max_delay":null}`, "max_delay"},
		{"limit", `{"max_delay":1.}`, "max_delay"},
		{"limit", `{"max_delay":.5}`, "max_delay"},
		{"limit", `{"max_delay":1e}`, "max_delay"},
		{"limit", deep, "attributes.attributes"},
		{"limit", strings.Repeat("[", 500_000), "body"},
		{"limit/batch", ``, "body"},
		{"limit/batch", `[]`, "body"},
		{"limit/batch", `{}`, "requests"},
		{"limit/batch", `{"requests":{}}`, "requests"},
		{"limit/batch", `{"requests":[],"requests":[]}`, "requests"},
		{"limit/batch", `{"request":[]}`, "request"},
		{"limit/batch", `{"requests":[{},{},{},1]}`, "requests[3]"},
		{"limit/batch", `{"requests":[{},null]}`, "requests[1]"},
		{"limit/batch", `{"requests":[{},{"hits":1.5}]}`, "requests[1].hits"},
		{"limit/batch", `{"requests":[{},{"attributes":{"user":{}}}]}`, "requests[1].attributes.user"},
		{"limit/batch", `{"requests":[{},]}`, "requests[1]"},
		{"limit/batch", `{"requests":[{}`, "body"},
		{"limit/batch", `{"requests":[{}]}}`, "body"},
		{"release", `{}`, "slot"},
		{"release", `{"slot":1}`, "slot"},
		{"release", `{"slot":"a","slot":"a"}`, "slot"},
		{"release", `{"slots":"a"}`, "slots"},
		{"release", `"a"`, "body"},
	} {
		a := ask(h, friend, "POST", "/api/v1/"+c.path, c.body)
		short := c.body[:min(60, len(c.body))]
		var p struct {
			Status                     int
			Type, Title, Detail, Field string
		}
		if err := json.Unmarshal([]byte(a.body), &p); err != nil || a.status != 400 || a.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s: got %d %s (%v)", c.path, short, a.status, a.body, err)
			continue
		}
		if p.Field != c.field || !strings.HasPrefix(p.Detail, c.field) || p.Status != 400 || p.Title != "Bad Request" {
			t.Errorf("%s %s: got the problem %+v, want the field %s", c.path, short, p, c.field)
		}
	}
}

func TestLimitBounds(t *testing.T) {
	l, _, _ := newTestLimiter(t, shopRules)
	h := NewHTTP(l, HTTPOptions{Trust: Trust{Peers: loopback}})
	items := func(n int) string { return `{"requests":[` + strings.TrimSuffix(strings.Repeat("{},", n), ",") + `]}` }
	many := strings.Builder{}
	for i := range 20_000 {
		fmt.Fprintf(&many, `"a%d":"v",`, i)
	}
	for name, c := range map[string]struct {
		path, body string
		status     int
	}{
		"largest batch":        {"limit/batch", items(1000), 200},
		"larger batch":         {"limit/batch", items(1001), 413},
		"empty batch":          {"limit/batch", items(0), 200},
		"large body":           {"limit", `{"domain":"` + strings.Repeat("a", maxBody) + `"}`, 413},
		"large batch":          {"limit/batch", `{"requests":[{"domain":"` + strings.Repeat("a", maxBatchBody) + `"}]}`, 413},
		"large release":        {"release", `{"slot":"` + strings.Repeat("a", maxBody) + `"}`, 413},
		"largest body":         {"limit", `{"attributes":{"a":"` + strings.Repeat("a", maxBody-23) + `"}}`, 200},
		"many attributes":      {"limit", `{"attributes":{` + many.String() + `"path":"/api/x","user":"z"}}`, 200},
		"twice among many":     {"limit", `{"attributes":{` + many.String() + `"a77":"v"}}`, 400},
		"more hits than known": {"limit", `{"attributes":{"path":"/api/x","user":"z"},"hits":2147483647}`, 429},
	} {
		a := ask(h, friend, "POST", "/api/v1/"+c.path, c.body)
		if a.status != c.status {
			t.Errorf("%s: got %d %.200s, want %d", name, a.status, a.body, c.status)
		}
		if name == "many attributes" && !strings.Contains(a.body, `"remaining":9`) {
			t.Errorf("%s: the limit was evaded: %s", name, a.body)
		}
	}
	// A body without a length.
	r := httptest.NewRequest("POST", "/api/v1/limit", io.MultiReader(strings.NewReader(`{"domain":"`), strings.NewReader(strings.Repeat("a", 2*maxBody))))
	r.ContentLength = -1
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != 413 {
		t.Errorf("chunked: got %d", w.Code)
	}
}

func TestBatch(t *testing.T) {
	l, _, _ := newTestLimiter(t, shopRules)
	h := NewHTTP(l, HTTPOptions{})
	a := ask(h, stranger, "POST", "/api/v1/limit/batch", `{"requests":[
		{"attributes":{"user":"a","kind":"two"}},
		{"attributes":{"user":"a","kind":"two"}},
		{"attributes":{"user":"a","kind":"two"}},
		{"attributes":{"user":"b","kind":"two"}},
		{"domain":"none"}]}`)
	var got struct {
		Responses []struct {
			Allowed   bool
			Domain    string
			LimitedBy []string `json:"limited_by"`
		}
	}
	if err := json.Unmarshal([]byte(a.body), &got); err != nil || a.status != 200 {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	if s, want := fmt.Sprint(got.Responses), "[{true shop []} {true shop []} {false shop [two]} {true shop []} {true none []}]"; s != want {
		t.Errorf("got %s, want %s", s, want)
	}
	if a.header.Get("RateLimit") != "" || a.header.Get("Cache-Control") != "no-store" {
		t.Errorf("headers %v", a.header)
	}
	// Nothing is charged when an item cannot be read.
	if a := ask(h, stranger, "POST", "/api/v1/limit/batch", `{"requests":[{"attributes":{"user":"c","kind":"two"},"hits":2},{"hits":"x"}]}`); a.status != 400 {
		t.Errorf("got %d", a.status)
	}
	if a := ask(h, stranger, "GET", "/api/v1/limit?user=c&kind=two&hits=2", ""); a.status != 200 {
		t.Errorf("a bad batch was charged: %s", a.body)
	}
}

func TestTrust(t *testing.T) {
	l, _, _ := newTestLimiter(t, shopRules)
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte("# operators\nsesame\n\n  open  \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var tokens Tokens
	if err := tokens.Load(path); err != nil {
		t.Fatal(err)
	}
	h := NewHTTP(l, HTTPOptions{Trust: Trust{Peers: loopback, Tokens: &tokens}})
	slot := func() string {
		t.Helper()
		a := ask(h, stranger, "POST", "/api/v1/limit", `{"attributes":{"kind":"slots"}}`)
		var got struct{ Limits []struct{ Slot string } }
		if err := json.Unmarshal([]byte(a.body), &got); err != nil || a.status != 200 || got.Limits[0].Slot == "" {
			t.Fatalf("%d %s: %v", a.status, a.body, err)
		}
		return `{"slot":"` + got.Limits[0].Slot + `"}`
	}
	first := slot()
	for _, c := range []struct {
		name, peer, path, body string
		headers                []string
		status                 int
	}{
		{"refund", stranger, "limit", `{"hits":-1}`, nil, 403},
		{"refund by a friend", friend, "limit", `{"hits":-1}`, nil, 200},
		{"refund by a mapped friend", "[::ffff:127.0.0.1]:1", "limit", `{"hits":-1}`, nil, 200},
		{"refund by a web page of a friend", friend, "limit", `{"hits":-1}`, []string{"Origin", "https://evil.example"}, 403},
		{"refund by an image in a page of a friend", friend, "limit", `{"hits":-1}`, []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"refund by a browser of a friend", friend, "limit", `{"hits":-1}`, []string{"User-Agent", "Mozilla/5.0 (X11; Linux x86_64)"}, 403},
		{"refund by header", stranger, "limit", `{"hits":-1}`, []string{"X-Forwarded-For", "127.0.0.1"}, 403},
		{"refund with a token", stranger, "limit", `{"hits":-1}`, []string{"Authorization", "bearer sesame"}, 200},
		{"refund with a bad token", stranger, "limit", `{"hits":-1}`, []string{"Authorization", "Bearer sesam"}, 403},
		{"refund with no token", stranger, "limit", `{"hits":-1}`, []string{"Authorization", "Bearer"}, 403},
		{"refund with a comment", stranger, "limit", `{"hits":-1}`, []string{"Authorization", "Bearer # operators"}, 403},
		{"1,000 hits", stranger, "limit", `{"hits":1000}`, nil, 200},
		{"more", stranger, "limit", `{"hits":1001}`, nil, 403},
		{"more by a friend", friend, "limit", `{"hits":1001}`, nil, 200},
		{"a batch with a refund", stranger, "limit/batch", `{"requests":[{},{"hits":-1}]}`, nil, 403},
		{"the same by a friend", friend, "limit/batch", `{"requests":[{},{"hits":-1}]}`, nil, 200},
		{"release", stranger, "release", first, nil, 403},
		{"release by a friend", friend, "release", first, nil, 204},
		{"release again", friend, "release", first, nil, 404},
		{"release of what never was", friend, "release", `{"slot":"never"}`, nil, 404},
	} {
		a := ask(h, c.peer, "POST", "/api/v1/"+c.path, c.body, c.headers...)
		if a.status != c.status {
			t.Errorf("%s: got %d %s, want %d", c.name, a.status, a.body, c.status)
		}
	}
	if a := ask(h, stranger, "POST", "/api/v1/release", slot(), "Authorization", "Bearer open"); a.status != 204 {
		t.Errorf("release with a token: got %d %s", a.status, a.body)
	}
}

func TestTokensFile(t *testing.T) {
	var tokens Tokens
	for name, c := range map[string]struct{ data, want string }{
		"empty":                    {"\n# nothing\n", "holds no token"},
		"spaces":                   {"good\nnot good\n", "tokens:2: a token holds no spaces"},
		"no header could carry it": {"g\x00od\n", "tokens:1: a token holds no spaces, and only ASCII"},
	} {
		path := filepath.Join(t.TempDir(), "tokens")
		if err := os.WriteFile(path, []byte(c.data), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := tokens.Load(path); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.Header.Set("Authorization", "Bearer ")
	if tokens.Authenticated(r) || (*Tokens)(nil).Authenticated(r) {
		t.Error("no token was taken for one")
	}
}

func TestDomains(t *testing.T) {
	two := "domain: other\nlimits: [{ name: all, allow: 1/min }]\n"
	l, _, _ := newTestLimiter(t, shopRules, two)
	h := NewHTTP(l, HTTPOptions{})
	for _, c := range []struct{ path, body, field string }{
		{"limit", `{}`, "domain"},
		{"limit/batch", `{"requests":[{"domain":"shop"},{}]}`, "requests[1].domain"},
	} {
		a := ask(h, stranger, "POST", "/api/v1/"+c.path, c.body)
		if a.status != 400 || !strings.Contains(a.body, `"field":"`+c.field+`"`) || !strings.Contains(a.body, "http.domain") {
			t.Errorf("%s: got %d %s", c.path, a.status, a.body)
		}
	}
	h = NewHTTP(l, HTTPOptions{Domain: "other"})
	if a := ask(h, stranger, "GET", "/api/v1/limit", ""); a.status != 200 || !strings.Contains(a.body, `"domain":"other"`) {
		t.Errorf("configured domain: got %d %s", a.status, a.body)
	}
	h = NewHTTP(l, HTTPOptions{})
	l.SetRules(loadRules(t, two))
	if a := ask(h, stranger, "GET", "/api/v1/limit", ""); a.status != 429 || !strings.Contains(a.body, `"domain":"other"`) {
		t.Errorf("one domain after a reload, whose counter was used up before: got %d %s", a.status, a.body)
	}
}

func TestPaths(t *testing.T) {
	l, _, _ := newTestLimiter(t, shopRules)
	ready := true
	h := NewHTTP(l, HTTPOptions{Ready: func() bool { return ready }, JSON: http.NotFoundHandler()})
	for _, c := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"PUT", "/api/v1/limit", 405, "GET, POST"},
		{"HEAD", "/api/v1/limit", 405, "GET, POST"},
		{"DELETE", "/api/v1/limit", 405, "GET, POST"},
		{"GET", "/api/v1/limit/batch", 405, "POST"},
		{"GET", "/api/v1/release", 405, "POST"},
		{"POST", "/api/v1/openapi.yaml", 405, "GET, HEAD"},
		{"GET", "/api/v1/openapi.yaml", 200, ""},
		{"HEAD", "/api/v1/openapi.yaml", 200, ""},
		{"GET", "/healthcheck", 200, ""},
		{"GET", "/", 404, ""},
		{"GET", "/api/v1/limit/", 404, ""},
		{"GET", "//api/v1/limit", 404, ""},
		{"GET", "/api/v1/../v1/limit", 404, ""},
		{"GET", "/api/v1/nothing", 404, ""},
		{"GET", "/%00", 404, ""},
	} {
		a := ask(h, stranger, c.method, c.path, "")
		if a.status != c.status || a.header.Get("Allow") != c.allow {
			t.Errorf("%s %s: got %d, Allow %q; want %d, %q", c.method, c.path, a.status, a.header.Get("Allow"), c.status, c.allow)
		}
		if c.status >= 400 && a.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s: Content-Type %q", c.method, c.path, a.header.Get("Content-Type"))
		}
	}
	ready = false
	if a := ask(h, stranger, "GET", "/healthcheck", ""); a.status != 500 || a.body != "" {
		t.Errorf("going away: got %d %q", a.status, a.body)
	}
	if a := ask(NewHTTP(l, HTTPOptions{}), stranger, "POST", "/json", ""); a.status != 404 {
		t.Errorf("/json without a handler: got %d", a.status)
	}
}

// TestOpenAPI holds the description against the routes, in both directions.
func TestOpenAPI(t *testing.T) {
	var doc struct {
		Paths map[string]map[string]struct {
			Responses map[string]any
		}
	}
	if err := yaml.Unmarshal(openAPI, &doc); err != nil {
		t.Fatal(err)
	}
	for path, methods := range httpPaths {
		described := doc.Paths[path]
		if len(described) == 0 {
			t.Errorf("%s is not described", path)
		}
		for method := range strings.SplitSeq(methods, ", ") {
			if _, ok := described[strings.ToLower(method)]; !ok && methods != "" && method != "HEAD" {
				t.Errorf("%s %s is not described", method, path)
			}
		}
	}
	l, _, _ := newTestLimiter(t, shopRules)
	rls := NewRLS(l, RLSOptions{})
	h := NewHTTP(l, HTTPOptions{JSON: NewRLSJSON(rls, nil), ForwardAuth: NewForwardAuth(l, ForwardAuthOptions{})})
	for path, methods := range doc.Paths {
		if _, ok := httpPaths[path]; !ok {
			t.Errorf("%s is described but does not exist", path)
		}
		for method, operation := range methods {
			a := ask(h, stranger, strings.ToUpper(method), path, "")
			if a.status == 404 || a.status == 405 {
				t.Errorf("%s %s is described but answers %d", method, path, a.status)
			}
			if _, ok := operation.Responses[fmt.Sprint(a.status)]; !ok {
				t.Errorf("%s %s answers %d, which is not described", method, path, a.status)
			}
		}
	}
	// Every reference leads somewhere.
	var tree any
	if err := yaml.Unmarshal(openAPI, &tree); err != nil {
		t.Fatal(err)
	}
	refs := 0
	var walk func(any)
	walk = func(n any) {
		switch n := n.(type) {
		case map[string]any:
			if ref, ok := n["$ref"].(string); ok {
				refs++
				at := tree
				for part := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
					m, _ := at.(map[string]any)
					at = m[part]
				}
				if at == nil {
					t.Errorf("%s leads nowhere", ref)
				}
			}
			for _, v := range n {
				walk(v)
			}
		case []any:
			for _, v := range n {
				walk(v)
			}
		}
	}
	walk(tree)
	if refs < 20 {
		t.Errorf("only %d references were found", refs)
	}
	// The members of an answer are those that are described.
	a := ask(h, stranger, "GET", "/api/v1/limit?kind=two&user=q", "")
	var got struct{ Limits []map[string]any }
	if err := json.Unmarshal([]byte(a.body), &got); err != nil {
		t.Fatal(err)
	}
	var schemas struct {
		Components struct {
			Schemas map[string]struct{ Required []string }
		}
	}
	if err := yaml.Unmarshal(openAPI, &schemas); err != nil {
		t.Fatal(err)
	}
	var members []string
	for name := range got.Limits[0] {
		members = append(members, name)
	}
	slices.Sort(members)
	required := schemas.Components.Schemas["Limit"].Required
	slices.Sort(required)
	if !slices.Equal(members, required) {
		t.Errorf("a limit has the members %q, described are %q", members, required)
	}
}

// TestPoolHoldsNoBody: what is kept for the next request must not keep the text of the last one, which may be large.
func TestPoolHoldsNoBody(t *testing.T) {
	l, _, _ := newTestLimiter(t, shopRules)
	h := NewHTTP(l, HTTPOptions{}).(*httpDoor)
	c := new(httpCall)
	body := `{"domain":"shop","attributes":{"user":"ada","path":"/api/x"}}`
	if err := (&decoder{s: body}).question(&c.question); err != nil {
		t.Fatal(err)
	}
	if err := h.ask(c, ""); err != nil {
		t.Fatal(err)
	}
	if err := h.decide(t.Context(), c); err != nil || len(c.decision.Limits) == 0 {
		t.Fatalf("%v, %d limits", err, len(c.decision.Limits))
	}
	h.done(c)
	if c.decision.Domain != "" || c.question.domain != "" || c.request.Domain != "" || len(c.question.attrs.pairs) > 0 {
		t.Errorf("it holds domains %q %q %q and %d attributes", c.decision.Domain, c.question.domain, c.request.Domain, len(c.question.attrs.pairs))
	}
}
