package regions

import (
	"context"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
)

// Lender returns l as a lender that reports its holders' use to other regions. l lends from the
// wrapped store, and is asked for charges that Expand returned.
func (s *Store) Lender(l store.Lender) store.Lender { return &lender{l, s} }

type lender struct {
	store.Lender
	s *Store
}

// TakeAhead implements store.Lender.
func (l *lender) TakeAhead(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, ahead []algo.Ahead,
	results []algo.Result,
) (now, asked int64, err error) {
	now, asked, err = l.Lender.TakeAhead(ctx, minWait, maxWait, charges, ahead, results)
	if err == nil {
		l.s.tellUsed(charges, ahead, results, now)
	}
	return now, asked, err
}

// tellUsed reports use that holders reported to a lender, and ceilings of which holders want more
// than is left. Use in a generation that has ended is reported, though it was charged at that end:
// it has not been reported before.
func (s *Store) tellUsed(charges []store.Charge, ahead []algo.Ahead, results []algo.Result, now int64) {
	for i := range charges {
		c, r := &charges[i], &results[i]
		if c.Counter == nil || c.Counter.Regions == nil || r.Off {
			continue
		}
		s.clock.notice(now)
		limit := c.Limit
		if !c.Counter.Regions.Sync {
			limit = s.ceilings.whole(limit, c.Counter.Limit)
		}
		if used := max(ahead[i].Told[0].Used, 0) + max(ahead[i].Told[1].Used, 0); used > 0 && s.hooks.told != nil {
			s.hooks.told(c.Counter, limit, c.Key, used, now, r)
		}
		if s.hooks.short == nil || c.Counter.Regions.Sync || ahead[i].Want <= 0 || r.Remaining*5 >= r.Limit {
			continue
		}
		// Expand puts what all regions used behind the ceiling; a holder may ask for it elsewhere.
		if i+1 < len(charges) && charges[i+1].Counter == c.Counter.Regions.All && results[i+1].Remaining <= 0 {
			continue
		}
		s.hooks.short(c.Counter, limit, c.Key, ahead[i].Want, now, r)
	}
}
