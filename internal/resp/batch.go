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

// batch are commands of a pipeline that are decided at the same time. Those that name the same key
// are in one lane, in which they are decided one after the other.
type batch struct {
	slots []slot
	n     int
	args  int
	first []int32 // by lane: its first slot + 1
	last  []int32
	lanes []int32 // that have slots
}

// slot is one command of a batch and its answer.
type slot struct {
	verb verb
	args [][]byte
	out  []byte
	next int32 // in the lane; 0 for none, else its place + 1
}

// addToBatch takes up a command to be decided with the next batch. Its arguments are views of the
// buffer, which stays as it is until the batch is decided.
func (c *conn) addToBatch(v verb, args [][]byte) error {
	b := &c.batch
	if b.n == maxBatch || b.n > 0 && b.args+len(args) > maxBatchArgs {
		if err := c.decideBatch(); err != nil {
			return err
		}
	}
	if b.n == len(b.slots) {
		b.slots = append(b.slots, slot{})
	}
	s := &b.slots[b.n]
	s.verb, s.args, s.out, s.next = v, append(s.args[:0], args...), s.out[:0], 0
	b.n++
	b.args += len(args)
	return nil
}

// decideBatch decides the commands that wait, and appends their answers in order.
func (c *conn) decideBatch() error {
	b := &c.batch
	switch b.n {
	case 0:
		return nil
	case 1:
		s := &b.slots[0]
		c.out = c.decide(c.out, s.verb, s.args, c.trusted || c.authed)
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
	b.n, b.args = 0, 0
	return c.grown()
}

func (c *conn) decideLanes() {
	b := &c.batch
	if b.first == nil {
		b.first, b.last = make([]int32, c.o.Concurrent), make([]int32, c.o.Concurrent)
	}
	b.lanes = b.lanes[:0]
	for i := range b.slots[:b.n] {
		lane := int32(b.slots[i].key(c.o.Tracer != nil) % uint64(len(b.first)))
		if b.first[lane] == 0 {
			b.first[lane] = int32(i + 1)
			b.lanes = append(b.lanes, lane)
		} else {
			b.slots[b.last[lane]-1].next = int32(i + 1)
		}
		b.last[lane] = int32(i + 1)
	}
	trusted := c.trusted || c.authed
	var wg sync.WaitGroup
	// those that this goroutine runs: the last one, and what there is no room for
	own := b.lanes[:0]
	for i, lane := range b.lanes {
		first := b.first[lane]
		b.first[lane] = 0
		if i < len(b.lanes)-1 {
			select {
			case c.lanes <- struct{}{}:
				wg.Go(func() { c.runLane(b.slots, first, trusted) })
				continue
			default:
			}
		}
		own = append(own, first)
	}
	for _, first := range own {
		c.decideLane(b.slots, first, trusted)
	}
	wg.Wait()
}

// runLane is decideLane in a goroutine of its own.
func (s *Server) runLane(slots []slot, first int32, trusted bool) {
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
	a := s.askers.Get().(*asker)
	a.decideLane(slots, first, trusted)
	a.tell()
	s.askers.Put(a)
}

func (a *asker) decideLane(slots []slot, at int32, trusted bool) {
	for at != 0 {
		s := &slots[at-1]
		s.out = a.decide(s.out, s.verb, s.args, trusted)
		at = s.next
	}
}

// key is the same for commands that are to be decided in their order. With traced those of one
// request are, whichever span each of them is part of.
func (s *slot) key(traced bool) uint64 {
	if s.verb != verbLimit {
		if len(s.args) < 2 {
			return 0
		}
		return xxhash.Sum64(s.args[1]) + uint64(s.verb)
	}
	h := uint64(0)
	args, _ := withoutFull(s.args)
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
