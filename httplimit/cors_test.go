package httplimit

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
)

func TestParseOrigins(t *testing.T) {
	for _, c := range []struct {
		list []string
		want []string
		err  string
	}{
		{nil, nil, ""},
		{[]string{"*"}, []string{"*"}, ""},
		{[]string{"https://Shop.example", " http://localhost:3000", "https://shop.example"}, []string{"https://shop.example", "http://localhost:3000"}, ""},
		{[]string{"chrome-extension://abcdef"}, []string{"chrome-extension://abcdef"}, ""},
		{[]string{"*", "https://shop.example"}, nil, "remove * or the others"},
		{[]string{"shop.example"}, nil, `"shop.example" is no origin`},
		{[]string{"https://shop.example/"}, nil, "is no origin"},
		{[]string{"https://*.shop.example"}, nil, "is no origin"},
		{[]string{"null"}, nil, "is no origin"},
		{[]string{"https://shop.example:443"}, nil, "write https://shop.example"},
	} {
		got, err := ParseOrigins(c.list)
		if c.err == "" && (err != nil || !slices.Equal(got.Origins, c.want)) ||
			c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("ParseOrigins(%q) = %q, %v; want %q, %q", c.list, got.Origins, err, c.want, c.err)
		}
	}
}

const exposedByDefault = "Retry-After, Retry-After-Ms, X-Should-Retry, X-RateLimit-Soft, X-RateLimit-Warning, X-RateLimit-Decision, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, X-RateLimit-Retry-After, RateLimit, RateLimit-Policy"

// A page whose origin is on the list may read the headers of an answer that it was let through to,
// and a refusal as a whole.
func TestCORS(t *testing.T) {
	for _, c := range []struct {
		name, origin, allowed string
		origins               []string
		exposed               bool
	}{
		{"by default nobody", "https://shop.example", "", nil, false},
		{"an origin of the list", "https://shop.example", "https://shop.example", []string{"https://a.example", "https://shop.example"}, true},
		{"another origin", "https://evil.example", "", []string{"https://shop.example"}, false},
		{"an origin that begins with one of the list", "https://shop.example.evil.example", "", []string{"https://shop.example"}, false},
		{"no page", "", "", []string{"*"}, false},
		{"all", "null", "*", []string{"*"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			cors, err := ParseOrigins(c.origins)
			if err != nil {
				t.Fatal(err)
			}
			limit, err := New(newLimiter(t, &clock{}, `limits: [{name: a, allow: 1/min, algorithm: sliding_log}]`),
				Options{CORS: cors})
			if err != nil {
				t.Fatal(err)
			}
			h := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Access-Control-Allow-Origin", "https://whom.the.handler.likes")
				w.Header().Add("Access-Control-Expose-Headers", "X-Own")
			}))
			for _, want := range []int{200, 429} {
				r := httptest.NewRequest("GET", "/", nil)
				if c.origin != "" {
					r.Header.Set("Origin", c.origin)
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code != want {
					t.Fatalf("status %d, want %d", w.Code, want)
				}
				var exposed []string
				if c.exposed {
					exposed = append(exposed, exposedByDefault)
				}
				allowed := c.allowed
				if want == 200 {
					exposed, allowed = append(exposed, "X-Own"), "https://whom.the.handler.likes"
				}
				vary := slices.Contains(w.Header()["Vary"], "Origin")
				if got := w.Header()["Access-Control-Expose-Headers"]; !slices.Equal(got, exposed) ||
					w.Header().Get("Access-Control-Allow-Origin") != allowed ||
					vary != (want == 429 && allowed != "" && allowed != "*") {
					t.Errorf("%d: %v", want, w.Header())
				}
			}
		})
	}
}

// What a CORS handler in front has decided stays, and a rule's own list is added to ours.
func TestCORSKeeps(t *testing.T) {
	limit, err := New(newLimiter(t, &clock{},
		`limits: [{name: a, allow: 0/min, response: {headers: {Access-Control-Expose-Headers: X-Reason, X-Reason: slow}}}]`),
		Options{CORS: CORS{Origins: []string{"https://shop.example"}}, Headers: Off})
	if err != nil {
		t.Fatal(err)
	}
	r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
	r.Header.Set("Origin", "https://shop.example")
	w.Header().Set("Access-Control-Allow-Origin", "https://other.example")
	w.Header().Set("Access-Control-Allow-Credentials", "true")
	limit(http.NotFoundHandler()).ServeHTTP(w, r)
	if h := w.Header(); h.Get("Access-Control-Allow-Origin") != "https://other.example" ||
		h.Get("Access-Control-Allow-Credentials") != "true" ||
		!slices.Equal(h["Access-Control-Expose-Headers"],
			[]string{"Retry-After, Retry-After-Ms, X-Should-Retry", "X-Reason"}) {
		t.Errorf("%v", h)
	}
}

// Each field that a family writes is one that pages may read.
func TestCORSExposesAll(t *testing.T) {
	d := decide(t, newLimiter(t, &clock{}, `limits: [{name: a, allow: [10/min, 100/hour], algorithm: sliding_log}]`),
		11)
	d.RetryAfter = 5e6
	near := decide(t, newLimiter(t, &clock{},
		`limits: [{name: a, allow: 1/min, algorithm: fixed_window, throttle: {soft: 100%}}]`), 2)
	for f := Headers(0); f < Envoy03<<1; f++ {
		if f.check() != nil {
			continue
		}
		listed := strings.Split(f.exposed(), ", ")
		written := http.Header{}
		f.Write(written, d)
		f.Write(written, near)
		for name := range written {
			if !slices.ContainsFunc(listed, func(s string) bool { return http.CanonicalHeaderKey(s) == name }) {
				t.Errorf("%v: %s is not in %q", f, name, listed)
			}
		}
	}
}
