package observe

import (
	"math/bits"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/weir-rl/weir/rule"
)

// Doors is the number of entries of DoorNames.
const Doors = 8

// DoorNames are the values of weir.Request.Door. Any other name, which a program that embeds Weir
// may give, counts as "".
var DoorNames = [Doors]string{"", "http", "rls", "resp", "proxy", "forward-auth", "spoe", "deferred"}

// DoorOf returns the index of a door in DoorNames. It runs for each decision; this switch, which
// compares lengths first, is faster than a map or comparing with each name.
func DoorOf(name string) int {
	switch name {
	case "http":
		return 1
	case "rls":
		return 2
	case "resp":
		return 3
	case "proxy":
		return 4
	case "forward-auth":
		return 5
	case "spoe":
		return 6
	case "deferred":
		return 7
	}
	return 0
}

// Tally counts the requests that met one limit, which are most, by limit, door and outcome. One
// addition counts such a request for all watchers: an addition that other processors wait for is
// the most expensive part of watching. Safe for concurrent use. Make one with NewTally.
type Tally struct {
	seed   atomic.Uint64
	counts atomic.Pointer[countsOfTwo]
	// Requests with descriptors are Unclear.
	descriptors atomic.Bool
	cells       int        // of a count, a power of 2
	mu          sync.Mutex // guards the making of counts
}

// Count counts the requests of one limit. It lives as long as a rule set in force has a limit of
// its name. The first request makes its cells: a limit that nobody meets takes a few words.
type Count struct {
	first atomic.Pointer[cell] // of n that lie side by side, by Turn; nil before they are made
	n     int
	// Since is the generation of the rule set with which the count began, at 0.
	Since uint64
}

// mostCells bounds the cells of a count: a limit takes 4 KiB then, also on the largest machine.
const mostCells = 16

// cell is a share of a count. Decisions that are made at the same time hardly ever count in the
// same one.
type cell [Doors][Outcomes]atomic.Uint64

// limitName identifies a limit, so that its count goes on under later rules. Limits with one name
// (a rule with one window by two algorithms) share their count.
type limitName struct{ domain, rule, window string }

// counts are the counts of one rule set. Immutable except for the cells.
type counts struct {
	set        *rule.Set
	generation uint64
	limits     []*Count // by rule.Counter.Index
	leftOut    []bool   // limits that are not counted
	// cells has Count.first of each limit that is counted. The hot path goes by it, and is spared a
	// look at the Count.
	cells []atomic.Pointer[cell]
	mask  uint64 // of Turn: the cells of a limit, less one
}

// cellAt returns a cell of those that lie side by side. A slice would cost each decision another
// look at memory.
func cellAt(first *cell, i uint64) *cell {
	return (*cell)(unsafe.Add(unsafe.Pointer(first), uintptr(i)*unsafe.Sizeof(cell{})))
}

// byName returns the counts by the names of their limits.
func (c *counts) byName() map[limitName]*Count {
	names := make(map[limitName]*Count, len(c.limits))
	for i, of := range c.limits {
		names[nameOf(c.set.Counters()[i])] = of
	}
	return names
}

func nameOf(c *rule.Counter) limitName { return limitName{c.Domain, c.Rule, c.Window} }

// begin makes the cells of a limit, unless they are there; nil if it is not counted.
func (c *counts) begin(limit int) *cell {
	if c.leftOut[limit] {
		return nil
	}
	of := c.limits[limit]
	if of.first.Load() == nil {
		of.first.CompareAndSwap(nil, &make([]cell, of.n)[0])
	}
	first := of.first.Load()
	c.cells[limit].Store(first)
	return first
}

// countsOfTwo holds the counts of the set in force, and of the one before. The first is a value:
// nearly every decision goes through it, and is spared a pointer.
type countsOfTwo struct {
	now    counts
	before *counts
}

// NewTally returns a Tally with a random seed.
func NewTally() *Tally {
	t := &Tally{cells: min(Cells(), mostCells)}
	t.seed.Store(rand.Uint64())
	t.counts.Store(new(countsOfTwo))
	return t
}

// Seed returns the seed that hashes keys.
func (t *Tally) Seed() uint64 { return t.seed.Load() }

// SetSeed changes the seed. Nodes whose samples are merged need the same one.
func (t *Tally) SetSeed(seed uint64) { t.seed.Store(seed) }

// TellDescriptors makes all requests with descriptors Unclear from now on, for a watcher that
// counts their descriptors as well.
func (t *Tally) TellDescriptors() { t.descriptors.Store(true) }

// Hash hashes a key with the seed.
func (t *Tally) Hash(key []byte) uint64 { return HashKey(t.seed.Load(), key) }

// Of returns the counts of a rule set, by rule.Counter.Index. A set that is newer than the one in
// force takes its place. For a set that is older than both, the counts are new, and nothing counts
// in them.
func (t *Tally) Of(s *rule.Set, generation uint64) []*Count {
	t.mu.Lock()
	defer t.mu.Unlock()
	have := t.counts.Load()
	old := have.now // a copy, so that the one before the last goes
	switch {
	case old.set == s:
		return old.limits
	case have.before != nil && have.before.set == s:
		return have.before.limits
	}
	n := len(s.Counters())
	next := counts{set: s, generation: generation, limits: make([]*Count, n), leftOut: make([]bool, n),
		cells: make([]atomic.Pointer[cell], n), mask: uint64(t.cells - 1)}
	names := map[limitName]*Count{}
	if generation > old.generation && old.set != nil {
		names = old.byName()
	}
	for _, c := range s.Counters() {
		kept := names[nameOf(c)]
		if kept == nil {
			kept = &Count{n: t.cells, Since: generation}
			names[nameOf(c)] = kept
		}
		next.limits[c.Index] = kept
	}
	for _, r := range s.Rules() {
		if !r.Shadow && r.EnforcePercent == 100 {
			continue
		}
		leaveOut := func(windows []*rule.Window) {
			for _, w := range windows {
				if w.Counter != nil {
					next.leftOut[w.Counter.Index] = true
				}
			}
		}
		leaveOut(r.Windows)
		for i := range r.Overrides {
			leaveOut(r.Overrides[i].Windows)
		}
	}
	if generation > old.generation {
		t.counts.Store(&countsOfTwo{now: next, before: &old})
	}
	return next.limits
}

// Read sums the count over all its cells.
func (c *Count) Read() (n [Doors][Outcomes]uint64) {
	first := c.first.Load()
	if first == nil {
		return n
	}
	for i := range c.n {
		x := cellAt(first, uint64(i))
		for door := range n {
			for o := range n[door] {
				n[door][o] += x[door][o].Load()
			}
		}
	}
	return n
}

// Cells returns into how many cells to split a counter that each decision moves: a power of 2 that
// is at least twice the number of processors, but at most 32.
func Cells() int { return 1 << bits.Len(uint(min(runtime.GOMAXPROCS(0)*2, 32)-1)) }
