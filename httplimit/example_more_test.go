package httplimit_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/overload"
	"github.com/weir-rl/weir/store/memory"
)

// newLimiter makes a limiter of a single limit for the examples.
func newLimiter(name, allow string, per ...string) *weir.Limiter {
	store, err := memory.New(memory.Options{})
	if err != nil {
		log.Fatal(err)
	}
	limiter, err := weir.New(store, weir.Limit(name, allow, per...))
	if err != nil {
		log.Fatal(err)
	}
	return limiter
}

type userKey struct{}

// The user is who an authentication that ran before has put into the context.
func ExampleOptions_attributes() {
	limit, err := httplimit.New(newLimiter("per-user", "1/day", "user"), httplimit.Options{
		Attributes: map[string]func(*http.Request) string{
			"user": func(r *http.Request) string { name, _ := r.Context().Value(userKey{}).(string); return name },
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	handler := limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))

	for _, user := range []string{"ada", "ada", "bob"} {
		r := httptest.NewRequest("GET", "/", nil)
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userKey{}, user)))
		fmt.Println(user, w.Code)
	}
	// Output:
	// ada 200
	// ada 429
	// bob 200
}

// A handler that wants to know the decision uses a Gate.
func ExampleNewGate() {
	gate, err := httplimit.NewGate(newLimiter("searches", "10/hour", "ip"), httplimit.Options{})
	if err != nil {
		log.Fatal(err)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		pass := gate.Enter(w, r)
		if pass == nil {
			return // it was refused, and answered
		}
		defer pass.Leave()
		pass.WriteHeaders(w.Header())
		if nearest := pass.Decision().Nearest(); nearest != nil {
			fmt.Fprintf(w, "%d searches are left", nearest.Remaining)
		}
		pass.Finish()
	})

	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	fmt.Println(w.Body)
	// Output: 9 searches are left
}

// The families of headers by the names that the configuration uses.
func ExampleParseHeaders() {
	headers, err := httplimit.ParseHeaders([]string{"x-epoch", "draft03"})
	fmt.Println(headers, err)
	_, err = httplimit.ParseHeaders([]string{"x-epoch", "x-delta"})
	problem, cure, _ := strings.Cut(err.Error(), "; ")
	fmt.Println(problem)
	fmt.Println(cure)
	// Output:
	// x-epoch,draft03 <nil>
	// headers: x-delta and x-epoch write X-RateLimit-Limit and X-RateLimit-Reset in different ways
	// keep one of them
}

// At most one request under way at a time.
func ExampleOptions_overload() {
	guard, err := overload.New(overload.Options{Fixed: 1})
	if err != nil {
		log.Fatal(err)
	}
	limit, err := httplimit.New(newLimiter("everybody", "100/s"), httplimit.Options{Overload: guard})
	if err != nil {
		log.Fatal(err)
	}
	var handler http.Handler
	handler = limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/outer" { // while this one is under way, another comes
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest("GET", "/inner", nil))
			fmt.Println("inner", w.Code)
		}
	}))
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, httptest.NewRequest("GET", "/outer", nil))
	fmt.Println("outer", w.Code)
	// Output:
	// inner 503
	// outer 200
}
