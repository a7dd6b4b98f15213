package fallback

import (
	"context"
	"fmt"
	"math"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// scratch is what without works with; kept in a pool.
type scratch struct{ charges []weir.Charge }

// keepScratch is the number of charges above which the working memory is not kept.
const keepScratch = 1024

// without decides without the primary. refusal is the error if a charge wants that. asked means that the primary was asked
// and has not answered, so that it may have made the charges.
func (s *Store) without(ctx context.Context, charges []weir.Charge, results []algo.Result, refusal error, asked bool) (int64, error) {
	for i := range charges {
		if charges[i].OnStoreError == rule.DenyAll && charges[i].Mode != rule.Shadow {
			s.stats.refused.Add(1)
			return 0, refusal
		}
	}
	w := s.scratch.Get().(*scratch)
	defer s.putScratch(w)
	w.charges = append(w.charges[:0], charges...)
	shares, counted := s.sharesNow(), false
	for i := range w.charges {
		c := &w.charges[i]
		c.Ask.Slot = 0 // the primary may have filled it in before it failed
		if !uncounted(c) {
			c.Limit, counted = shares.of(c.Limit), true
			continue
		}
		// A peek admits whatever the charge stands for, and leaves no trace.
		c.Ask = algo.Ask{}
		if c.Mode == rule.Enforce {
			c.Mode = rule.Shadow
		}
	}
	now, err := s.o.Local.Take(ctx, w.charges, results)
	if err != nil {
		return 0, fmt.Errorf("fallback: the local store failed as well: %w", err)
	}
	for i := range charges {
		c := &charges[i]
		c.Ask.Slot = w.charges[i].Ask.Slot
		if uncounted(c) {
			var fresh algo.State
			results[i] = c.Limit.Check(&fresh, now, algo.Ask{})
			results[i].Allowed = true
		}
	}
	admitted := admits(charges, results)
	if counted && admitted {
		s.outages.note(now)
	}
	switch {
	case len(charges) == 0:
	case !admitted:
		s.stats.localDenied.Add(1)
	case counted:
		s.stats.localAllowed.Add(1)
	default:
		s.stats.uncounted.Add(1)
	}
	if !asked {
		s.remember(charges, w.charges, results, admitted, now)
	}
	return now, nil
}

func (s *Store) putScratch(w *scratch) {
	if cap(w.charges) > keepScratch {
		return
	}
	clear(w.charges) // they point to limits and keys
	s.scratch.Put(w)
}

// uncounted reports whether a charge is admitted while the primary is away, whatever it costs.
func uncounted(c *weir.Charge) bool { return c.OnStoreError == rule.AllowAll }

// admits reports whether the call as a whole is admitted, as weir.Store defines it.
func admits(charges []weir.Charge, results []algo.Result) bool {
	quotas, quotasLeft := false, false
	for i := range charges {
		switch charges[i].Mode {
		case rule.Enforce:
			if !results[i].Allowed {
				return false
			}
		case rule.Quota:
			if results[i].Off { // as if it had not been met
				continue
			}
			quotas = true
			quotasLeft = quotasLeft || results[i].Allowed
		}
	}
	return !quotas || quotasLeft
}

// remember notes what a call that the primary knows nothing of has charged. local are the charges as Local made them.
func (s *Store) remember(charges, local []weir.Charge, results []algo.Result, admitted bool, now int64) {
	noted := false
	for i := range charges {
		c, r := &charges[i], &results[i]
		if c.Ask.Cost == 0 || !r.Allowed || r.Off || !admitted && c.Mode != rule.Shadow || uncounted(c) || c.Limit.Algorithm() == algo.Concurrency {
			continue
		}
		noted = true
		share := local[i].Limit
		if !s.missed.add(c, share, now, until(c, share, r, now)) {
			s.stats.lost.Add(uint64(max(c.Ask.Cost, 0)))
		}
	}
	if noted {
		s.tendIfClosed()
	}
}

// until is the instant from which it makes no difference any more that c was charged to its share, with the result r.
func until(c *weir.Charge, share *algo.Limit, r *algo.Result, now int64) int64 {
	after := r.ResetAfter
	if c.Ask.Cost < 0 {
		// The units that go back were taken from the primary: they count as if they had been taken here, now.
		ask := algo.Ask{Cost: 1, MaxDelay: -1}
		if a := share.Algorithm(); a == algo.TokenBucket || a == algo.LeakyBucket {
			ask.Cost = min(-c.Ask.Cost, r.Limit)
		}
		var st algo.State
		after = share.Take(&st, now, ask).ResetAfter
	}
	if after == algo.Never {
		return math.MaxInt64
	}
	return now + after
}
