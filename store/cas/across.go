package cas

import (
	"bytes"
	"context"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/internal/across"
	"github.com/weir-rl/weir/store/internal/waiting"
)

// takeAcross decides charges of several places, of an engine that does not span them. That runs to
// its end even if the caller gives up.
func (s *Store) takeAcross(w *waiting.Waiter, charges []store.Charge, results []algo.Result) (int64, error) {
	if err := w.Ctx.Err(); err != nil {
		return 0, s.notCharged(context.Cause(w.Ctx))
	}
	a := across.New(charges, nil)
	if !s.background(func() { s.decideAcross(a); close(a.Done) }) {
		return 0, errClosed
	}
	if err := w.Wait(a.Done, &s.server.detector); err != nil {
		select {
		case <-a.Done:
		default:
			return 0, s.overdue(err, w.Silent, a)
		}
	}
	if a.Err != nil {
		return 0, a.Err
	}
	copy(results, a.Results)
	for i := range charges {
		charges[i].Ask.Slot = a.Charges[i].Ask.Slot
	}
	return a.Now, nil
}

// overdue returns the error of a call to several places whose caller gave up.
func (s *Store) overdue(err error, silent bool, a *across.Call) error {
	e := &waiting.Failure{Err: s.wrap(err), Part: -1, IsSilent: silent, OnOutcome: a.Outcomes(s.background)}
	at, d := store.Monotonic(), &s.server.detector
	if d.OldestUnanswered() != 0 && (!silent || d.SilentUntil(at) <= at) {
		e.Part = 0
	}
	return e
}

// decideAcross asks the places, and gives back what must not stay charged.
func (s *Store) decideAcross(a *across.Call) {
	// Twice the time-out: a call on the same keys may be in flight before this one.
	ctx, cancel := context.WithTimeout(s.ctx, 2*s.o.Timeout)
	defer cancel()
	across.Decide(a, &across.Parts[uint64]{
		Name:   s.o.Name,
		Of:     func(c *store.Charge) uint64 { return placeOf(c.Counter, c.Key) },
		Number: func(uint64) int { return 0 },
		Ask: func(share *across.Share[uint64]) {
			own := waiting.Waiter{Ctx: ctx}
			share.Now, share.Err = s.takeTogether(&own, share.Charges, share.Results)
			share.Asked = store.Monotonic()
		},
		GiveBack: s.giveBack,
	})
}

// giveBack undoes a charge that was made at an instant: in the background, and in its result r.
func (s *Store) giveBack(_ uint64, c *store.Charge, r *algo.Result, at int64) {
	o := store.Charge{Counter: c.Counter, Limit: c.Limit, Key: bytes.Clone(c.Key)}
	cost, slot, ends := algo.ClampCost(c.Ask.Cost), c.Ask.Slot, at+r.ResetAfter
	c.Ask.Slot = 0
	r.Remaining = min(r.Limit, r.Remaining+cost)
	r.Delay, r.Soft = 0, false
	s.stats.givenBack.Add(1)
	s.background(func() {
		ctx, cancel := context.WithTimeout(s.ctx, s.o.Timeout)
		defer cancel()
		_ = s.change(ctx, []store.Charge{o}, false, func(p *plan, call *call) {
			st := &call.states[0].St
			switch {
			case o.Limit.HasSlots():
				o.Limit.Release(st, p.now, slot)
			case o.Limit.Delays():
				o.Limit.Take(st, p.now, algo.Ask{Cost: -cost, LastEnds: ends})
			default:
				o.Limit.GiveBack(st, nil, p.now, at, cost)
			}
		})
		s.Forget(o.Counter, o.Key) // a refusal that this charge caused may be remembered
	})
}
