package resp

import (
	"sync"

	"github.com/cespare/xxhash/v2"
)

// Bounds of the commands that are decided at a time.
const (
	maxBatch     = 256
	maxBatchArgs = maxArgs // of all of them together
)

// batch are commands of a pipeline that have to wait, and are decided at the same time, and those
// between them, which are answered. Commands that name the same key are in one lane, in which they
// are decided one after the other.
type batch struct {
	slots []slot
	n     int
	args  int // of those that wait
	lanes []lane
}

// slot is one command of a batch and its answer.
type slot struct {
	verb verb
	args [][]byte // empty if it is answered
	out  []byte
	next int32 // in the lane; 0 for none, else its place + 1
}

// lane is commands on the same key, which are decided in their order.
type lane struct {
	key         uint64
	first, last int32  // slots
	asker       *asker // that has begun the first; nil if it is the connection's own
}

// decideOrWait answers a command that can be decided at once. Another one it takes up, to be
// decided with the batch; its arguments are views of the buffer, which stays as it is until then.
func (c *conn) decideOrWait(v verb, args [][]byte) error {
	b := &c.batch
	if b.n == maxBatch || b.n > 0 && b.args+len(args) > maxBatchArgs {
		if err := c.decideBatch(); err != nil {
			return err
		}
	}
	if b.n == 0 {
		return c.begin(v, args)
	}
	key := orderKey(v, args, c.o.Tracer != nil)
	if l := b.laneOf(key); l != nil { // one on the same key waits
		i := b.add(v, args)
		b.slots[l.last-1].next, l.last = i, i
		return nil
	}
	c.freeAsker()
	i := b.add(v, nil)
	s, done := &b.slots[i-1], false
	s.out, done = c.decideNow(s.out, v, args, c.trusted || c.authed)
	switch {
	case done:
	case len(b.lanes) < c.o.Concurrent:
		s.args, b.args = append(s.args, args...), b.args+len(args)
		b.addLane(key, i)
	default: // too many wait: it is the first of another batch
		b.n--
		err := c.decideBatch()
		b.addLane(key, b.add(v, args)) // also if that failed: the asker has begun it
		return err
	}
	return nil
}

// begin answers a command behind which none waits, or begins a batch with it.
func (c *conn) begin(v verb, args [][]byte) error {
	out, done := c.decideNow(c.out, v, args, c.trusted || c.authed)
	if done {
		c.out = out
		return c.grown()
	}
	c.batch.addLane(orderKey(v, args, c.o.Tracer != nil), c.batch.add(v, args))
	return nil
}

// add takes up a slot, and returns its place + 1.
func (b *batch) add(v verb, args [][]byte) int32 {
	if b.n == len(b.slots) {
		b.slots = append(b.slots, slot{})
	}
	s := &b.slots[b.n]
	s.verb, s.args, s.out, s.next = v, append(s.args[:0], args...), s.out[:0], 0
	b.n++
	b.args += len(args)
	return int32(b.n)
}

// addLane begins a lane with the slot at i - 1, which the connection's asker has begun.
func (b *batch) addLane(key uint64, i int32) {
	b.lanes = append(b.lanes, lane{key: key, first: i, last: i})
}

// laneOf returns the lane of a key; nil if no command on it waits.
func (b *batch) laneOf(key uint64) *lane {
	for i := range b.lanes {
		if b.lanes[i].key == key {
			return &b.lanes[i]
		}
	}
	return nil
}

// freeAsker gives the connection another asker if its own has begun a command that waits.
func (c *conn) freeAsker() {
	if l := &c.batch.lanes[len(c.batch.lanes)-1]; l.asker == nil {
		l.asker = c.asker
		c.asker = c.askers.Get().(*asker)
	}
}

// decideBatch decides the commands that wait, and appends the answers of the batch in order.
func (c *conn) decideBatch() error {
	b := &c.batch
	switch b.n {
	case 0:
		return nil
	case 1:
		c.out = c.decideRest(c.out)
	default:
		c.decideLanes()
		for i := range b.slots[:b.n] {
			c.out = append(c.out, b.slots[i].out...)
		}
	}
	for i := range b.slots[:b.n] {
		clear(b.slots[i].args) // views of a buffer that may be given back
	}
	if b.n > 16 || b.args > 128 {
		*b = batch{} // a connection that sends much once is not to hold it for long
	}
	b.n, b.args, b.lanes = 0, 0, b.lanes[:0]
	return c.grown()
}

// decideLanes runs the lanes, each in a goroutine. The last one, and what there is no room for,
// runs in this one.
func (c *conn) decideLanes() {
	b, trusted := &c.batch, c.trusted || c.authed
	var wg sync.WaitGroup
	last := len(b.lanes) - 1
	for i := range b.lanes[:last] {
		l := &b.lanes[i]
		select {
		case c.lanes <- struct{}{}:
			a, slots, first := l.asker, b.slots, l.first
			l.asker = nil
			wg.Go(func() { c.runLane(a, slots, first, trusted) })
		default:
		}
	}
	for i := range b.lanes {
		l := &b.lanes[i]
		switch {
		case l.asker != nil:
			c.finishLane(l.asker, b.slots, l.first, trusted)
			l.asker = nil
		case i == last:
			c.decideLane(b.slots, l.first, trusted)
		}
	}
	wg.Wait()
}

// runLane is finishLane in a goroutine of its own.
func (s *Server) runLane(a *asker, slots []slot, first int32, trusted bool) {
	defer func() { <-s.lanes }()
	defer func() {
		if p := recover(); p != nil { // a defect of ours must not end the process
			s.defect(p)
			for at := first; at != 0; at = slots[at-1].next {
				if o := &slots[at-1]; len(o.out) == 0 {
					o.out = appendError(o.out, "ERR internal error")
				}
			}
		}
	}()
	s.finishLane(a, slots, first, trusted)
}

// finishLane decides a lane with an asker that nobody needs from then on.
func (s *Server) finishLane(a *asker, slots []slot, first int32, trusted bool) {
	a.decideLane(slots, first, trusted)
	a.tell()
	s.askers.Put(a)
}

// decideLane decides the commands of a lane, the first of which a has begun.
func (a *asker) decideLane(slots []slot, first int32, trusted bool) {
	s := &slots[first-1]
	s.out = a.decideRest(s.out)
	for at := s.next; at != 0; at = s.next {
		s = &slots[at-1]
		s.out = a.decide(s.out, s.verb, s.args, trusted)
	}
}

// orderKey is the same for commands that must be decided in their order. With traced that includes
// equal requests in different spans.
func orderKey(v verb, args [][]byte, traced bool) uint64 {
	if v != verbLimit {
		if len(args) < 2 {
			return 0
		}
		return xxhash.Sum64(args[1]) + uint64(v)
	}
	h := uint64(0)
	args, _ = withoutFull(args)
	for i := 1; i < len(args); i++ {
		switch {
		case i == 2: // hits
		case traced && i > 2 && i%2 == 1 && (string(args[i]) == traceparent || string(args[i]) == tracestate):
			i++ // with its value
		default:
			h = h*0x9E3779B97F4A7C15 + xxhash.Sum64(args[i])
		}
	}
	return h
}
