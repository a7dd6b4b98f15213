package regions

import (
	"context"
	"errors"
	"slices"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// splitCall is the working memory of a call with charges that become others; kept in a pool.
type splitCall struct {
	charges []store.Charge // for the wrapped store
	results []algo.Result
	parts   []callPart // by charge of the caller
	// a Shadow charge became two, of which the store may make one without the other
	shadows bool
}

// callPart describes the charges made of one charge.
type callPart struct {
	at  int              // place of its first charge, own, in splitCall.charges
	two bool             // all follows it
	of  *derivedCounters // nil if it stays as it is
}

// keptCharges is the number of charges above which the working memory is not kept.
const keptCharges = 1024

// anyRegional reports whether a charge holds over regions, and whether one of these has a ceiling.
func anyRegional(charges []store.Charge) (some, split bool) {
	for i := range charges {
		if c := charges[i].Counter; c != nil && c.Regions != nil {
			some, split = true, split || !c.Regions.Sync
		}
	}
	return some, split
}

// splits returns the limits made of a charge, and the identity of the use of all regions, which is
// charged too; the first is nil if the charge stays as it is, the second if only the ceiling
// counts.
func (s *Store) splits(c *store.Charge) (*derivedCounters, *rule.Counter) {
	if c.Counter == nil || c.Counter.Regions == nil || c.Counter.Regions.Sync || c.Limit == nil {
		return nil, nil
	}
	of := c.Counter.Regions
	d := s.ceilings.of(c.Limit, of.Over)
	if c.Mode == rule.Quota {
		// Two Quota charges are two quotas, and one of them is enough. The rules of a file never
		// ask for this.
		return d, nil
	}
	return d, heardCounter(of, c.Limit)
}

// heardCounter returns the identity of the use of all regions under a limit; nil if that use has no
// say.
func heardCounter(of *rule.Regions, l *algo.Limit) *rule.Counter {
	if !l.Settles() {
		return nil // the rules of a file never ask for this
	}
	return of.All
}

// expand makes the charges for the wrapped store from the charges of a call.
func (s *Store) expand(charges []store.Charge) *splitCall {
	c := s.calls.Get().(*splitCall)
	for i := range charges {
		d, all := s.splits(&charges[i])
		c.parts = append(c.parts, callPart{at: len(c.charges), two: all != nil, of: d})
		c.charges = append(c.charges, charges[i])
		if d == nil {
			continue
		}
		own := &c.charges[len(c.charges)-1]
		if own.Limit = d.own; all == nil {
			continue
		}
		c.charges = append(c.charges, charges[i])
		both := &c.charges[len(c.charges)-1]
		both.Counter, both.Limit = all, d.all
		c.shadows = c.shadows || both.Mode == rule.Shadow
	}
	c.results = slices.Grow(c.results, len(c.charges))[:len(c.charges)]
	clear(c.results)
	return c
}

func (s *Store) putCall(c *splitCall) {
	if cap(c.charges) > keptCharges {
		return
	}
	clear(c.charges) // of the caller's keys
	c.charges, c.results, c.parts, c.shadows = c.charges[:0], c.results[:0], c.parts[:0], false
	s.calls.Put(c)
}

// own returns the result of a charge under the ceiling.
func (c *splitCall) own(p *callPart) *algo.Result { return &c.results[p.at] }

// all returns the result for the use of all regions; nil if that has no say.
func (c *splitCall) all(p *callPart) *algo.Result {
	if !p.two {
		return nil
	}
	return &c.results[p.at+1]
}

// Expand appends to dst the charges that the wrapped store makes of charges, which stay as they
// are: for who takes units ahead of it (store.Lender). Each has the key of the one that it is made
// of.
func (s *Store) Expand(charges, dst []store.Charge) []store.Charge {
	for i := range charges {
		d, all := s.splits(&charges[i])
		dst = append(dst, charges[i])
		if d == nil {
			continue
		}
		dst[len(dst)-1].Limit = d.own
		if all != nil {
			dst = append(dst, charges[i])
			dst[len(dst)-1].Counter, dst[len(dst)-1].Limit = all, d.all
		}
	}
	return dst
}

// undo gives back what Shadow charges took by halves: those are made each by itself, so that own
// may have been charged where all was not, or the other way round. If it fails, a limit in shadow
// has counted a request that it would have refused.
func (s *Store) undo(ctx context.Context, c *splitCall) {
	u := s.calls.Get().(*splitCall)
	defer s.putCall(u)
	for i := range c.parts {
		p := &c.parts[i]
		if !p.two || c.charges[p.at].Mode != rule.Shadow || c.charges[p.at].Ask.Cost <= 0 ||
			c.own(p).Allowed == c.all(p).Allowed {
			continue
		}
		at := p.at // of the half that was made
		if !c.results[at].Allowed {
			at++
		}
		if c.charges[at].Limit.CountDenied() {
			continue
		}
		u.charges = append(u.charges, c.charges[at])
		back := &u.charges[len(u.charges)-1]
		back.Ask.Cost = -back.Ask.Cost
		u.parts = append(u.parts, callPart{at: at})
	}
	if len(u.charges) == 0 {
		return
	}
	u.results = slices.Grow(u.results, len(u.charges))[:len(u.charges)]
	if _, err := s.inner.Take(ctx, u.charges, u.results); err != nil {
		return
	}
	for i, p := range u.parts {
		c.results[p.at] = u.results[i]
	}
}

// unfolded returns the error of a call of the wrapped store as one of the call that it was made of.
func (c *splitCall) unfolded(charges []store.Charge, err error) error {
	pending, ok := errors.AsType[store.Pending](err)
	if !ok {
		return err
	}
	e := &pendingError{error: err, pending: pending, parts: slices.Clone(c.parts)}
	for i := range charges {
		e.limits = append(e.limits, charges[i].Limit)
	}
	return e
}

// pendingError is a store.Pending whose outcomes are folded.
type pendingError struct {
	error
	pending store.Pending
	parts   []callPart
	limits  []*algo.Limit
}

// Unwrap returns the error of the wrapped store.
func (e *pendingError) Unwrap() error { return e.error }

// Outcome implements store.Pending. A charge that became two was made if both were.
func (e *pendingError) Outcome(f func(outcomes []store.Outcome)) {
	e.pending.Outcome(func(inner []store.Outcome) {
		if last := e.parts[len(e.parts)-1]; len(inner) <= last.at || last.two && len(inner) <= last.at+1 {
			f(nil)
			return
		}
		outcomes := make([]store.Outcome, len(e.parts))
		for i := range e.parts {
			p, o := &e.parts[i], &outcomes[i]
			*o = inner[p.at]
			var all *algo.Result
			if p.two {
				other := &inner[p.at+1]
				o.Known, o.Made = o.Known && other.Known, o.Made && other.Made
				all = &other.Result
			}
			if p.of != nil && o.Known && o.Now != 0 {
				own := o.Result
				p.of.fold(&o.Result, e.limits[i], &own, all, o.Now)
			}
		}
		f(outcomes)
	})
}
