//go:build !race

package weir_test

import (
	"context"
	"testing"

	weir "github.com/weir-rl/weir"
)

// Under the race detector a sync.Pool drops what it holds at random.

func TestDecideAllocatesNothing(t *testing.T) {
	l := newLimiter(t, newClock(), weir.WithRules(load(t, `
limits:
  - {name: login, when: {path: /login}, per: [ip], allow: 5/min}
  - {name: api, when: {path: /api/**}, per: [user|ip], allow: [1000000/min, 5000000/hour]}
  - {name: all, allow: 100000000/s, algorithm: token_bucket}
`)))
	r := weir.Request{Attributes: weir.Pairs{{Name: "path", Value: "/api/x"}, {Name: "ip", Value: "192.0.2.1"}, {Name: "user", Value: "ada"}}}
	var d weir.Decision
	ctx := context.Background()
	allocs := testing.AllocsPerRun(1000, func() {
		r.Hits = 1
		if err := l.Decide(ctx, &r, &d); err != nil || !d.Allowed || len(d.Limits) != 3 {
			t.Fatal(err, d.Allowed, d.Limits)
		}
	})
	if allocs != 0 {
		t.Fatalf("%v allocations a decision", allocs)
	}
}
