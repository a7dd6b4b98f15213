// Package observe joins the watchers of decisions: metrics, recent decisions, insight, the record
// of requests. Each watcher stands on the deciding path and needs the same: the outcome of the
// request, its count, a hash of the key, a random number. Tally finds out these Facts once, counts
// once for all watchers, and passes the Facts to each.
//
// Begin with Tally.Join (observe.go), which makes the hooks for a limiter; tally.go holds the
// counts.
package observe

import (
	"math/rand/v2"
	"sync/atomic"
	"unsafe"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

// Outcome is the outcome of a request.
type Outcome uint8

// The outcomes of requests that met one limit, which is not in shadow, and nothing unusual. They
// exclude each other: Soft takes precedence over Near.
const (
	Passed  Outcome = iota // admitted below warn
	Near                   // admitted, with most of the limit used
	Soft                   // admitted above the limit, in its soft margin
	Refused                // by the limit
	Outcomes
	// Unclear is any other request: it met several limits or none, a limit of a rule that is not
	// enforced for all keys, or a ban; brought a descriptor with a number of hits of its own, or
	// asked for nothing; an expression of a rule failed on it; or its rules came into force just
	// now. It is not counted, and watchers find out its outcome themselves.
	Unclear = Outcomes
)

// Facts are what watchers need to know of a decision. They are passed by value, in registers:
// behind a pointer they would have to be allocated.
type Facts struct {
	// Random is drawn for this decision alone. Watchers that use the same bits draw the same
	// decisions. That does no harm, since no watcher combines its sample with another one's.
	Random uint64
	// Key is the hash, by Tally.Hash, of the key of the only limit that the request met; not valid
	// if Outcome is Unclear.
	Key     uint64
	Outcome Outcome
	// First says that this is the first of the decisions that are counted with it, or one in 256 of
	// them. Of several decisions at once, each may be First, or none.
	First bool
}

// exemplar is how many decisions of a kind have one Facts.First among them.
const exemplar = 256

// Watcher watches decisions.
type Watcher interface {
	// Decided takes in each decision, as weir.Hooks.Decided does.
	Decided(*weir.Request, *weir.Decision, Facts)
	// Others returns the other hooks. Their Decided is nil.
	Others() weir.Hooks
}

// Seldom is a Watcher that wants of the counted decisions only those that are First.
type Seldom interface {
	Watcher
	Seldom()
}

// Join returns hooks that count, and call each of the watchers: the Seldom ones first, then the
// others, in this order.
func (t *Tally) Join(watchers ...Watcher) weir.Hooks {
	hooks := []weir.Hooks{{RulesChanged: func(s *rule.Set, generation uint64) { t.Of(s, generation) }}}
	var seldom, always []Watcher
	for _, w := range watchers {
		hooks = append(hooks, w.Others())
		if _, ok := w.(Seldom); ok {
			seldom = append(seldom, w)
		} else {
			always = append(always, w)
		}
	}
	tell := func(list []Watcher, r *weir.Request, d *weir.Decision, f Facts) {
		for _, w := range list {
			w.Decided(r, d, f)
		}
	}
	all := weir.JoinHooks(hooks...)
	if len(always) == 3 { // all that a server has; a loop over them costs as much as one of them
		a, b, c := always[0], always[1], always[2]
		all.Decided = func(r *weir.Request, d *weir.Decision) {
			f, n := t.facts(r, d)
			if n == nil || f.First {
				tell(seldom, r, d, f)
			}
			a.Decided(r, d, f)
			b.Decided(r, d, f)
			c.Decided(r, d, f)
			if n != nil {
				n.Add(1)
			}
		}
		return all
	}
	all.Decided = func(r *weir.Request, d *weir.Decision) {
		f, n := t.facts(r, d)
		if n == nil || f.First {
			tell(seldom, r, d, f)
		}
		tell(always, r, d, f)
		if n != nil {
			n.Add(1)
		}
	}
	return all
}

// facts finds out what watchers need to know of d, and where to count it; nil is nowhere. The
// caller counts after the watchers have run: an addition that other processors wait for delays
// everything behind it.
func (t *Tally) facts(r *weir.Request, d *weir.Decision) (f Facts, n *atomic.Uint64) {
	f.Random, f.Outcome = uint64(d.ID), Unclear
	if f.Random == 0 { // the id of a refusal is random, and costs nothing more
		f.Random = rand.Uint64()
	}
	if len(d.Limits) != 1 || len(d.Matches.Hits) != 1 || r.Descriptors != nil && !t.plain(r) || r.Peek || r.Hits < 0 ||
		!d.Known || d.Exempt || d.Banned.Rule != nil || d.Matches.CELErrors > 0 {
		return f, nil
	}
	l := &d.Limits[0]
	outcome := Passed
	switch {
	case l.Mode == rule.Shadow, d.Allowed != l.Allowed:
		return f, nil
	case !l.Allowed:
		outcome = Refused
	case l.Soft:
		outcome = Soft
	case l.Near:
		outcome = Near
	}
	counts := t.counts.Load()
	if counts.now.set != d.Rules {
		return f, nil
	}
	limit := l.Window.Counter.Index
	cells := counts.now.cells[limit].Load()
	if cells == nil {
		if cells = counts.now.begin(limit); cells == nil {
			return f, nil
		}
	}
	f.Key = t.Hash(d.Matches.Hits[0].Key)
	n = &cellAt(cells, Turn(d)&counts.now.mask)[DoorOf(r.Door)][outcome]
	f.Outcome, f.First = outcome, n.Load()%exemplar == 0
	return f, n
}

// plain reports whether the descriptors of a request only ask for what the request itself does, and
// no watcher counts descriptors.
func (t *Tally) plain(r *weir.Request) bool {
	return len(r.Descriptors) == 1 && !r.Descriptors[0].HasHits && !t.descriptors.Load()
}

// Turn returns a number that differs between decisions that are made at once, to choose a cell of a
// counter that is split by processor. A Decision serves one request at a time, so its address
// differs.
func Turn(d *weir.Decision) uint64 {
	return uint64(uintptr(unsafe.Pointer(d))) >> 6 * 0x9e3779b97f4a7c15 >> 32
}
