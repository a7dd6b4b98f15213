//go:build !race

package metrics

import (
	"context"
	"fmt"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

func TestCountingCandidatesAllocatesNothing(t *testing.T) {
	m := New(Options{})
	l := limiter(t, m, "domain: shop\nlimits: [{name: a, per: [user], allow: 0/min, on_limit: shadow}]")
	var d weir.Decision
	users := make([]rule.Pairs, 100)
	for i := range users {
		users[i] = rule.Pairs{{Name: "user", Value: fmt.Sprint("user-", i)}}
	}
	i, r := 0, weir.Request{Domain: "shop", Hits: 1}
	step := func() {
		i++
		r.Attributes = &users[i%len(users)]
		if err := l.Decide(context.Background(), &r, &d); err != nil {
			t.Fatal(err)
		}
	}
	for range 300 {
		step()
	}
	if n := testing.AllocsPerRun(1000, step); n > 0.1 {
		t.Errorf("%v allocations a decision", n)
	}
}
