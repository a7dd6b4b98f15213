package line

import (
	"context"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

// CostsAfter reports whether d charged a limit whose rule has a cost_after.
func CostsAfter(d *weir.Decision) bool {
	if d.WithoutStore != nil {
		return false
	}
	for i := range d.Matches.Hits {
		if d.Matches.Hits[i].Window.Rule.CostAfter != "" {
			return true
		}
	}
	return false
}

// Settle replaces the estimates that rules with cost_after have charged by the cost of the
// response, and wakes the requests that wait for the units this gives back.
func (l *Lines) Settle(ctx context.Context, limiter *weir.Limiter, d *weir.Decision, info rule.ResponseInfo) error {
	ctx, done := afterwards(ctx)
	defer done()
	err := limiter.Settle(ctx, d, func(of *rule.Rule, estimate int64) (int64, bool) {
		info.Estimate = estimate
		return of.CostOf(info) // not ok if the rule has no cost_after
	})
	if err != nil {
		return err
	}
	for i := range d.Matches.Hits {
		if h := &d.Matches.Hits[i]; h.Window.Rule.CostAfter != "" {
			l.Freed(h.Window.Counter.ID, h.Key)
		}
	}
	return nil
}
