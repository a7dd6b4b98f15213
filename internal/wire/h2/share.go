package h2

import (
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/weir-rl/weir/internal/util/pq"
)

// client is the owner of connections that share one bound: an address, or a connection alone.
type client struct {
	address netip.Addr // the zero Addr for a connection that counts for itself
	conns   int        // that are open, or keep something; Server.clients guards it
	keeps   atomic.Int64
}

// clients are the addresses that have connections.
type clients struct {
	sync.Mutex
	of map[netip.Addr]*client
}

// clientOf counts a connection from peer.
func (s *Server) clientOf(peer net.Addr) *client {
	var address netip.Addr
	if s.o.Client != nil {
		address = s.o.Client(peer)
	}
	if !address.IsValid() {
		return &client{conns: 1}
	}
	s.clients.Lock()
	defer s.clients.Unlock()
	w := s.clients.of[address]
	if w == nil {
		w = &client{address: address}
		s.clients.of[address] = w
	}
	w.conns++
	return w
}

// forget takes a connection of w back that has ended, and keeps nothing.
func (s *Server) forget(w *client) {
	s.clients.Lock()
	defer s.clients.Unlock()
	if w.conns--; w.conns == 0 && w.address.IsValid() {
		delete(s.clients.of, w.address)
	}
}

// tellClient counts what c keeps for its client. mu must be held.
func (c *conn) tellClient() {
	keeps := c.held + c.told
	if c.leaving {
		keeps = 0
	}
	if keeps != c.share {
		c.client.keeps.Add(int64(keeps - c.share))
		c.share = keeps
	}
}

// mayBegin reports whether c may keep n bytes more for a request that begins: then there is room
// for it, or will be when others have been ended. mu must be held.
func (c *conn) mayBegin(n int) bool {
	s, most := c.s, int64(c.s.o.MaxMemory)
	own := c.held + c.heads + n
	if int64(own) > most/4 {
		return false
	}
	more := int64(own - c.share)
	all := c.client.keeps.Load() + more
	// Memory left behind goes first when there is no room, and so takes nobody's share.
	now := s.keeps() - s.left.Load()
	if all <= most*5/8-now || all <= max(s.most.Load()/8, most/1024, leastShare) {
		return true
	}
	// Behind one address may be many people: the memory of one of them shuts out no connection of
	// another that keeps little.
	return own <= leastShare && now+more <= most/2
}

// keeper is a client that keeps something, with its connections, that which keeps most first.
type keeper struct {
	keeps int
	conns []kept
}

// kept is the memory of a connection.
type kept struct {
	c *conn
	n int
}

// greediest returns the clients of conns that keep something, the one that keeps most first.
func greediest(conns []*session) pq.Heap[*keeper] {
	of := map[*client]*keeper{}
	for _, p := range conns {
		c := p.open()
		if c == nil {
			continue
		}
		c.mu.Lock()
		n := c.held + c.told
		if n > 0 && !c.leaving {
			k := of[c.client]
			if k == nil {
				k = new(keeper)
				of[c.client] = k
			}
			k.keeps += n
			k.conns = append(k.conns, kept{c, n})
		}
		c.mu.Unlock()
	}
	heap := pq.New(func(a, b *keeper) bool { return a.keeps > b.keeps }, nil)
	for _, k := range of {
		slices.SortFunc(k.conns, func(a, b kept) int { return b.n - a.n })
		heap.Push(k)
	}
	return heap
}

// next takes the connection that keeps most of the client that keeps most; nil if there is none.
func next(heap *pq.Heap[*keeper]) *conn {
	if heap.Len() == 0 {
		return nil
	}
	k := heap.Min()
	first := k.conns[0]
	k.keeps -= first.n
	if k.conns = k.conns[1:]; len(k.conns) == 0 {
		heap.Pop()
	} else {
		heap.Fix(0)
	}
	return first.c
}
