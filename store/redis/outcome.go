package redis

import (
	"slices"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// failure is the error of a call that was given up, or that failed in one partition of several.
type failure struct {
	error
	part      int                           // number of the partition
	others    []int                         // further partitions
	silent    bool                          // see Silent
	onOutcome func(f func([]store.Outcome)) // nil: nothing is known
}

var _ store.Pending = (*failure)(nil)

func (e *failure) Unwrap() error { return e.error }

// Failed reports whether it was that partition which failed.
func (e *failure) Failed(part int) bool { return part == e.part || slices.Contains(e.others, part) }

// Silent reports whether the call was given up because the server had been silent for too long,
// rather than because the caller's deadline came first.
func (e *failure) Silent() bool { return e.silent }

// Outcome implements store.Pending.
func (e *failure) Outcome(f func(outcomes []store.Outcome)) {
	if e.onOutcome == nil {
		f(nil)
		return
	}
	e.onOutcome(f)
}

// outcomes returns failure.onOutcome for a call that was given up after it was sent.
func (c *call) outcomes(p *partition) func(f func([]store.Outcome)) {
	return func(f func([]store.Outcome)) {
		p.mu.Lock()
		if c.stage == abandoned {
			c.onOutcome = f
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		f(c.outcome())
	}
}

// outcome returns what became of a call that is finished.
func (c *call) outcome() []store.Outcome {
	return outcomesOf(c.charges, c.results, c.now, c.err, c.undecided)
}

// outcomes returns failure.onOutcome for a call that was given up.
func (o *swapCall) outcomes(s *Store) func(f func([]store.Outcome)) {
	return func(f func([]store.Outcome)) {
		if !s.background(func() {
			<-o.done
			f(outcomesOf(o.charges, o.results, o.now, o.err, false))
		}) {
			f(make([]store.Outcome, len(o.charges)))
		}
	}
}

// outcomesOf returns what became of each charge of a call. undone says that nothing was decided.
func outcomesOf(
	charges []store.Charge, results []algo.Result, now int64, err error, undone bool,
) []store.Outcome {
	list := make([]store.Outcome, len(charges))
	for i := range list {
		list[i].Known = err == nil || isNotCharged(err)
	}
	if err != nil || undone {
		return list
	}
	denied := store.VerdictOf(charges, results).Denied()
	for i := range charges {
		c, r, o := &charges[i], &results[i], &list[i]
		o.Now, o.Result = now, *r
		admitted := r.Allowed && (!denied || c.Mode == rule.Shadow)
		o.Made = !r.Off && c.Ask.Cost != 0 && (admitted || c.Limit.CountDenied())
		o.Slot = c.Ask.Slot
	}
	return list
}
