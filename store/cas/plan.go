package cas

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/internal/deciding"
)

// plan is the decision of some calls that share keys: the values that they name, and the states in
// these. It is working memory of a worker.
type plan struct {
	store  *Store
	calls  []*call
	now    int64
	values []planValue
	states []*planState
	free   []*planState
	// the changes of the group, and the values that they are of
	changes []Change
	changed []int32
	unknown bool // it is not known what lies under some of the keys
	stale   int  // values that cannot be read
}

// planValue is a value that the calls name.
type planValue struct {
	e       *entry
	at      int64 // when it was last changed
	records []byte
	states  []int32 // of the plan that lie in it
	next    []byte  // the new data, if it is changed
}

// planState is a state that the calls name.
type planState struct {
	deciding.State
	counter *rule.Counter
	limit   *algo.Limit // the definition under which it is kept
	value   int32
	found   bool
	write   bool   // it may have changed
	was     []byte // the record, if it is found
}

// reset makes the plan one of other calls.
func (p *plan) reset() {
	for i := range p.values {
		v := &p.values[i]
		*v = planValue{states: v.states[:0]}
	}
	for _, st := range p.states {
		st.counter, st.limit, st.was = nil, nil, nil
		if cap(st.St.Ext)+cap(st.Tried.Ext) > 2*keepSpare {
			st.State = deciding.State{}
		}
		p.free = append(p.free, st)
	}
	clear(p.calls)
	clear(p.changes)
	p.calls, p.values, p.states = p.calls[:0], p.values[:0], p.states[:0]
	p.changes, p.changed = p.changes[:0], p.changed[:0]
	p.unknown, p.stale = false, 0
}

// open reads the values that the calls name, and returns the last instant at which one was changed.
func (p *plan) open() (least int64) {
	for _, c := range p.calls {
		for _, e := range c.entries {
			e.at = -1
		}
	}
	for _, c := range p.calls {
		for _, e := range c.entries {
			if e.at >= 0 {
				continue
			}
			e.at = int32(len(p.values))
			if cap(p.values) > len(p.values) {
				p.values = p.values[:len(p.values)+1]
			} else {
				p.values = append(p.values, planValue{})
			}
			v := &p.values[e.at]
			v.e, v.states = e, v.states[:0]
			at, records, ok := openValue(e.data)
			if v.at, v.records = at, records; !ok {
				p.stale++
			}
			least = max(least, at)
		}
	}
	return least
}

// decide decides the calls at p.now, in their order.
func (p *plan) decide(asked int64) {
	for _, c := range p.calls {
		c.now, c.asked = p.now, asked
		p.find(c)
		if c.change != nil {
			c.change(p, c)
			continue
		}
		deciding.Take(c.charges, c.results, c.slots, c.states, c.besides, p.now)
	}
}

// find finds the states that a call names, and carries over those that are kept under an older
// identity.
func (p *plan) find(c *call) {
	n := len(c.charges)
	c.states, c.besides = slices.Grow(c.states[:0], n)[:n], slices.Grow(c.besides[:0], n)[:n]
	charge, carry := -1, false
	var own, margin *planState
	for i := range c.refs {
		r := &c.refs[i]
		switch r.kind {
		case ownState:
			charge++
			own, margin = p.state(c, r), nil
			// States under older identities matter only until they are carried over; the margin
			// goes with them.
			carry = !own.found || c.older
			c.states[charge], c.besides[charge] = &own.State, nil
			p.touch(own, r.limit)
		case marginState:
			margin = p.state(c, r)
			c.besides[charge] = &margin.State
			p.touch(margin, r.limit)
		case olderState:
			if carry {
				p.inherit(own, c, r)
			}
		case olderMargin:
			if carry {
				p.inherit(margin, c, r)
			}
		}
	}
}

// touch notes that a state may change, and is kept under l then.
func (p *plan) touch(st *planState, l *algo.Limit) { st.limit, st.write = l, true }

// inherit carries a state over from an older identity of its counter, if there is none under its
// own.
func (p *plan) inherit(st *planState, c *call, r *ref) {
	old := p.state(c, r)
	if !old.found || st.found {
		return
	}
	if l := st.limit; l.Algorithm() == old.limit.Algorithm() {
		ext := append(st.St.Ext[:0], old.St.Ext...)
		st.St = old.St
		st.St.Ext = ext
		l.Carry(old.limit, &st.St, p.now)
	}
	// It stays found no more, so that an older one still is not carried over on top of it.
	st.found, st.write, old.write = true, true, true
	old.St, old.found = algo.State{}, false
}

// state returns the state that a call names.
func (p *plan) state(c *call, r *ref) *planState {
	at := c.entries[r.value].at
	v := &p.values[at]
	for _, i := range v.states {
		if st := p.states[i]; st.counter.ID == r.counter.ID {
			return st
		}
	}
	var st *planState
	if n := len(p.free); n > 0 {
		st = p.free[n-1]
		p.free = p.free[:n-1]
	} else {
		st = &planState{}
	}
	st.counter, st.limit, st.value, st.write, st.found, st.was = r.counter, r.limit, at, false, false, nil
	st.St = algo.State{Ext: st.St.Ext[:0]}
	if of, ok := findRecord(v.records, r.counter.ID); ok {
		st.was = of.whole
		if of.algo == r.limit.Algorithm() && decodeState(of.state, r.limit, &st.St) == nil {
			st.found = true
		} else if of.algo == r.limit.Algorithm() {
			p.stale++
		}
	}
	v.states = append(v.states, int32(len(p.states)))
	p.states = append(p.states, st)
	return st
}

// commit makes the changes of the decisions, in the order that Group wants.
func (p *plan) commit() {
	for i := range p.values {
		v := &p.values[i]
		if len(v.states) == 0 {
			continue // nothing of it was asked for
		}
		p.unknown = p.unknown || !v.e.known
		c := Change{Key: Key{v.e.place, v.e.name}, Was: v.e.version}
		next, last, changed := p.nextValue(v)
		switch {
		case !changed:
			c.Keep = true
		case last > 0:
			c.Version, c.Data, c.Until = p.store.versions.draw(), next, p.store.until(p.now, last)
		default: // nothing is left of it
			c.Keep = v.e.version == 0
			v.e.keep(next)
			next = nil
		}
		v.next = next
		p.changes, p.changed = append(p.changes, c), append(p.changed, int32(i))
	}
	if len(p.changes) > 1 {
		sortChanges(p.changes, p.changed)
	}
}

func compareKeys(a, b *Key) int {
	return cmp.Or(cmp.Compare(a.Place, b.Place), bytes.Compare(a.Name, b.Name))
}

// sortChanges puts changes, and what goes with them, in the order of Group.
func sortChanges(changes []Change, of []int32) {
	if len(changes) < 16 {
		for i := 1; i < len(changes); i++ {
			for j := i; j > 0 && compareKeys(&changes[j].Key, &changes[j-1].Key) < 0; j-- {
				changes[j], changes[j-1] = changes[j-1], changes[j]
				of[j], of[j-1] = of[j-1], of[j]
			}
		}
		return
	}
	type pair struct {
		c  Change
		of int32
	}
	pairs := make([]pair, len(changes))
	for i := range pairs {
		pairs[i] = pair{changes[i], of[i]}
	}
	slices.SortFunc(pairs, func(a, b pair) int { return compareKeys(&a.c.Key, &b.c.Key) })
	for i := range pairs {
		changes[i], of[i] = pairs[i].c, pairs[i].of
	}
}

// nextValue returns the new data of a value, and the instant from which on it may be forgotten; 0
// if nothing is left of it. changed is false if it stays as it is.
func (p *plan) nextValue(v *planValue) (next []byte, last int64, changed bool) {
	e := v.e
	next = beginValue(e.spare[:0], p.now)
	e.spare = nil
	rest, others := v.records, 0
	var told trace
	for len(rest) > 0 {
		r, left, _ := cutRecord(rest)
		rest = left
		st := p.stateIn(v, r.id)
		switch {
		case r.id == traceID:
			told = r.trace()
		case st == nil:
			if (r.until > p.now || p.keeps()) && others < maxRecords {
				others++
				next, last = append(next, r.whole...), max(last, r.until)
			}
		case !st.write:
			next, last = append(next, r.whole...), max(last, r.until)
		default:
			var until int64
			var other bool
			next, until, other = p.appendState(next, st)
			last, changed = max(last, until), changed || other
		}
	}
	for _, i := range v.states {
		if st := p.states[i]; st.write && st.was == nil && st.St.B != 0 {
			var until int64
			next, until, _ = p.appendState(next, st)
			last, changed = max(last, until), true
		}
	}
	if !changed {
		e.keep(next)
		return nil, 0, false
	}
	next, until := p.store.versions.appendTrace(next, told, e.version, v.at, p.now)
	return endValue(next), max(last, until), true
}

// keeps reports whether states that are fresh are kept all the same: by the clock of a test, which
// may step back, they may differ again.
func (p *plan) keeps() bool { return p.store.o.Clock != nil }

func (p *plan) stateIn(v *planValue, id uint64) *planState {
	for _, i := range v.states {
		if st := p.states[i]; st.counter.ID == id {
			return st
		}
	}
	return nil
}

// appendState appends the record of a state that is not fresh, and returns until when it is not.
// other is true if that is another one than before.
func (p *plan) appendState(dst []byte, st *planState) (next []byte, until int64, other bool) {
	if st.St.B == 0 {
		return dst, 0, st.was != nil
	}
	from := len(dst)
	a := st.limit.Algorithm()
	dst = appendRecord(dst, st.counter.ID, a, 0, &st.St)
	if was, _, _ := cutRecord(st.was); st.was != nil && was.algo == a &&
		bytes.Equal(dst[from+recordHead:], st.was[recordHead:]) {
		if was.until > p.now {
			return append(dst[:from], st.was...), was.until, false
		}
		other = false // it is as it was, and over; or kept under other numbers
	} else {
		other = true
	}
	if until = keptUntil(st.limit, &st.St, p.now); until <= p.now && other && !p.keeps() {
		return dst[:from], 0, true
	}
	putUntil(dst[from:], until)
	return dst, until, other
}

// keptUntil returns an instant at which a state is fresh, under all numbers that a schedule may
// bring.
func keptUntil(l *algo.Limit, st *algo.State, now int64) int64 {
	until := deciding.FreshAt(l, st, now)
	if !l.Scheduled() || until <= now {
		return until
	}
	otherwise, phases, _ := l.Schedule()
	see := func(of *algo.Limit) {
		if of == nil {
			return
		}
		at := deciding.FreshAt(of, st, now) + scheduleSlack
		if c := of.Config(); c.RefillInterval { // the refill that a change of numbers cuts
			at += c.Window.Microseconds()
		}
		until = max(until, at)
	}
	see(otherwise)
	for i := range phases {
		see(phases[i].Limit)
	}
	return until
}

// scheduleSlack is longer than the error in a state that the rounding of a few changes of numbers
// makes, in µs.
const scheduleSlack = 1_000_000
