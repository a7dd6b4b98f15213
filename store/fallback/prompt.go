package fallback

import (
	"errors"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
)

// prompt are the stores that can decide some calls without waiting; nil for one that cannot.
type prompt struct{ primary, local store.Prompt }

// TakeNow implements store.Prompt. While the circuit breaker is closed, it decides if the primary
// can at once; while it is open, if Options.Local can, or the primary with units that it has set
// aside for this node. It leaves charges in several parts of the primary to Take, and calls that
// fail.
func (s *Store) TakeNow(charges []store.Charge, results []algo.Result) (now int64, ok bool) {
	if check(charges, results) != nil {
		return 0, false
	}
	p := s.together(charges)
	if p == nil {
		return 0, false
	}
	if p.breaker.Load().state == Closed {
		return s.askNow(charges, results)
	}
	if now, ok = s.onLease(charges, results); ok {
		return now, true
	}
	return s.withoutNow(charges, results)
}

// askNow lets the primary decide, if it can at once, and records its answer.
func (s *Store) askNow(charges []store.Charge, results []algo.Result) (now int64, ok bool) {
	if s.prompt.primary == nil {
		return 0, false
	}
	if now, ok = s.prompt.primary.TakeNow(charges, results); !ok {
		return 0, false
	}
	// A refusal may be one that is remembered, with old results of the other limits. That the
	// primary decided it before is known already.
	if !store.VerdictOf(charges, results).Denied() {
		s.known.record(charges, results, now)
	}
	return now, true
}

// onLease decides a call while the primary is away, if all its limits are leased: units that were
// set aside for this node are good until their lease ends, whether the primary is there or not.
func (s *Store) onLease(charges []store.Charge, results []algo.Result) (now int64, ok bool) {
	for i := range charges {
		if charges[i].Counter.Lease == nil || charges[i].Limit.Lease() == nil {
			return 0, false
		}
	}
	return s.askNow(charges, results)
}

var errNotNow = errors.New("fallback: the local store has to wait")

// withoutNow is without for a call that Local can decide at once, and that no charge fails.
func (s *Store) withoutNow(charges []store.Charge, results []algo.Result) (now int64, ok bool) {
	if s.prompt.local == nil {
		return 0, false
	}
	for i := range charges {
		if deniesAll(&charges[i]) {
			return 0, false
		}
	}
	now, admitted, counted, err := s.decideLocally(s.localNow, charges, results, nil, nil)
	if err != nil {
		return 0, false
	}
	s.count(charges, admitted, counted)
	return now, true
}

func (s *Store) localNow(charges []store.Charge, results []algo.Result) (int64, error) {
	now, ok := s.prompt.local.TakeNow(charges, results)
	if !ok {
		return 0, errNotNow
	}
	return now, nil
}
