// Package lessee is the work of a holder of units that were lent ahead: it keeps the books of one
// key, and says when to ask a store.Lender for units, for how many, and what use to report.
//
// The package is pure: it reads no clock, takes no lock and does no I/O. Time is passed in. A
// node's own time, at, is in ns of a clock that never goes back, and a store's time, now, in µs
// since the Unix epoch. Package store/lease puts locks, clocks and a store around it, and
// benchmarks/capacity runs thousands of holders in virtual time. docs/how-it-works/algorithms.md
// describes the protocol.
//
// Begin with Entry. Its books never have a unit twice: units that are reported, taken or returned
// leave them first, and come back only if it is certain that nobody else has heard of them.
package lessee

import (
	"math"

	"github.com/weir-rl/weir/algo"
)

// Margins of a deadline, for errors of a clock: a fixed one in ns, and one part in rateMargin of
// the time for which units are lent.
const (
	fixedMargin = int64(1e6)
	rateMargin  = 1000
)

// Entry holds a holder's units of one key, and its knowledge of it. The zero value holds and knows
// nothing. It has no pointers. It is not safe for concurrent use.
type Entry struct {
	held    [2]held
	resetAt int64 // when the state is fresh again, as the store last said, by its clock; math.MaxInt64: never
	// While a refusal is remembered, when such a request is admitted; else when the newest answer
	// was decided, of those heard. By the store's clock; math.MaxInt64: never.
	instant   int64
	quiet     int64   // until then nothing is asked in the background, and refusals are repeated
	remaining int32   // units that the store had left, beside those that are held here
	demand    float32 // units that were asked for, each fading with its age; over about E
	since     uint32  // when demand was last brought up to date, in ticks
	refused   uint16  // cost that was refused; 0 for none
	flags     uint8
}

// A tick of Entry.since is about a millisecond.
const tickBits = 20

// Flags of an Entry.
const (
	asking  = 1 << iota // a call that wants units is under way
	last                // what ends last could not be lent for longer, since a window ends
	covered             // the refused request would have been admitted, were nothing out
	queued              // it is about to be asked in the background
)

// held are the units held of one generation.
type held struct {
	end      int64 // by the store's clock, which also names the generation; 0: nothing
	deadline int64 // this holder stops then, by its own clock
	left     int32 // units that can be used
	used     int32 // units that were used, and not reported
}

// Taken are units that were taken out of the books for a call that is still undecided. End them
// with Commit or Back.
type Taken struct {
	end   [2]int64
	units [2]int32
}

// Begin makes an entry for a key that was asked for twice within E.
func Begin(t *Terms, at int64) Entry {
	return Entry{demand: 1, since: uint32(at >> tickBits), quiet: at}
}

// Adopt moves an entry to other terms. Units that were lent under other numbers are not used any
// more, but returned with the next call; so are refusals forgotten.
func (e *Entry) Adopt(was, is *Terms) (dropped bool) {
	if was.Same(is) {
		return false
	}
	e.refused, e.instant, e.quiet = 0, 0, math.MinInt64
	return e.Stop()
}

// Note counts a request for units towards the demand, unless it needs more than may ever be out.
func (e *Entry) Note(t *Terms, at, cost int64) {
	if tick := uint32(at >> tickBits); tick != e.since {
		e.fade(t, tick)
	}
	if cost <= t.most {
		e.demand += float32(cost)
	}
}

// fade brings the demand up to date.
func (e *Entry) fade(t *Terms, tick uint32) {
	if behind := int32(tick - e.since); behind > 0 {
		x := float32(int64(behind)<<tickBits) / float32(t.E)
		e.demand /= 1 + x + x*x/2 // near enough to exp(x)
	}
	e.since = tick
}

// idle is for how long nobody has asked for the key, in ns.
func (e *Entry) idle(at int64) int64 {
	return max(0, int64(int32(uint32(at>>tickBits)-e.since))) << tickBits
}

// Left is how many units can be used at an instant.
func (e *Entry) Left(at int64) (n int64) {
	for i := range e.held {
		if h := &e.held[i]; at < h.deadline {
			n += int64(h.left)
		}
	}
	return n
}

// Use admits a request: it moves its units from the usable ones to the used ones, for the next
// report. ok is false if there are not enough, and then nothing is changed. at is a reading of the
// clock from before, and after the answers that lent the units. It is the instant of the decision.
func (e *Entry) Use(at, cost int64) (ok bool) {
	i, j := e.order()
	if h := &e.held[i]; at < h.deadline && int64(h.left) >= cost {
		h.left -= int32(cost)
		h.used += int32(cost)
		return true
	}
	if h := &e.held[j]; e.held[i].left == 0 && at < h.deadline && int64(h.left) >= cost {
		h.left -= int32(cost)
		h.used += int32(cost)
		return true
	}
	taken, ok := e.Take(at, cost)
	if ok {
		e.Commit(taken)
	}
	return ok
}

// Take takes units out of the books, as Use does, for a call that other limits may still deny.
func (e *Entry) Take(at, cost int64) (taken Taken, ok bool) {
	if e.Left(at) < cost {
		return Taken{}, false
	}
	i, j := e.order()
	for _, i := range [2]int{i, j} {
		if h := &e.held[i]; at < h.deadline {
			n := min(h.left, int32(cost))
			h.left -= n
			cost -= int64(n)
			taken.end[i], taken.units[i] = h.end, n
		}
	}
	return taken, true
}

// order returns the places of the held generations; the one that ends first comes first.
func (e *Entry) order() (first, second int) {
	if e.held[0].deadline <= e.held[1].deadline {
		return 0, 1
	}
	return 1, 0
}

// Commit notes that units were used. It returns how many of them are too late to be reported: they
// count as used in any case.
func (e *Entry) Commit(taken Taken) (lapsed int64) {
	return e.put(taken, func(h *held, n int32) { h.used += n })
}

// Back puts units back that were not used. It returns how many of them are lost.
func (e *Entry) Back(taken Taken) (lapsed int64) {
	return e.put(taken, func(h *held, n int32) { h.left += n })
}

func (e *Entry) put(taken Taken, f func(h *held, n int32)) (lapsed int64) {
	for i, n := range taken.units {
		if n == 0 {
			continue
		}
		if h := e.generation(taken.end[i]); h != nil {
			f(h, n)
		} else {
			lapsed += int64(n)
		}
	}
	return lapsed
}

// generation returns the units held of the generation that ends at end; nil if it is not known any
// more.
func (e *Entry) generation(end int64) *held {
	for i := range e.held {
		if end != 0 && e.held[i].end == end {
			return &e.held[i]
		}
	}
	return nil
}

// free returns a place in which nothing is held; nil if there is none.
func (e *Entry) free() *held {
	for i := range e.held {
		if e.held[i].end == 0 {
			return &e.held[i]
		}
	}
	return nil
}

// Short reports whether it is time to ask for more, before a request has to wait for it.
func (e *Entry) Short(t *Terms, at int64) bool {
	return e.flags&(asking|queued) == 0 && at >= e.quiet && e.demand >= leastDemand &&
		float32(e.Left(at))*4 < e.demand && e.idle(at) < t.E/2
}

// Queue notes that a call is about to be made since Short said so, and Unqueue that it is made now.
// Meanwhile the key is not Short.
func (e *Entry) Queue() { e.flags |= queued }

// Unqueue is the end of Queue.
func (e *Entry) Unqueue() { e.flags &^= queued }

// leastDemand is from how many units over E on a key asks for units: with fewer, each lease costs
// as many calls as it saves.
const leastDemand = 3

// worthwhile is how many units make up for a call that was made for them alone.
const worthwhile = 16

// Ask fills in the report of a call for the key and, if wants is true, its request for units. The
// reported units leave the books. After a call that certainly was not made, call Unask; else Hear
// or Lost.
//
// Units that are left are returned if they cannot be used any more, and all of them if back is
// true: so that the store can decide on all units there are, when too few are left for a request.
func (e *Entry) Ask(t *Terms, at, now int64, back, wants bool, h *algo.Ahead) {
	*h = algo.Ahead{}
	for i := range e.held {
		g := &e.held[i]
		if g.end == 0 {
			continue
		}
		told := &h.Told[i]
		told.End, told.Used = g.end, int64(g.used)
		g.used = 0
		if back || at >= g.deadline {
			told.Returned = int64(g.left)
			g.left = 0
		}
		if *told == (algo.Told{End: g.end}) {
			*told = algo.Told{}
		}
		g.settle()
	}
	if wants {
		e.wish(t, at, now, h)
	}
}

// wish fills in the request for units.
func (e *Entry) wish(t *Terms, at, now int64, h *algo.Ahead) {
	if h.Want = e.want(t, at, now); h.Want == 0 {
		return
	}
	e.flags |= asking
	h.First = true
	for i := range e.held {
		if g := &e.held[i]; g.end != 0 && at < g.deadline && (e.flags&last != 0 || at < g.deadline-t.E) {
			h.First = false
		}
	}
}

// want is how many units to ask for; 0 if none.
func (e *Entry) want(t *Terms, at, now int64) int64 {
	if e.flags&asking != 0 || e.demand < leastDemand {
		return 0
	}
	n := t.in(now)
	if n == nil {
		return 0
	}
	want := int64(1.5*e.demand) - e.Left(at)
	if float32(e.Left(at))*2 > e.demand {
		return 0 // enough for now
	}
	return min(max(want, 2), n.most)
}

// Unask takes back the report of a call that certainly was not made.
func (e *Entry) Unask(t *Terms, at int64, h *algo.Ahead) (lapsed int64) {
	for i := range h.Told {
		told := &h.Told[i]
		g := e.generation(told.End)
		if g == nil && told.End != 0 {
			if g = e.free(); g != nil { // it was stopped, and settled
				*g = held{end: told.End, deadline: math.MinInt64}
			}
		}
		if g != nil {
			g.used += int32(told.Used)
			g.left += int32(told.Returned)
		} else {
			lapsed += told.Used + told.Returned
		}
	}
	e.Lost(t, at, h)
	return lapsed
}

// Lost notes that the answer to a call will not come. Its reported and its lent units count as used
// in the end.
func (e *Entry) Lost(t *Terms, at int64, h *algo.Ahead) {
	if h.Want > 0 {
		e.flags &^= asking
		e.pause(t, at)
	}
}

// pause asks for nothing in the background for a while. A refusal is not repeated for longer by it:
// while one is, nothing is asked anyway.
func (e *Entry) pause(t *Terms, at int64) {
	if e.refused != 0 && at < e.quiet {
		return
	}
	if e.refused != 0 {
		e.refused, e.instant = 0, 0
	}
	e.quiet = max(e.quiet, at+t.Pause)
}

// Visit looks after an entry that nobody may ask for; within is how many ns pass at most until the
// next visit, and now an instant that the store's clock has certainly reached. tell reports that a
// report is due in a call of its own, see Tell; over that nothing is left to know, so that the
// entry can be forgotten.
func (e *Entry) Visit(t *Terms, at, now, within int64) (tell, over bool, lapsed int64) {
	holds := false
	for i := range e.held {
		g := &e.held[i]
		switch {
		case g.end != 0 && now >= g.end, g.end != 0 && at >= g.deadline && g.left == 0 && g.used == 0:
			lapsed += int64(g.left + g.used)
			*g = held{}
		case g.left+g.used > 0:
			holds = true
			tell = tell || e.due(g, t, at, within)
		}
	}
	over = !holds && e.flags&asking == 0 && e.idle(at) >= 2*t.E && at >= e.quiet
	return tell, over, lapsed
}

// due reports whether the units held of a generation are to be reported before the next visit.
func (e *Entry) due(g *held, t *Terms, at, within int64) bool {
	return g.left+g.used > 0 && (at+within >= g.deadline || e.idle(at) >= t.E/2)
}

// Tell fills in the report of a call of its own after Visit said so: all of a generation that ends
// before the next visit, and everything of a key that nobody asks for. If the key is asked for, the
// call wants units in place of the ones that it returns.
func (e *Entry) Tell(t *Terms, at, now, within int64, wants bool, h *algo.Ahead) {
	*h = algo.Ahead{}
	for i := range e.held {
		if g := &e.held[i]; e.due(g, t, at, within) {
			h.Told[i] = algo.Told{End: g.end, Used: int64(g.used), Returned: int64(g.left)}
			g.left, g.used = 0, 0
			g.settle()
		}
	}
	if wants && at >= e.quiet && e.idle(at) < t.E/2 {
		e.fade(t, uint32(at>>tickBits))
		e.wish(t, at, now, h)
	}
}

// settle forgets a generation that was stopped, once all of it is reported: more of it can be lent.
func (h *held) settle() {
	if h.deadline == math.MinInt64 && h.left == 0 && h.used == 0 {
		*h = held{}
	}
}

// Stop ends the use of all units held, which the next call reports and returns. It returns whether
// any of them could have been used.
func (e *Entry) Stop() (had bool) {
	for i := range e.held {
		g := &e.held[i]
		had = had || g.left > 0
		g.deadline = math.MinInt64
	}
	return had
}

// Unused reports whether nothing is held, and no call is under way or about to be made for more, so
// that the entry can be forgotten with only its knowledge lost; and for how long nobody has asked
// for the key, in ns. Units that are Taken meanwhile count as used then.
func (e *Entry) Unused(at int64) (idle int64, unused bool) {
	left, used := e.Holds()
	return e.idle(at), left+used == 0 && e.flags&(asking|queued) == 0
}

// Expired reports whether units are left that cannot be used any more.
func (e *Entry) Expired(at int64) bool {
	return e.held[0].left > 0 && at >= e.held[0].deadline || e.held[1].left > 0 && at >= e.held[1].deadline
}

// Drop forgets all units held, without a report: the store that lent them is another one now, and
// its units out may be somebody else's, and its clock another one. It returns how many units that
// were.
func (e *Entry) Drop() (units int64) {
	for i := range e.held {
		units += int64(e.held[i].left + e.held[i].used)
		e.held[i] = held{}
	}
	if e.refused == 0 {
		e.instant = 0
	}
	return units
}

// Holds is how many units are held: usable ones, and used but unreported ones.
func (e *Entry) Holds() (left, used int64) {
	for i := range e.held {
		left, used = left+int64(e.held[i].left), used+int64(e.held[i].used)
	}
	return left, used
}
