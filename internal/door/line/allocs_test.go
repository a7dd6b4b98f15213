//go:build !race

package line

import (
	"context"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/memory"
)

func TestNotHeldAllocatesNothing(t *testing.T) {
	now := time.Now().UnixMicro()
	store, err := memory.New(memory.Options{Clock: func() int64 { now += 1000; return now }})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	l := over(t, store, `
limits:
  - {name: q, algorithm: leaky_bucket, allow: {rate: 1000/s, burst: 100}, on_limit: {wait: 1s}}
  - {name: b, per: [user], allow: 1000000/s, on_limit: {wait: 1s}}
  - {name: none, when: {user: nobody}, algorithm: sliding_log, allow: 1/day, on_limit: {wait: 1s}}
`)
	lines := New(0)
	v := lines.NewVisit()
	var d weir.Decision
	ctx := context.Background()
	for _, who := range []string{"ada", "nobody"} {
		r := weir.Request{Attributes: rule.Pairs{user(who)}, Hits: 1, MaxDelay: weir.RuleDelay}
		if err := v.Decide(ctx, l, &r, &d); err != nil || !d.Allowed {
			t.Fatal(err, d.Allowed)
		}
		if n := testing.AllocsPerRun(200, func() {
			if err := v.Decide(ctx, l, &r, &d); err != nil || d.Allowed == (who == "nobody") {
				t.Fatal(err, d.Allowed)
			}
		}); n != 0 {
			t.Errorf("%v allocations for %s", n, who)
		}
	}
}
