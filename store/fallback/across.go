package fallback

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// takeAcross is Take of charges that are in several parts of the primary.
func (s *Store) takeAcross(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	var there, here []int
	var refusal error // of a part that is away, of a charge that wants refusal if there is one
	named := false
	for i := range charges {
		b := s.partOf(charges[i].Counter, charges[i].Key).breaker.Load()
		if b.state == Closed {
			there = append(there, i)
			continue
		}
		here = append(here, i)
		if !named {
			refusal, named = b.refusal, deniesAll(&charges[i])
		}
	}
	if len(here) > 0 {
		if now, ok := s.onLease(charges, results); ok {
			return now, nil
		}
	}
	switch {
	case len(there) == 0:
		return s.without(ctx, charges, results, refusal, nil)
	case len(here) == 0:
		now, err := s.askAcross(ctx, charges, results)
		if err == nil {
			return now, nil
		}
		if ctx.Err() != nil {
			s.abandoned(charges, err)
			return now, err
		}
		return s.without(ctx, charges, results, refuse(err), err)
	}
	return s.split(ctx, charges, results, there, here, refusal)
}

// askAcross makes one call to several parts of the primary, and reports the outcome to their
// breakers.
func (s *Store) askAcross(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	var parts []*part
	var began []uint32
	for i := range charges {
		if p := s.partOf(charges[i].Counter, charges[i].Key); !slices.Contains(parts, p) {
			parts, began = append(parts, p), append(began, p.run.begin())
		}
	}
	now, patience, err := s.ask(ctx, charges, results)
	for i, p := range parts {
		s.heard(ctx, p, patience, began[i], err)
	}
	return now, err
}

// side is a part of a call: the charges that are decided in one place.
type side struct {
	of      []int
	charges []store.Charge
	results []algo.Result
}

func sideOf(charges []store.Charge, of []int) side {
	s := side{of: of, charges: make([]store.Charge, len(of)), results: make([]algo.Result, len(of))}
	for j, i := range of {
		s.charges[j] = charges[i]
	}
	return s
}

// quotasAlone gives quotas another mode, in which each is charged by its own verdict.
func (s *side) quotasAlone() {
	for j := range s.charges {
		if c := &s.charges[j]; c.Mode == rule.Quota {
			c.Mode = rule.Shadow
		}
	}
}

// split decides a call when some parts of the primary are away. The parts that answer decide their
// own charges, and this node decides the rest on its share. The call is all or nothing: if the
// share refuses, the units that the primary has charged are given back.
func (s *Store) split(
	ctx context.Context, charges []store.Charge, results []algo.Result, there, here []int, refusal error,
) (int64, error) {
	for _, i := range here {
		if deniesAll(&charges[i]) {
			s.stats.refused.Add(1)
			return 0, refusal
		}
	}
	far, near := sideOf(charges, there), sideOf(charges, here)
	far.quotasAlone()
	var now int64
	var err error
	if p := s.together(far.charges); p != nil {
		began := p.run.begin()
		var patience time.Duration
		now, patience, err = s.ask(ctx, far.charges, far.results)
		s.heard(ctx, p, patience, began, err)
	} else {
		now, err = s.askAcross(ctx, far.charges, far.results)
	}
	if err != nil {
		if ctx.Err() != nil {
			s.abandoned(far.charges, err)
			return 0, err
		}
		if !errors.Is(err, store.ErrNotCharged) {
			err = &partly{error: err, of: there, n: len(charges)}
		}
		return s.without(ctx, charges, results, refuse(err), err)
	}

	// The verdict so far.
	var verdict store.Verdict
	for j, i := range there {
		verdict.Add(charges[i].Mode, &far.results[j])
	}
	left := verdict.QuotaLeft()
	if slices.ContainsFunc(here, func(i int) bool { return charges[i].Mode == rule.Quota }) {
		// Whether all quotas are exhausted shows here.
		verdict.Add(rule.Quota, &algo.Result{Allowed: true})
	}
	// One charge stands in for everything the primary decided: it refuses if the primary refused,
	// or is a quota with units left.
	witness := &store.Charge{Counter: s.nobody, Limit: s.nobody.Limit}
	switch {
	case verdict.Denied():
		witness.Ask.Cost = 1
	case left:
		witness.Mode = rule.Quota
	default:
		witness = nil
	}
	local, admitted, counted, err := s.decideLocally(s.localWithin(ctx), near.charges, near.results, witness, nil)
	if err != nil {
		s.undo(charges, &far, now) // Local has returned no instant
		return 0, err
	}
	if !admitted {
		s.undo(charges, &far, local)
	}
	s.count(near.charges, admitted, counted)
	for _, side := range []*side{&far, &near} {
		for j, i := range side.of {
			results[i] = side.results[j]
			charges[i].Ask.Slot = side.charges[j].Ask.Slot
		}
	}
	return now, nil
}

// undo gives back, in the background, the units that the primary has charged for a call that was
// then refused at now, by Local's clock.
func (s *Store) undo(charges []store.Charge, far *side, now int64) {
	denied := store.VerdictOf(far.charges, far.results).Denied()
	for j, i := range far.of {
		c, r := &far.charges[j], &far.results[j]
		c.Mode = charges[i].Mode
		if !r.Allowed || r.Off || c.Ask.Cost <= 0 || c.Mode == rule.Shadow || denied && c.Mode == rule.Enforce {
			continue
		}
		p := s.partOf(c.Counter, c.Key)
		if c.Limit.HasSlots() {
			p.missed.addRelease(c.Counter, c.Key, c.Ask.Slot)
			s.tendIfClosed(p)
			c.Ask.Slot = 0
		} else {
			s.refund(p, c, &store.Outcome{Result: *r}, now)
			s.tendIfClosed(p)
		}
		r.Remaining = min(r.Limit, r.Remaining+c.Ask.Cost)
	}
}

// partly is the error of a call that was to decide only some charges.
type partly struct {
	error
	of []int
	n  int
}

func (e *partly) Unwrap() error { return e.error }

// Outcome implements store.Pending.
func (e *partly) Outcome(f func(outcomes []store.Outcome)) {
	told := func(some []store.Outcome) {
		all := make([]store.Outcome, e.n)
		for i := range all {
			all[i].Known = true // that nothing was charged
		}
		for j, i := range e.of {
			all[i] = outcomeOf(some, j)
		}
		f(all)
	}
	if pending, ok := errors.AsType[store.Pending](e.error); ok {
		pending.Outcome(told)
		return
	}
	told(nil)
}
