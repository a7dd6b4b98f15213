package redis

import (
	"unsafe"

	"github.com/cespare/xxhash/v2"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
)

// newCall makes a call of charges, of which it holds copies.
func (s *Store) newCall(p *partition, charges []weir.Charge) *call {
	c := s.calls.Get().(*call)
	n := len(charges)
	if cap(c.charges) < n {
		c.charges, c.results, c.slots = make([]weir.Charge, n), make([]algo.Result, n), make([]uint64, n)
	}
	c.charges, c.results, c.slots = c.charges[:n], c.results[:n], c.slots[:n]
	c.parts, c.keys, c.owners, c.buf = c.parts[:0], c.keys[:0], c.owners[:0], c.buf[:0]
	c.mergeable, c.apart, c.tight, c.odd, c.taint, c.err, c.names = true, true, false, false, false, nil, nil
	copy(c.charges, charges)
	const prime = 0x9E3779B97F4A7C15
	c.shape = uint64(n)
	size := 0
	for i := range charges {
		n, of := 1+len(charges[i].Counter.Previous), charges[i].Counter.Margin
		if of != nil {
			n += 1 + len(of.Previous)
		}
		size += n * (len(p.prefix) + 8 + len(charges[i].Key))
	}
	if cap(c.buf) < size {
		c.buf = make([]byte, 0, size) // it must not move: keys are views of it
	}
	for i := range c.charges {
		ch := &c.charges[i]
		t := s.twinOf(ch.Limit)
		own := part{twin: t, counter: ch.Counter, charge: i}
		if t.schedule != nil {
			own.reign = t.reignAt(s, s.about())
			own.twin = own.reign.twin
			c.shape = (c.shape ^ uint64(own.reign.from)) * prime
		}
		in := own.twin
		own.tight = in.margin != nil && ch.Counter.Margin != nil
		c.tight = c.tight || own.tight
		c.slots[i] = 0
		if t.kind == kindSlots { // also where a schedule puts none in force, by what this node knows
			c.slots[i] = newSlot()
		}
		ch.Ask.Slot = 0
		ch.Key = nil
		// Decisions go as one if all of them charge, and each leaves a state on which the next is decided alike.
		if ch.Ask.Cost <= 0 || in.kind == kindSlots || in.kind == kindLog && in.countDenied {
			c.mergeable = false
		}
		c.shape = (c.shape^uint64(uintptr(unsafe.Pointer(ch.Limit))))*prime + uint64(ch.Ask.Cost)<<8 + uint64(ch.Mode)
		c.shape = (c.shape ^ uint64(ch.Ask.MaxDelay) ^ uint64(ch.Ask.LastEnds)) * prime
		s.addPart(p, c, own, charges[i].Key)
		if m := marginOf(ch.Counter, t.margin); m != nil && in.kind != kindOff {
			s.addPart(p, c, part{twin: s.twinOf(m), counter: ch.Counter.Margin, charge: i, margin: true}, charges[i].Key)
		}
		c.shape = (c.shape ^ ch.Counter.ID ^ uint64(c.parts[len(c.parts)-1].older)) * prime
	}
	if len(c.keys) == 0 { // nothing is in force; but a call needs a key
		c.keys, c.owners = append(c.keys, p.prefix), append(c.owners, 0)
	}
	c.shape ^= c.shape >> 29
	c.hash = c.shape*prime ^ xxhash.Sum64(c.buf)
	return c
}

// maxJoined bounds the parts of a call whose states may lie in one value.
const maxJoined = 256

// addPart adds a part of a call, with its keys.
func (s *Store) addPart(p *partition, c *call, pt part, key []byte) {
	at := len(c.parts)
	if pt.twin.kind == kindOff {
		c.parts = append(c.parts, pt)
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
		if owner == 0 || other == 0 || at >= maxJoined || !c.joins(other, &pt) {
			c.apart = false
			return
		}
		pt.joined = uint16(other)
	}
	id := pt.twin.valueID(pt.counter)
	add(id, at+1)
	if pt.twin.kind == kindWindow && pt.twin.changes(pt.counter) {
		pt.older = olderWithin
	}
	for _, previous := range pt.counter.Previous {
		if old := s.twinOf(previous.Limit).valueID(previous); old == id {
			pt.older |= olderWithin
		} else {
			pt.older++
			add(old, 0)
		}
	}
	c.parts = append(c.parts, pt)
}

// owner finds a key, and returns whose it is: 1 + the index of a part, or 0.
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

// joins reports whether a part's state can lie in the value of the part number head - 1.
func (c *call) joins(head int, pt *part) bool {
	if pt.twin.size == 0 || c.parts[head-1].twin.size == 0 {
		return false
	}
	for i := head - 1; i < len(c.parts); i++ {
		if o := &c.parts[i]; (i == head-1 || int(o.joined) == head) && tagOf(o.counter) == tagOf(pt.counter) {
			return false
		}
	}
	return true
}
