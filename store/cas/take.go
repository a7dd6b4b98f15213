package cas

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/internal/deciding"
	"github.com/weir-rl/weir/store/internal/waiting"
)

// ErrDeadline is the error of a call that got no answer in time. It may have been charged.
var ErrDeadline = fmt.Errorf("no answer in time: %w", context.DeadlineExceeded)

var (
	errClosed   = notChargedError{errors.New("cas store: it is closed")}
	errGivenUp  = notChargedError{errors.New("cas store: the caller gave up before it was decided")}
	errConflict = errors.New("others changed the same keys again and again")
	errAnswer   = errors.New("the engine's answer is incomplete")
)

// Take implements store.Store.
func (s *Store) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	now, _, err := s.TakeWithin(ctx, 0, 0, charges, results)
	return now, err
}

// TakeWithin implements store.Deadliner. After minWait it gives up as soon as the database has been
// silent for several times as long as its longest answer took in the last minute or two. Time in
// which this process did not run is not counted. The error is then ErrDeadline, and it is a
// store.Pending unless it is store.ErrNotCharged. remembered reports that this node refused from
// memory (Options.RememberRefusals).
func (s *Store) TakeWithin(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, results []algo.Result,
) (now int64, remembered bool, err error) {
	if err := s.checkCharges(charges, results); err != nil {
		return 0, false, err
	}
	if len(charges) == 0 {
		if maxWait > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, maxWait, ErrDeadline)
			defer cancel()
		}
		now, err = s.Time(ctx)
		return now, false, err
	}
	if s.refusals != nil {
		if now, ok := s.refusals.Answer(charges, results); ok {
			return now, true, nil
		}
	}
	w := waiting.Waiter{Ctx: ctx}
	if maxWait > 0 {
		w.Begin(minWait, maxWait, ErrDeadline)
		defer w.Finish()
	}
	if !s.spans && !sameSubject(charges) {
		now, err = s.takeAcross(&w, charges, results)
	} else {
		now, err = s.takeTogether(&w, charges, results)
	}
	if err == nil {
		s.freed(charges)
	}
	return now, false, err
}

// checkCharges returns an error if a call cannot be understood.
func (s *Store) checkCharges(charges []store.Charge, results []algo.Result) error {
	if len(charges) != len(results) {
		return fmt.Errorf("%s: there must be one result for each charge", s.o.Name)
	}
	for i := range charges {
		if charges[i].Counter == nil || charges[i].Limit == nil {
			return fmt.Errorf("%s: charge %d needs a Counter and a Limit", s.o.Name, i)
		}
	}
	return nil
}

// sameSubject reports whether all charges are of one place.
func sameSubject(charges []store.Charge) bool {
	if len(charges) == 1 {
		return true
	}
	first := placeOf(charges[0].Counter, charges[0].Key)
	for i := 1; i < len(charges); i++ {
		if placeOf(charges[i].Counter, charges[i].Key) != first {
			return false
		}
	}
	return true
}

// takeTogether decides charges that can be decided in one group.
func (s *Store) takeTogether(w *waiting.Waiter, charges []store.Charge, results []algo.Result) (now int64, err error) {
	if err := w.Ctx.Err(); err != nil {
		return 0, s.notCharged(context.Cause(w.Ctx))
	}
	c := s.newCall(charges)
	if err := s.wait(w, c); err != nil {
		return 0, err
	}
	if now, err = c.now, c.err; err == nil {
		copy(results, c.results)
		for i := range charges {
			charges[i].Ask.Slot = c.charges[i].Ask.Slot
		}
		if s.refusals != nil {
			s.refusals.Remember(charges, results, now, c.asked)
		}
	} else if !isNotCharged(err) {
		err = &waiting.Failure{Err: err, IsSilent: true, OnOutcome: unknown(len(charges))}
	}
	s.putCall(c)
	return now, err
}

// unknown is Failure.OnOutcome of a call whose outcome will never be known.
func unknown(n int) func(func([]store.Outcome)) {
	return func(f func([]store.Outcome)) { f(make([]store.Outcome, n)) }
}

// wait queues a call, and waits for it. After an error the call is not the caller's any more.
func (s *Store) wait(w *waiting.Waiter, c *call) error {
	if err := s.enqueue(c); err != nil {
		s.putCall(c)
		return err
	}
	err := w.Wait(c.done, &s.server.detector)
	if err == nil {
		return nil
	}
	done, charged := s.giveUp(c)
	if done {
		<-c.done
		return nil
	}
	e := &waiting.Failure{Err: s.wrap(err), IsSilent: w.Silent}
	if charged {
		e.OnOutcome = s.outcomes(c)
	} else {
		e.Err = s.notCharged(err)
	}
	return e
}

// outcomes returns Failure.OnOutcome for a call that was given up after it was sent.
func (s *Store) outcomes(c *call) func(f func([]store.Outcome)) {
	return func(f func([]store.Outcome)) {
		s.mu.Lock()
		if c.stage == abandoned {
			c.onOutcome = f
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		f(c.outcome())
	}
}

// outcome returns the outcomes of the charges of a finished call.
func (c *call) outcome() []store.Outcome {
	return deciding.Outcomes(c.charges, c.results, c.now, c.err, false)
}

// TakeNow implements store.Prompt: it repeats refusals that this node remembers
// (Options.RememberRefusals), as TakeWithin does.
func (s *Store) TakeNow(charges []store.Charge, results []algo.Result) (now int64, ok bool) {
	if s.refusals == nil || s.checkCharges(charges, results) != nil {
		return 0, false
	}
	return s.refusals.Answer(charges, results)
}

// Forget implements store.Forgetter. Others hear of it by Options.Freed, or when their memory ends.
func (s *Store) Forget(c *rule.Counter, key []byte) {
	if s.refusals != nil && c != nil {
		s.forget(c.ID, key)
	}
}

// forget forgets a refusal on this node, and has others do so.
func (s *Store) forget(id uint64, key []byte) {
	s.refusals.Forget(id, key)
	if s.o.Freed != nil {
		s.o.Freed(id, key)
	}
}

// ForgetHere drops the refusals of a key that this node remembers: another node reported that the
// key may be admitted earlier than they say. id is the counter's ID.
func (s *Store) ForgetHere(id uint64, key []byte) {
	if s.refusals != nil {
		s.refusals.Forget(id, key)
	}
}

// ForgetAll drops all refusals that this node remembers: messages from others may have been missed.
func (s *Store) ForgetAll() {
	if s.refusals != nil {
		s.refusals.ForgetAll()
	}
}

// freed forgets the refusals of keys that got something back.
func (s *Store) freed(charges []store.Charge) {
	if s.refusals == nil {
		return
	}
	for i := range charges {
		if c := &charges[i]; c.Ask.Cost < 0 {
			s.forget(c.Counter.ID, c.Key)
		}
	}
}

// change changes states, in the order of its turn; f may be called several times, and is not called
// any more when change returns nil.
func (s *Store) change(ctx context.Context, charges []store.Charge, older bool, f func(p *plan, c *call)) error {
	if err := ctx.Err(); err != nil {
		return s.notCharged(context.Cause(ctx))
	}
	c := s.newCall(charges)
	c.change, c.older = f, older
	if err := s.wait(&waiting.Waiter{Ctx: ctx}, c); err != nil {
		return err
	}
	err := c.err
	s.putCall(c)
	return err
}

// Release implements store.Store.
func (s *Store) Release(ctx context.Context, c *rule.Counter, key []byte, slot uint64) (bool, error) {
	if c == nil {
		return false, fmt.Errorf("%s: Release needs a Counter", s.o.Name)
	}
	if c.Limit == nil || !c.Limit.HasSlots() || slot == 0 {
		return false, nil
	}
	ok := new(bool) // not the result itself: a call that was given up may still be made
	own := *c
	own.Previous = nil // a slot lies where it was taken
	err := s.change(ctx, []store.Charge{{Counter: &own, Limit: c.Limit, Key: key}}, false, func(p *plan, call *call) {
		*ok = c.Limit.Release(&call.states[0].St, p.now, slot)
	})
	if err != nil {
		return false, err
	}
	return *ok, nil
}

// Settle makes settlements, each by itself, as store.Reserver says.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement) error {
	for i := range settlements {
		if e := &settlements[i]; e.Counter == nil || e.Limit == nil {
			return fmt.Errorf("%s: settlement %d needs a Counter and a Limit", s.o.Name, i)
		}
	}
	if err := ctx.Err(); err != nil {
		return s.notCharged(context.Cause(ctx))
	}
	calls := make([]*call, 0, len(settlements))
	var failed error
	for i := range settlements {
		e := &settlements[i]
		c := s.newCall([]store.Charge{{Counter: e.Counter, Limit: e.Limit, Key: e.Key}})
		at, reserved, actual := e.At, e.Reserved, e.Actual
		c.settles = true
		c.change = func(p *plan, c *call) {
			c.charges[0].Limit.Settle(&c.states[0].St, nil, p.now, at, reserved, actual)
		}
		if err := s.enqueue(c); err != nil {
			s.putCall(c)
			failed = err
			break
		}
		calls = append(calls, c)
	}
	w := waiting.Waiter{Ctx: ctx}
	for _, c := range calls {
		err := w.Wait(c.done, &s.server.detector)
		if err != nil {
			if done, _ := s.giveUp(c); !done {
				failed = errors.Join(failed, s.wrap(err))
				continue
			}
			<-c.done
		}
		if c.err != nil {
			failed = errors.Join(failed, c.err)
		}
		s.putCall(c)
	}
	if failed != nil && s.refusals == nil {
		return failed
	}
	for i := range settlements {
		if e := &settlements[i]; e.Actual < e.Reserved {
			s.Forget(e.Counter, e.Key)
		}
	}
	return failed
}
