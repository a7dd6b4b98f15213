package fallback

import (
	"sync/atomic"
	"time"
)

// State returns the state of the circuit breaker, since when the primary has been away (Open, HalfOpen) or back (Closed), and
// the last failure; cause is nil if the breaker is closed.
func (s *Store) State() (state State, since time.Time, cause error) {
	b := s.breaker.Load()
	return b.state, b.since, b.cause
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

// Stats counts what has happened since New. Each decision without the primary is counted in one of LocalAllowed,
// LocalDenied, Uncounted and Refused.
type Stats struct {
	Trips          uint64 // how often the breaker opened
	LocalAllowed   uint64 // decisions: admitted on this node's share
	LocalDenied    uint64 // decisions: denied on it
	Uncounted      uint64 // decisions: admitted because all rules say on_store_error: allow
	Refused        uint64 // decisions: failed because a rule says on_store_error: deny
	DeadlineMisses uint64 // answers of the primary that did not come in time
	Settled        uint64 // units admitted locally that the primary was charged afterwards, whether it answered or not
	Excess         uint64 // units that it was not, since its limit was exhausted
	Lost           uint64 // units that it was not, since there was no room to remember them or Local failed
}

type counters struct {
	trips, localAllowed, localDenied, uncounted, refused, deadlineMisses, settled, excess, lost atomic.Uint64
}

// Stats returns a reading.
func (s *Store) Stats() Stats {
	c := &s.stats
	return Stats{
		Trips:          c.trips.Load(),
		LocalAllowed:   c.localAllowed.Load(),
		LocalDenied:    c.localDenied.Load(),
		Uncounted:      c.uncounted.Load(),
		Refused:        c.refused.Load(),
		DeadlineMisses: c.deadlineMisses.Load(),
		Settled:        c.settled.Load(),
		Excess:         c.excess.Load(),
		Lost:           c.lost.Load(),
	}
}
