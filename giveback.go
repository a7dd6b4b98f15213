package weir

import (
	"context"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// GiveBack gives back the turns that d took in leaky buckets, for a request that will not be passed
// on after all (for example, its client hung up while it was held). A turn is given back only if it
// is still the last in its queue, at any door of the store; otherwise it goes unused. The counts of
// other limits stay. It returns the number of turns that went back.
//
// d must be an admitted decision of this Limiter that has not been reused. Call GiveBack at most
// once, before the turn has come.
func (l *Limiter) GiveBack(ctx context.Context, d *Decision) (turns int, err error) {
	var (
		charge [1]store.Charge
		result [1]algo.Result
	)
	for i := range d.charges {
		c := &d.charges[i]
		if c.Limit.Algorithm() != algo.LeakyBucket || c.Ask.Cost <= 0 || !d.results[i].Allowed || !d.Allowed && c.Mode != rule.Shadow {
			continue
		}
		// The queue has drained when the last turn has passed. If that is still at the instant that
		// the decision reported, the last turn is ours.
		charge[0] = *c
		charge[0].Ask = algo.Ask{Cost: -c.Ask.Cost, LastEnds: d.Time + d.results[i].ResetAfter}
		if _, err := l.store.Take(ctx, charge[:], result[:]); err != nil {
			return turns, err
		}
		if result[0].Allowed {
			turns++
		}
	}
	return turns, nil
}
