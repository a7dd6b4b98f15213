package lease

import (
	"math"
	"math/bits"
	"time"

	"github.com/weir-rl/weir/internal/leasing/lessee"
	"github.com/weir-rl/weir/store"
)

// tickEvery is how often it is looked whether entries are to be visited, and whether the clocks
// agree.
const tickEvery = 100 * time.Millisecond

// visitEvery is how often entries with these terms are visited at least, in ns.
func visitEvery(t *lessee.Terms) int64 { return max(t.E/8, int64(time.Millisecond)) }

// pace is how often an entry is visited: whenever this node's clock reaches a multiple of 2^pace
// ns. So entries with the same terms are visited together.
type pace uint8

// paceOf is the slowest pace that is no slower than visitEvery.
func paceOf(t *lessee.Terms) pace { return pace(bits.Len64(uint64(visitEvery(t))) - 1) }

// next is the first visit after an instant.
func (p pace) next(at int64) int64 { return (at>>p + 1) << p }

// run looks after the entries, until the store is closed. Without keys it sleeps.
func (s *Store) run() {
	timer := time.NewTimer(tickEvery)
	defer timer.Stop()
	asleep := false
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-timer.C:
		case <-s.wake:
		}
		if asleep {
			s.guard.look(s.at()) // whatever happened before, there was nothing to lose
		}
		pause := s.tick(s.at())
		if asleep = s.keys.Load() == 0; asleep {
			s.next.Store(math.MaxInt64)
			timer.Stop()
			continue
		}
		timer.Reset(pause)
	}
}

// tick looks at the clocks, and visits the shards whose time has come. It returns when to come
// again.
func (s *Store) tick(at int64) time.Duration {
	switch gap, paused := s.guard.look(at); {
	case gap:
		s.gap.Store(at)
		s.dropAll(byClock, nil)
	case paused:
		s.countPaused(at)
	}
	next := at + int64(tickEvery)
	for i := range s.shards {
		if due := s.visit(&s.shards[i], at); due > 0 {
			next = min(next, due)
		}
	}
	s.forgetCounts()
	next = max(next, at+int64(time.Millisecond))
	s.next.Store(next)
	return time.Duration(next - at)
}

// countPaused counts the keys whose leases have ended while this process did not run.
func (s *Store) countPaused(at int64) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.each(func(_ uint32, sl *slot) {
			if sl.Expired(at) {
				s.dropped[byPause].Add(1)
			}
		})
		sh.mu.Unlock()
	}
}

// visit visits the entries of a shard whose time has come. It returns when to come again; 0 if the
// shard is empty.
func (s *Store) visit(sh *shard, at int64) (due int64) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.keys == 0 {
		return 0
	}
	if at < sh.due {
		return sh.due
	}
	sh.eachDue(at, func(n uint32, sl *slot) {
		t := sl.terms
		every := visitEvery(&t.Terms)
		sh.setPace(n, paceOf(&t.Terms))
		within := every + min(every, int64(10*time.Millisecond)) // and the time of the call
		lane := s.laneOf(t.counter, sh.keyOf(sl))
		tell, over, lapsed := sl.Visit(&t.Terms, at, lane.now(at), within)
		if lapsed > 0 {
			t.counts.lapsed.Add(uint64(lapsed))
		}
		switch {
		case tell:
			s.tell(sl, lane, at, within)
		case over:
			sh.remove(s, n)
			s.keys.Add(-1)
		}
	})
	return sh.due
}

// tell hands the report of an entry to its lane. The lock of its shard is held.
func (s *Store) tell(sl *slot, l *lane, at, within int64) {
	t := sl.terms
	j := job{charge: store.Charge{Counter: t.counter, Limit: t.Limit}, hash: s.hashOf(sl)}
	sl.Tell(&t.Terms, at, l.now(at), within, !s.drained.Load(), &j.ahead)
	t.counts.tell(&j.ahead)
	l.tell(j, sl.key)
}

// dropAll ends the use of all units held here, or, if of is not nil, of the units of one lane. If
// the primary may be another server now, it gets no report: its units out may be somebody else's.
func (s *Store) dropAll(why cause, of *lane) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.each(func(_ uint32, sl *slot) {
			if of != nil && s.laneOf(sl.terms.counter, sh.keyOf(sl)) != of {
				return
			}
			sl.Forget()
			if why == byStore {
				if units := sl.Drop(); units > 0 {
					sl.terms.counts.lapsed.Add(uint64(units))
					s.dropped[why].Add(1)
				}
			} else if sl.Stop() {
				s.dropped[why].Add(1)
			}
		})
		sh.hurry()
		sh.mu.Unlock()
	}
}
