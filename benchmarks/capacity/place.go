package capacity

import (
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/leasing/lessee"
)

// place is the state of a key on a node.
type place struct {
	key, node int32
	life      int32 // of the node
	entry     int32 // in world.entries, plus 1: the key leases; else 0
	// the operation that takes further decisions: its batch, and its place there
	batch uint64
	op    int32
	until int64 // a refusal is remembered until then, in ns; 0: none is
	asked int64 // when the key was last asked for, in ns, plus 1; 0: never
}

// entry is a key that leases on a node: the books of package lessee.
type entry struct {
	lessee.Entry
	place int32
	index int32 // in the list of its node
}

// decide decides a request here, or leaves it to the store, as store/lease does. ahead is what a
// call for the key then reports and wants. peek says that the call has no decision to make.
func (w *world) decide(number int32) (allowed, here bool) {
	p := &w.places[number]
	if w.terms == nil {
		if p.until > w.now {
			return false, true
		}
		w.enqueue(number, nil, false)
		return false, false
	}
	if p.entry == 0 {
		if p.asked == 0 || w.now-(p.asked-1) > w.terms.E {
			p.asked = w.now + 1
			w.enqueue(number, nil, false)
			return false, false
		}
		w.lease(number)
	}
	e, at := &w.entries[p.entry-1], w.clock(p.node)
	if e.Use(at, 1) {
		e.Note(w.terms, at, 1)
		if e.Short(w.terms, at) {
			w.ask(number, true)
		}
		return true, true
	}
	refuses, _ := e.Refuses(at, 1)
	if e.Note(w.terms, at, 1); refuses {
		return false, true
	}
	w.ask(number, false)
	return false, false
}

// ask asks the store for a request, or only for units.
func (w *world) ask(number int32, peek bool) {
	p := &w.places[number]
	var ahead algo.Ahead
	w.entries[p.entry-1].Ask(w.terms, w.clock(p.node), w.estimated(p.node), !peek, true, &ahead)
	switch {
	case ahead != (algo.Ahead{}):
		w.enqueue(number, &ahead, peek)
	case !peek:
		w.enqueue(number, nil, false)
	}
}

// answered hands a node the store's answer to an operation.
func (w *world) answered(c *call, op *operation) {
	p := &w.places[op.place]
	if p.entry > 0 {
		cost := int64(1)
		if op.peek {
			cost = 0
		}
		r := op.result
		a := lessee.Answer{Asked: w.clockAt(p.node, c.sent), At: w.clock(p.node), Now: c.now}
		heard := w.entries[p.entry-1].Hear(w.terms, a, cost, &r, &op.ahead)
		w.late += heard.Late
		// Callers wake in any order: the last one to hear may be one that was admitted.
		if op.admitted > 0 && op.admitted < op.n && w.rng.IntN(op.n) < op.admitted {
			r.Allowed, r.RetryAfter = true, 0
			w.entries[p.entry-1].Hear(w.terms, a, cost, &r, &algo.Ahead{})
		}
	}
	// As store/redis does: from when the call was sent, and not where a limit lends.
	if w.s.RememberRefusals == 0 || op.result.Allowed || w.terms != nil {
		return
	}
	p.until = c.sent + int64(w.s.RememberRefusals)
	if r := op.result.RetryAfter; r >= 0 {
		p.until = min(p.until, c.sent+r*1000)
	}
}

// lease makes an entry for a key on a node.
func (w *world) lease(number int32) {
	p := &w.places[number]
	n := &w.nodes[p.node]
	var i int32
	if k := len(w.unused); k > 0 {
		i, w.unused = w.unused[k-1], w.unused[:k-1]
	} else {
		i = int32(len(w.entries))
		w.entries = append(w.entries, entry{})
	}
	w.entries[i] = entry{lessee.Begin(w.terms, w.clock(p.node)), number, int32(len(n.leased))}
	n.leased = append(n.leased, i)
	p.entry = i + 1
	if !n.visited {
		n.visited = true
		w.agenda.add(event{at: w.now + w.visitEach(), what: visits, who: p.node, life: n.life})
	}
}

// unlease ends an entry.
func (w *world) unlease(i int32) {
	e := &w.entries[i]
	p := &w.places[e.place]
	n := &w.nodes[p.node]
	last := n.leased[len(n.leased)-1]
	n.leased[e.index] = last
	w.entries[last].index = e.index
	n.leased = n.leased[:len(n.leased)-1]
	p.entry, p.asked = 0, 0
	w.unused = append(w.unused, i)
}

// visitEach returns how often a node looks after keys that get no requests.
func (w *world) visitEach() int64 { return max(w.terms.E/8, int64(time.Millisecond)) }

// visit looks after the leases of a node.
func (w *world) visit(number, life int32) {
	n := &w.nodes[number]
	if n.life != life {
		return
	}
	at, within := w.clock(number), w.visitEach()
	for i := len(n.leased) - 1; i >= 0; i-- {
		index := n.leased[i]
		e := &w.entries[index]
		tell, over, _ := e.Visit(w.terms, at, w.estimated(number), within)
		switch {
		case tell:
			var ahead algo.Ahead
			e.Tell(w.terms, at, w.estimated(number), within, true, &ahead)
			w.enqueue(e.place, &ahead, true)
		case over:
			w.unlease(index)
		}
	}
	if n.visited = len(n.leased) > 0 && w.now < w.end; n.visited {
		w.agenda.add(event{at: w.now + within, what: visits, who: number, life: life})
	}
}

// clock returns the time by a node's own clock, in ns.
func (w *world) clock(node int32) int64 { return w.clockAt(node, w.now) }

func (w *world) clockAt(node int32, at int64) int64 {
	n := &w.nodes[node]
	return int64(time.Hour) + n.offset + at + int64(float64(at)*n.drift)
}

// estimated returns a node's estimate of the store's clock, by the last answer. It lags behind by
// the time that the answer was under way.
func (w *world) estimated(node int32) int64 { return (w.clock(node) + w.nodes[node].store) / 1000 }
