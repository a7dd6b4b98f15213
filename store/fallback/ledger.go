package fallback

import (
	"bytes"
	"sync"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// maxMissed bounds the keys, the slots, and the settlements that a ledger remembers.
const maxMissed = 100_000

// sweepAt is how many entries of a full ledger are looked at for one that makes no difference any more.
const sweepAt = 8

// ledger remembers what the primary has missed.
type ledger struct {
	mu      sync.Mutex
	entries map[account]*entry
	slots   []slot
	late    []lateSettlement
}

// account names a state.
type account struct {
	counter uint64 // ID
	key     string
}

// entry is what was charged locally to one state.
type entry struct {
	counter *rule.Counter
	key     []byte
	limit   *algo.Limit // as the primary is to be asked
	share   *algo.Limit // as Local was asked last
	units   int64       // admitted less refunded
	until   int64       // by Local's clock: from then on it makes no difference
}

// slot is one of the primary's that was given back while it was away.
type slot struct {
	counter *rule.Counter
	key     []byte
	id      uint64
	tries   int // so far
}

func (l *ledger) init() { l.entries = map[account]*entry{} }

// add notes that c was charged to its share; false if there is no room.
func (l *ledger) add(c *weir.Charge, share *algo.Limit, now, until int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[account{c.Counter.ID, string(c.Key)}]
	if e == nil {
		if len(l.entries) >= maxMissed && !l.sweep(now) {
			return false
		}
		e = &entry{key: bytes.Clone(c.Key)}
		l.entries[account{c.Counter.ID, string(c.Key)}] = e
	}
	e.counter, e.limit, e.share = c.Counter, c.Limit, share
	e.units += c.Ask.Cost
	e.until = max(e.until, until)
	return true
}

// restore puts back what take has removed.
func (l *ledger) restore(e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := account{e.counter.ID, string(e.key)}
	if now := l.entries[a]; now != nil { // what has come since is newer
		now.units += e.units
		now.until = max(now.until, e.until)
		return
	}
	l.entries[a] = e
}

// sweep makes room by forgetting what makes no difference any more, if it comes upon any.
func (l *ledger) sweep(now int64) bool {
	n := 0
	for a, e := range l.entries { // begins anywhere
		if e.until <= now {
			delete(l.entries, a)
			return true
		}
		if n++; n == sweepAt {
			break
		}
	}
	return false
}

// addRelease notes that a slot of the primary is to be given back; false if there is no room.
func (l *ledger) addRelease(c *rule.Counter, key []byte, id uint64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.slots) >= maxMissed {
		return false
	}
	l.slots = append(l.slots, slot{counter: c, key: bytes.Clone(key), id: id})
	return true
}

// putBack keeps a slot for later.
func (l *ledger) putBack(o slot) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.slots = append(l.slots, o)
}

// take removes up to n entries, n slots and n settlements, and returns them.
func (l *ledger) take(n int) (entries []*entry, slots []slot, late []lateSettlement) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for a, e := range l.entries {
		if len(entries) == n {
			break
		}
		delete(l.entries, a)
		entries = append(entries, e)
	}
	if len(l.entries) == 0 {
		l.init() // a map does not shrink
	}
	slots, l.slots = lastOf(l.slots, n)
	late, l.late = lastOf(l.late, n)
	return entries, slots, late
}

// lastOf takes up to n off the end.
func lastOf[T any](from []T, n int) (some, rest []T) {
	at := len(from) - min(n, len(from))
	some = append(some, from[at:]...)
	clear(from[at:])
	return some, from[:at]
}

func (l *ledger) empty() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.entries) == 0 && len(l.slots) == 0 && len(l.late) == 0
}
