package proxy

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/weir-rl/weir/internal/wire/upstream"
)

// halfConn is a connection to the upstream. When http.Transport closes the half that it writes, the
// connection is kept until the upstream has said something or closed it. The transport goes on
// reading meanwhile.
type halfConn struct {
	net.Conn

	mu     sync.Mutex
	kept   bool
	half   bool          // the half that writes is closed
	closed bool          // Close was called for good
	said   chan struct{} // closed when the upstream has; made by keep
	over   bool          // said is closed
}

// dialHalf returns dial with a halfConn around each connection.
func dialHalf(dial upstream.Dial) upstream.Dial {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &halfConn{Conn: c}, nil
	}
}

// halfConnOf returns the halfConn of a connection, with TLS or without; nil if there is none, or it
// carries many requests.
func halfConnOf(c net.Conn) *halfConn {
	if t, ok := c.(*tls.Conn); ok {
		if t.ConnectionState().NegotiatedProtocol == "h2" {
			return nil
		}
		c = t.NetConn()
	}
	h, _ := c.(*halfConn)
	return h
}

// keep has the connection kept, beyond the next Close, until await returns.
func (c *halfConn) keep() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed && !c.kept {
		c.kept, c.said = true, make(chan struct{})
	}
}

// await waits until the upstream has said something, until a context ends, and for most if that is
// above 0; then it closes the connection.
func (c *halfConn) await(until context.Context, most time.Duration) {
	c.mu.Lock()
	said := c.said
	c.mu.Unlock()
	defer c.end()
	if said == nil {
		return
	}
	var late <-chan time.Time
	if most > 0 {
		t := time.NewTimer(most)
		defer t.Stop()
		late = t.C
	}
	select {
	case <-said:
	case <-until.Done():
	case <-late:
	}
}

// end closes the connection for good.
func (c *halfConn) end() {
	c.mu.Lock()
	c.kept, c.closed = false, true
	c.mu.Unlock()
	_ = c.Conn.Close()
}

// Read implements net.Conn.
func (c *halfConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kept && !c.over {
		c.over = true
		close(c.said)
	}
	return n, err
}

// Close implements net.Conn.
func (c *halfConn) Close() error {
	c.mu.Lock()
	kept, half := c.kept, c.half
	c.half = c.half || kept
	c.closed = c.closed || !kept
	c.mu.Unlock()
	switch {
	case !kept:
		return c.Conn.Close()
	case half:
		return nil
	}
	return c.CloseWrite()
}

// CloseWrite closes the half of the connection that writes, for upgraded connections, where the
// connection can do that.
func (c *halfConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return errors.ErrUnsupported
}
