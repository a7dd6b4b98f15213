//go:build !race

package httplimit

import (
	"net/http/httptest"
	"testing"
)

// Under the race detector a sync.Pool drops what it holds at random.

func TestMiddlewareAllocations(t *testing.T) {
	l := newLimiter(t, &clock{}, `limits: [{name: a, when: {path: /x}, per: [ip], allow: 1000000/min}]`)
	g, err := NewGate(l, Options{Headers: Off})
	if err != nil {
		t.Fatal(err)
	}
	w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/x", nil)
	if n := testing.AllocsPerRun(200, func() {
		p := g.Enter(w, r)
		p.WriteHeaders(w.Header())
		p.Leave()
	}); n > 0.5 {
		t.Errorf("%v allocations for a request that passes", n)
	}
}
