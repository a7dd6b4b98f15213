package redis

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// ErrDeadline is the error of a call that did not come back in time. It may have been charged.
var ErrDeadline = fmt.Errorf("redis store: no answer in time: %w", context.DeadlineExceeded)

// Take implements weir.Store.
func (s *Store) Take(ctx context.Context, charges []weir.Charge, results []algo.Result) (int64, error) {
	return s.TakeWithin(ctx, 0, charges, results)
}

// TakeWithin is Take that waits no longer than d, without the price of a context of its own; 0 means as long as ctx lets
// it. The error is then ErrDeadline.
func (s *Store) TakeWithin(ctx context.Context, d time.Duration, charges []weir.Charge, results []algo.Result) (int64, error) {
	if len(charges) != len(results) {
		return 0, errLengths
	}
	for i := range charges {
		if charges[i].Counter == nil || charges[i].Limit == nil {
			return 0, fmt.Errorf("redis store: charge %d needs a Counter and a Limit", i)
		}
	}
	if len(charges) == 0 {
		if d > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(ctx, d, ErrDeadline)
			defer cancel()
		}
		return s.Time(ctx)
	}
	if s.refusals != nil {
		if now, ok := s.refusals.answer(charges, results); ok {
			return now, nil
		}
	}
	w := waiter{ctx: ctx}
	if d > 0 {
		w.begin(d)
		defer w.finish()
	}
	p := s.partitionOf(charges[0].Counter, charges[0].Key)
	for i := 1; i < len(charges); i++ {
		if s.partitionOf(charges[i].Counter, charges[i].Key) != p {
			now, err := s.takeAcross(&w, charges, results)
			if err == nil {
				s.tellRefunds(charges)
			}
			return now, err
		}
	}
	now, asked, err := s.takeIn(&w, p, charges, results)
	if err == nil {
		s.afterwards(charges, results, now, asked)
	}
	return now, err
}

// afterwards remembers a refusal, and tells of refunds.
func (s *Store) afterwards(charges []weir.Charge, results []algo.Result, now, asked int64) {
	if s.refusals == nil {
		return
	}
	s.refusals.remember(charges, results, now, asked)
	s.tellRefunds(charges)
}

// tellRefunds tells which keys may admit earlier than was said.
func (s *Store) tellRefunds(charges []weir.Charge) {
	for i := range charges {
		if c := &charges[i]; c.Ask.Cost < 0 && s.refusals != nil {
			s.refusals.open(c.Counter.ID, c.Key)
		}
	}
}

// waiter waits for calls, as long as its caller does.
type waiter struct {
	ctx   context.Context
	end   time.Time // the deadline; zero for none but ctx's
	timer *time.Timer
}

var timers = sync.Pool{New: func() any { return time.NewTimer(time.Hour) }}

func (w *waiter) begin(d time.Duration) {
	w.end = time.Now().Add(d)
	w.timer = timers.Get().(*time.Timer)
	w.timer.Reset(d)
}

func (w *waiter) finish() {
	w.timer.Stop()
	timers.Put(w.timer)
}

// wait waits for c, and reports what ended it if that was not c itself.
func (w *waiter) wait(c *call) error {
	var late <-chan time.Time
	if w.timer != nil {
		late = w.timer.C
	}
	select {
	case <-c.done:
		return nil
	case <-late:
		return ErrDeadline
	case <-w.ctx.Done():
		return context.Cause(w.ctx)
	}
}

// context is for what takes more than one call.
func (w *waiter) context() (context.Context, context.CancelFunc) {
	if w.end.IsZero() {
		return w.ctx, func() {}
	}
	return context.WithDeadlineCause(w.ctx, w.end, ErrDeadline)
}

// takeIn decides charges that are all of one partition. asked is when the question was sent.
func (s *Store) takeIn(w *waiter, p *partition, charges []weir.Charge, results []algo.Result) (now, asked int64, err error) {
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		now, asked, err = s.takeOnce(w, p, charges, results)
		switch {
		case errors.Is(err, errOvertaken):
			continue
		case err == nil || !isTryAgain(err):
			return now, asked, err
		}
		// Keys of one decision lie on two servers, while a slot is being moved. Nothing was charged.
		ctx, cancel := w.context()
		select {
		case <-ctx.Done():
			cancel()
			return 0, 0, err
		case <-time.After(pause):
			cancel()
		}
	}
}

// takeOnce is takeIn, but for what is worth another attempt.
func (s *Store) takeOnce(w *waiter, p *partition, charges []weir.Charge, results []algo.Result) (now, asked int64, err error) {
	c := s.newCall(p, charges)
	odd := !c.apart
	if !odd {
		if err := p.enqueue(c); err != nil {
			return 0, 0, err
		}
		if err := w.wait(c); err != nil {
			done, charged := p.giveUp(c)
			if !done {
				if !charged {
					s.calls.Put(c)
					err = notCharged{err}
				}
				return 0, 0, err
			}
			<-c.done
		}
		odd = c.odd
	}
	switch {
	case c.err != nil:
		err = c.err
	case odd:
		asked = s.monotonic()
		ctx, cancel := w.context()
		// What a margin has to admit is odd again and again; all else others have put right who came between.
		if now, err = p.swapTake(ctx, charges, results, c.slots, c.apart && !c.tight); err != nil && ctx.Err() != nil {
			sure := errors.Is(err, weir.ErrNotCharged)
			if err = fmt.Errorf("redis store: %w", context.Cause(ctx)); sure {
				err = notCharged{err}
			}
		}
		cancel()
	default:
		now, asked = c.now, c.asked
		copy(results, c.results)
		for i := range charges {
			charges[i].Ask.Slot = c.charges[i].Ask.Slot
		}
	}
	if !c.taint {
		s.calls.Put(c)
	}
	return now, asked, err
}

// takeAcross decides charges of several partitions: all are asked at once, and what was charged is given back if another
// one denies.
func (s *Store) takeAcross(w *waiter, charges []weir.Charge, results []algo.Result) (int64, error) {
	type share struct {
		p       *partition
		of      []int
		charges []weir.Charge
		results []algo.Result
		now     int64
		err     error
	}
	var shares []*share
next:
	for i := range charges {
		p := s.partitionOf(charges[i].Counter, charges[i].Key)
		c := charges[i]
		// Whether all quotas are used up shows only when all have answered; until then each is charged by its own verdict.
		if c.Mode == rule.Quota {
			c.Mode = rule.Shadow
		}
		for _, sh := range shares {
			if sh.p == p {
				sh.of, sh.charges = append(sh.of, i), append(sh.charges, c)
				continue next
			}
		}
		shares = append(shares, &share{p: p, of: []int{i}, charges: []weir.Charge{c}})
	}
	ctx, cancel := w.context()
	defer cancel()
	var wg sync.WaitGroup
	for _, sh := range shares {
		sh.results = make([]algo.Result, len(sh.charges))
		wg.Go(func() {
			own := waiter{ctx: ctx}
			sh.now, _, sh.err = s.takeIn(&own, sh.p, sh.charges, sh.results)
		})
	}
	wg.Wait()
	var now int64
	var failures []error
	charged := false // or perhaps
	verdict := newVerdict()
	for _, sh := range shares {
		// The earliest of the instants, which differ by little: what is given back later by it is never more than was charged.
		if sh.err == nil && (now == 0 || sh.now < now) {
			now = sh.now
		}
		if sh.err != nil {
			failures = append(failures, sh.err)
		}
		charged = charged || !errors.Is(sh.err, weir.ErrNotCharged)
		for j, i := range sh.of {
			results[i] = sh.results[j]
			charges[i].Ask.Slot = sh.charges[j].Ask.Slot
			if !results[i].Off { // else it is as if it had not been met
				verdict.add(charges[i].Mode, results[i].Allowed)
			}
		}
	}
	if failures == nil && !verdict.denied() {
		return now, nil
	}
	// Give back what was charged. What cannot be given back stays charged.
	for _, sh := range shares {
		if sh.err != nil {
			continue
		}
		own := newVerdict()
		for j := range sh.of {
			if !sh.results[j].Off {
				own.add(sh.charges[j].Mode, sh.results[j].Allowed)
			}
		}
		for _, i := range sh.of {
			c, r := &charges[i], &results[i]
			made := r.Allowed && !r.Off && (c.Mode == rule.Quota || c.Mode == rule.Enforce && !own.denied())
			if made && c.Ask.Cost > 0 && !c.Limit.CountDenied() {
				s.giveBack(sh.p, c, r, sh.now)
			}
		}
	}
	switch {
	case failures == nil:
		return now, nil
	case charged:
		return 0, fmt.Errorf("redis store: one of several partitions: %v", failures[0])
	}
	return 0, failures[0]
}

// giveBack undoes a charge that was made at an instant, in the background, and takes it out of the result.
func (s *Store) giveBack(p *partition, c *weir.Charge, r *algo.Result, at int64) {
	counter, limit, key, cost, slot := c.Counter, c.Limit, bytes.Clone(c.Key), cost(c), c.Ask.Slot
	ends := at + r.ResetAfter
	c.Ask.Slot = 0
	r.Remaining = min(r.Limit, r.Remaining+cost)
	r.Delay, r.Soft = 0, false
	s.metrics.givenBack.Add(1)
	s.background(func() {
		ctx, cancel := context.WithTimeout(s.ctx, s.o.Timeout)
		defer cancel()
		if limit.Algorithm() == algo.Concurrency {
			_, _ = s.Release(ctx, counter, key, slot)
			return
		}
		_ = p.swap(ctx, func(scene *scene) func(int64) {
			of := scene.addCharges([]weir.Charge{{Counter: counter, Limit: limit, Key: key}})
			return func(now int64) {
				st := &scene.places[of[0]].st
				if limit.Algorithm() == algo.LeakyBucket {
					limit.Take(st, now, algo.Ask{Cost: -cost, LastEnds: ends})
				} else {
					limit.GiveBack(st, now, at, cost)
				}
				scene.write(of[0], limit)
			}
		})
		if s.refusals != nil {
			s.refusals.open(counter.ID, key) // one that this charge caused may have been remembered
		}
	})
}
