package lease

import (
	"sync/atomic"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// counts are the counts of a counter.
type counts struct {
	counter                         *rule.Counter
	local, byStore, mixed           atomic.Uint64
	granted, used, returned, lapsed atomic.Uint64
	refusedHere, refusedOut, late   atomic.Uint64
	last                            uint64 // decisions when they were last looked at, see forgetCounts
}

// decisions is how many were made in all.
func (n *counts) decisions() uint64 { return n.local.Load() + n.byStore.Load() + n.mixed.Load() }

// refused counts a refusal that was made here.
func (n *counts) refused(whileOut bool) {
	n.local.Add(1)
	n.refusedHere.Add(1)
	if whileOut {
		n.refusedOut.Add(1)
	}
}

func (n *counts) tell(h *algo.Ahead) {
	for i := range h.Told {
		n.used.Add(uint64(h.Told[i].Used))
		n.returned.Add(uint64(h.Told[i].Returned))
	}
}

func (n *counts) untell(h *algo.Ahead) {
	for i := range h.Told {
		n.used.Add(-uint64(h.Told[i].Used))
		n.returned.Add(-uint64(h.Told[i].Returned))
	}
}

// countDecided counts a decision of the primary, or of both.
func (s *Store) countDecided(charges []store.Charge, mixed bool) {
	for i := range charges {
		c := &charges[i]
		if !lends(c) {
			continue
		}
		if t := s.terms.of(c); t == nil {
			continue
		} else if mixed {
			t.counts.mixed.Add(1)
		} else {
			t.counts.byStore.Add(1)
		}
	}
}

// cause is why leases were dropped before their time.
type cause int

const (
	byClock cause = iota // the clock of this node was set, or stood still
	byPause              // this process did not run for a time
	byStore              // the clock of the primary leaped: it may be another server
	byRules              // the key has other numbers now
	causes
)

// Stats is a reading of the store's doings.
type Stats struct {
	Limits []LimitStats // of the limits that lend, in no particular order
	Keys   int64        // that have leases, or had one recently
	Left   int64        // units that are held and can be used
	Untold int64        // units that were used, and not yet reported to the primary

	// keys whose leases were dropped before their time: since the clock of this node was set or
	// stood still, since this process stood still, since the clock of the primary leaped, and since
	// other numbers came into force for the key
	DroppedByClock, DroppedByPause, DroppedByStore, DroppedByRules uint64
	// Late are units that may have been used after their end, since a clock was wrong. Anything but
	// 0 is a defect, or a clock that no margin could allow for.
	Late uint64
}

// LimitStats are the counts of a limit that lends, since the start, or since it was asked for again
// after many reloads without it.
type LimitStats struct {
	Counter *rule.Counter

	Local, Store, Mixed uint64 // decisions made here, by the primary, and in both places
	// units that were lent; of these, units that were reported as used, or as returned, and units
	// that ended unreported and count as used
	Granted, Used, Returned, Lapsed uint64
	// RefusedWhileOut are refusals, by the primary or repeated here, that would have been
	// admissions if no units were out: the price of leases.
	RefusedWhileOut uint64
}

// Stats returns a reading. It looks at all keys.
func (s *Store) Stats() Stats {
	st := Stats{
		Keys:           s.keys.Load(),
		DroppedByClock: s.dropped[byClock].Load(), DroppedByPause: s.dropped[byPause].Load(),
		DroppedByStore: s.dropped[byStore].Load(), DroppedByRules: s.dropped[byRules].Load(),
	}
	s.terms.counts.Range(func(_, v any) bool {
		n := v.(*counts)
		st.Late += n.late.Load()
		st.Limits = append(st.Limits, LimitStats{
			Counter: n.counter,
			Local:   n.local.Load(), Store: n.byStore.Load(), Mixed: n.mixed.Load(),
			Granted: n.granted.Load(), Used: n.used.Load(), Returned: n.returned.Load(), Lapsed: n.lapsed.Load(),
			RefusedWhileOut: n.refusedOut.Load(),
		})
		return true
	})
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.each(func(_ uint32, sl *slot) {
			left, used := sl.Holds()
			st.Left, st.Untold = st.Left+left, st.Untold+used
		})
		sh.mu.Unlock()
	}
	return st
}
