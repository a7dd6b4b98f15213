//go:build !race

package httplimit

import (
	"net/http/httptest"
	"testing"
)

// A request that meets no rule with cost_after costs nothing more for there being one.
func TestCostAfterAllocations(t *testing.T) {
	l := newLimiter(t, &clock{}, `
limits:
  - {name: a, when: {path: /x}, per: [ip], allow: 1000000/min}
  - {name: b, when: {path: /y}, allow: 1000000/min, cost_after: "1"}
`)
	g, err := NewGate(l, Options{Headers: Off})
	if err != nil {
		t.Fatal(err)
	}
	w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/x", nil)
	if n := testing.AllocsPerRun(200, func() {
		p := g.Enter(w, r)
		p.Watch(w).WriteHeader(200)
		p.Finish()
		p.Leave()
	}); n > 0.5 {
		t.Errorf("%v allocations", n)
	}
}
