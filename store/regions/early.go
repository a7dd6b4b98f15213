package regions

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// earlyUses holds reports of a region that are ahead by its clock: uses of a fixed window that has
// not begun here yet. They are charged as soon as it has. To charge them before would be of no use:
// a region could use its whole ceiling before the window begins here, and none of it would count.
//
// The position of the log is behind them then, so that they are lost if this node stops meanwhile.
// To wait with the position would keep back everything that comes after them.
type earlyUses struct {
	changes []store.Change
	of      []*rule.Counter    // whose limit a change is of
	places  map[ownerPlace]int // in changes
	next    int64              // when the first of them may be made, by the own store's clock, in µs
}

const (
	// mostEarly bounds the changes that a bridge holds.
	mostEarly = store.MaxChanges
	// mostAhead is how far a clock may be ahead, in µs: more is no clock that is a bit off.
	mostAhead = int64(10 * time.Minute / time.Microsecond)
)

// keep holds a change that came too early at now; false if there is no room for it, or never will
// be a time.
func (e *earlyUses) keep(c *store.Change, of *rule.Counter, now int64) bool {
	if c.Since <= now || c.Since-now > mostAhead {
		return false
	}
	p := ownerPlace{c.Counter.ID, string(c.Key), c.Since}
	at, ok := e.places[p]
	switch {
	case ok:
		e.changes[at].Units += c.Units
		return true
	case len(e.changes) >= mostEarly:
		return false
	case e.places == nil:
		e.places = map[ownerPlace]int{}
	}
	if len(e.changes) == 0 || c.Since < e.next {
		e.next = c.Since
	}
	e.places[p] = len(e.changes)
	e.changes, e.of = append(e.changes, *c), append(e.of, of)
	e.changes[len(e.changes)-1].Key = bytes.Clone(c.Key)
	return true
}

// take takes those out that may be made at now, to the end of changes and of.
func (e *earlyUses) take(now int64, changes []store.Change, of []*rule.Counter) ([]store.Change, []*rule.Counter) {
	held := *e
	*e = earlyUses{}
	for i := range held.changes {
		if c := &held.changes[i]; c.Since <= now || !e.keep(c, held.of[i], now) {
			changes, of = append(changes, *c), append(of, held.of[i])
		}
	}
	return changes, of
}

// ripe makes the changes whose time has come. What certainly was not made is held on. What perhaps
// was is not made again: to charge twice would be worse.
func (b *bridge) ripe(ctx context.Context) error {
	now := b.seen.now()
	if len(b.early.changes) == 0 || now < b.early.next {
		return nil
	}
	b.changes, b.of = b.early.take(now, b.changes[:0], b.of[:0])
	b.results()
	at, err := b.x.own.Change(ctx, b.part, "", "", "", b.changes, b.done)
	switch {
	case errors.Is(err, store.ErrNotCharged):
		for i := range b.changes {
			if c := &b.changes[i]; !b.early.keep(c, b.of[i], c.Since-1) {
				b.x.stats.limit(b.of[i]).late.add(c.Units)
			}
		}
		return err
	case err != nil:
		b.unsure()
		return err
	}
	b.book(at)
	return nil
}

// lose counts the held changes as late: nobody charges them.
func (b *bridge) lose() {
	if b.open {
		b.unsure()
	}
	for i := range b.early.changes {
		b.x.stats.limit(b.early.of[i]).late.add(b.early.changes[i].Units)
	}
	b.early = earlyUses{}
}
