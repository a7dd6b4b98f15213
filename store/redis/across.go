package redis

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// acrossCall is a decision over several partitions. It holds copies of everything, since its caller
// may give up.
type acrossCall struct {
	charges []store.Charge
	ahead   []algo.Ahead // empty if nothing may be lent
	results []algo.Result
	now     int64
	asked   int64 // so early that what was lent ends no sooner than by the clock of now
	err     error
	list    []store.Outcome
	done    chan struct{} // closed when the rest is valid
}

func (a *acrossCall) outcomes(s *Store) func(f func([]store.Outcome)) {
	return func(f func([]store.Outcome)) {
		select {
		case <-a.done:
			f(a.list)
			return
		default:
		}
		if !s.background(func() {
			<-a.done
			f(a.list)
		}) {
			f(make([]store.Outcome, len(a.charges)))
		}
	}
}

// takeAcross decides charges of several partitions. All partitions are asked at once. If one of
// them denies or fails, what the others charged is given back. That runs to its end even if the
// caller gives up.
func (s *Store) takeAcross(
	w *waiter, charges []store.Charge, ahead []algo.Ahead, results []algo.Result,
) (now, asked int64, err error) {
	if err := w.ctx.Err(); err != nil {
		return 0, 0, notChargedError{context.Cause(w.ctx)}
	}
	a := &acrossCall{
		charges: slices.Clone(charges), ahead: slices.Clone(ahead), results: make([]algo.Result, len(charges)),
		done: make(chan struct{}),
	}
	var parts []*partition
	for i := range a.charges {
		c := &a.charges[i]
		c.Key = slices.Clone(c.Key)
		if p := s.partitionOf(c.Counter, c.Key); !slices.Contains(parts, p) {
			parts = append(parts, p)
		}
	}
	if !s.background(func() { s.decideAcross(a); close(a.done) }) {
		return 0, 0, errClosed
	}
	if err := w.wait(a.done, parts...); err != nil {
		select {
		case <-a.done:
		default:
			return 0, 0, s.overdue(parts, err, w.silent, a.outcomes(s))
		}
	}
	if a.err != nil {
		return 0, 0, a.err
	}
	copy(results, a.results)
	copy(ahead, a.ahead)
	for i := range charges {
		charges[i].Ask.Slot = a.charges[i].Ask.Slot
	}
	return a.now, a.asked, nil
}

// decideAcross asks the partitions, and gives back what must not stay charged.
func (s *Store) decideAcross(a *acrossCall) {
	charges, results := a.charges, a.results
	type share struct {
		p       *partition
		of      []int
		charges []store.Charge
		ahead   []algo.Ahead
		results []algo.Result
		now     int64
		asked   int64
		err     error
	}
	var parts []*share
next:
	for i := range charges {
		p := s.partitionOf(charges[i].Counter, charges[i].Key)
		c := charges[i]
		// Whether all quotas are exhausted is known only when all partitions have answered. Until
		// then each quota is charged by its own verdict.
		if c.Mode == rule.Quota {
			c.Mode = rule.Shadow
		}
		for _, part := range parts {
			if part.p == p {
				part.of, part.charges = append(part.of, i), append(part.charges, c)
				continue next
			}
		}
		parts = append(parts, &share{p: p, of: []int{i}, charges: []store.Charge{c}})
	}
	// Twice the time-out: in each partition a call may be in flight before this one.
	ctx, cancel := context.WithTimeout(s.ctx, 2*s.o.Timeout)
	defer cancel()
	var wg sync.WaitGroup
	for _, part := range parts {
		part.results = make([]algo.Result, len(part.charges))
		if len(a.ahead) > 0 {
			for _, i := range part.of {
				part.ahead = append(part.ahead, a.ahead[i])
			}
		}
		wg.Go(func() {
			own := waiter{ctx: ctx}
			part.now, part.asked, part.err = s.takeInPartition(&own, part.p, part.charges, part.ahead, part.results)
		})
	}
	wg.Wait()
	a.list = make([]store.Outcome, len(charges))
	var failed *failure
	charged := false                 // or perhaps
	earliest := int64(math.MaxInt64) // when a part was asked, from its own now
	var verdict store.Verdict
	for _, part := range parts {
		// The instants differ a little. The earliest one is returned: what the caller gives back by
		// it later is never more than was charged.
		if part.err == nil && (a.now == 0 || part.now < a.now) {
			a.now = part.now
		}
		if ago := part.asked - part.now*1000; part.err == nil {
			earliest = min(earliest, ago)
		}
		switch {
		case part.err == nil:
		case failed == nil:
			failed = &failure{error: part.err, part: part.p.number, silent: true}
		default:
			failed.others = append(failed.others, part.p.number)
		}
		charged = charged || !isNotCharged(part.err)
		for j, i := range part.of {
			results[i] = part.results[j]
			charges[i].Ask.Slot = part.charges[j].Ask.Slot
			verdict.Add(charges[i].Mode, &results[i])
		}
	}
	a.asked = a.now*1000 + earliest
	giveBack := failed != nil || verdict.Denied()
	for _, part := range parts {
		own := store.VerdictOf(part.charges, part.results)
		for j, i := range part.of {
			c, r, out := &charges[i], &results[i], &a.list[i]
			if out.Known = part.err == nil || isNotCharged(part.err); part.err != nil {
				continue
			}
			admitted := r.Allowed && (part.charges[j].Mode == rule.Shadow || !own.Denied())
			out.Made = !r.Off && c.Ask.Cost != 0 && (admitted || c.Limit.CountDenied())
			// Denied requests that count stay charged.
			if giveBack && out.Made && c.Ask.Cost > 0 && c.Mode != rule.Shadow && !c.Limit.CountDenied() {
				s.giveBack(part.p, c, r, part.now)
				out.Made = false
			}
			if len(a.ahead) > 0 {
				if a.ahead[i] = part.ahead[j]; giveBack && a.ahead[i].Got > 0 {
					s.returnLent(part.p, c, &a.ahead[i])
				}
			}
			out.Now, out.Result, out.Slot = part.now, *r, c.Ask.Slot
		}
	}
	if failed == nil {
		return
	}
	a.now, a.err = 0, failed
	if list := a.list; charged {
		failed.error = fmt.Errorf("redis store: one of several partitions: %v", failed.error)
		failed.onOutcome = func(f func([]store.Outcome)) { f(list) }
	}
}

// overdue returns the error of a call to several partitions whose caller gave up.
func (s *Store) overdue(
	parts []*partition, err error, silent bool, wait func(func([]store.Outcome)),
) error {
	e := &failure{error: err, part: -1, silent: silent, onOutcome: wait}
	at := s.monotonic()
	for _, p := range parts {
		if p.detector.oldestUnanswered() != 0 && (!silent || p.detector.silentUntil(at) <= at) {
			e.others = append(e.others, p.number)
		}
	}
	return e
}

func isNotCharged(err error) bool { return err != nil && errors.Is(err, store.ErrNotCharged) }
