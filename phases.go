package weir

import (
	"context"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Charges returns the charges that each request like r would make, without charging or deciding
// anything. It is for doors that assign units ahead of the requests, in place of deciding them. The
// numbers are those in force, with grants and signals. d is as after Match: if there are no
// charges, d.Allowed says whether such requests pass, d.Banned for how long not.
//
// The charges are valid until d is used again, or given to another method.
func (l *Limiter) Charges(r *Request, d *Decision) []store.Charge {
	if !l.Match(r, d) || len(d.Matches.Hits) == 0 {
		return nil
	}
	d.ask(r, l.signals, false)
	if l.orders.Grants.Any() && !l.applyGrants(d) {
		return nil
	}
	return d.charges
}

// Report accounts for requests like r that somebody else decided, by the units assigned to them; d
// is the Decision that Charges filled in. It calls Hooks.Reported, and charges limits in shadow for
// the allowed requests, each as far as it has room. Bans do not count the denied ones. The error is
// the store's.
func (l *Limiter) Report(ctx context.Context, r *Request, d *Decision, allowed, denied int64) error {
	if l.hooks.Reported != nil {
		l.hooks.Reported(r, d, allowed, denied)
	}
	if allowed <= 0 || len(d.charges) == 0 {
		return nil
	}
	var charges []store.Charge
	for _, c := range d.charges {
		if c.Mode == rule.Shadow && c.Limit != nil && c.Limit.Algorithm() != algo.Concurrency {
			c.Ask.Cost = algo.Cost(allowed, c.Ask.Cost)
			charges = append(charges, c)
		}
	}
	if len(charges) == 0 {
		return nil
	}
	_, err := l.store.Take(ctx, charges, make([]algo.Result, len(charges)))
	if err != nil && !abandoned(ctx) {
		l.storeError(err)
	}
	return err
}

// Numbers returns the Counter with an ID, which may be the Counter's own or its rule.Regions.All's,
// and the numbers of a key: those in force, with grants and elastic signals, and those that the
// rule or an override gives it. All are nil if no rule in force has such a Counter, or the key is
// not limited by it. It is for package store/regions, which hears of uses and borrows units by ID.
// Safe for concurrent use.
func (l *Limiter) Numbers(id uint64, key []byte) (c *rule.Counter, inForce, plain *algo.Limit) {
	w := l.windowOf(id, key)
	if w == nil || w.Limit == nil {
		return nil, nil, nil
	}
	inForce, _ = l.granted(w, key, l.orders.Now())
	return w.Counter, inForce, w.Limit
}
