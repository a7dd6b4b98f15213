package httpapi

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/door/forwardauth"
	"github.com/weir-rl/weir/internal/door/rls"
	"github.com/weir-rl/weir/internal/testkit/doortest"
)

// TestLimitAnswer is the example of the specification.
func TestLimitAnswer(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, doortest.ShopRules)
	h := New(l, Options{})
	const question = `{"domain": "shop", "attributes": {"user": "ada", "path": "/api/x"}, "hits": 1}`
	for i := range 10 {
		a := doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/limit", question)
		if a.Status != 200 {
			t.Fatalf("request %d: %d %s", i, a.Status, a.Body)
		}
		if i == 0 {
			doortest.EqualJSON(t, a.Body, `{"allowed": true, "domain": "shop", "limited_by": [], "retry_after": 0,
				"limits": [{"name": "api-per-user", "algorithm": "token_bucket", "allowed": true, "limit": 10, "window": 60, "remaining": 9,
				"retry_after": 0, "reset_after": 6, "near_limit": false, "soft_exceeded": false, "shadow": false, "delay": 0}]}`)
		}
	}
	a := doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/limit", question)
	if a.Status != 429 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	id := a.Header.Get("X-RateLimit-Decision")
	if _, err := weir.ParseDecisionID(id); err != nil {
		t.Error(err)
	}
	doortest.EqualJSON(t, a.Body, `{"allowed": false, "domain": "shop", "limited_by": ["api-per-user"], "retry_after": 6, "decision": "`+id+`",
		"limits": [{"name": "api-per-user", "algorithm": "token_bucket", "allowed": false, "limit": 10, "window": 60, "remaining": 0,
		"retry_after": 6, "reset_after": 60, "near_limit": true, "soft_exceeded": false, "shadow": false, "delay": 0}]}`)
	for name, want := range map[string]string{
		"Content-Type": "application/json", "Cache-Control": "no-store", "Retry-After": "6", "X-RateLimit-Limit": "10",
		"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "60", "X-RateLimit-Retry-After": "6",
		"RateLimit-Policy": `"api-per-user";q=10;w=60`, "RateLimit": `"api-per-user";r=0;t=6`,
	} {
		if got := a.Header.Get(name); got != want {
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
			{body: `{"attributes":{"kind":"soft"},"hits":0}`, status: 200, has: `"delay":0,"used":11,"refused":true}`},
		},
		"in the soft margin": {
			{body: `{"attributes":{"kind":"soft"},"hits":0}`, status: 200, has: `"delay":0}`},
			{body: `{"attributes":{"kind":"soft"},"hits":10}`, status: 200, has: `"delay":0}`},
			{body: `{"attributes":{"kind":"soft"},"hits":0}`, status: 200, has: `"delay":0,"used":10,"refused":false}`},
		},
		"nothing met": {
			{body: `{}`, status: 200, has: `{"allowed":true,"domain":"shop","limited_by":[],"retry_after":0,"limits":[]}`},
			{body: `{"domain":""}`, status: 200, has: `"domain":"shop"`},
			{body: `{"domain":"un\"known\u0001é\\"}`, status: 200, has: `"domain":"un\"known\u0001é\\"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, _, clock := doortest.NewLimiter(t, doortest.ShopRules)
			h := New(l, Options{})
			for i, s := range steps {
				clock.US += s.after.Microseconds()
				a := doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/limit", s.body)
				if a.Status != s.status || !strings.Contains(a.Body, s.has) {
					t.Errorf("step %d: got %d %s, want %d with %s", i, a.Status, a.Body, s.status, s.has)
				}
				if !json.Valid([]byte(a.Body)) {
					t.Errorf("step %d: not JSON: %s", i, a.Body)
				}
			}
		})
	}
}

func TestLimitByQuery(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, doortest.ShopRules)
	h := New(l, Options{})
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
		{"user=c&path=/api/x&hits=2.0", "", 200, `"remaining":8`},
		{"user=c&path=/api/x&hits=1.5", "", 400, `"field":"hits"`},
		{"attributes[user]=a", "", 400, `attributes[user]: is no attribute: in a query each attribute is a parameter of its own, as in ?user=ada`},
		{"attributes%5Buser%5D=a&path=/api/x", "", 400, `"field":"attributes[user]"`},
		{"attributes=%7B%22user%22:%22a%22%7D", "", 400, `"field":"attributes"`},
		{"attributes=user,a", "", 400, `"field":"attributes"`},
		{"attributes.user=a", "", 400, `"field":"attributes.user"`},
		{"user[]=a", "", 400, `"field":"user[]"`},
		{"attributesX=a&query.ids[]=7&header.x[y]=7", "", 200, `"limits":[]`},
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
		a := doortest.Ask(h, doortest.Stranger, "GET", "/api/v1/limit?"+c.query, "", headers...)
		if a.Status != c.status || !strings.Contains(a.Body, c.has) {
			t.Errorf("%s (%s): got %d %s, want %d with %s", c.query, c.accept, a.Status, a.Body, c.status, c.has)
		}
		if a.Header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: Cache-Control %q", c.query, a.Header.Get("Cache-Control"))
		}
	}
}

// TestBadBodies holds that whatever a client sends is a 4xx that names the field.
func TestBadBodies(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, doortest.ShopRules)
	h := New(l, Options{Trust: auth.Trust{Peers: doortest.Loopback}})
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
		{"limit", `{"hits":1.01}`, "hits"},
		{"limit", `{"hits":15e-1}`, "hits"},
		{"limit", `{"hits":1e-1}`, "hits"},
		{"limit", `{"hits":2147483648.0}`, "hits"},
		{"limit", `{"hits":1e10}`, "hits"},
		{"limit", `{"hits":1e999999999999}`, "hits"},
		{"limit", `{"hits":1e-999999999999}`, "hits"},
		{"limit", `{"hits":1.}`, "hits"},
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
		a := doortest.Ask(h, doortest.Friend, "POST", "/api/v1/"+c.path, c.body)
		short := c.body[:min(60, len(c.body))]
		var p struct {
			Status                     int
			Type, Title, Detail, Field string
		}
		if err := json.Unmarshal([]byte(a.Body), &p); err != nil || a.Status != 400 ||
			a.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s: got %d %s (%v)", c.path, short, a.Status, a.Body, err)
			continue
		}
		if p.Field != c.field || !strings.HasPrefix(p.Detail, c.field) || p.Status != 400 || p.Title != "Bad Request" {
			t.Errorf("%s %s: got the problem %+v, want the field %s", c.path, short, p, c.field)
		}
	}
}

func TestLimitBounds(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, doortest.ShopRules)
	h := New(l, Options{Trust: auth.Trust{Peers: doortest.Loopback}})
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
		a := doortest.Ask(h, doortest.Friend, "POST", "/api/v1/"+c.path, c.body)
		if a.Status != c.status {
			t.Errorf("%s: got %d %.200s, want %d", name, a.Status, a.Body, c.status)
		}
		if name == "many attributes" && !strings.Contains(a.Body, `"remaining":9`) {
			t.Errorf("%s: the limit was evaded: %s", name, a.Body)
		}
	}
	// A body without a length.
	r := httptest.NewRequest("POST", "/api/v1/limit",
		io.MultiReader(strings.NewReader(`{"domain":"`), strings.NewReader(strings.Repeat("a", 2*maxBody))))
	r.ContentLength = -1
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != 413 {
		t.Errorf("chunked: got %d", w.Code)
	}
}

func TestBatch(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, doortest.ShopRules)
	h := New(l, Options{})
	a := doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/limit/batch", `{"requests":[
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
	if err := json.Unmarshal([]byte(a.Body), &got); err != nil || a.Status != 200 {
		t.Fatalf("%d %s: %v", a.Status, a.Body, err)
	}
	if s, want := fmt.Sprint(got.Responses), "[{true shop []} {true shop []} {false shop [two]} {true shop []} {true none []}]"; s != want {
		t.Errorf("got %s, want %s", s, want)
	}
	if a.Header.Get("RateLimit") != "" || a.Header.Get("Cache-Control") != "no-store" {
		t.Errorf("headers %v", a.Header)
	}
	// Nothing is charged when an item cannot be read.
	if a := doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/limit/batch", `{"requests":[{"attributes":{"user":"c","kind":"two"},"hits":2},{"hits":"x"}]}`); a.Status != 400 {
		t.Errorf("got %d", a.Status)
	}
	if a := doortest.Ask(h, doortest.Stranger, "GET", "/api/v1/limit?user=c&kind=two&hits=2", ""); a.Status != 200 {
		t.Errorf("a bad batch was charged: %s", a.Body)
	}
}

func TestTrust(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, doortest.ShopRules)
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte("# operators\nsesame\n\n  open  \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var tokens auth.Tokens
	if err := tokens.Load(path); err != nil {
		t.Fatal(err)
	}
	h := New(l, Options{Trust: auth.Trust{Peers: doortest.Loopback, Tokens: &tokens}})
	slot := func() string {
		t.Helper()
		a := doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/limit", `{"attributes":{"kind":"slots"}}`)
		var got struct{ Limits []struct{ Slot string } }
		if err := json.Unmarshal([]byte(a.Body), &got); err != nil || a.Status != 200 || got.Limits[0].Slot == "" {
			t.Fatalf("%d %s: %v", a.Status, a.Body, err)
		}
		return `{"slot":"` + got.Limits[0].Slot + `"}`
	}
	first := slot()
	for _, c := range []struct {
		name, peer, path, body string
		headers                []string
		status                 int
	}{
		{"refund", doortest.Stranger, "limit", `{"hits":-1}`, nil, 403},
		{"refund by a friend", doortest.Friend, "limit", `{"hits":-1}`, nil, 200},
		{"refund by a mapped friend", "[::ffff:127.0.0.1]:1", "limit", `{"hits":-1}`, nil, 200},
		{"refund by a web page of a friend", doortest.Friend, "limit", `{"hits":-1}`, []string{"Origin", "https://evil.example"}, 403},
		{"refund by an image in a page of a friend", doortest.Friend, "limit", `{"hits":-1}`, []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"refund by a browser of a friend", doortest.Friend, "limit", `{"hits":-1}`, []string{"User-Agent", "Mozilla/5.0 (X11; Linux x86_64)"}, 403},
		{"refund by header", doortest.Stranger, "limit", `{"hits":-1}`, []string{"X-Forwarded-For", "127.0.0.1"}, 403},
		{"refund with a token", doortest.Stranger, "limit", `{"hits":-1}`, []string{"Authorization", "bearer sesame"}, 200},
		{"refund with a bad token", doortest.Stranger, "limit", `{"hits":-1}`, []string{"Authorization", "Bearer sesam"}, 403},
		{"refund with no token", doortest.Stranger, "limit", `{"hits":-1}`, []string{"Authorization", "Bearer"}, 403},
		{"refund with a comment", doortest.Stranger, "limit", `{"hits":-1}`, []string{"Authorization", "Bearer # operators"}, 403},
		{"1,000 hits", doortest.Stranger, "limit", `{"hits":1000}`, nil, 200},
		{"more", doortest.Stranger, "limit", `{"hits":1001}`, nil, 403},
		{"more by a friend", doortest.Friend, "limit", `{"hits":1001}`, nil, 200},
		{"a batch with a refund", doortest.Stranger, "limit/batch", `{"requests":[{},{"hits":-1}]}`, nil, 403},
		{"the same by a friend", doortest.Friend, "limit/batch", `{"requests":[{},{"hits":-1}]}`, nil, 200},
		{"release", doortest.Stranger, "release", first, nil, 403},
		{"release by a friend", doortest.Friend, "release", first, nil, 204},
		{"release again", doortest.Friend, "release", first, nil, 404},
		{"release of what never was", doortest.Friend, "release", `{"slot":"never"}`, nil, 404},
	} {
		a := doortest.Ask(h, c.peer, "POST", "/api/v1/"+c.path, c.body, c.headers...)
		if a.Status != c.status {
			t.Errorf("%s: got %d %s, want %d", c.name, a.Status, a.Body, c.status)
		}
	}
	if a := doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/release", slot(), "Authorization", "Bearer open"); a.Status != 204 {
		t.Errorf("release with a token: got %d %s", a.Status, a.Body)
	}
}

func TestTokensFile(t *testing.T) {
	var tokens auth.Tokens
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
	if tokens.Authenticated(r) || (*auth.Tokens)(nil).Authenticated(r) {
		t.Error("no token was taken for one")
	}
}

func TestDomains(t *testing.T) {
	two := "domain: other\nlimits: [{ name: all, allow: 1/min }]\n"
	l, _, _ := doortest.NewLimiter(t, doortest.ShopRules, two)
	h := New(l, Options{})
	for _, c := range []struct{ path, body, field string }{
		{"limit", `{}`, "domain"},
		{"limit/batch", `{"requests":[{"domain":"shop"},{}]}`, "requests[1].domain"},
	} {
		a := doortest.Ask(h, doortest.Stranger, "POST", "/api/v1/"+c.path, c.body)
		if a.Status != 400 || !strings.Contains(a.Body, `"field":"`+c.field+`"`) ||
			!strings.Contains(a.Body, "default_domain") {
			t.Errorf("%s: got %d %s", c.path, a.Status, a.Body)
		}
	}
	h = New(l, Options{Domain: "other"})
	if a := doortest.Ask(h, doortest.Stranger, "GET", "/api/v1/limit", ""); a.Status != 200 ||
		!strings.Contains(a.Body, `"domain":"other"`) {
		t.Errorf("configured domain: got %d %s", a.Status, a.Body)
	}
	h = New(l, Options{})
	l.SetRules(doortest.Load(t, two))
	if a := doortest.Ask(h, doortest.Stranger, "GET", "/api/v1/limit", ""); a.Status != 429 ||
		!strings.Contains(a.Body, `"domain":"other"`) {
		t.Errorf("one domain after a reload, whose counter was used up before: got %d %s", a.Status, a.Body)
	}
}

func TestPaths(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, doortest.ShopRules)
	ready := true
	h := New(l, Options{Ready: func() bool { return ready }, JSON: http.NotFoundHandler()})
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
		a := doortest.Ask(h, doortest.Stranger, c.method, c.path, "")
		if a.Status != c.status || a.Header.Get("Allow") != c.allow {
			t.Errorf("%s %s: got %d, Allow %q; want %d, %q", c.method, c.path, a.Status, a.Header.Get("Allow"),
				c.status, c.allow)
		}
		if c.status >= 400 && a.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s: Content-Type %q", c.method, c.path, a.Header.Get("Content-Type"))
		}
	}
	ready = false
	if a := doortest.Ask(h, doortest.Stranger, "GET", "/healthcheck", ""); a.Status != 500 || a.Body != "" {
		t.Errorf("going away: got %d %q", a.Status, a.Body)
	}
	if a := doortest.Ask(New(l, Options{}), doortest.Stranger, "POST", "/json", ""); a.Status != 404 {
		t.Errorf("/json without a handler: got %d", a.Status)
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
	l, _, _ := doortest.NewLimiter(t, doortest.ShopRules)
	service := rls.New(l, rls.Options{})
	h := New(l, Options{JSON: rls.NewJSON(service, nil), ForwardAuth: forwardauth.New(l, forwardauth.Options{})})
	paths := map[string][]string{door.ForwardAuthPath + "/nginx": nil, door.ForwardAuthPath + "/forwarded": nil}
	for _, r := range routesOf(h.(*handler)) {
		paths[r.path] = r.methods
	}
	for path, methods := range paths {
		described := doc.Paths[path]
		if len(described) == 0 {
			t.Errorf("%s is not described", path)
		}
		for _, method := range methods {
			if _, ok := described[strings.ToLower(method)]; !ok && method != "HEAD" {
				t.Errorf("%s %s is not described", method, path)
			}
		}
	}
	for path, methods := range doc.Paths {
		if _, ok := paths[path]; !ok {
			t.Errorf("%s is described but does not exist", path)
		}
		for method, operation := range methods {
			a := doortest.Ask(h, doortest.Stranger, strings.ToUpper(method), path, "")
			if a.Status == 404 || a.Status == 405 {
				t.Errorf("%s %s is described but answers %d", method, path, a.Status)
			}
			if _, ok := operation.Responses[fmt.Sprint(a.Status)]; !ok {
				t.Errorf("%s %s answers %d, which is not described", method, path, a.Status)
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
	a := doortest.Ask(h, doortest.Stranger, "GET", "/api/v1/limit?kind=two&user=q", "")
	var got struct{ Limits []map[string]any }
	if err := json.Unmarshal([]byte(a.Body), &got); err != nil {
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

// TestPoolHoldsNoBody: what is kept for the next request must not keep the text of the last one,
// which may be large.
func TestPoolHoldsNoBody(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, doortest.ShopRules)
	h := New(l, Options{}).(*handler)
	c := new(call)
	body := `{"domain":"shop","attributes":{"user":"ada","path":"/api/x"}}`
	if err := (&decoder{s: body}).question(&c.question); err != nil {
		t.Fatal(err)
	}
	if err := h.ask(c, ""); err != nil {
		t.Fatal(err)
	}
	if err := h.limiter.Decide(t.Context(), &c.request, &c.decision); err != nil || len(c.decision.Limits) == 0 {
		t.Fatalf("%v, %d limits", err, len(c.decision.Limits))
	}
	h.done(c)
	if c.decision.Domain != "" || c.question.domain != "" || c.request.Domain != "" || len(c.question.attrs.pairs) > 0 {
		t.Errorf("it holds domains %q %q %q and %d attributes", c.decision.Domain, c.question.domain, c.request.Domain,
			len(c.question.attrs.pairs))
	}
}
