package admin

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

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

func newTestAdmin(t *testing.T, o Options) (http.Handler, *weir.Limiter) {
	t.Helper()
	l, _, _ := doortest.NewLimiter(t, doortest.ShopRules)
	return New(l, o), l
}

// shut is a store that nobody can look into, for a reason.
type shut struct {
	*memory.Store
	err error
}

func (s shut) Inspect(context.Context, *store.View, [][]byte, func(store.KeyState)) error {
	return s.err
}

func (s shut) Scan(context.Context, *store.View, string, int, func(store.KeyState)) (store.Scanned, error) {
	return store.Scanned{}, s.err
}

func (s shut) Reset(context.Context, *rule.Counter, []byte) (bool, error) { return false, s.err }

// onAdmin asks as curl on the same machine does.
func onAdmin(h http.Handler, method, target, body string, headers ...string) doortest.Answer {
	return doortest.Ask(h, doortest.Friend, method, "http://127.0.0.1:6070"+target, body, headers...)
}

func spend(t *testing.T, l *weir.Limiter, hits int64, attributes rule.Map) {
	t.Helper()
	var d weir.Decision
	r := weir.Request{Domain: "shop", Attributes: attributes, Hits: hits, Peek: hits == 0, MaxDelay: weir.AnyDelay}
	if err := l.Decide(t.Context(), &r, &d); err != nil || !d.Allowed {
		t.Fatalf("%v %v", d.Allowed, err)
	}
}

func TestAdminKeys(t *testing.T) {
	h, l := newTestAdmin(t, Options{})
	spend(t, l, 10, rule.Map{"user": "ada,lovelace/ü", "path": "/api/x"})
	spend(t, l, 3, rule.Map{"user": "bob", "path": "/api/x"})
	spend(t, l, 5, rule.Map{"user": "eve", "path": "/api/x"})
	spend(t, l, 1, rule.Map{"kind": "queue"})
	a := onAdmin(h, "GET", "/api/v1/keys?limit=api-per-user&top=2", "")
	var got KeyList
	if err := json.Unmarshal([]byte(a.Body), &got); err != nil || a.Status != 200 {
		t.Fatalf("%d %s: %v", a.Status, a.Body, err)
	}
	if len(got.Keys) != 2 || got.Keys[0].Key != "user=ada,lovelace/ü" || !got.Keys[0].Refused ||
		got.Keys[0].Used != 10 ||
		got.Keys[1].Key != "user=eve" || got.Keys[1].Refused || got.Keys[1].Remaining != 5 ||
		got.Keys[1].Capacity != 10 {
		t.Fatalf("got %s", a.Body)
	}
	path := got.Keys[0].Path
	if want := "/api/v1/keys/shop/api-per-user/user=ada%2Clovelace%2F%C3%BC"; path != want {
		t.Fatalf("the path is %s, want %s", path, want)
	}
	if a := onAdmin(h, "GET", path, ""); a.Status != 200 || !strings.Contains(a.Body, `"used": 10`) ||
		!strings.Contains(a.Body, `"reset_after": 60`) {
		t.Errorf("state: %d %s", a.Status, a.Body)
	}
	for _, c := range []struct {
		name, path string
		headers    []string
		status     int
	}{
		{"as a form", path, []string{"Content-Type", "text/plain"}, 415},
		{"as a form of two parts", path, []string{"Content-Type", "multipart/form-data; boundary=x"}, 415},
		{"as a form of fields", path, []string{"Content-Type", "Application/X-WWW-Form-Urlencoded"}, 415},
		{"with a cookie", path, []string{"Cookie", "a=b"}, 415},
		{"from a browser that says so", path, []string{"Sec-Fetch-Site", "same-origin"}, 415},
		{"from a browser of this origin", path, []string{"Origin", "http://127.0.0.1:6070"}, 415},
		{"from an old browser", path, []string{"User-Agent", "Mozilla/4.0"}, 415},
		{"from another origin", path, []string{"Content-Type", "application/json", "Origin", "https://evil.example"}, 403},
		{"from no origin that has a name", path, []string{"Content-Type", "application/json", "Origin", "null"}, 403},
		{"from a page of another port", path, []string{"Content-Type", "application/json", "Origin", "http://127.0.0.1:8080"}, 403},
		{"from its own page", path, []string{"Content-Type", "application/json; charset=utf-8", "Origin", "http://127.0.0.1:6070"}, 204},
		{"again", path, []string{"Content-Type", "application/json"}, 404},
		{"again without a content type", path, nil, 404},
		{"of another key without a content type", "/api/v1/keys/shop/api-per-user/user=bob", nil, 204},
		{"of the global queue", "/api/v1/keys/shop/queue/", []string{"Content-Type", "application/json"}, 204},
	} {
		if a := onAdmin(h, "DELETE", c.path, "", c.headers...); a.Status != c.status {
			t.Errorf("reset %s: got %d %s, want %d", c.name, a.Status, a.Body, c.status)
		}
	}
	if a := onAdmin(h, "GET", path, ""); a.Status != 404 {
		t.Errorf("after the reset: %d %s", a.Status, a.Body)
	}
	spend(t, l, 10, rule.Map{"user": "ada,lovelace/ü", "path": "/api/x"})
	spend(t, l, 1, rule.Map{"user": "bob", "path": "/api/x"})

	for path, status := range map[string]int{
		"/api/v1/keys":                                200,
		"/api/v1/keys?domain=none":                    404,
		"/api/v1/keys?limit=nothing":                  404,
		"/api/v1/keys?limit=api-per-user&domain=none": 404,
		"/api/v1/keys?limit=api-per-user&domain=shop": 200,
		"/api/v1/keys?limit=api-per-user&top=0":       400,
		"/api/v1/keys?limit=api-per-user&top=x":       400,
		"/api/v1/keys?limit=api-per-user&top=99999":   400,
		"/api/v1/keys?limit=api-per-user&look=all":    200,
		"/api/v1/keys?limit=api-per-user&look=0":      400,
		"/api/v1/keys?limit=two":                      200,
		"/api/v1/keys?limit=two:60s":                  200,
		"/api/v1/keys/shop/two/user=a":                404,
		"/api/v1/keys/shop/api-per-user":              404,
		"/api/v1/keys/shop/api-per-user/a/b":          404,
		"/api/v1/keys/shop/nothing/user=bob":          404,
		"/api/v1/keys/none/api-per-user/user=bob":     404,
		"/api/v1/keys/shop/api-per-user/user=nobody":  404,
		"/api/v1/keys/shop/api-per-user/bob":          200,
		"/api/v1/keys/shop/api-per-user/usr=bob":      400,
		"/api/v1/keys?limit=api-per-user&key=bob":     200,
		"/api/v1/keys?limit=api-per-user&key=nobody":  404,
		"/api/v1/keys?limit=nothing&key=bob":          404,
		"/api/v1/keys?limit=api-per-user&key=a&key=b": 400,
		"/api/v1/keys/shop/api-per-user/user=a,b":     400,
		"/api/v1/keys/shop/api-per-user/":             400,
	} {
		if a := onAdmin(h, "GET", path, ""); a.Status != status {
			t.Errorf("%s: got %d %s, want %d", path, a.Status, a.Body, status)
		}
	}
}

// TestAdminOverride: a key with an override is found and reset also where the override has a window
// of its own.
func TestAdminOverride(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t,
		"domain: shop\nlimits: [{ name: a, per: [user], allow: 10/min, override: { acme: 100/hour } }]\n")
	h := New(l, Options{})
	spend(t, l, 7, rule.Map{"user": "acme"})
	spend(t, l, 1, rule.Map{"user": "ada"})
	if a := onAdmin(h, "GET", "/api/v1/keys?limit=a", ""); strings.Count(a.Body, `"used"`) != 2 ||
		!strings.Contains(a.Body, `"capacity": 100,`) {
		t.Errorf("hottest: %d %s", a.Status, a.Body)
	}
	// the window of the override is named as one of several
	const path = "/api/v1/keys/shop/a:3600s/user=acme"
	if a := onAdmin(h, "GET", path, ""); a.Status != 200 || !strings.Contains(a.Body, `"used": 7,`) ||
		!strings.Contains(a.Body, `"path": "`+path+`"`) {
		t.Errorf("state: %d %s", a.Status, a.Body)
	}
	for i, want := range []int{204, 404} {
		if a := onAdmin(h, "DELETE", path, "", "Content-Type", "application/json"); a.Status != want {
			t.Errorf("reset %d: %d %s, want %d", i, a.Status, a.Body, want)
		}
	}
	if a := onAdmin(h, "GET", "/api/v1/keys/shop/a/user=ada", ""); a.Status != 200 {
		t.Errorf("the reset took another key with it: %d %s", a.Status, a.Body)
	}
}

// TestAdminStoreAway: without its store the API says so, rather than that there are no keys.
func TestAdminStoreAway(t *testing.T) {
	_, store, _ := doortest.NewLimiter(t, doortest.ShopRules)
	l, err := weir.New(shut{store, errors.New("redis is away")}, weir.WithRules(doortest.Load(t, doortest.ShopRules)))
	if err != nil {
		t.Fatal(err)
	}
	h := New(l, Options{})
	const path = "/api/v1/keys/shop/api-per-user/user=bob"
	for _, a := range []doortest.Answer{
		onAdmin(h, "GET", "/api/v1/keys?limit=api-per-user", ""),
		onAdmin(h, "GET", path, ""),
		onAdmin(h, "DELETE", path, "", "Content-Type", "application/json"),
	} {
		if a.Status != 503 || a.Header.Get("Content-Type") != "application/problem+json" ||
			!strings.Contains(a.Body, "redis is away") {
			t.Errorf("got %d %v %s", a.Status, a.Header, a.Body)
		}
	}
}

// TestAdminCommandLine: the credentials of URLs among the arguments are not shown.
func TestAdminCommandLine(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, doortest.ShopRules)
	defer func(args []string) { os.Args = args }(os.Args)
	os.Args = []string{"weir", "serve", "--store=rediss+cluster://ada:s3cret@a:1,b:2/?ca=x&sentinel_password=s3cret",
		"--log-level=warn", "--proxy-upstream=http://a/b"}
	a := onAdmin(New(l, Options{}), "GET", "/debug/pprof/cmdline", "")
	if want := "weir serve --store=rediss+cluster://a:1,b:2/ --log-level=warn --proxy-upstream=http://a/b"; strings.ReplaceAll(a.Body, "\x00", " ") != want {
		t.Errorf("got %q, want %q", a.Body, want)
	}
}

// TestKeyPathProperty: the path that is shown for a key leads to that key, whatever is in it.
func TestKeyPathProperty(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, "domain: a/b\nlimits: [{ name: pair, per: [user, ip|path], allow: 5/min }]\n")
	rapid.Check(t, func(t *rapid.T) {
		user := rapid.StringN(1, -1, 200).Draw(t, "user")
		path := "/" + rapid.StringN(0, -1, 200).Draw(t, "path")
		if len(user) > 256 || len(path) > 100 {
			t.Skip("a long value is hashed")
		}
		var d weir.Decision
		r := weir.Request{Domain: "a/b", Attributes: rule.Map{"user": user, "path": path}, Peek: true}
		if err := l.Decide(t.Context(), &r, &d); err != nil || len(d.Matches.Hits) != 1 {
			t.Fatalf("%v, %d limits", err, len(d.Matches.Hits))
		}
		hit := d.Matches.Hits[0]
		where := KeyPath("a/b", hit.Window.Name, hit.Window.KeyParts(hit.Key))
		domain, limit, parts, status, detail := splitKeyPath(where)
		key, err := hit.Window.AppendKey(nil, parts)
		if status != 0 || domain != "a/b" || limit != hit.Window.Name || err != nil || string(key) != string(hit.Key) {
			t.Fatalf("%s: %d %s, %q, %q, %v, key %q, want %q", where, status, detail, domain, limit, err, key, hit.Key)
		}
	})
}

func TestAdminRules(t *testing.T) {
	loaded := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	source := RulesSource{Path: "./rules", Files: []string{"shop.yaml"}, Loaded: loaded, Loads: 2, Failures: 1,
		Errors: []string{"shop.yaml:3:5: unknown key"}}
	h, _ := newTestAdmin(t, Options{Source: func() RulesSource { return source }})
	a := onAdmin(h, "GET", "/api/v1/rules", "")
	var got struct {
		Generation int
		Source     RulesSource
		Domains    []string
		Rules      []ruleInfo
	}
	if err := json.Unmarshal([]byte(a.Body), &got); err != nil || a.Status != 200 {
		t.Fatalf("%d %s: %v", a.Status, a.Body, err)
	}
	if got.Generation != 1 || len(got.Rules) != 7 || strings.Join(got.Domains, ",") != "shop" ||
		!got.Source.Loaded.Equal(loaded) || got.Source.Errors[0] != source.Errors[0] {
		t.Errorf("got %s", a.Body)
	}
	first := got.Rules[0]
	if first.Name != "api-per-user" || first.Form != "native" || first.Line == 0 ||
		first.When["path"][0] != "/api/**" || first.Per[0] != "user" ||
		first.Windows[0] != (windowInfo{Name: "api-per-user", Algorithm: "token_bucket", Limit: 10, Burst: 10,
			Window: 60}) {
		t.Errorf("the first rule is %+v", first)
	}
	if len(got.Rules[1].Windows) != 2 || !got.Rules[2].Shadow {
		t.Errorf("got %s", a.Body)
	}
}

func TestAdminAccess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(path, []byte("sesame\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	tokens := new(auth.Tokens)
	if err := tokens.Load(path); err != nil {
		t.Fatal(err)
	}
	var notReady error
	remark := ""
	o := Options{
		Remark:  func() string { return remark },
		Metrics: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("metrics")) }),
		Ready:   func() error { return notReady }, Hosts: []string{"weir.internal"},
	}
	open, _ := newTestAdmin(t, o)
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
		{"by address", open, "GET", "http://127.0.0.1:6070/api/v1/rules", nil, 200},
		{"by IPv6 address", open, "GET", "http://[::1]:6070/api/v1/rules", nil, 200},
		{"by localhost", open, "GET", "http://LocalHost:6070/api/v1/rules", nil, 200},
		{"by a known name", open, "GET", "http://weir.internal/api/v1/rules", nil, 200},
		{"by another name (DNS rebinding)", open, "GET", "http://evil.example:6070/api/v1/rules", nil, 403},
		{"by another name, metrics", open, "GET", "http://evil.example:6070/metrics", nil, 403},
		{"by another name, a probe", open, "GET", "http://pod.cluster.local:6070/readyz", nil, 200},
		{"cross origin", open, "GET", "http://127.0.0.1:6070/api/v1/rules", []string{"Origin", "http://evil.example"}, 403},
		{"an image in a page of another site", open, "GET", "http://127.0.0.1:6070/debug/pprof/goroutine", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "image"}, 403},
		{"a frame in a page of another port", open, "GET", "http://127.0.0.1:6070/", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Dest", "iframe"}, 403},
		{"a link from another site", open, "GET", "http://127.0.0.1:6070/api/v1/rules", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "document"}, 200},
		{"typed into a browser", open, "GET", "http://127.0.0.1:6070/metrics", []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Dest", "document"}, 200},
		{"its own page", open, "GET", "http://127.0.0.1:6070/api/v1/rules", []string{"Sec-Fetch-Site", "same-origin", "Sec-Fetch-Dest", "empty"}, 200},
		{"profiles", open, "GET", "http://127.0.0.1:6070/debug/pprof/", nil, 200},
		{"a profile", open, "GET", "http://127.0.0.1:6070/debug/pprof/goroutine?debug=1", nil, 200},
		{"command line", open, "GET", "http://127.0.0.1:6070/debug/pprof/cmdline", nil, 200},
		{"no such profile", open, "GET", "http://127.0.0.1:6070/debug/pprof/nothing", nil, 404},
		{"index", open, "GET", "http://127.0.0.1:6070/", nil, 200},
		{"nothing", open, "GET", "http://127.0.0.1:6070/nothing", nil, 404},
		{"wrong method", open, "POST", "http://127.0.0.1:6070/api/v1/rules", nil, 405},
		{"wrong method on a key", open, "PUT", "http://127.0.0.1:6070/api/v1/keys/shop/two:60s/user=a", nil, 405},
		{"locked, no token", locked, "GET", "http://127.0.0.1:6070/api/v1/rules", nil, 401},
		{"locked, profiles", locked, "GET", "http://127.0.0.1:6070/debug/pprof/heap", nil, 401},
		{"locked, a key", locked, "DELETE", "http://127.0.0.1:6070/api/v1/keys/shop/queue/", []string{"Content-Type", "application/json"}, 401},
		{"locked, with the token", locked, "GET", "http://127.0.0.1:6070/api/v1/rules", token, 200},
		{"locked, with the token, a change", locked, "DELETE", "http://127.0.0.1:6070/api/v1/keys/shop/queue/", token, 404},
		{"locked, metrics are open", locked, "GET", "http://127.0.0.1:6070/metrics", nil, 200},
		{"locked, health is open", locked, "GET", "http://127.0.0.1:6070/healthz", nil, 200},
	} {
		a := doortest.Ask(c.h, doortest.Friend, c.method, c.url, "", c.headers...)
		if a.Status != c.status {
			t.Errorf("%s: got %d %.200s, want %d", c.name, a.Status, a.Body, c.status)
		}
		if a.Status == 401 && a.Header.Get("WWW-Authenticate") == "" || a.Status == 405 && a.Header.Get("Allow") == "" {
			t.Errorf("%s: headers %v", c.name, a.Header)
		}
	}
	for _, remark = range []string{"without the store: all is well", ""} {
		want := "ok\n"
		if remark != "" {
			want = "ok, without the store: all is well\n"
		}
		if a := onAdmin(open, "GET", "/readyz", ""); a.Status != 200 || a.Body != want {
			t.Errorf("ready, %q: %d %q", remark, a.Status, a.Body)
		}
	}
	notReady = errors.New("the server is going away")
	if a := onAdmin(open, "GET", "/readyz", ""); a.Status != 503 || !strings.Contains(a.Body, "going away") {
		t.Errorf("not ready: %d %s", a.Status, a.Body)
	}
	if a := onAdmin(open, "GET", "/healthz", ""); a.Status != 200 {
		t.Errorf("healthy all the same: %d", a.Status)
	}
	index := onAdmin(open, "GET", "/", "")
	for _, path := range []string{"/metrics", "/api/v1/rules", "/api/v1/keys", "/debug/pprof/", "/readyz"} {
		if !strings.Contains(index.Body, `href="`+path+`"`) {
			t.Errorf("the index does not list %s", path)
		}
	}
}
