package capacity

import "github.com/weir-rl/weir/algo"

// A link carries a node's calls to one partition, as in store/redis. While a call is under way,
// decisions wait, and go together as the next one. Equal ones are merged into one operation.

// maxBatch bounds the decisions of a call, as in store/redis.
const maxBatch = 256

type link struct {
	node, partition int32
	busy            bool // a call is under way
	waiting         []*batch
}

// batch is the decisions of one call.
type batch struct {
	number    uint64 // so that a place knows whether its operation is in it
	decisions int
	ops       []operation
}

// operation is a set of merged decisions on one key of a node.
type operation struct {
	place int32
	alone bool // it reports or wants units, so that no other is merged into it
	peek  bool // no decision waits for it
	n     int  // decisions
	first int64
	more  []int64 // when the others came
	ahead algo.Ahead

	admitted int // filled in by the store: how many of them
	result   algo.Result
}

// call is a batch under way.
type call struct {
	link  int32
	life  int32 // of the node that sent it
	sent  int64 // in ns
	ends  int64 // when the store is done with it
	now   int64 // by the store's clock, in µs
	batch *batch
}

// enqueue puts a decision of a place, which has just come, into the queue to the partition of its
// key. ahead is what it reports and wants; nil for nothing.
func (w *world) enqueue(number int32, ahead *algo.Ahead, peek bool) {
	h := &w.places[number]
	at := h.node*int32(w.s.Partitions) + w.keys[h.key].partition
	l := &w.links[at]
	var b *batch
	if n := len(l.waiting); n > 0 && l.waiting[n-1].decisions < maxBatch {
		b = l.waiting[n-1]
	} else {
		b = w.newBatch()
		l.waiting = append(l.waiting, b)
	}
	b.decisions++
	if ahead == nil && h.batch == b.number {
		op := &b.ops[h.op]
		op.n++
		op.more = append(op.more, w.now)
	} else {
		b.ops = append(b.ops, operation{})
		op := &b.ops[len(b.ops)-1]
		op.place, op.first, op.peek = number, w.now, peek
		if !peek {
			op.n = 1
		}
		if ahead != nil {
			op.alone, op.ahead = true, *ahead
		} else {
			h.batch, h.op = b.number, int32(len(b.ops)-1)
		}
	}
	if !l.busy {
		w.send(at)
	}
}

func (w *world) newBatch() *batch {
	w.batches++
	if n := len(w.spare); n > 0 {
		b := w.spare[n-1]
		w.spare = w.spare[:n-1]
		*b = batch{number: w.batches, ops: b.ops[:0]}
		return b
	}
	return &batch{number: w.batches}
}

// send sends the decisions that wait at a link.
func (w *world) send(at int32) {
	l := &w.links[at]
	if len(l.waiting) == 0 {
		return
	}
	b := l.waiting[0]
	l.waiting = append(l.waiting[:0], l.waiting[1:]...)
	l.busy = true
	c := &call{link: at, life: w.nodes[l.node].life, sent: w.now, batch: b}
	if w.measuring() {
		for i := range b.ops {
			t := w.tally(b.ops[i].place)
			t.Operations++
			switch op := &b.ops[i]; {
			case op.peek && op.ahead.Want > 0:
				t.Ahead++
			case op.peek:
				t.Told++
			}
			t.Calls += 1 / float64(len(b.ops))
		}
	}
	w.agenda.add(event{at: w.now + w.oneWay(), what: arrives, call: c})
}

// oneWay draws the time that a message is under way.
func (w *world) oneWay() int64 {
	half := float64(w.s.RoundTrip) / 2
	if w.s.Jitter > 0 {
		half *= 1 + w.s.Jitter*(2*w.rng.Float64()-1)
	}
	return int64(half)
}

// answer hands the results of a call to the decisions that wait for them, and sends the next one.
func (w *world) answer(c *call) {
	l := &w.links[c.link]
	alive := c.life == w.nodes[l.node].life
	if alive {
		w.nodes[l.node].store = c.now*1000 - w.clock(l.node)
	}
	ops := c.batch.ops // their callers wake in any order
	w.rng.Shuffle(len(ops), func(i, j int) { ops[i], ops[j] = ops[j], ops[i] })
	for i := range c.batch.ops {
		op := &c.batch.ops[i]
		if !alive {
			w.lose(op)
			continue
		}
		w.answered(c, op)
		if op.n > 0 {
			w.decided(op.place, op.first, op.admitted > 0, false)
		}
		for j, at := range op.more {
			w.decided(op.place, at, op.admitted > j+1, false)
		}
	}
	w.spare = append(w.spare, c.batch)
	if alive {
		l.busy = false
		w.send(c.link)
	}
}
