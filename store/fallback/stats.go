package fallback

import (
	"sync/atomic"
	"time"
)

// State returns the state of the circuit breaker, since when the primary has been away (Open,
// HalfOpen) or back (Closed), and the last failure; cause is nil if the breaker is closed. Where
// the primary has parts, it is Open as long as one of them is away, and Closed when all are there;
// see Away.
func (s *Store) State() (state State, since time.Time, cause error) {
	b := s.overall()
	return b.state, b.since, b.cause
}

// Entered returns how often the circuit breaker has come to each state, by State. It begins Closed,
// which is not counted.
func (s *Store) Entered() (n [States]uint64) {
	for state := range n {
		n[state] = s.stats.entered[state].Load()
	}
	return n
}

// Share returns the number of nodes among which limits are shared while the primary is away.
func (s *Store) Share() int {
	if s.o.Nodes != nil {
		if n := s.o.Nodes(); n >= 1 {
			return max(n, s.o.FixedNodes)
		}
	}
	return max(1, s.o.FixedNodes)
}

// Stats counts events since New. Each decision without the primary counts in one of LocalAllowed,
// LocalDenied, Uncounted and Refused.
type Stats struct {
	Trips          uint64 // how often the breaker opened
	LocalAllowed   uint64 // decisions: admitted on this node's share
	LocalDenied    uint64 // decisions: denied on it
	Uncounted      uint64 // decisions: admitted because all rules say on_store_error: allow
	Refused        uint64 // decisions: failed because a rule says on_store_error: deny
	DeadlineMisses uint64 // answers of the primary that did not come in time
	// Decisions of this node by itself while the primary counted as there: see Unanswered.
	Unanswered, UnansweredUnits uint64
	// Units admitted on the share, of all limits except concurrency. At any instant Admitted is the
	// sum of the fields after it. All of these but the last only grow.
	Admitted uint64
	Settled  uint64 // charged by the primary
	Excess   uint64 // not charged, since the limit was exhausted: what went beyond it
	// perhaps charged: the answer will never come; or there was no room to remember them
	Lost     uint64
	Lapsed   uint64 // not charged, as they had ceased to count: their window was over
	Returned uint64 // refunded before they were charged
	Open     uint64 // to be charged yet, or with an answer still to come
}

type counters struct {
	trips, localAllowed, localDenied, uncounted, refused, deadlineMisses atomic.Uint64
	// see Store.Entered
	entered [States]atomic.Uint64
}

// Stats returns a reading.
func (s *Store) Stats() Stats {
	c, units := &s.stats, s.books.reading()
	out := Stats{
		Trips:          c.trips.Load(),
		LocalAllowed:   c.localAllowed.Load(),
		LocalDenied:    c.localDenied.Load(),
		Uncounted:      c.uncounted.Load(),
		Refused:        c.refused.Load(),
		DeadlineMisses: c.deadlineMisses.Load(),
		Settled:        units[settled],
		Excess:         units[excess],
		Lost:           units[lost],
		Lapsed:         units[lapsed],
		Returned:       units[returned],
		Open:           units[open],
	}
	for _, n := range units {
		out.Admitted += n
	}
	out.Unanswered, out.UnansweredUnits = s.unanswered.reading()
	return out
}
