package redis

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/store"
)

// connections are all open connections of the clients, also to Sentinels. rueidis dials each anew
// when it finds it closed, and so resolves its name anew, and finds the master.
type connections struct {
	mu   sync.Mutex
	open map[*connection]struct{}
	// when all that were open then were given up last, by store.Monotonic; 0: never
	renewed atomic.Int64
}

// redialEvery is how far apart two redials are at least: a name may lead to a replica for a while.
// A connection that is given up is closed a little later, so that answers under way still come.
const (
	redialEvery = 100 * time.Millisecond
	closeLater  = redialEvery / 2
)

// connection takes itself off the list when it is closed.
type connection struct {
	net.Conn
	of    *connections
	stale atomic.Bool // nothing more is written
}

// dial makes a connection: rueidis.ClientOption.DialCtxFn.
func (c *connections) dial(ctx context.Context, address string, d *net.Dialer, config *tls.Config) (net.Conn, error) {
	var conn net.Conn
	var err error
	if config != nil {
		conn, err = (&tls.Dialer{NetDialer: d, Config: config}).DialContext(ctx, "tcp", address)
	} else {
		conn, err = d.DialContext(ctx, "tcp", address)
	}
	if err != nil {
		return nil, err
	}
	own := &connection{Conn: conn, of: c}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.open == nil {
		c.open = map[*connection]struct{}{}
	}
	c.open[own] = struct{}{}
	return own, nil
}

// Write implements net.Conn. Its error is net.ErrClosed if the connection is given up.
func (c *connection) Write(b []byte) (int, error) {
	if c.stale.Load() {
		return 0, &net.OpError{Op: "write", Net: "tcp", Addr: c.RemoteAddr(), Err: net.ErrClosed}
	}
	return c.Conn.Write(b)
}

// Close implements net.Conn.
func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}

// redial has all connections dialled anew. A replica has answered where a master should be: the
// master may have become one, while its connections stay open.
func (s *Store) redial() {
	c := &s.open
	c.mu.Lock()
	defer c.mu.Unlock()
	if last := c.renewed.Load(); last != 0 && store.Monotonic()-last < int64(redialEvery) {
		return
	}
	s.metrics.redials.Add(1)
	for conn := range c.open {
		if !conn.stale.Swap(true) {
			time.AfterFunc(closeLater, func() { _ = conn.Close() })
		}
	}
	c.renewed.Store(store.Monotonic())
}

// neverSent reports whether a call that began at an instant, and failed with err, was not written,
// since its connection had been given up before.
func (c *connections) neverSent(err error, began int64) bool {
	renewed := c.renewed.Load()
	return renewed != 0 && began >= renewed && errors.Is(err, net.ErrClosed)
}
