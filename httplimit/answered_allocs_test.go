//go:build !race

package httplimit

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/store/memory"
)

// Under the race detector a sync.Pool drops what it holds at random.

// Hearing of answers allocates nothing where the status is told by Answered, and no more than the
// writer of Watch in the middleware.
func TestAnsweredAllocations(t *testing.T) {
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	heard := 0
	rules := `limits: [{name: a, allow: 1000000/min}]`
	hears, err := weir.New(store, weir.WithRules(load(t, rules)),
		weir.WithHooks(weir.Hooks{Answered: func(_ *weir.Request, _ *weir.Decision, a weir.Answer) {
			if a.Status == http.StatusOK {
				heard++
			}
		}}))
	if err != nil {
		t.Fatal(err)
	}
	w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/x", nil)
	g, err := NewGate(hears, Options{Headers: Off})
	if err != nil {
		t.Fatal(err)
	}
	if n := testing.AllocsPerRun(200, func() {
		p := g.Enter(w, r)
		p.Answered(http.StatusOK)
		p.Leave()
	}); n > 0.5 || heard < 200 {
		t.Errorf("%v allocations, heard %d", n, heard)
	}
	ok := func(http.ResponseWriter, *http.Request) {}
	h := newMiddleware(t, hears, Options{Headers: Off}, ok)
	if n := testing.AllocsPerRun(200, func() { h.ServeHTTP(w, r) }); n > 1.5 || heard < 400 {
		t.Errorf("%v allocations in the middleware, heard %d", n, heard)
	}
	h = newMiddleware(t, newLimiter(t, &clock{}, rules), Options{Headers: Off}, ok)
	if n := testing.AllocsPerRun(200, func() { h.ServeHTTP(w, r) }); n > 0.5 {
		t.Errorf("%v allocations in the middleware without the hook", n)
	}
}
