package admin

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/testkit/doortest"
)

// access says which role each endpoint needs by each method; "" is none. TestRoles fails for an
// endpoint that is not here. Streams end only when their client does, so that {stream} asks with a
// question that is wrong behind the check of the role.
var access = []struct{ path, target, method, role string }{
	{"/", "", "GET", ""}, {"/", "", "HEAD", ""},
	{"/help", "", "GET", ""}, {"/help", "", "HEAD", ""},
	{"/healthz", "", "GET", ""}, {"/healthz", "", "HEAD", ""},
	{"/readyz", "", "GET", ""}, {"/readyz", "", "HEAD", ""},
	{"/metrics", "", "GET", ""}, {"/metrics", "", "HEAD", ""},
	{"/rlconfig", "", "GET", "viewer"}, {"/rlconfig", "", "HEAD", "viewer"},
	{"/login", "", "GET", ""}, {"/login", "", "HEAD", ""}, {"/login", "", "POST", ""}, {"/login", "", "DELETE", ""},
	{"/rules/", "/rules/shop/api", "GET", ""}, {"/rules/", "/rules/shop/api", "HEAD", ""},
	{"/assets/", "/assets/app.js", "GET", ""}, {"/assets/", "/assets/app.js", "HEAD", ""},
	{"/api/v1/openapi.yaml", "", "GET", ""}, {"/api/v1/openapi.yaml", "", "HEAD", ""},
	{"/api/v1/session", "", "GET", "viewer"}, {"/api/v1/session", "", "HEAD", "viewer"},
	{"/api/v1/insight", "", "GET", "viewer"}, {"/api/v1/insight", "", "HEAD", "viewer"},
	{"/api/v1/insight/rules", "", "GET", "viewer"}, {"/api/v1/insight/rules", "", "HEAD", "viewer"},
	{"/api/v1/insight/rules/", "/api/v1/insight/rules/shop/api", "GET", "viewer"}, {"/api/v1/insight/rules/", "/api/v1/insight/rules/shop/api", "HEAD", "viewer"},
	{"/api/v1/insight/keys", "", "GET", "viewer"}, {"/api/v1/insight/keys", "", "HEAD", "viewer"},
	{"/api/v1/insight/keys/", "/api/v1/insight/keys/shop/user=ada", "GET", "support"}, {"/api/v1/insight/keys/", "/api/v1/insight/keys/shop/user=ada", "HEAD", "support"},
	{"/api/v1/find", "/api/v1/find?text=ada", "GET", "support"}, {"/api/v1/find", "/api/v1/find?text=ada", "HEAD", "support"},
	{"/api/v1/rules", "", "GET", "viewer"}, {"/api/v1/rules", "", "HEAD", "viewer"},
	{"/api/v1/rules/source", "", "GET", "operator"}, {"/api/v1/rules/source", "", "HEAD", "operator"},
	{"/api/v1/rules/versions", "", "GET", "operator"}, {"/api/v1/rules/versions", "", "HEAD", "operator"}, {"/api/v1/rules/versions", "", "POST", "editor"},
	{"/api/v1/rules/diff", "/api/v1/rules/diff?from=1&to=2", "GET", "operator"}, {"/api/v1/rules/diff", "/api/v1/rules/diff?from=1&to=2", "HEAD", "operator"},
	{"/api/v1/rules/rollback", "", "POST", "editor"},
	{"/api/v1/rules/rollout", "", "GET", "operator"}, {"/api/v1/rules/rollout", "", "HEAD", "operator"}, {"/api/v1/rules/rollout", "", "POST", "editor"},
	{"/api/v1/keys", "/api/v1/keys?limit=api", "GET", "viewer"}, {"/api/v1/keys", "/api/v1/keys?limit=api", "HEAD", "viewer"},
	{"/api/v1/keys", "/api/v1/keys?limit=api&key=ada", "GET", "support"},
	{"/api/v1/keys", "/api/v1/keys?limit=api&key=ada", "DELETE", "operator"},
	{"/api/v1/keys/", "/api/v1/keys/shop/api/user=ada", "GET", "support"}, {"/api/v1/keys/", "/api/v1/keys/shop/api/user=ada", "HEAD", "support"},
	{"/api/v1/keys/", "/api/v1/keys/shop/api/user=ada", "DELETE", "operator"},
	{"/api/v1/signals", "", "GET", "viewer"}, {"/api/v1/signals", "", "HEAD", "viewer"},
	{"/api/v1/signals/", "/api/v1/signals/queue", "GET", "viewer"}, {"/api/v1/signals/", "/api/v1/signals/queue", "HEAD", "viewer"},
	{"/api/v1/signals/", "/api/v1/signals/queue", "PUT", "operator"},
	{"/api/v1/deferred", "", "GET", "operator"}, {"/api/v1/deferred", "", "HEAD", "operator"},
	{"/api/v1/deferred/", "/api/v1/deferred/x", "GET", "operator"}, {"/api/v1/deferred/", "/api/v1/deferred/x", "HEAD", "operator"},
	{"/api/v1/deferred/", "/api/v1/deferred/x/retry", "POST", "operator"}, {"/api/v1/deferred/", "/api/v1/deferred/x", "DELETE", "operator"},
	{"/api/v1/decisions", "", "GET", "viewer"}, {"/api/v1/decisions", "", "HEAD", "viewer"},
	{"/api/v1/decisions", "/api/v1/decisions?key=user=ada", "GET", "support"},
	{"/api/v1/decisions/", "/api/v1/decisions/0000000000001", "GET", "support"}, {"/api/v1/decisions/", "/api/v1/decisions/0000000000001", "HEAD", "support"},
	{"/api/v1/outages", "", "GET", "viewer"}, {"/api/v1/outages", "", "HEAD", "viewer"},
	{"/api/v1/candidates", "", "GET", "viewer"}, {"/api/v1/candidates", "", "HEAD", "viewer"},
	{"/api/v1/bans", "", "GET", "viewer"}, {"/api/v1/bans", "", "HEAD", "viewer"}, {"/api/v1/bans", "", "POST", "operator"}, {"/api/v1/bans", "", "DELETE", "operator"},
	{"/api/v1/grants", "", "GET", "viewer"}, {"/api/v1/grants", "", "HEAD", "viewer"}, {"/api/v1/grants", "", "POST", "operator"}, {"/api/v1/grants", "", "DELETE", "operator"},
	{"/api/v1/stream", "/api/v1/stream?views=none", "GET", "viewer"},
	{"/api/v1/stream", "/api/v1/stream?views=decisions&key=user=ada&domain=none", "GET", "support"},
	{"/api/v1/preview", "", "POST", "operator"},
	{"/api/v1/preview/", "/api/v1/preview/x", "GET", "operator"}, {"/api/v1/preview/", "/api/v1/preview/x", "DELETE", "operator"},
	{"/api/v1/nodes", "", "GET", "viewer"}, {"/api/v1/nodes", "", "HEAD", "viewer"},
	{"/api/v1/regions", "", "GET", "viewer"}, {"/api/v1/regions", "", "HEAD", "viewer"},
	{"/api/v1/audit", "", "GET", "admin"}, {"/api/v1/audit", "", "HEAD", "admin"},
	{"/debug/pprof/", "/debug/pprof/cmdline", "GET", "admin"}, {"/debug/pprof/", "/debug/pprof/cmdline", "HEAD", "admin"}, {"/debug/pprof/", "/debug/pprof/symbol", "POST", "admin"},
}

// TestRoles: each role at each endpoint by each method, by token and by cookie.
func TestRoles(t *testing.T) {
	w := newWhole(t, nil)
	listed := map[string]bool{}
	for _, c := range access {
		listed[c.method+" "+c.path] = true
	}
	for _, e := range w.routes {
		for method := range strings.SplitSeq(e.methods, ", ") {
			if !listed[method+" "+e.path] {
				t.Errorf("%s %s has no row in access: which role does it need?", method, e.path)
			}
		}
	}
	for _, role := range append([]string{""}, auth.Roles...) {
		cookie := ""
		if role != "" {
			cookie = w.login(t, role)
		}
		for _, c := range access {
			target := c.target
			if target == "" {
				target = c.path
			}
			allowed := c.role == "" || slices.Index(auth.Roles, role) >= slices.Index(auth.Roles, c.role)
			want := 0
			if !allowed {
				if want = 403; role == "" {
					want = 401
				}
			}
			answers := map[string]doortest.Answer{"token": w.as(role, c.method, target, "{}")}
			if role != "" {
				answers["cookie"] = w.as("", c.method, target, "{}", "Cookie", cookie, "Sec-Fetch-Site", "same-origin")
			}
			for by, a := range answers {
				denied := a.Status == 401 || a.Status == 403
				if want != 0 && a.Status != want || want == 0 && denied || a.Status >= 500 {
					t.Errorf("%s as %q by %s: %s: %d %.200s", c.method, role, by, target, a.Status, a.Body)
				}
			}
		}
	}
}

// TestNobodyLearnsOfKeys: a viewer gets the same answer for a key that exists and one that does
// not, wherever a key can be named.
func TestNobodyLearnsOfKeys(t *testing.T) {
	w := newWhole(t, nil)
	w.refuse(t)
	for _, target := range []string{
		"/api/v1/keys?limit=api&key=KEY", "/api/v1/keys/shop/api/KEY", "/api/v1/insight/keys/shop/KEY", "/api/v1/decisions?key=KEY", "/api/v1/find?text=KEY", "/api/v1/stream?views=decisions&key=KEY",
	} {
		there := w.as("viewer", "GET", strings.ReplaceAll(target, "KEY", "user=ada.lovelace"), "")
		gone := w.as("viewer", "GET", strings.ReplaceAll(target, "KEY", "user=nobody"), "")
		if there.Status != 403 || gone.Status != 403 || there.Body != gone.Body {
			t.Errorf("%s: %d %s and %d %s", target, there.Status, there.Body, gone.Status, gone.Body)
		}
	}
}

// TestCookies: a cookie that was forged, has ended, or is of a token that left the file is none;
// and a page of another site can change nothing with one that is good.
func TestCookies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, _ := doortest.NewLimiter(t, doortest.ShopRules)
		file := filepath.Join(t.TempDir(), "tokens")
		write := func(lines string) {
			t.Helper()
			if err := os.WriteFile(file, []byte(lines), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("operator-token role=operator\nadmin-token name=root\n")
		tokens := new(auth.Tokens)
		if err := tokens.Load(file); err != nil {
			t.Fatal(err)
		}
		w := &whole{Handler: New(l, Options{Tokens: tokens, Audit: auditTo(t, t.Output())})}
		defer w.Close()
		cookie, other := w.login(t, "operator"), w.login(t, "admin")
		value := strings.TrimPrefix(cookie, auth.LoginCookie+"=")
		parts := strings.Split(value, ".")
		of := strings.Split(strings.TrimPrefix(other, auth.LoginCookie+"="), ".")
		session := func(cookie string) int {
			return w.as("", "GET", "/api/v1/session", "", "Cookie", cookie).Status
		}
		for name, c := range map[string]struct {
			cookie string
			want   int
		}{
			"good":                      {cookie, 200},
			"beside a bad one":          {auth.LoginCookie + "=x; " + cookie, 200},
			"empty":                     {auth.LoginCookie + "=", 401},
			"later end":                 {auth.LoginCookie + "=" + strings.Join([]string{parts[0], parts[1] + "0", parts[2], parts[3]}, "."), 401},
			"another token":             {auth.LoginCookie + "=" + strings.Join([]string{parts[0], parts[1], of[2], parts[3]}, "."), 401},
			"the MAC of another":        {auth.LoginCookie + "=" + strings.Join([]string{parts[0], parts[1], parts[2], of[3]}, "."), 401},
			"another version":           {auth.LoginCookie + "=" + strings.Join([]string{"2", parts[1], parts[2], parts[3]}, "."), 401},
			"no MAC":                    {auth.LoginCookie + "=" + strings.Join(parts[:3], ".") + ".", 401},
			"cut":                       {cookie[:len(cookie)-1], 401},
			"longer":                    {cookie + "A", 401},
			"the token":                 {auth.LoginCookie + "=operator-token", 401},
			"by another name":           {"weir_logout=" + value, 401},
			"a dot more":                {auth.LoginCookie + "=" + value + ".", 401},
			"very long, many of dots":   {auth.LoginCookie + "=" + strings.Repeat(".", 60_000), 401},
			"in quotes, as Go takes it": {auth.LoginCookie + `="` + value + `"`, 200},
		} {
			if got := session(c.cookie); got != c.want {
				t.Errorf("%s: %d, want %d", name, got, c.want)
			}
		}
		// None of these was a guess.
		if s := tokens.Stats(); s != (auth.TokenStats{}) {
			t.Errorf("cookies counted as guesses: %+v", s)
		}
		ban := func(headers ...string) int {
			return onAdmin(w, "POST", "/api/v1/bans",
				`{"domain": "shop", "limit": "api-per-user", "key": "ada", "for": "1h"}`, append(headers, "Cookie",
					cookie)...).Status
		}
		for name, c := range map[string]struct {
			headers []string
			want    int
		}{
			"own page":              {[]string{"Content-Type", jsonText, "Sec-Fetch-Site", "same-origin", "Origin", "http://127.0.0.1:6070"}, 200},
			"no word of its site":   {[]string{"Content-Type", jsonText}, 403},
			"another site":          {[]string{"Content-Type", jsonText, "Sec-Fetch-Site", "cross-site"}, 403},
			"another port":          {[]string{"Content-Type", jsonText, "Sec-Fetch-Site", "same-site"}, 403},
			"another site, by name": {[]string{"Content-Type", jsonText, "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "document"}, 403},
			"typed in":              {[]string{"Content-Type", jsonText, "Sec-Fetch-Site", "none"}, 403},
			"another origin":        {[]string{"Content-Type", jsonText, "Sec-Fetch-Site", "same-origin", "Origin", "https://evil.example"}, 403},
			"a form":                {[]string{"Content-Type", "application/x-www-form-urlencoded", "Sec-Fetch-Site", "same-origin"}, 415},
			"text":                  {[]string{"Content-Type", "text/plain", "Sec-Fetch-Site", "same-origin"}, 415},
			"no type":               {[]string{"Sec-Fetch-Site", "same-origin"}, 415},
		} {
			if got := ban(c.headers...); got != c.want {
				t.Errorf("%s: %d, want %d", name, got, c.want)
			}
		}
		if a := w.as("", "DELETE", "/login", "", "Cookie", cookie, "Sec-Fetch-Site", "same-origin"); a.Status != 204 ||
			!strings.Contains(a.Header.Get("Set-Cookie"),
				auth.LoginCookie+"=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict") {
			t.Errorf("logout: %d %v", a.Status, a.Header)
		}
		time.Sleep(auth.LoginTime - time.Second)
		if got := session(cookie); got != 200 {
			t.Errorf("shortly before its end: %d", got)
		}
		time.Sleep(time.Second)
		if got := session(cookie); got != 401 {
			t.Errorf("at its end: %d", got)
		}
		cookie = w.login(t, "operator")
		write("admin-token name=root\n")
		if err := tokens.Load(file); err != nil {
			t.Fatal(err)
		}
		if got := session(cookie); got != 401 {
			t.Errorf("of a token that left the file: %d", got)
		}
		write("admin-token\noperator-token role=viewer\n")
		if err := tokens.Load(file); err != nil {
			t.Fatal(err)
		}
		if a := w.as("", "GET", "/api/v1/session", "", "Cookie", cookie); a.Status != 200 ||
			!strings.Contains(a.Body, `"viewer"`) {
			t.Errorf("with another role: %d %s", a.Status, a.Body)
		}
	})
}

// TestOwnPage: a login changes something from the page of this port alone. Where the browser does
// not say Sec-Fetch-Site, as over plain HTTP to anything but loopback, its Origin says so.
func TestOwnPage(t *testing.T) {
	w := newWhole(t, func(o *Options) { o.Hosts = []string{"weir.internal"} })
	cookie := w.login(t, "operator")
	const mend = "by a login only the page of this port changes something"
	for _, c := range []struct {
		name, host string // with the scheme
		headers    []string
		status     int
		says       string
	}{
		{"an address", "http://192.0.2.2:6070", []string{"Origin", "http://192.0.2.2:6070"}, 204, ""},
		{"an IPv6 address", "http://[fd00::2]:6070", []string{"Origin", "http://[fd00::2]:6070"}, 204, ""},
		{"a name", "http://weir.internal:6070", []string{"Origin", "http://weir.internal:6070"}, 204, ""},
		{"a name without a port", "http://weir.internal", []string{"Origin", "http://weir.internal"}, 204, ""},
		{"loopback", "http://127.0.0.1:6070", []string{"Sec-Fetch-Site", "same-origin", "Origin", "http://127.0.0.1:6070"}, 204, ""},
		{"no Origin, but a word of the site", "http://127.0.0.1:6070", []string{"Sec-Fetch-Site", "same-origin"}, 204, ""},
		{"TLS", "https://weir.internal", []string{"Origin", "https://weir.internal"}, 204, ""},
		{"a proxy that speaks TLS", "http://weir.internal", []string{"Origin", "https://weir.internal", "X-Forwarded-Proto", "https"}, 204, ""},

		{"neither", "http://192.0.2.2:6070", nil, 403, "neither Sec-Fetch-Site nor Origin"},
		{"an empty Origin", "http://192.0.2.2:6070", []string{"Origin", ""}, 403, "neither Sec-Fetch-Site nor Origin"},
		{"a page without an origin", "http://192.0.2.2:6070", []string{"Origin", "null"}, 403, "other origins"},
		{"another site", "http://192.0.2.2:6070", []string{"Origin", "https://evil.example"}, 403, "other origins"},
		{"another port of this host, which gets the cookie", "http://192.0.2.2:6070", []string{"Origin", "http://192.0.2.2:8080"}, 403, "other origins"},
		{"no port of this host", "http://192.0.2.2:6070", []string{"Origin", "http://192.0.2.2"}, 403, "other origins"},
		{"a name that begins alike", "http://192.0.2.2:6070", []string{"Origin", "http://192.0.2.2:60700"}, 403, "other origins"},
		{"a name in front", "http://192.0.2.2:6070", []string{"Origin", "http://192.0.2.2:6070@evil.example"}, 403, "other origins"},
		{"DNS rebinding", "http://evil.example:6070", []string{"Origin", "http://evil.example:6070"}, 403, "not known here"},
		{"a proxy that changes Host", "http://127.0.0.1:6070", []string{"Origin", "https://weir.internal"}, 403, "must pass on the Host"},
		{"a proxy that drops Origin and all", "http://weir.internal", []string{"X-Forwarded-Proto", "https"}, 403, "must pass them on"},
		{"plain HTTP of the same name, TLS here", "https://weir.internal", []string{"Origin", "http://weir.internal"}, 403, "of a page of http://weir.internal"},
		{"plain HTTP of the same name, TLS at the proxy", "http://weir.internal", []string{"Origin", "http://weir.internal", "X-Forwarded-Proto", "https"}, 403, "of a page of http://weir.internal"},
		{"the browser says otherwise", "http://192.0.2.2:6070", []string{"Sec-Fetch-Site", "same-site", "Origin", "http://192.0.2.2:6070"}, 403, "other origins"},
		{"from nowhere", "http://192.0.2.2:6070", []string{"Sec-Fetch-Site", "none", "Origin", "http://192.0.2.2:6070"}, 403, "Sec-Fetch-Site: none"},
		{"an empty word of the site", "http://192.0.2.2:6070", []string{"Sec-Fetch-Site", "", "Origin", "http://192.0.2.2:6070"}, 403, mend},
	} {
		// The logout stands for all that changes something.
		a := doortest.Ask(w, doortest.Stranger, "DELETE", c.host+"/login", "{}",
			append([]string{"Content-Type", jsonText, "Cookie", cookie}, c.headers...)...)
		if a.Status != c.status || !strings.Contains(a.Body, c.says) {
			t.Errorf("%s: %d %s, want %d with %q", c.name, a.Status, a.Body, c.status, c.says)
		}
		ban := doortest.Ask(w, doortest.Stranger, "POST", c.host+"/api/v1/bans",
			`{"domain": "shop", "limit": "api", "key": "ada.lovelace", "for": "1h"}`, append(
				[]string{"Content-Type", jsonText, "Cookie", cookie}, c.headers...)...)
		if want := map[int]int{204: 200, 403: 403}[c.status]; ban.Status != want {
			t.Errorf("%s: a ban: %d %s, want %d", c.name, ban.Status, ban.Body, want)
		}
		// A form of another page cannot say JSON.
		if a := doortest.Ask(w, doortest.Stranger, "DELETE", c.host+"/login", "{}", append([]string{"Content-Type", "text/plain", "Cookie", cookie}, c.headers...)...); a.Status == 204 {
			t.Errorf("%s: a form: %d", c.name, a.Status)
		}
	}
	// Before a page of another origin sends JSON, its browser asks.
	a := doortest.Ask(w, doortest.Stranger, "OPTIONS", "http://192.0.2.2:6070/api/v1/bans", "", "Origin",
		"http://192.0.2.2:6070", "Access-Control-Request-Method", "POST", "Access-Control-Request-Headers", "content-type")
	if a.Status != 405 || a.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Errorf("a question before a change: %d %v", a.Status, a.Header)
	}
}

// TestLoginGuesses: a login form is no way around the bound on guesses.
func TestLoginGuesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, _ := doortest.NewLimiter(t, doortest.ShopRules)
		w := &whole{Handler: New(l, Options{Tokens: doortest.Tokens[auth.Tokens](t, "admin-token")})}
		defer w.Close()
		for i := range 12 {
			want := 401
			if i >= 10 {
				want = 429
			}
			if a := w.as("", "POST", "/login", fmt.Sprintf(`{"token": "guess-%d"}`, i)); a.Status != want ||
				a.Header.Get("Set-Cookie") != "" {
				t.Errorf("guess %d: %d %v", i, a.Status, a.Header)
			}
		}
		if a := w.as("", "POST", "/login", `{"token": "admin-token"}`); a.Status != 429 {
			t.Errorf("the right one: %d", a.Status)
		}
		time.Sleep(time.Minute)
		w.login(t, "admin")
		for _, body := range []string{``, `{}`, `{"token": ""}`, `{"token": 7}`, `{"token": "x", "y": 1}`,
			`{"token": "x"} {}`, `{"token": "` + strings.Repeat("x", 5000) + `"}`} {
			if a := w.as("", "POST", "/login", body); a.Status != 400 {
				t.Errorf("%.30s: %d", body, a.Status)
			}
		}
		if a := onAdmin(w, "POST", "/login", `{"token": "admin-token"}`, "Content-Type", "text/plain"); a.Status != 415 {
			t.Errorf("as a form of another site: %d", a.Status)
		}
		// Over TLS the cookie never goes over an open line.
		if a := doortest.Ask(w, doortest.Friend, "POST", "https://127.0.0.1:6070/login", `{"token": "admin-token"}`, "Content-Type", jsonText); !strings.Contains(a.Header.Get("Set-Cookie"), "; Secure") {
			t.Errorf("over TLS: %v", a.Header)
		}
		for proto, secure := range map[string]bool{"https": true, "HTTPS": true, "http": false} {
			a := w.as("", "POST", "/login", `{"token": "admin-token"}`, "X-Forwarded-Proto", proto)
			if got := strings.Contains(a.Header.Get("Set-Cookie"), "; Secure"); a.Status != 204 || got != secure {
				t.Errorf("behind a proxy that speaks %s: %d %v", proto, a.Status, a.Header)
			}
		}
	})
}

// TestGetChangesNothing: no GET changes anything, whatever it brings.
func TestGetChangesNothing(t *testing.T) {
	w := newWhole(t, nil)
	w.refuse(t)
	bans, grants := len(w.limiter.Bans().List()), len(w.limiter.Grants().List())
	for _, e := range w.routes {
		if e.path == streamPath || strings.HasPrefix(e.path, pprofPrefix) {
			continue
		}
		w.as("admin", http.MethodGet, e.path,
			`{"domain": "shop", "limit": "api", "key": "ada.lovelace", "for": "1h", "allow": "9/hour", "value": 3}`)
		w.as("admin", http.MethodGet, strings.TrimSuffix(e.path, "/")+
			"?domain=shop&limit=pair&key=carol.c&key=198.51.100.9&for=1h", "")
	}
	if len(w.limiter.Bans().List()) != bans || len(w.limiter.Grants().List()) != grants {
		t.Error("a GET changed bans or grants")
	}
}
