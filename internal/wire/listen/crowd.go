package listen

import (
	"net/netip"

	"github.com/weir-rl/weir/internal/util/clientip"
	"github.com/weir-rl/weir/internal/util/pq"
)

// crowd are the connections that are not ready yet, by where they come from. Where one has to go,
// it is the oldest of the address that has most: a client that opens many puts out its own, and a
// client of one or two stays for as long as its handshake takes. Among addresses with the same
// number it is one in the network that has most, since the owner of a network can use each of its
// addresses once; then the one with the oldest connection. Each step costs as much as the logarithm
// of the number of addresses. The listener's mu guards it.
type crowd struct {
	n        int
	made     uint64 // of ages
	origins  map[netip.Addr]*origin
	networks map[netip.Prefix]*network
	fullest  pq.Heap[*network]
}

// origin is an address, as clientip.Network has it, and its connections that are not ready yet.
type origin struct {
	address        netip.Addr
	network        *network
	n              int
	oldest, newest *slot
	at             int // in network.fullest
}

// network are the addresses that one owner is likely to have all of.
type network struct {
	prefix  netip.Prefix
	n       int // connections
	fullest pq.Heap[*origin]
	at      int // in crowd.fullest
}

func newCrowd() crowd {
	return crowd{
		origins:  map[netip.Addr]*origin{},
		networks: map[netip.Prefix]*network{},
		fullest: pq.New(func(a, b *network) bool {
			x, y := a.fullest.Min(), b.fullest.Min()
			switch {
			case x.n != y.n:
				return x.n > y.n
			case a.n != b.n:
				return a.n > b.n
			}
			return x.oldest.age < y.oldest.age
		}, func(w *network, at int) { w.at = at }),
	}
}

func newNetwork(prefix netip.Prefix) *network {
	return &network{prefix: prefix, fullest: pq.New(func(a, b *origin) bool {
		return a.n > b.n || a.n == b.n && a.oldest.age < b.oldest.age
	}, func(o *origin, at int) { o.at = at })}
}

// networkOf returns the network of an address: a /24, or a /48 of IPv6.
func networkOf(address netip.Addr) netip.Prefix {
	bits := 24
	if address.Is6() {
		bits = 48
	}
	p, _ := address.Prefix(bits) // the zero Prefix for no address
	return p
}

// add puts s behind all others of an address.
func (c *crowd) add(s *slot, address netip.Addr) {
	address = clientip.Network(address)
	c.made++
	c.n++
	s.age = c.made
	if o := c.origins[address]; o != nil {
		s.origin = o
		s.prev, o.newest.next = o.newest, s
		o.newest = s
		o.n++
		o.network.n++
		o.network.fullest.Fix(o.at)
		c.fullest.Fix(o.network.at)
		return
	}
	o := &origin{address: address, n: 1, oldest: s, newest: s}
	c.origins[address], s.origin = o, o
	prefix := networkOf(address)
	if o.network = c.networks[prefix]; o.network != nil {
		o.network.n++
		o.network.fullest.Push(o)
		c.fullest.Fix(o.network.at)
		return
	}
	o.network = newNetwork(prefix)
	c.networks[prefix] = o.network
	o.network.n++
	o.network.fullest.Push(o)
	c.fullest.Push(o.network)
}

// remove removes s, if it is there.
func (c *crowd) remove(s *slot) {
	o := s.origin
	if o == nil {
		return
	}
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
	w := o.network
	c.n--
	w.n--
	o.n--
	switch {
	case o.n > 0:
		w.fullest.Fix(o.at)
		c.fullest.Fix(w.at)
	case w.n > 0:
		delete(c.origins, o.address)
		w.fullest.Remove(o.at)
		c.fullest.Fix(w.at)
	default:
		delete(c.origins, o.address)
		delete(c.networks, w.prefix)
		c.fullest.Remove(w.at)
	}
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
	return c.fullest.Min().fullest.Min().oldest
}

// all returns all connections.
func (c *crowd) all() (list []*slot) {
	for _, o := range c.origins {
		for s := o.oldest; s != nil; s = s.next {
			list = append(list, s)
		}
	}
	return list
}
