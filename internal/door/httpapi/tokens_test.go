package httpapi

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/testkit/doortest"
)

// TestRequireToken: a door that needs a token decides nothing without one.
func TestRequireToken(t *testing.T) {
	tokens := doortest.Tokens[auth.Tokens](t, "sesame")
	tokens.ClientIP = httplimit.ClientIP{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	seen := 0
	h := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { seen++ })
	both := RequireToken(h, tokens, TokenDoors{HTTP: true, ForwardAuth: true})
	one := RequireToken(h, tokens, TokenDoors{HTTP: true})
	other := RequireToken(h, tokens, TokenDoors{ForwardAuth: true})
	const stranger = "192.0.2.1:5"
	token, proxy := []string{"Authorization", "Bearer sesame"}, []string{"X-Weir-Token", "sesame"}
	for _, c := range []struct {
		name    string
		h       http.Handler
		path    string
		headers []string
		status  int
	}{
		{"none", both, "/api/v1/limit", nil, 401},
		{"the right one", both, "/api/v1/limit", token, 200},
		{"another scheme", both, "/api/v1/limit", []string{"Authorization", "Basic sesame"}, 401},
		{"small letters", both, "/api/v1/limit", []string{"Authorization", "bearer sesame"}, 200},
		{"a wrong one", both, "/api/v1/limit", []string{"Authorization", "Bearer sesam"}, 401},
		{"of forward auth", both, "/api/v1/limit", proxy, 401},
		{"health", both, "/healthcheck", nil, 200},
		{"what is not there", both, "/nothing", nil, 401},
		{"forward auth, none", both, "/api/v1/forward-auth/nginx/shop", nil, 401},
		{"forward auth, the client's", both, "/api/v1/forward-auth/nginx/shop", token, 401},
		{"forward auth, the proxy's", both, "/api/v1/forward-auth/nginx/shop", proxy, 200},
		{"forward auth, both", both, "/api/v1/forward-auth", append(proxy, token...), 200},
		{"forward auth where only the API needs one", one, "/api/v1/forward-auth", nil, 200},
		{"the API where it needs one", one, "/api/v1/limit", nil, 401},
		{"the API where only forward auth needs one", other, "/api/v1/limit", nil, 200},
		{"forward auth where it needs one", other, "/api/v1/forward-auth/", nil, 401},
	} {
		seen = 0
		a := doortest.AskStub(c.h, stranger, "POST", "http://weir"+c.path, "{}", c.headers...)
		if a.Status != c.status || (seen == 1) != (c.status == 200) {
			t.Errorf("%s: got %d %s, %d seen", c.name, a.Status, a.Body, seen)
		}
		if c.status == 401 && (!strings.HasPrefix(a.Header.Get("WWW-Authenticate"), `Bearer realm="weir"`) ||
			a.Header.Get("Content-Type") != "application/problem+json") {
			t.Errorf("%s: %v", c.name, a.Header)
		}
	}
	twice := httptest.NewRequest("GET", "/api/v1/forward-auth", nil)
	twice.Header["X-Weir-Token"] = []string{"sesame", "sesame"} // the client's, and the proxy's
	w := httptest.NewRecorder()
	if both.ServeHTTP(w, twice); w.Code != 401 {
		t.Errorf("forward auth, two tokens: %d", w.Code)
	}
	// The guesses of a proxy's client are its own: neither the proxy nor others suffer.
	const fromProxy = "10.0.0.1:5"
	guess := func(client, token string) doortest.Answer {
		return doortest.AskStub(both, fromProxy, "POST", "http://weir/api/v1/limit", "{}", "X-Forwarded-For", client,
			"Authorization", "Bearer "+token)
	}
	for range 10 {
		if a := guess("198.51.100.1", "x"); a.Status != 401 || a.Header.Get("Retry-After") != "" {
			t.Errorf("a guess: %+v", a)
		}
	}
	// It is no decision, so that it is no 429.
	if a := guess("198.51.100.1", "sesame"); a.Status != 401 || a.Header.Get("Retry-After") != "6" ||
		a.Header.Get("WWW-Authenticate") != `Bearer realm="weir"` ||
		!strings.Contains(a.Body, "too many wrong tokens") {
		t.Errorf("the right one after ten guesses: %+v", a)
	}
	if a := guess("198.51.100.2", "sesame"); a.Status != 200 {
		t.Errorf("another client: %+v", a)
	}
	// What a client writes into the header of forward auth's proxies is no guess of theirs, if it
	// is in Authorization.
	for range 20 {
		doortest.AskStub(both, "10.0.0.2:5", "GET", "http://weir/api/v1/forward-auth", "", "Authorization", "Bearer x",
			"X-Weir-Token", "sesame")
	}
	if a := doortest.AskStub(both, "10.0.0.2:5", "GET", "http://weir/api/v1/forward-auth", "", "X-Weir-Token", "sesame"); a.Status != 200 {
		t.Errorf("the proxy is shut out: %d", a.Status)
	}
}
