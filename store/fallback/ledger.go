package fallback

import (
	"bytes"
	"sync"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// maxMissed bounds the keys, the slots, and the settlements that the ledgers of all parts remember,
// where a ledger's part of that is not below minMissed.
const (
	maxMissed = 100_000
	minMissed = 1000
)

// sweepAt is how many entries of a full ledger are examined to find one that has expired.
const sweepAt = 8

// ledger remembers the charges, refunds and settlements that a part of the primary has missed.
type ledger struct {
	books   *books
	room    int // for keys, for slots, and for settlements
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

// entry is a debt for one state: the units that the primary is to charge (owed) or to give back
// (back). One of the two is 0.
type entry struct {
	counter *rule.Counter
	key     []byte
	limit   *algo.Limit // as the primary is to be asked
	share   *algo.Limit // as Local was asked last
	owed    int64       // units that are open
	shadow  bool        // all of them were taken in shadow
	back    int64
	until   int64 // by Local's clock: from then on the debt has no effect
}

// slot is one of the primary's that was given back while it was away.
type slot struct {
	counter *rule.Counter
	key     []byte
	id      uint64
	tries   int // so far
}

func (l *ledger) init(b *books, room int) { l.books, l.room, l.entries = b, room, map[account]*entry{} }

// add records that units were admitted on a share (or refunded, if below 0) for the charge c.
// Admitted units are open; the ledger reports their fate to the books.
func (l *ledger) add(c *store.Charge, share *algo.Limit, units, now, until int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entry(c, share, now, until)
	switch {
	case e == nil:
		l.books.move(c.Counter, c.Key, lost, units)
	case units > 0:
		// Refunds and charges of one state cancel out.
		known := min(e.back, units)
		l.books.move(c.Counter, c.Key, settled, known)
		e.shadow = c.Mode == rule.Shadow && (e.owed == 0 || e.shadow)
		e.back, e.owed = e.back-known, e.owed+units-known
	default:
		spared := min(e.owed, -units)
		l.books.move(c.Counter, c.Key, returned, spared)
		e.owed, e.back = e.owed-spared, e.back-units-spared
	}
}

// addBack notes that the primary has charged units for nothing.
func (l *ledger) addBack(c *store.Charge, share *algo.Limit, units, now, until int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.entry(c, share, now, until); e != nil {
		known := min(e.owed, units)
		l.books.move(c.Counter, c.Key, settled, known)
		e.owed, e.back = e.owed-known, e.back+units-known
	}
}

// entry returns the entry for a charge; nil if there is no room. mu must be held.
func (l *ledger) entry(c *store.Charge, share *algo.Limit, now, until int64) *entry {
	e := l.entries[account{c.Counter.ID, string(c.Key)}]
	if e == nil {
		if len(l.entries) >= l.room && !l.sweep(now) {
			return nil
		}
		e = &entry{key: bytes.Clone(c.Key)}
		l.entries[account{c.Counter.ID, string(c.Key)}] = e
	}
	e.counter, e.limit, e.share = c.Counter, c.Limit, share
	e.until = max(e.until, until)
	return e
}

// restore puts back an entry that take has removed.
func (l *ledger) restore(e *entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := account{e.counter.ID, string(e.key)}
	now := l.entries[a]
	if now == nil {
		l.entries[a] = e
		return
	}
	// now holds newer units. A charge in one may cancel a refund in the other.
	now.shadow = (now.shadow || now.owed == 0) && (e.shadow || e.owed == 0)
	now.owed, now.back = now.owed+e.owed, now.back+e.back
	both := min(now.owed, now.back)
	l.books.move(e.counter, e.key, settled, both)
	now.owed, now.back = now.owed-both, now.back-both
	now.until = max(now.until, e.until)
}

// sweep makes room by forgetting expired entries, and reports whether it found one.
func (l *ledger) sweep(now int64) bool {
	n := 0
	for a, e := range l.entries { // begins anywhere
		if e.until <= now {
			l.books.move(e.counter, e.key, lapsed, e.owed)
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
	if len(l.slots) >= l.room {
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
		l.entries = map[account]*entry{} // a map does not shrink
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
