package upstream

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Places bounds how many requests are under way to a server at a time, since each takes a
// connection, and so a file, and a process has only so many. A request that finds no place waits
// for one. Safe for concurrent use.
//
// A client that brings many requests over one connection never has more places than there would be
// left for all others: alone it gets half of them, the next one half of the rest, and so on. So a
// client with few requests finds a place as long as there is one.
type Places struct {
	max int

	mu      sync.Mutex
	used    int
	single  client          // all clients with a connection for each request
	clients map[any]*client // the others that have places or wait for them
	waiting []*client       // of all these, whose turn it is first
	refused atomic.Uint64
}

// client is who has places: one connection, or all clients with a connection for each request.
type client struct {
	key   any
	held  int
	queue []*waiter
}

// waiter is a request that waits.
type waiter struct {
	ready chan struct{} // closed when it has a place
	has   bool
}

// NewPlaces returns so many places.
func NewPlaces(most int) *Places { return &Places{max: max(most, 1), clients: map[any]*client{}} }

// ErrNoPlace says that a request has waited for as long as it may.
var ErrNoPlace = errors.New("as many requests are under way to the upstream as may be")

// Enter takes a place, which Leave gives back. It waits for one until ctx ends, or for wait if that
// is above 0, and returns how long it did. connection identifies a connection that brings many
// requests at a time; nil is one that brings one. A nil Places always has room.
func (p *Places) Enter(ctx context.Context, connection any, wait time.Duration) (waited time.Duration, err error) {
	if p == nil {
		return 0, nil
	}
	p.mu.Lock()
	if connection == nil && p.used < p.max { // which is most of them
		p.used++
		p.mu.Unlock()
		return 0, nil
	}
	c := p.client(connection)
	if p.mayTake(c) {
		p.take(c)
		p.mu.Unlock()
		return 0, nil
	}
	w := &waiter{ready: make(chan struct{})}
	if c.queue = append(c.queue, w); len(c.queue) == 1 {
		p.waiting = append(p.waiting, c)
	}
	p.mu.Unlock()
	start := time.Now()
	err = p.await(ctx, c, w, wait)
	return time.Since(start), err
}

// await waits until w, of c, has a place.
func (p *Places) await(ctx context.Context, c *client, w *waiter, wait time.Duration) error {
	var late <-chan time.Time
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		late = t.C
	}
	select {
	case <-w.ready:
		return nil
	case <-ctx.Done():
	case <-late:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case w.has && ctx.Err() != nil:
		p.leave(c)
		return context.Cause(ctx)
	case w.has:
		return nil
	}
	if c.queue = slices.DeleteFunc(c.queue, func(other *waiter) bool { return other == w }); len(c.queue) == 0 {
		p.waiting = slices.DeleteFunc(p.waiting, func(other *client) bool { return other == c })
		p.forget(c)
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	p.refused.Add(1)
	return ErrNoPlace
}

// Leave gives a place back that Enter has taken for connection.
func (p *Places) Leave(connection any) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if connection == nil && len(p.waiting) == 0 {
		p.used--
		return
	}
	p.leave(p.client(connection))
}

// client finds or makes the client of a key. mu must be held.
func (p *Places) client(key any) *client {
	if key == nil {
		return &p.single
	}
	c := p.clients[key]
	if c == nil {
		c = &client{key: key}
		p.clients[key] = c
	}
	return c
}

// mayTake reports whether c may have one more place. mu must be held.
func (p *Places) mayTake(c *client) bool {
	free := p.max - p.used
	return free > 0 && (c.key == nil || c.held < free)
}

// take gives c a place. mu must be held.
func (p *Places) take(c *client) {
	p.used++
	if c.key != nil {
		c.held++
	}
}

// leave takes a place of c back, and gives free places to those who wait, in turn. mu must be held.
func (p *Places) leave(c *client) {
	p.used--
	if c.key != nil {
		c.held--
	}
	p.forget(c)
	for p.used < p.max {
		i := slices.IndexFunc(p.waiting, p.mayTake)
		if i < 0 {
			return // who waits has its share
		}
		next := p.waiting[i]
		p.waiting = slices.Delete(p.waiting, i, i+1)
		w := next.queue[0]
		if next.queue = next.queue[1:]; len(next.queue) > 0 {
			p.waiting = append(p.waiting, next)
		}
		p.take(next)
		w.has = true
		close(w.ready)
	}
}

// forget drops a client that has nothing and wants nothing. mu must be held.
func (p *Places) forget(c *client) {
	if c.key != nil && c.held == 0 && len(c.queue) == 0 {
		delete(p.clients, c.key)
	}
}

// PlaceStats is a reading of Places.
type PlaceStats struct {
	Max, Used, Waiting int
	Refused            uint64 // requests that have waited in vain
}

// Stats reads the counters; zero for a nil Places.
func (p *Places) Stats() (s PlaceStats) {
	if p == nil {
		return s
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s = PlaceStats{Max: p.max, Used: p.used, Refused: p.refused.Load()}
	for _, c := range p.waiting {
		s.Waiting += len(c.queue)
	}
	return s
}

// Connections counts connections, open and idle ones, so that idle ones make room for new ones.
type Connections struct {
	// Max is how many there may be. Places must see to it that no more than that are in use.
	Max int
	// DropIdle closes at least one idle connection, of any client, if there is one.
	DropIdle func()

	open atomic.Int64
}

// add counts a connection that is about to be opened. A nil Connections counts nothing.
func (c *Connections) add() {
	if c != nil && c.open.Add(1) > int64(c.Max) && c.DropIdle != nil {
		c.DropIdle()
	}
}

func (c *Connections) remove() {
	if c != nil {
		c.open.Add(-1)
	}
}

// Open returns how many there are.
func (c *Connections) Open() int { return int(c.open.Load()) }

// Dialer returns dial with the connections counted, for other clients of the same server.
func (c *Connections) Dialer(dial Dial) Dial {
	if c == nil {
		return dial
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c.add()
		conn, err := dial(ctx, network, address)
		if err != nil {
			c.remove()
			return nil, err
		}
		return &counted{Conn: conn, of: c}, nil
	}
}

// counted is a connection that is counted until it is closed.
type counted struct {
	net.Conn
	of     *Connections
	closed atomic.Bool
}

// CloseWrite closes the half of a connection that writes, for upgraded connections, where the
// connection can do that.
func (c *counted) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}

// Close implements net.Conn.
func (c *counted) Close() error {
	if !c.closed.Swap(true) {
		c.of.remove()
	}
	return c.Conn.Close()
}
