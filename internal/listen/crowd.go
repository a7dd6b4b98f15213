package listen

import (
	"net/netip"

	"github.com/weir-rl/weir/internal/pq"
	"github.com/weir-rl/weir/rule"
)

// crowd are the connections that are not ready yet, by the address that they come from. Where one
// has to go, it is the oldest of the address that has most: whoever opens many puts out their own,
// and a client of one or two stays for as long as its handshake takes. Of addresses that have the
// same number it is the one with the oldest connection. Each step costs as much as the logarithm of
// the number of addresses. The listener's mu guards it.
type crowd struct {
	n       int
	made    uint64 // of ages
	origins map[netip.Addr]*origin
	fullest pq.Heap[*origin]
}

// origin is an address, as rule.ClientNetwork has it, and its connections that are not ready yet.
type origin struct {
	address        netip.Addr
	n              int
	oldest, newest *slot
	at             int // in crowd.fullest
}

func newCrowd() crowd {
	return crowd{
		origins: map[netip.Addr]*origin{},
		fullest: pq.New(func(a, b *origin) bool {
			return a.n > b.n || a.n == b.n && a.oldest.age < b.oldest.age
		}, func(o *origin, at int) { o.at = at }),
	}
}

// add puts s behind all others of an address.
func (c *crowd) add(s *slot, address netip.Addr) {
	address = rule.ClientNetwork(address)
	c.made++
	c.n++
	s.age = c.made
	o := c.origins[address]
	if o == nil {
		o = &origin{address: address, n: 1, oldest: s, newest: s}
		c.origins[address] = o
		s.origin = o
		c.fullest.Push(o)
		return
	}
	s.origin = o
	s.prev, o.newest.next = o.newest, s
	o.newest = s
	o.n++
	c.fullest.Fix(o.at)
}

// remove removes s, if it is there.
func (c *crowd) remove(s *slot) {
	o := s.origin
	if o == nil {
		return
	}
	c.n--
	o.n--
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		o.oldest = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	} else {
		o.newest = s.prev
	}
	s.origin, s.prev, s.next = nil, nil, nil
	if o.n > 0 {
		c.fullest.Fix(o.at)
		return
	}
	c.fullest.Remove(o.at)
	delete(c.origins, o.address)
}

// move counts s for another address, if it is there: its age begins anew.
func (c *crowd) move(s *slot, address netip.Addr) {
	if s.origin != nil {
		c.remove(s)
		c.add(s, address)
	}
}

// first returns the connection that has to go first; nil if there is none.
func (c *crowd) first() *slot {
	if c.n == 0 {
		return nil
	}
	return c.fullest.Min().oldest
}

// all returns all connections.
func (c *crowd) all() (list []*slot) {
	for _, o := range c.fullest.Items() {
		for s := o.oldest; s != nil; s = s.next {
			list = append(list, s)
		}
	}
	return list
}
