package memory

import (
	"sync"
	"sync/atomic"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// limitEntry is a definition under which some record was last charged. Records refer to it by
// number, which keeps them free of pointers.
type limitEntry struct {
	limit   *algo.Limit
	counter *rule.Counter
	id      uint64 // counter.ID
}

type limitKey struct {
	limit   *algo.Limit
	counter *rule.Counter
}

// limitTable numbers the definitions. A number is handed out under the lock of the shard whose
// record will carry it, which makes it safe to take unused numbers back (Store.collectLimits).
type limitTable struct {
	entries atomic.Pointer[[]limitEntry]

	mu        sync.RWMutex
	index     map[limitKey]uint32
	free      []uint32
	collectAt int           // number of definitions at which unused ones are looked for
	marked    []atomic.Bool // while a collection runs: numbers handed out since it began
}

const minCollect = 4096

func (t *limitTable) init() {
	t.index = map[limitKey]uint32{}
	t.collectAt = minCollect
	t.entries.Store(new([]limitEntry))
}

// load returns the table. Call it while a shard's lock is held; the numbers in that shard's records
// are then valid.
func (t *limitTable) load() []limitEntry { return *t.entries.Load() }

// intern returns the number of a definition; collect is true if the caller should start a
// collection.
func (t *limitTable) intern(c *rule.Counter, l *algo.Limit) (n uint32, collect bool) {
	k := limitKey{l, c}
	t.mu.RLock()
	n, ok := t.index[k]
	if ok && int(n) < len(t.marked) {
		t.marked[n].Store(true)
	}
	t.mu.RUnlock()
	if ok {
		return n, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n, ok = t.index[k]; ok {
		if int(n) < len(t.marked) {
			t.marked[n].Store(true)
		}
		return n, false
	}
	e := limitEntry{limit: l, counter: c, id: c.ID}
	entries := *t.entries.Load()
	if last := len(t.free) - 1; last >= 0 {
		n = t.free[last]
		t.free = t.free[:last]
		entries[n] = e // not read concurrently: no record carries a free number
		if int(n) < len(t.marked) {
			t.marked[n].Store(true)
		}
	} else {
		n = uint32(len(entries))
		entries = append(entries, e) // readers of the old header do not look beyond its length
		t.entries.Store(&entries)
	}
	t.index[k] = n
	return n, len(t.index) >= t.collectAt && t.marked == nil
}

// collectLimits takes back the numbers that no record carries any more. At most one runs at a time.
func (s *Store) collectLimits() {
	t := &s.limits
	t.mu.Lock()
	if t.marked != nil {
		t.mu.Unlock()
		return
	}
	t.marked = make([]atomic.Bool, len(*t.entries.Load()))
	marked := t.marked
	t.mu.Unlock()

	mark := func(n uint32) {
		if int(n) < len(marked) {
			marked[n].Store(true)
		}
	}
	for i := range s.shards {
		s.shards[i].visit(visitBatch, func(sh *shard, p int) { mark(sh.slots[p].limit()) })
	}

	t.mu.Lock()
	defer t.mu.Unlock()
	entries := *t.entries.Load()
	for n := range marked {
		e := &entries[n]
		if e.limit != nil && !marked[n].Load() {
			delete(t.index, limitKey{e.limit, e.counter})
			*e = limitEntry{}
			t.free = append(t.free, uint32(n))
		}
	}
	t.marked = nil
	t.collectAt = max(minCollect, 2*len(t.index))
}

// intern returns the number of a definition, and starts a collection when many have been added. The
// lock of the shard whose record will carry the number must be held.
func (s *Store) intern(c *rule.Counter, l *algo.Limit) uint32 {
	n, collect := s.limits.intern(c, l)
	if collect {
		s.background(s.collectLimits)
	}
	return n
}

// carries reports whether a state has to be carried when a key goes from one definition to the
// other.
func carries(from, to *algo.Limit) bool {
	f, t := from.Config(), to.Config()
	if f.Algorithm == algo.Lease {
		return f.Timeout != t.Timeout // the length of generations; the other says when it is fresh
	}
	return f.Window != t.Window || f.Buckets != t.Buckets
}
