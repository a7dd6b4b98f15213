package httplimit_test

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/netip"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

// Three requests a day for each address.
func ExampleNew() {
	store, err := memory.New(memory.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	limiter, err := weir.New(store, weir.Limit("hello", "3/day", "ip"))
	if err != nil {
		log.Fatal(err)
	}
	limit, err := httplimit.New(limiter, httplimit.Options{})
	if err != nil {
		log.Fatal(err)
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello") })
	server := httptest.NewServer(limit(hello))
	defer server.Close()

	for range 4 {
		response, err := http.Get(server.URL)
		if err != nil {
			log.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
		fmt.Println(response.StatusCode, "remaining:", response.Header.Get("X-RateLimit-Remaining"))
	}
	// Output:
	// 200 remaining: 2
	// 200 remaining: 1
	// 200 remaining: 0
	// 429 remaining: 0
}

// Rules from a file, the user from a header that the proxy in front has checked.
func ExampleNew_rules() {
	rules, _, err := file.Load([]file.Source{{Name: "api.yaml", Data: []byte(`
limits:
  - name: api-per-user
    when: { path: /api/** }
    per: [user|ip]
    allow: 2/hour
    algorithm: sliding_log
`)}}, file.Options{})
	if err != nil {
		log.Fatal(err)
	}
	store, err := memory.New(memory.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	limiter, err := weir.New(store, weir.WithRules(rules))
	if err != nil {
		log.Fatal(err)
	}
	identity, err := httplimit.ParseIdentity(map[string]string{"user": "header:X-User-Id"}, "")
	if err != nil {
		log.Fatal(err)
	}
	limit, err := httplimit.New(limiter, httplimit.Options{Identity: identity})
	if err != nil {
		log.Fatal(err)
	}
	handler := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))

	for _, user := range []string{"ada", "ada", "ada", "bob"} {
		request := httptest.NewRequest("GET", "/api/orders", nil)
		request.Header.Set("X-User-Id", user)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, request)
		fmt.Println(user, w.Code, w.Header().Get("RateLimit-Policy"))
	}
	// Output:
	// ada 200 "api-per-user";q=2;w=3600
	// ada 200 "api-per-user";q=2;w=3600
	// ada 429 "api-per-user";q=2;w=3600
	// bob 200 "api-per-user";q=2;w=3600
}

func ExampleClientIP_Of() {
	c := httplimit.ClientIP{Trusted: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.0.0.1:4711"
	// the left-most is what the client claims
	r.Header.Set("X-Forwarded-For", "203.0.113.9, 198.51.100.7, 10.0.0.2")
	fmt.Println(c.Of(r))
	// Output: 198.51.100.7
}
