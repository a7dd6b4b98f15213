package regions

import (
	"context"
	"errors"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// bridge applies one partition of another region's log to this region's counters. Two bridges may
// run at once: the log position moves in the same step as the charge.
type bridge struct {
	x        *exchange
	p        *peer
	part     int
	heardTo  []atomic.Int64 // by part, as peer.heardTo; of all bridges to the region
	position string
	known    bool
	open     bool // it is not known whether changes were made, with which position was to move
	changes  []store.Change
	done     []store.Changed
	of       []*rule.Counter    // whose limit a change is of
	places   map[ownerPlace]int // in changes
	limit    int                // how many entries to read at a time
	early    earlyUses
	seen     clock // of the own store, on the server that has the part
}

// ownerPlace is a state within the time of a change.
type ownerPlace struct {
	counter uint64
	key     string
	since   int64
}

// hear hears a region until ctx ends. Each part has a bridge of its own: one after the other they
// would take as many trips as there are parts to come round.
func (x *exchange) hear(ctx context.Context, p *peer) {
	var running sync.WaitGroup
	defer running.Wait()
	heardTo := make([]atomic.Int64, x.own.Parts())
	for part := range heardTo {
		b := &bridge{x: x, p: p, part: part, heardTo: heardTo, places: map[ownerPlace]int{}, limit: hearLeast}
		running.Go(func() { b.run(ctx) })
	}
}

// run reads and charges until ctx ends.
func (b *bridge) run(ctx context.Context) {
	const first, last = 100 * time.Millisecond, time.Second / 2
	pause := first
	defer b.lose()
	for ctx.Err() == nil {
		wait := time.Duration(0)
		switch some, err := b.step(ctx); {
		case ctx.Err() != nil:
			return
		case err != nil:
			if n := b.p.problems.Due(seldomLog); n > 0 {
				b.x.log.Warn("what another region uses cannot be heard: this region goes on up to its ceilings",
					"region", b.p.name, "cause", err.Error(), "times", n)
			}
			b.p.counts.errors.Add(1)
			b.known = false // it may have moved, and what of the last change is done is not known
			wait, pause = pause, min(2*pause, last)
		case !some && len(b.heardTo) > 1: // there it has not waited
			wait, pause = b.until(hearEvery), first
		default:
			pause = first
		}
		if wait > 0 {
			select {
			case <-ctx.Done():
			case <-time.After(wait):
			}
		}
	}
}

// step charges the next entries; some is false if there were none. With a single part it waits for
// the first one; for several, that would take as many connections.
func (b *bridge) step(ctx context.Context) (some bool, err error) {
	x, log, wait := b.x, b.p.name, time.Duration(0)
	if !b.known {
		if err := b.find(ctx); err != nil {
			return false, err
		}
	}
	if err := b.ripe(ctx); err != nil {
		return false, err
	}
	if len(b.heardTo) == 1 {
		wait = b.until(hearWait)
	}
	if b.p.store.Parts() != len(b.heardTo) {
		return false, errors.New(
			"its store has another number of parts: all regions need the same kind, one server (or Sentinel) each or a Cluster each")
	}
	from, began := b.position, store.Monotonic()
	after := from
	if after == "" { // entries from before this region was there count as well
		after = store.Oldest
	}
	told, next, gap, at, err := b.p.store.Told(ctx, b.part, after, b.limit, wait)
	if err != nil {
		return false, err
	}
	if !b.fits(len(told)) {
		return true, nil
	}
	if gap {
		b.p.counts.gaps.Add(1)
		if n := b.p.gaps.Due(seldomLog); n > 0 {
			x.log.Warn(
				"part of another region's use is not in its log any more: it was written faster than it was read, or the log was lost", "region", log, "times", n)
		}
	}
	if next != from {
		b.prepare(ctx, told, at)
		b.results()
		switch now, err := x.own.Change(ctx, b.part, log, from, next, b.changes, b.done); {
		case errors.Is(err, store.ErrMoved): // another bridge was here
			b.known = false
			return true, nil
		case err != nil:
			b.open = !errors.Is(err, store.ErrNotCharged)
			return false, err
		default:
			b.position = next
			b.p.counts.uses.Add(uint64(len(told)))
			b.book(now)
		}
	}
	// Both instants are by the clock of the other region.
	lag := int64(0)
	if n := len(told); n > 0 {
		lag = max(0, at-told[n-1].At)
	}
	b.heard(began - lag*1000)
	return len(told) > 0, nil
}

// find reads up to where the log was charged here. If that moved with a call whose answer was lost,
// the outcomes of its single changes are unknown.
func (b *bridge) find(ctx context.Context) error {
	position, err := b.x.own.Position(ctx, b.part, b.p.name)
	if err != nil {
		return err
	}
	if b.open && position != b.position {
		b.unsure()
	}
	b.position, b.known, b.open = position, true, false
	return nil
}

// heard notes until when all was heard of this part, and of all parts.
func (b *bridge) heard(to int64) {
	of := &b.heardTo[b.part]
	of.Store(max(of.Load(), to))
	for i := range b.heardTo {
		to = min(to, b.heardTo[i].Load())
	}
	b.p.heardTo.Store(to)
}

// fits sets how many entries to read the next time, by the number of uses in the entries just read.
// It reports false if these are too many for one call, which all decisions would have to wait for:
// they are read again, fewer at a time. The way to the other region is long, and entries are small
// while little is used, so that a region would fall behind if it read only as many as it can charge
// of the largest ones.
func (b *bridge) fits(uses int) bool {
	switch {
	case uses > hearUses && b.limit > hearLeast:
		b.limit = max(b.limit/4, hearLeast)
		return false
	case uses >= b.limit && uses <= hearUses/2: // there may be more of them
		b.limit = min(2*b.limit, hearMost)
	}
	return true
}

// prepare makes the changes for entries that were read at now of the other region's clock. Uses of
// one key in one window become one change.
func (b *bridge) prepare(ctx context.Context, told []store.Told, now int64) {
	clear(b.places)
	b.changes, b.of = b.changes[:0], b.of[:0]
	for i := range told {
		t := &told[i]
		if t.Counter == 0 {
			b.x.compare(ctx, b.p, t.Key, now-t.At)
			continue
		}
		c, l, plain := b.x.o.Rules(t.Counter, t.Key)
		if l == nil { // a grant lifts it, for a while
			l = plain
		}
		if c == nil || l == nil || c.Heard() == nil {
			b.p.counts.unknown.Add(1)
			continue
		}
		since, until := hearable(l, t.At)
		if until <= since || t.Units == 0 {
			continue
		}
		p := ownerPlace{t.Counter, string(t.Key), since}
		at, ok := b.places[p]
		if !ok && len(b.changes) == store.MaxChanges {
			b.p.counts.unknown.Add(1) // no node reports so much in so few entries
			continue
		}
		if !ok {
			at = len(b.changes)
			b.places[p] = at
			b.changes = append(b.changes, store.Change{Counter: c.Heard(), Limit: l, Key: t.Key, Since: since})
			b.of = append(b.of, c)
		}
		b.changes[at].Units += t.Units
		b.changes[at].Until = max(b.changes[at].Until, until)
	}
}

// results makes room for the results of the changes.
func (b *bridge) results() {
	if cap(b.done) < len(b.changes) {
		b.done = make([]store.Changed, 2*len(b.changes))
	}
	b.done = b.done[:len(b.changes)]
}

// until is the time until something that is held may be charged, but at most most.
func (b *bridge) until(most time.Duration) time.Duration {
	if len(b.early.changes) == 0 {
		return most
	}
	return min(max(time.Duration(b.early.next-b.seen.now())*time.Microsecond, time.Millisecond), most)
}

// hearable returns between which instants of this region's clock a use at an instant of another's
// is to be charged: within the same fixed window, and else while it can count.
func hearable(l *algo.Limit, at int64) (since, until int64) {
	since, until = windowSpan(l, at)
	if !l.ResetsAtOnce() || l.Config().FirstRequest {
		return 0, until
	}
	return since, until
}

// book counts the outcomes of the changes, which were made at now of the own store's clock, and
// holds the changes for which it was too early.
func (b *bridge) book(now int64) {
	b.seen.notice(now)
	for i := range b.changes {
		s := b.x.stats.limit(b.of[i])
		if !b.done[i].Made {
			if !b.early.keep(&b.changes[i], b.of[i], now) {
				s.late.add(b.changes[i].Units)
			}
			continue
		}
		s.heard.add(b.changes[i].Units)
		s.over.Add(uint64(max(b.done[i].Over, 0)))
	}
}

// unsure counts the changes as ones that may or may not have been made.
func (b *bridge) unsure() {
	for i := range b.changes {
		b.x.stats.limit(b.of[i]).unsure.add(b.changes[i].Units)
	}
}

// stale returns for how long, in ns, nothing was heard of a region; math.MaxInt64 if it never was.
func (p *peer) stale(mono int64) int64 {
	to := p.heardTo.Load()
	if to == 0 {
		return math.MaxInt64
	}
	return max(0, mono-to)
}
