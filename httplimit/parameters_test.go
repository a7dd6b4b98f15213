package httplimit

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// To a servlet container a path with parameters is the path without. A limit that folds paths
// counts both, no matter which of them the request means.
func TestPathParameters(t *testing.T) {
	const folded = `limits: [{ name: login, when: { path: /login }, allow: 1/day }, { name: docs, when: { path: "/docs/**" }, per: [path], allow: 1/day }]`
	for _, c := range []struct {
		what, rules, first, second string
		want                       int
	}{
		{"behind the path", folded, "/login", "/login;a=b", 429},
		{"a segment of its own", folded, "/login", "/;/login", 400},
		{"behind dots", folded, "/login", "/x/..;/login", 400},
		{"escaped", folded, "/login", "/login%3Ba", 429},
		{"another path", folded, "/login", "/signin;a=b", 200},
		{"in a key", folded, "/docs/a;1", "/docs/a;2", 429},
		{"in a key, before", folded, "/docs/a;1", "/docs/a", 429},
		{"another key", folded, "/docs/a;1", "/docs/b;1", 200},
		{"exact paths", "paths: exact\n" + folded, "/login", "/login;a=b", 200},
		{"an exempt path", `exempt: { path: "/*.css" }
limits: [{ name: all, allow: 1/day }]`, "/login", "/login;x.css", 429},
		{"a pattern with parameters", `limits: [{ name: matrix, when: { path: "/map;lat=*" }, allow: 1/day }]`, "/map;lat=1", "/map;lat=2", 429},
	} {
		h, err := New(newLimiter(t, new(clock), c.rules), Options{})
		if err != nil {
			t.Fatal(err)
		}
		served := h(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		for i, target := range []string{c.first, c.second} {
			w := httptest.NewRecorder()
			served.ServeHTTP(w, httptest.NewRequest(http.MethodGet, target, nil))
			if want := []int{200, c.want}[i]; w.Code != want {
				t.Errorf("%s: %s: %d, want %d", c.what, target, w.Code, want)
			}
		}
	}
}
