package cas

import "sync/atomic"

type counters struct {
	calls, failures, decisions, groups, conflicts, unknown, locks, resent, learned, lost, givenBack,
	damaged atomic.Uint64
}

// Stats counts the doings of a Store since it was made.
type Stats struct {
	Calls     uint64 // round trips to the database
	Failures  uint64 // of them, those that failed
	Decisions uint64 // made in the database; also settlements, and slots that were given back
	Groups    uint64 // tries to make decisions that share keys, each in one write
	Conflicts uint64 // of them, those that found that another node was quicker
	Unknown   uint64 // of them, those that found only values that this node did not know of
	Locks     uint64 // of them, those under a lock, since others had been quicker again and again
	Resent    uint64 // how often one whose answer was lost was sent again
	Learned   uint64 // of Groups, those whose answer was lost, and that were made: then, or sent again
	Lost      uint64 // of Groups, those that may have been made, or not
	GivenBack uint64 // charges that were given back, since another place denied
	// Damaged counts states in the database that could not be read: they count as fresh.
	Damaged    uint64
	Remembered uint64 // refusals answered by this node itself
	Keys       int    // values that this node remembers
}

// Stats returns a reading.
func (s *Store) Stats() Stats {
	m := &s.stats
	out := Stats{
		Calls: m.calls.Load(), Failures: m.failures.Load(), Decisions: m.decisions.Load(), Groups: m.groups.Load(),
		Conflicts: m.conflicts.Load(), Unknown: m.unknown.Load(), Locks: m.locks.Load(), Resent: m.resent.Load(), Learned: m.learned.Load(),
		Lost: m.lost.Load(), GivenBack: m.givenBack.Load(), Damaged: m.damaged.Load(),
	}
	if s.refusals != nil {
		out.Remembered = s.refusals.Answered()
	}
	s.mu.Lock()
	out.Keys = len(s.known.m)
	s.mu.Unlock()
	return out
}
