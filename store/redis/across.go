package redis

import (
	"context"
	"errors"
	"slices"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/internal/across"
	"github.com/weir-rl/weir/store/internal/waiting"
)

// takeAcross decides charges of several partitions. It asks all partitions at once. If one of them
// denies or fails, it gives back the charges of the others. That runs to its end even if the caller
// gives up.
func (s *Store) takeAcross(
	w *waiting.Waiter, charges []store.Charge, ahead []algo.Ahead, results []algo.Result,
) (now, asked int64, err error) {
	if err := w.Ctx.Err(); err != nil {
		return 0, 0, notChargedError{context.Cause(w.Ctx)}
	}
	a := across.New(charges, ahead)
	var parts []*partition
	var detectors []*waiting.Detector
	for i := range a.Charges {
		c := &a.Charges[i]
		if p := s.partitionOf(c.Counter, c.Key); !slices.Contains(parts, p) {
			parts, detectors = append(parts, p), append(detectors, &p.detector)
		}
	}
	if !s.background(func() { s.decideAcross(a); close(a.Done) }) {
		return 0, 0, errClosed
	}
	if err := w.Wait(a.Done, detectors...); err != nil {
		select {
		case <-a.Done:
		default:
			return 0, 0, s.overdue(parts, err, w.Silent, a.Outcomes(s.background))
		}
	}
	if a.Err != nil {
		return 0, 0, a.Err
	}
	copy(results, a.Results)
	copy(ahead, a.Ahead)
	for i := range charges {
		charges[i].Ask.Slot = a.Charges[i].Ask.Slot
	}
	return a.Now, a.Asked, nil
}

// decideAcross asks the partitions, and gives back what must not stay charged.
func (s *Store) decideAcross(a *across.Call) {
	// Twice the time-out: in each partition a call may be in flight before this one.
	ctx, cancel := context.WithTimeout(s.ctx, 2*s.o.Timeout)
	defer cancel()
	across.Decide(a, &across.Parts[*partition]{
		Name:   "redis store",
		Of:     func(c *store.Charge) *partition { return s.partitionOf(c.Counter, c.Key) },
		Number: func(p *partition) int { return p.number },
		Ask: func(share *across.Share[*partition]) {
			own := waiting.Waiter{Ctx: ctx}
			share.Now, share.Asked, share.Err = s.takeInPartition(&own, share.Part, share.Charges, share.Ahead,
				share.Results)
		},
		GiveBack:   s.giveBack,
		ReturnLent: s.returnLent,
	})
}

// overdue returns the error of a call to several partitions whose caller gave up.
func (s *Store) overdue(
	parts []*partition, err error, silent bool, wait func(func([]store.Outcome)),
) error {
	e := &waiting.Failure{Err: err, Part: -1, IsSilent: silent, OnOutcome: wait}
	at := s.monotonic()
	for _, p := range parts {
		if p.detector.OldestUnanswered() != 0 && (!silent || p.detector.SilentUntil(at) <= at) {
			e.Others = append(e.Others, p.number)
		}
	}
	return e
}

func isNotCharged(err error) bool { return err != nil && errors.Is(err, store.ErrNotCharged) }
