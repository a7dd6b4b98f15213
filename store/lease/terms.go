package lease

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/internal/leasing/lessee"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// terms are the terms of a counter's limit.
type terms struct {
	lessee.Terms
	counter *rule.Counter
	counts  *counts
	lends   bool
	next    *terms // of the same limit, for another counter
}

// termsCache finds the terms of charges. A reload makes new limits, an elastic rule has up to a
// hundred for each window, and requests can bring some: terms that are forgotten are made again.
type termsCache struct {
	m      sync.Map // *algo.Limit → *terms
	counts sync.Map // counter's ID → *counts

	mu       sync.Mutex // held to add terms; taken after a shard's
	n        int
	counters atomic.Int64 // how many counts there are
	most     atomic.Int64 // from how many on counts of rules that are gone are looked for; 0: mostCounts
}

const (
	// borrowedPause bounds lessee.Terms.Pause where a region may borrow units: they come sooner
	// than the store says.
	borrowedPause = int64(100 * time.Millisecond)

	maxTerms   = 16384
	mostCounts = 1024
)

// of returns the terms of a charge; nil if its limit lends nothing.
func (tc *termsCache) of(c *store.Charge) *terms {
	v, _ := tc.m.Load(c.Limit)
	first, _ := v.(*terms)
	for t := first; t != nil; t = t.next {
		if t.counter == c.Counter {
			if t.lends {
				return t
			}
			return nil
		}
	}
	return tc.add(c)
}

func (tc *termsCache) add(c *store.Charge) *terms {
	tc.mu.Lock()
	defer tc.mu.Unlock()
	if tc.n++; tc.n > maxTerms {
		tc.m.Clear()
		tc.n = 1
	}
	v, _ := tc.m.Load(c.Limit)
	next, _ := v.(*terms)
	t := &terms{counter: c.Counter, next: next}
	if h := lessee.TermsOf(c.Limit); h != nil {
		n, there := tc.counts.LoadOrStore(c.Counter.ID, &counts{counter: c.Counter})
		if !there {
			tc.counters.Add(1)
		}
		t.Terms, t.counts, t.lends = *h, n.(*counts), true
		if c.Counter.Regions != nil && !c.Counter.Regions.Sync {
			t.Pause = min(t.Pause, borrowedPause)
		}
	}
	tc.m.Store(c.Limit, t)
	if !t.lends {
		return nil
	}
	return t
}

// forgetCounts forgets the counts of counters that nobody has asked for since it last looked, and
// that hold nothing: a reload may have made others of all. It looks when there are twice as many as
// were left the last time. A decision that is under way meanwhile may not be counted.
func (s *Store) forgetCounts() {
	tc := &s.terms
	if tc.counters.Load() <= max(mostCounts, tc.most.Load()) {
		return
	}
	held := map[*counts]bool{}
	s.eachSlot(func(sl *slot) { held[sl.terms.counts] = true })
	gone := map[*counts]bool{}
	tc.mu.Lock()
	tc.counts.Range(func(id, v any) bool {
		n := v.(*counts)
		if sum := n.decisions(); !held[n] && sum == n.last {
			tc.counts.Delete(id)
			gone[n] = true
		} else {
			n.last = sum
		}
		return true
	})
	tc.counters.Add(-int64(len(gone)))
	tc.most.Store(2 * tc.counters.Load())
	if len(gone) > 0 {
		tc.m.Clear()
		tc.n = 0
	}
	tc.mu.Unlock()
	s.eachSlot(func(sl *slot) {
		if gone[sl.terms.counts] { // it has come back meanwhile
			sl.terms = tc.of(&store.Charge{Counter: sl.terms.counter, Limit: sl.terms.Limit})
		}
	})
}

// eachSlot calls f for each slot in use, with the lock of its shard.
func (s *Store) eachSlot(f func(sl *slot)) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		sh.each(func(_ uint32, sl *slot) { f(sl) })
		sh.mu.Unlock()
	}
}

// lends reports whether the limit of a charge lends to nodes: this is all that other limits cost.
func lends(c *store.Charge) bool {
	return c.Counter != nil && c.Counter.Lease != nil && !c.Counter.Lent && c.Limit != nil && c.Limit.Lease() != nil
}
