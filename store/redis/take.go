package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/internal/waiting"
)

// ErrDeadline is the error of a call that got no answer in time. It may have been charged.
var ErrDeadline = fmt.Errorf("redis store: no answer in time: %w", context.DeadlineExceeded)

// Take implements store.Store.
func (s *Store) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	now, _, err := s.TakeWithin(ctx, 0, 0, charges, results)
	return now, err
}

// TakeWithin implements store.Deadliner. After minWait it gives up as soon as the server has been
// silent for several times as long as its longest answer took in the last minute or two. Time in
// which this process did not run is not counted. The error is then ErrDeadline, and it is a
// store.Pending unless it is store.ErrNotCharged. remembered reports that this node refused from
// memory (Options.RememberRefusals).
func (s *Store) TakeWithin(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, results []algo.Result,
) (now int64, remembered bool, err error) {
	if err := checkCharges(charges, results); err != nil {
		return 0, false, err
	}
	if len(charges) == 0 {
		now, err = s.timeWithin(ctx, maxWait)
		return now, false, err
	}
	if s.refusals != nil {
		if now, ok := s.refusals.Answer(charges, results); ok {
			return now, true, nil
		}
	}
	now, _, err = s.takeAnywhere(ctx, minWait, maxWait, charges, nil, results)
	return now, false, err
}

// checkCharges returns an error if a call cannot be understood.
func checkCharges(charges []store.Charge, results []algo.Result) error {
	if len(charges) != len(results) {
		return errLengths
	}
	for i := range charges {
		if charges[i].Counter == nil || charges[i].Limit == nil {
			return fmt.Errorf("redis store: charge %d needs a Counter and a Limit", i)
		}
	}
	return nil
}

// timeWithin is Time with a deadline; 0 is none.
func (s *Store) timeWithin(ctx context.Context, maxWait time.Duration) (int64, error) {
	if maxWait > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, maxWait, ErrDeadline)
		defer cancel()
	}
	return s.Time(ctx)
}

// takeAnywhere decides charges, in Redis. ahead is empty if nothing may be lent. asked is when the
// call was sent.
func (s *Store) takeAnywhere(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, ahead []algo.Ahead,
	results []algo.Result,
) (now, asked int64, err error) {
	w := waiting.Waiter{Ctx: ctx}
	if maxWait > 0 {
		w.Begin(minWait, maxWait, ErrDeadline)
		defer w.Finish()
	}
	p := s.partitionOf(charges[0].Counter, charges[0].Key)
	for i := 1; i < len(charges); i++ {
		if s.partitionOf(charges[i].Counter, charges[i].Key) != p {
			now, asked, err = s.takeAcross(&w, charges, ahead, results)
			if err == nil {
				s.publishRefunds(charges)
			}
			return now, asked, s.target.lasting(err)
		}
	}
	now, asked, err = s.takeInPartition(&w, p, charges, ahead, results)
	if err == nil {
		s.remember(charges, results, now, asked)
	}
	return now, asked, s.target.lasting(err)
}

// TakeNow implements store.Prompt: it repeats refusals that this node remembers
// (Options.RememberRefusals), as TakeWithin does.
func (s *Store) TakeNow(charges []store.Charge, results []algo.Result) (now int64, ok bool) {
	if s.refusals == nil || len(charges) != len(results) {
		return 0, false
	}
	for i := range charges {
		if charges[i].Counter == nil || charges[i].Limit == nil {
			return 0, false
		}
	}
	return s.refusals.Answer(charges, results)
}

// remember keeps refusals in memory, and publishes refunds.
func (s *Store) remember(charges []store.Charge, results []algo.Result, now, asked int64) {
	if s.refusals == nil {
		return
	}
	s.refusals.remember(charges, results, now, asked)
	s.publishRefunds(charges)
}

// publishRefunds invalidates remembered refusals of the keys that got something back.
func (s *Store) publishRefunds(charges []store.Charge) {
	for i := range charges {
		if c := &charges[i]; c.Ask.Cost < 0 && s.refusals != nil {
			s.refusals.invalidate(c.Counter.ID, c.Key)
		}
	}
}

// takeInPartition decides charges that are all of one partition. It tries again after a conflict,
// and while a slot is migrating. asked is when the call was sent.
func (s *Store) takeInPartition(
	w *waiting.Waiter, p *partition, charges []store.Charge, ahead []algo.Ahead, results []algo.Result,
) (now, asked int64, err error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		now, asked, err = s.takeOnce(w, p, charges, ahead, results)
		switch {
		case errors.Is(err, errConflict):
			continue
		case err == nil || !isTryAgain(err):
			return now, asked, err
		}
		// The keys of one decision are on two servers while a slot is migrating. Nothing was
		// charged.
		ctx, cancel := w.Short()
		select {
		case <-ctx.Done():
			cancel()
			return 0, 0, err
		case <-time.After(pause):
			cancel()
		}
	}
}

// takeOnce is one attempt of takeInPartition: by Lua, and by a swap if Lua leaves the call
// undecided.
func (s *Store) takeOnce(
	w *waiting.Waiter, p *partition, charges []store.Charge, ahead []algo.Ahead, results []algo.Result,
) (now, asked int64, err error) {
	c := s.newCall(p, charges, ahead)
	undecided := !c.disjoint
	if !undecided {
		if err := p.enqueue(c); err != nil {
			return 0, 0, err
		}
		if err := w.Wait(c.done, &p.detector); err != nil {
			done, charged := p.giveUp(c)
			if !done {
				e := &waiting.Failure{Err: err, Part: p.number, IsSilent: w.Silent}
				if charged {
					e.OnOutcome = c.outcomes(p)
				} else {
					s.calls.Put(c)
					e.Err = notChargedError{err}
				}
				return 0, 0, e
			}
			<-c.done
		}
		undecided = c.undecided
	}
	switch {
	case c.err != nil:
		err = c.err
	case undecided:
		now, asked, err = s.takeBySwap(w, p, c, charges, ahead, results)
	default:
		now, asked = c.now, c.sentAt
		copy(results, c.results)
		copy(ahead, c.ahead)
		for i := range charges {
			charges[i].Ask.Slot = c.charges[i].Ask.Slot
		}
	}
	if !c.leaked {
		s.calls.Put(c)
	}
	return now, asked, err
}

// takeBySwap decides c by compare-and-swap. After a conflict Lua can decide most calls, since the
// other one has mended the state; but not one that names a state twice, or needs a soft margin.
func (s *Store) takeBySwap(
	w *waiting.Waiter, p *partition, c *call, charges []store.Charge, ahead []algo.Ahead, results []algo.Result,
) (now, asked int64, err error) {
	o, err := p.swapTake(w, charges, ahead, results, c.slots, c.disjoint && !c.marginCloses)
	if err == nil || !o.abandoned.Load() {
		return o.now, o.asked, err
	}
	e := &waiting.Failure{Err: err, Part: p.number, IsSilent: w.Silent}
	if !isNotCharged(err) {
		e.OnOutcome = o.outcomes(s)
	}
	return 0, 0, e
}

// giveBack undoes a charge that was made at an instant: in the background, and in its result r.
func (s *Store) giveBack(p *partition, c *store.Charge, r *algo.Result, at int64) {
	counter, limit, key, cost, slot := c.Counter, c.Limit, bytes.Clone(c.Key), cost(c), c.Ask.Slot
	ends := at + r.ResetAfter
	c.Ask.Slot = 0
	r.Remaining = min(r.Limit, r.Remaining+cost)
	r.Delay, r.Soft = 0, false
	s.metrics.givenBack.Add(1)
	s.background(func() {
		ctx, cancel := context.WithTimeout(s.ctx, s.o.Timeout)
		defer cancel()
		if limit.HasSlots() {
			_, _ = s.Release(ctx, counter, key, slot)
			return
		}
		_ = p.swap(ctx, func(plan *swapPlan) func(int64) {
			of := plan.addCharges([]store.Charge{{Counter: counter, Limit: limit, Key: key}})
			return func(now int64) {
				st := &plan.states[of[0]].St
				if limit.Delays() {
					limit.Take(st, now, algo.Ask{Cost: -cost, LastEnds: ends})
				} else {
					limit.GiveBack(st, plan.lentOf(of[0]), now, at, cost)
				}
				plan.markWritten(of[0], limit)
			}
		})
		if s.refusals != nil {
			// a refusal that this charge caused may be remembered
			s.refusals.invalidate(counter.ID, key)
		}
	})
}
