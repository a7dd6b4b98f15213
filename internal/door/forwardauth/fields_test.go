package forwardauth

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/weir-rl/weir/httplimit"
)

// A check of a request with fields that servers read in different ways is refused, whatever could
// be taken out of a request that passes through Weir itself.
func TestFields(t *testing.T) {
	const rules = `
limits:
  - { name: key, per: [header.x-api-key], allow: 3/day }
  - { name: page, when: { query.page: "1" }, allow: 9/day }
  - { name: session, per: [session], allow: 1/day }
`
	identity, err := httplimit.ParseIdentity(map[string]string{"user": "basic", "session": "cookie:sid"}, "")
	if err != nil {
		t.Fatal(err)
	}
	guard := &httplimit.FieldGuard{Lookalikes: httplimit.DropLookalikeFields}
	h, _, _ := forwardAuthDoor(t, Options{Identity: identity, Fields: guard}, rules)
	for _, c := range []struct {
		uri    string
		header http.Header
		want   int
	}{
		{"/", http.Header{"X-Api-Key": {"a"}}, 200},
		{"/", http.Header{"X-Api-Key": {"a", "b"}}, 400},
		{"/", http.Header{"X_api_key": {"a"}}, 400},
		{"/?page=1", nil, 200},
		{"/?page=1&page=2", nil, 400},
		{"/?x=1&x=2", nil, 200},
		{"/", http.Header{"Authorization": {"basic \t YWRhOng"}}, 200},
		{"/", http.Header{"Authorization": {"Basic YWRh Ong="}}, 401},
		{"/", http.Header{"X_forwarded_for": {"192.0.2.7"}}, 400}, // which no rule reads
		{"/", http.Header{"Cookie": {"sid=eyJ1c2VyIjoiYWRhIn0.aOgTgA.Jr2lXk8-bQ0tYp_5vNfZ1cDmRsE~"}}, 400},
		{"/", http.Header{"Cookie": {"sid=a; sid=b"}}, 200},
		{"/", http.Header{"Cookie": {"sid=b"}}, 429},
		{"/", http.Header{"Cookie": {"sid=%61"}}, 429},
		{"/", http.Header{"Cookie": {`sid="\141"`}}, 400},
	} {
		for _, family := range []*proxyFamily{nginxFamily, forwardedFamily} { // in this order
			path := forwardedPlain + "/" + family.name
			r := httptest.NewRequest("GET", path, nil)
			r.RemoteAddr = edgeProxy
			for name, values := range c.header {
				r.Header[name] = values
			}
			r.Header.Set(family.method, "GET")
			r.Header.Set(family.uri, c.uri)
			r.Header.Set("X-Forwarded-For", "192.0.2.1")
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			want := c.want
			if want == 429 && family == nginxFamily {
				want = 403
			}
			if c.header["Cookie"] != nil && want == 200 && family != nginxFamily {
				want = 429 // the other family has used it up
			}
			if w.Code != want {
				t.Errorf("%s %s %v: %d, want %d: %s", path, c.uri, c.header, w.Code, want, w.Body)
			}
		}
	}
	if s := guard.Stats(); s.Repeated != 4 || s.Lookalike != 4 || s.Unreadable != 6 {
		t.Errorf("%+v", s)
	}
}

// A path with parameters counts as the path without them, too.
func TestPathParameters(t *testing.T) {
	h, _, _ := forwardAuthDoor(t, Options{}, `limits: [{ name: login, when: { path: /login }, allow: 1/day }]`)
	for i, uri := range []string{"/login;c", "/login;a=b", "/login"} {
		r := httptest.NewRequest("GET", forwardedPlain+"/"+forwardedFamily.name, nil)
		r.RemoteAddr = edgeProxy
		r.Header.Set(forwardedFamily.method, "GET")
		r.Header.Set(forwardedFamily.uri, uri)
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, r); (w.Code == 429) != (i > 0) {
			t.Errorf("%s: %d", uri, w.Code)
		}
	}
}
