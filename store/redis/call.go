package redis

import (
	"unsafe"

	"github.com/cespare/xxhash/v2"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// stage is how far a call has come; guarded by partition.mu.
type stage uint8

const (
	queued    stage = iota
	sent            // it may have been charged
	delivered       // results and err are valid
	abandoned       // the caller gave up after it was sent
	finished        // abandoned, and its answer has come, or never will
)

// call is one decision on its way to Redis and back. It holds copies of everything, since its
// caller may give up at any time.
type call struct {
	charges  []store.Charge
	results  []algo.Result
	ahead    []algo.Ahead // of each charge, if units may be lent; else empty
	operands []operand
	keys     []string       // in Redis; views of buf
	owners   []int          // of keys: 1 + index of the operand; 0 for the key of an older identity
	names    map[string]int // owners by key, where there are many keys
	buf      []byte
	slots    []uint64 // ids for Concurrency charges; 0 for others

	shape     uint64 // hash of the question, without the keys
	hash      uint64 // of both
	mergeable bool   // equal calls may go as one
	// no two charges share a stored value, unless they are joined: Lua reads all values before it
	// writes any, and would miss the first charge
	disjoint     bool
	marginCloses bool // an operand's soft margin closes
	lends        bool // units may be lent of one of the limits
	lending      bool // it has reports or wishes of leases

	stage     stage
	done      chan struct{} // one value when delivered
	now       int64         // instant of the decision
	sentAt    int64         // when it was sent, by this node's monotonic clock, in ns
	undecided bool          // Lua left the decision to this node
	leaked    bool          // Redis' client may still hold views of buf
	err       error
	// of an abandoned call: gets its outcomes; guarded by partition.mu
	onOutcome func([]store.Outcome)

	// of the first call of a group of equal ones, see merge
	next      *call // the next call of the group
	last      *call // the last call of the group
	group     int   // size of the group
	nextGroup *call // first call of the next group of the run
}

// newCall makes a call of copies of the charges, and of ahead, which is empty if nothing may be
// lent.
func (s *Store) newCall(p *partition, charges []store.Charge, ahead []algo.Ahead) *call {
	c := s.calls.Get().(*call)
	n := len(charges)
	if cap(c.charges) < n {
		c.charges, c.results, c.slots = make([]store.Charge, n), make([]algo.Result, n), make([]uint64, n)
	}
	c.charges, c.results, c.slots = c.charges[:n], c.results[:n], c.slots[:n]
	c.operands, c.keys, c.owners, c.buf = c.operands[:0], c.keys[:0], c.owners[:0], c.buf[:0]
	c.mergeable, c.disjoint, c.marginCloses, c.undecided, c.leaked, c.err, c.names = true, true, false, false, false,
		nil, nil
	c.ahead, c.lends, c.lending = append(c.ahead[:0], ahead...), false, false
	copy(c.charges, charges)
	const prime = 0x9E3779B97F4A7C15
	c.shape = uint64(n)
	size := 0
	for i := range charges {
		n := 1 + len(charges[i].Counter.Previous)
		for _, of := range [...]*rule.Counter{charges[i].Counter.Margin, charges[i].Counter.Lease} {
			if of != nil {
				n += 1 + len(of.Previous)
			}
		}
		size += n * (len(p.prefix) + 8 + len(charges[i].Key))
	}
	if cap(c.buf) < size {
		c.buf = make([]byte, 0, size) // must not be reallocated: keys are views of it
	}
	for i := range c.charges {
		ch := &c.charges[i]
		t := s.codecOf(ch.Limit)
		own := operand{codec: t, counter: ch.Counter, charge: i}
		if t.schedule != nil {
			own.phase = t.phaseAt(s, s.estimatedNow())
			own.codec = own.phase.codec
			c.shape = (c.shape ^ uint64(own.phase.from)) * prime
		}
		if t.lease != nil && ch.Counter.Lease != nil {
			s.addRecord(p, c, &own, t, charges[i].Key)
		}
		in := own.codec
		own.marginCloses = in.margin != nil && ch.Counter.Margin != nil
		c.marginCloses = c.marginCloses || own.marginCloses
		c.slots[i] = 0
		if t.hasSlots() {
			// even if the schedule has no limit in force by the clock that this node knows
			c.slots[i] = newSlot()
		}
		ch.Ask.Slot = 0
		ch.Key = nil
		// Equal decisions can be merged if all of them charge, and each leaves a state on which the
		// next one is decided in the same way.
		if ch.Ask.Cost <= 0 || in.hasSlots() || in.hasLog() && in.countDenied {
			c.mergeable = false
		}
		c.shape = (c.shape^uint64(uintptr(unsafe.Pointer(ch.Limit))))*prime + uint64(ch.Ask.Cost)<<8 + uint64(ch.Mode)
		c.shape = (c.shape ^ uint64(ch.Ask.MaxDelay) ^ uint64(ch.Ask.LastEnds)) * prime
		s.addOperand(p, c, own, charges[i].Key)
		if m := marginOf(ch.Counter, t.margin); m != nil && in.kind != kindOff {
			s.addOperand(p, c, operand{codec: s.codecOf(m), counter: ch.Counter.Margin, charge: i, margin: true},
				charges[i].Key)
		}
		c.shape = (c.shape ^ ch.Counter.ID ^ uint64(c.operands[len(c.operands)-1].older)) * prime
	}
	if len(c.keys) == 0 { // no limit is in force; but FCALL needs a key to find the server
		c.keys, c.owners = append(c.keys, p.prefix), append(c.owners, 0)
	}
	c.shape ^= c.shape >> 29
	c.hash = c.shape*prime ^ xxhash.Sum64(c.buf)
	return c
}

// addRecord adds the record of the units lent to a call. own is the operand of its state, which
// must follow it, and t the codec of the charge's limit.
func (s *Store) addRecord(p *partition, c *call, own *operand, t *codec, key []byte) {
	ch := &c.charges[own.charge]
	c.lends = true
	own.record = s.codecOf(leaseOf(ch.Counter, t.lease))
	if own.codec.kind == kindOff {
		own.codec, own.idle = s.codecOf(t.schedule.limits[0]), true
	}
	if len(c.ahead) > 0 && tells(&c.ahead[own.charge]) {
		c.lending, c.mergeable = true, false
	}
	s.addOperand(p, c, operand{codec: own.record, counter: ch.Counter.Lease, charge: own.charge, isRecord: true}, key)
	c.shape = (c.shape ^ ch.Counter.Lease.ID ^ uint64(c.operands[len(c.operands)-1].older)) * 0x9E3779B97F4A7C15
}

// maxJoined bounds the operands of a call that may be joined.
const maxJoined = 256

// addOperand adds an operand to a call, with its keys.
func (s *Store) addOperand(p *partition, c *call, op operand, key []byte) {
	at := len(c.operands)
	if op.codec.kind == kindOff {
		c.operands = append(c.operands, op)
		return
	}
	add := func(id uint64, owner int) {
		from := len(c.buf)
		c.buf = p.appendKey(c.buf, id, key)
		name := view(c.buf[from:])
		other, is := c.owner(name)
		if !is {
			c.keys, c.owners = append(c.keys, name), append(c.owners, owner)
			return
		}
		c.buf = c.buf[:from]
		if owner == 0 || other == 0 || at >= maxJoined || !c.joins(other, &op) {
			c.disjoint = false
			return
		}
		op.joinedTo = uint16(other)
	}
	id := op.codec.valueID(op.counter)
	add(id, at+1)
	if op.codec.size > 0 && op.codec.changes(op.counter) {
		op.older = olderInSameValue
	}
	for _, previous := range op.counter.Previous {
		if old := s.codecOf(previous.Limit).valueID(previous); old == id {
			op.older |= olderInSameValue
		} else {
			op.older++
			add(old, 0)
		}
	}
	c.operands = append(c.operands, op)
}

// owner finds a key, and returns its owner: 1 + the index of an operand, or 0.
func (c *call) owner(name string) (owner int, ok bool) {
	if len(c.keys) < 16 {
		for i, key := range c.keys {
			if key == name {
				return c.owners[i], true
			}
		}
		return 0, false
	}
	if c.names == nil {
		c.names = map[string]int{}
	}
	for i := len(c.names); i < len(c.keys); i++ {
		c.names[c.keys[i]] = c.owners[i]
	}
	owner, ok = c.names[name]
	return owner, ok
}

// joins reports whether the state of op can lie in the value of the operand at head - 1.
func (c *call) joins(head int, op *operand) bool {
	if op.codec.size == 0 || c.operands[head-1].codec.size == 0 {
		return false
	}
	for i := head - 1; i < len(c.operands); i++ {
		if o := &c.operands[i]; (i == head-1 || int(o.joinedTo) == head) && tagOf(o.counter) == tagOf(op.counter) {
			return false
		}
	}
	return true
}
