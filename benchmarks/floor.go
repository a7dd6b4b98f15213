// Package benchmarks measures one decision in process beside rivals and beside a floor. It is a
// module of its own, so that the rivals are no dependencies of Weir.
package benchmarks

import (
	"hash/maphash"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
)

// floor is about the least that a limiter of many keys can do: GCRA by compare-and-swap in an
// open-addressed table of 64-bit hashes, reading the same kind of clock as Weir's store. It forgets
// nothing, cannot grow, takes two keys of one hash for the same, and answers only yes or no.
type floor struct {
	seed  maphash.Seed
	table []floorSlot
	shift int
	cost  int64 // ns for one request
	burst int64 // ns
	clock clock
}

type floorSlot struct {
	hash atomic.Uint64 // 0: empty
	tat  atomic.Int64  // theoretical arrival time in ns
}

// newFloor makes room for n keys at a load of at most a half.
func newFloor(n int, cost, burst time.Duration) *floor {
	size := bits.Len(uint(2*n - 1))
	f := &floor{seed: maphash.MakeSeed(), table: make([]floorSlot, 1<<size), shift: 64 - size, cost: int64(cost),
		burst: int64(burst)}
	f.clock.base = time.Now()
	f.clock.offset.Store(f.clock.base.UnixNano())
	return f
}

func (f *floor) Take(key []byte) bool {
	_, _, ok := f.take(key)
	return ok
}

// answer is the full answer of a limiter.
type answer struct {
	limit, remaining, retryAfter, resetAfter int64
	allowed                                  bool
}

// Answer is Take with the answer in full: the cost of the same table with Weir's answer.
func (f *floor) Answer(key []byte, a *answer) {
	tat, now, ok := f.take(key)
	*a = answer{limit: f.burst / f.cost, remaining: (f.burst - (tat - now)) / f.cost, resetAfter: tat - now,
		allowed: ok}
	if !ok {
		a.retryAfter = tat + f.cost - now - f.burst
	}
}

// take returns the arrival time after the decision, and the instant of it.
func (f *floor) take(key []byte) (tat, now int64, ok bool) {
	h := maphash.Bytes(f.seed, key) | 1
	now = f.clock.now()
	i := int(h >> f.shift)
	s := &f.table[i]
	for {
		if was := s.hash.Load(); was == h {
			break
		} else if was == 0 {
			if s.hash.CompareAndSwap(0, h) {
				break
			}
			continue
		}
		if i++; i == len(f.table) {
			i = 0
		}
		s = &f.table[i]
	}
	for {
		was := s.tat.Load()
		tat = max(was, now) + f.cost
		if tat-now > f.burst {
			return tat - f.cost, now, false
		}
		if s.tat.CompareAndSwap(was, tat) {
			return tat, now, true
		}
	}
}

// clock is the wall clock carried on by the monotonic one.
type clock struct {
	base           time.Time
	offset, synced atomic.Int64
}

func (c *clock) now() int64 {
	elapsed := int64(time.Since(c.base))
	if elapsed-c.synced.Load() > int64(500*time.Millisecond) {
		t := time.Now()
		elapsed = int64(t.Sub(c.base))
		c.offset.Store(t.UnixNano() - elapsed)
		c.synced.Store(elapsed)
	}
	return c.offset.Load() + elapsed
}

// shardedMap is the simplest thing that is exact: GCRA in maps of strings, each behind a mutex.
type shardedMap struct {
	seed   maphash.Seed
	shards [256]struct {
		mu  sync.Mutex
		tat map[string]int64
		_   [48]byte
	}
	cost, burst int64
	clock       clock
}

func newShardedMap(cost, burst time.Duration) *shardedMap {
	m := &shardedMap{seed: maphash.MakeSeed(), cost: int64(cost), burst: int64(burst)}
	for i := range m.shards {
		m.shards[i].tat = map[string]int64{}
	}
	m.clock.base = time.Now()
	m.clock.offset.Store(m.clock.base.UnixNano())
	return m
}

func (m *shardedMap) Take(key []byte) bool {
	sh := &m.shards[maphash.Bytes(m.seed, key)>>56]
	now := m.clock.now()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	tat := max(sh.tat[string(key)], now) + m.cost
	if tat-now > m.burst {
		return false
	}
	sh.tat[string(key)] = tat
	return true
}
