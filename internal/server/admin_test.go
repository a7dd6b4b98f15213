package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/memory"
)

// keysOf is a memory store as the admin API wants it; away, if err says so.
type keysOf struct {
	store *memory.Store
	err   error
}

func (s keysOf) Hottest(_ context.Context, c *rule.Counter, n int) ([]KeyState, error) {
	var out []KeyState
	for _, i := range s.store.Hottest(c, n) {
		out = append(out, KeyState{Key: i.Key, Result: i.Result, Refused: i.Result.Remaining == 0})
	}
	return out, s.err
}

func (s keysOf) Peek(_ context.Context, c *rule.Counter, key []byte) (KeyState, bool, error) {
	i, ok := s.store.Peek(c, key)
	return KeyState{Key: i.Key, Result: i.Result, Refused: i.Result.Remaining == 0}, ok, s.err
}

func (s keysOf) Reset(_ context.Context, c *rule.Counter, key []byte) (bool, error) {
	return s.err == nil && s.store.Reset(c, key), s.err
}

func newTestAdmin(t *testing.T, o AdminOptions) (http.Handler, *weir.Limiter) {
	t.Helper()
	l, store, _ := newTestLimiter(t, shopRules)
	o.Keys = keysOf{store: store}
	return NewAdmin(l, o), l
}

// onAdmin asks as curl on the same machine does.
func onAdmin(h http.Handler, method, target, body string, headers ...string) answer {
	return ask(h, friend, method, "http://127.0.0.1:9090"+target, body, headers...)
}

func spend(t *testing.T, l *weir.Limiter, hits int64, attributes rule.Map) {
	t.Helper()
	var d weir.Decision
	r := weir.Request{Domain: "shop", Attributes: attributes, Hits: hits, MaxDelay: weir.AnyDelay}
	if err := l.Decide(t.Context(), &r, &d); err != nil || !d.Allowed {
		t.Fatalf("%v %v", d.Allowed, err)
	}
}

func TestAdminKeys(t *testing.T) {
	h, l := newTestAdmin(t, AdminOptions{})
	spend(t, l, 10, rule.Map{"user": "ada,lovelace/ü", "path": "/api/x"})
	spend(t, l, 3, rule.Map{"user": "bob", "path": "/api/x"})
	spend(t, l, 5, rule.Map{"user": "eve", "path": "/api/x"})
	spend(t, l, 1, rule.Map{"kind": "queue"})
	a := onAdmin(h, "GET", "/api/v1/keys?limit=api-per-user&top=2", "")
	var got struct{ Keys []keyInfo }
	if err := json.Unmarshal([]byte(strings.ReplaceAll(a.body, `"reset_after"`, `"-"`)), &got); err != nil || a.status != 200 {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	if len(got.Keys) != 2 || got.Keys[0].Key != "user=ada,lovelace/ü" || !got.Keys[0].Refused || got.Keys[0].Used != 10 ||
		got.Keys[1].Key != "user=eve" || got.Keys[1].Refused || got.Keys[1].Remaining != 5 || got.Keys[1].Capacity != 10 {
		t.Fatalf("got %s", a.body)
	}
	path := got.Keys[0].Path
	if want := "/api/v1/keys/shop/api-per-user/user=ada%2Clovelace%2F%C3%BC"; path != want {
		t.Fatalf("the path is %s, want %s", path, want)
	}
	if a := onAdmin(h, "GET", path, ""); a.status != 200 || !strings.Contains(a.body, `"used": 10`) || !strings.Contains(a.body, `"reset_after": 60`) {
		t.Errorf("state: %d %s", a.status, a.body)
	}
	for _, c := range []struct {
		name, path string
		headers    []string
		status     int
	}{
		{"without a content type", path, nil, 415},
		{"as a form", path, []string{"Content-Type", "text/plain"}, 415},
		{"from another origin", path, []string{"Content-Type", "application/json", "Origin", "https://evil.example"}, 403},
		{"from no origin that has a name", path, []string{"Content-Type", "application/json", "Origin", "null"}, 403},
		{"from a page of another port", path, []string{"Content-Type", "application/json", "Origin", "http://127.0.0.1:8080"}, 403},
		{"from its own page", path, []string{"Content-Type", "application/json; charset=utf-8", "Origin", "http://127.0.0.1:9090"}, 204},
		{"again", path, []string{"Content-Type", "application/json"}, 404},
		{"of the global queue", "/api/v1/keys/shop/queue/", []string{"Content-Type", "application/json"}, 204},
	} {
		if a := onAdmin(h, "DELETE", c.path, "", c.headers...); a.status != c.status {
			t.Errorf("reset %s: got %d %s, want %d", c.name, a.status, a.body, c.status)
		}
	}
	if a := onAdmin(h, "GET", path, ""); a.status != 404 {
		t.Errorf("after the reset: %d %s", a.status, a.body)
	}
	spend(t, l, 10, rule.Map{"user": "ada,lovelace/ü", "path": "/api/x"})

	for path, status := range map[string]int{
		"/api/v1/keys":                                400,
		"/api/v1/keys?limit=nothing":                  404,
		"/api/v1/keys?limit=api-per-user&domain=none": 404,
		"/api/v1/keys?limit=api-per-user&domain=shop": 200,
		"/api/v1/keys?limit=api-per-user&top=0":       400,
		"/api/v1/keys?limit=api-per-user&top=x":       400,
		"/api/v1/keys?limit=api-per-user&top=99999":   400,
		"/api/v1/keys?limit=two":                      200,
		"/api/v1/keys?limit=two:60s":                  200,
		"/api/v1/keys/shop/two/user=a":                404,
		"/api/v1/keys/shop/api-per-user":              404,
		"/api/v1/keys/shop/api-per-user/a/b":          404,
		"/api/v1/keys/shop/nothing/user=bob":          404,
		"/api/v1/keys/none/api-per-user/user=bob":     404,
		"/api/v1/keys/shop/api-per-user/user=nobody":  404,
		"/api/v1/keys/shop/api-per-user/bob":          400,
		"/api/v1/keys/shop/api-per-user/user=a,b":     400,
		"/api/v1/keys/shop/api-per-user/":             400,
	} {
		if a := onAdmin(h, "GET", path, ""); a.status != status {
			t.Errorf("%s: got %d %s, want %d", path, a.status, a.body, status)
		}
	}
}

// TestAdminOverride: a key with an override is found and reset also where the override has a window of its own.
func TestAdminOverride(t *testing.T) {
	l, store, _ := newTestLimiter(t, "domain: shop\nlimits: [{ name: a, per: [user], allow: 10/min, override: { acme: 100/hour } }]\n")
	h := NewAdmin(l, AdminOptions{Keys: keysOf{store: store}})
	spend(t, l, 7, rule.Map{"user": "acme"})
	spend(t, l, 1, rule.Map{"user": "ada"})
	if a := onAdmin(h, "GET", "/api/v1/keys?limit=a", ""); strings.Count(a.body, `"used"`) != 2 || !strings.Contains(a.body, `"capacity": 100,`) {
		t.Errorf("hottest: %d %s", a.status, a.body)
	}
	const path = "/api/v1/keys/shop/a:3600s/user=acme" // the window of the override is named as one of several
	if a := onAdmin(h, "GET", path, ""); a.status != 200 || !strings.Contains(a.body, `"used": 7,`) || !strings.Contains(a.body, `"path": "`+path+`"`) {
		t.Errorf("state: %d %s", a.status, a.body)
	}
	for i, want := range []int{204, 404} {
		if a := onAdmin(h, "DELETE", path, "", "Content-Type", "application/json"); a.status != want {
			t.Errorf("reset %d: %d %s, want %d", i, a.status, a.body, want)
		}
	}
	if a := onAdmin(h, "GET", "/api/v1/keys/shop/a/user=ada", ""); a.status != 200 {
		t.Errorf("the reset took another key with it: %d %s", a.status, a.body)
	}
}

// TestAdminStoreAway: without its store the API says so, rather than that there are no keys.
func TestAdminStoreAway(t *testing.T) {
	l, store, _ := newTestLimiter(t, shopRules)
	spend(t, l, 3, rule.Map{"user": "bob", "path": "/api/x"})
	h := NewAdmin(l, AdminOptions{Keys: keysOf{store, errors.New("redis is away")}})
	const path = "/api/v1/keys/shop/api-per-user/user=bob"
	for _, a := range []answer{
		onAdmin(h, "GET", "/api/v1/keys?limit=api-per-user", ""),
		onAdmin(h, "GET", path, ""),
		onAdmin(h, "DELETE", path, "", "Content-Type", "application/json"),
	} {
		if a.status != 503 || a.header.Get("Content-Type") != "application/problem+json" || !strings.Contains(a.body, "redis is away") {
			t.Errorf("got %d %v %s", a.status, a.header, a.body)
		}
	}
}

// TestAdminCommandLine: the credentials of URLs among the arguments are not shown.
func TestAdminCommandLine(t *testing.T) {
	l, _, _ := newTestLimiter(t, shopRules)
	defer func(args []string) { os.Args = args }(os.Args)
	os.Args = []string{"weir", "serve", "--store=rediss+cluster://ada:s3cret@a:1,b:2/?ca=x&sentinel_password=s3cret", "--log-level=warn", "--proxy-upstream=http://a/b"}
	a := onAdmin(NewAdmin(l, AdminOptions{}), "GET", "/debug/pprof/cmdline", "")
	if want := "weir serve --store=rediss+cluster://a:1,b:2/ --log-level=warn --proxy-upstream=http://a/b"; strings.ReplaceAll(a.body, "\x00", " ") != want {
		t.Errorf("got %q, want %q", a.body, want)
	}
}

// TestKeyPathProperty: the path that is shown for a key leads to that key, whatever is in it.
func TestKeyPathProperty(t *testing.T) {
	l, _, _ := newTestLimiter(t, "domain: a/b\nlimits: [{ name: pair, per: [user, ip|path], allow: 5/min }]\n")
	a := &admin{limiter: l}
	rapid.Check(t, func(t *rapid.T) {
		user := rapid.StringN(1, -1, 200).Draw(t, "user")
		path := "/" + rapid.StringN(0, -1, 200).Draw(t, "path")
		if len(user) > 256 || len(path) > 100 {
			t.Skip("a long value is hashed")
		}
		var d weir.Decision
		r := weir.Request{Domain: "a/b", Attributes: rule.Map{"user": user, "path": path}, Hits: 0}
		if err := l.Decide(t.Context(), &r, &d); err != nil || len(d.Matches.Hits) != 1 {
			t.Fatalf("%v, %d limits", err, len(d.Matches.Hits))
		}
		hit := d.Matches.Hits[0]
		where := KeyPath("a/b", hit.Window.Name, hit.Window.KeyParts(hit.Key))
		windows, key, status, detail := a.splitKeyPath(where)
		if status != 0 || len(windows) != 1 || windows[0] != hit.Window || string(key) != string(hit.Key) {
			t.Fatalf("%s: %d %s, key %q, want %q", where, status, detail, key, hit.Key)
		}
	})
}

func TestAdminRules(t *testing.T) {
	loaded := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	source := RulesSource{Path: "./rules", Files: []string{"shop.yaml"}, Loaded: loaded, Loads: 2, Failures: 1, Errors: []string{"shop.yaml:3:5: unknown key"}}
	h, _ := newTestAdmin(t, AdminOptions{Source: func() RulesSource { return source }})
	a := onAdmin(h, "GET", "/api/v1/rules", "")
	var got struct {
		Generation int
		Source     RulesSource
		Domains    []string
		Rules      []ruleInfo
	}
	if err := json.Unmarshal([]byte(a.body), &got); err != nil || a.status != 200 {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	if got.Generation != 1 || len(got.Rules) != 7 || strings.Join(got.Domains, ",") != "shop" || !got.Source.Loaded.Equal(loaded) || got.Source.Errors[0] != source.Errors[0] {
		t.Errorf("got %s", a.body)
	}
	first := got.Rules[0]
	if first.Name != "api-per-user" || first.Form != "native" || first.Line == 0 || first.When["path"][0] != "/api/**" || first.Per[0] != "user" ||
		first.Windows[0] != (windowInfo{Name: "api-per-user", Algorithm: "token_bucket", Limit: 10, Burst: 10, Window: 60}) {
		t.Errorf("the first rule is %+v", first)
	}
	if len(got.Rules[1].Windows) != 2 || !got.Rules[2].Shadow {
		t.Errorf("got %s", a.body)
	}
}

func TestAdminAccess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte("sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens := new(Tokens)
	if err := tokens.Load(path); err != nil {
		t.Fatal(err)
	}
	var notReady error
	remark := ""
	o := AdminOptions{
		Remark:  func() string { return remark },
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("metrics")) }),
		Ready:   func() error { return notReady }, Hosts: []string{"weir.internal"},
	}
	open, l := newTestAdmin(t, o)
	o.Tokens = tokens
	locked, _ := newTestAdmin(t, o)
	token := []string{"Authorization", "Bearer sesame"}
	for _, c := range []struct {
		name    string
		h       http.Handler
		method  string
		url     string
		headers []string
		status  int
	}{
		{"by address", open, "GET", "http://127.0.0.1:9090/api/v1/rules", nil, 200},
		{"by IPv6 address", open, "GET", "http://[::1]:9090/api/v1/rules", nil, 200},
		{"by localhost", open, "GET", "http://LocalHost:9090/api/v1/rules", nil, 200},
		{"by a known name", open, "GET", "http://weir.internal/api/v1/rules", nil, 200},
		{"by another name (DNS rebinding)", open, "GET", "http://evil.example:9090/api/v1/rules", nil, 403},
		{"by another name, metrics", open, "GET", "http://evil.example:9090/metrics", nil, 403},
		{"by another name, a probe", open, "GET", "http://pod.cluster.local:9090/readyz", nil, 200},
		{"cross origin", open, "GET", "http://127.0.0.1:9090/api/v1/rules", []string{"Origin", "http://evil.example"}, 403},
		{"an image in a page of another site", open, "GET", "http://127.0.0.1:9090/debug/pprof/goroutine", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "image"}, 403},
		{"a frame in a page of another port", open, "GET", "http://127.0.0.1:9090/", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Dest", "iframe"}, 403},
		{"a link from another site", open, "GET", "http://127.0.0.1:9090/api/v1/rules", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "document"}, 200},
		{"typed into a browser", open, "GET", "http://127.0.0.1:9090/metrics", []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Dest", "document"}, 200},
		{"its own page", open, "GET", "http://127.0.0.1:9090/api/v1/rules", []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Dest", "empty"}, 200},
		{"profiles", open, "GET", "http://127.0.0.1:9090/debug/pprof/", nil, 200},
		{"a profile", open, "GET", "http://127.0.0.1:9090/debug/pprof/goroutine?debug=1", nil, 200},
		{"command line", open, "GET", "http://127.0.0.1:9090/debug/pprof/cmdline", nil, 200},
		{"no such profile", open, "GET", "http://127.0.0.1:9090/debug/pprof/nothing", nil, 404},
		{"index", open, "GET", "http://127.0.0.1:9090/", nil, 200},
		{"nothing", open, "GET", "http://127.0.0.1:9090/nothing", nil, 404},
		{"wrong method", open, "POST", "http://127.0.0.1:9090/api/v1/rules", nil, 405},
		{"wrong method on a key", open, "PUT", "http://127.0.0.1:9090/api/v1/keys/shop/two:60s/user=a", nil, 405},
		{"locked, no token", locked, "GET", "http://127.0.0.1:9090/api/v1/rules", nil, 401},
		{"locked, profiles", locked, "GET", "http://127.0.0.1:9090/debug/pprof/heap", nil, 401},
		{"locked, a key", locked, "DELETE", "http://127.0.0.1:9090/api/v1/keys/shop/queue/", []string{"Content-Type", "application/json"}, 401},
		{"locked, with the token", locked, "GET", "http://127.0.0.1:9090/api/v1/rules", token, 200},
		{"locked, with the token, a change", locked, "DELETE", "http://127.0.0.1:9090/api/v1/keys/shop/queue/", token, 404},
		{"locked, metrics are open", locked, "GET", "http://127.0.0.1:9090/metrics", nil, 200},
		{"locked, health is open", locked, "GET", "http://127.0.0.1:9090/healthz", nil, 200},
	} {
		a := ask(c.h, friend, c.method, c.url, "", c.headers...)
		if a.status != c.status {
			t.Errorf("%s: got %d %.200s, want %d", c.name, a.status, a.body, c.status)
		}
		if a.status == 401 && a.header.Get("WWW-Authenticate") == "" || a.status == 405 && a.header.Get("Allow") == "" {
			t.Errorf("%s: headers %v", c.name, a.header)
		}
	}
	for _, remark = range []string{"without the store: all is well", ""} {
		want := "ok\n"
		if remark != "" {
			want = "ok, without the store: all is well\n"
		}
		if a := onAdmin(open, "GET", "/readyz", ""); a.status != 200 || a.body != want {
			t.Errorf("ready, %q: %d %q", remark, a.status, a.body)
		}
	}
	notReady = errors.New("the server is going away")
	if a := onAdmin(open, "GET", "/readyz", ""); a.status != 503 || !strings.Contains(a.body, "going away") {
		t.Errorf("not ready: %d %s", a.status, a.body)
	}
	if a := onAdmin(open, "GET", "/healthz", ""); a.status != 200 {
		t.Errorf("healthy all the same: %d", a.status)
	}
	index := onAdmin(open, "GET", "/", "")
	for _, path := range []string{"/metrics", "/api/v1/rules", "/api/v1/keys", "/debug/pprof/", "/readyz"} {
		if !strings.Contains(index.body, `href="`+path+`"`) {
			t.Errorf("the index does not list %s", path)
		}
	}
	if a := onAdmin(NewAdmin(l, AdminOptions{}), "GET", "/api/v1/keys?limit=two", ""); a.status != 404 {
		t.Errorf("without a store to look into: %d", a.status)
	}
}
