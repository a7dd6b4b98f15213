package h1

import (
	"crypto/tls"
	"errors"
	"math"
	"net"
	"sync"
	"sync/atomic"

	"github.com/weir-rl/weir/internal/wire/listen"
)

// handed is the listener from which net/http takes the connections that the loop does not serve.
type handed struct {
	address net.Addr
	conns   chan net.Conn
	closed  chan struct{}
	close   sync.Once
}

func newHanded() *handed {
	return &handed{conns: make(chan net.Conn), closed: make(chan struct{})}
}

// give hands c over, or closes it if nobody takes connections any more.
func (h *handed) give(c net.Conn) {
	select {
	case h.conns <- c:
	case <-h.closed:
		_ = c.Close()
	}
}

// Accept implements net.Listener.
func (h *handed) Accept() (net.Conn, error) {
	select {
	case c := <-h.conns:
		return c, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *handed) Close() error {
	h.close.Do(func() { close(h.closed) })
	return nil
}

// Addr implements net.Listener.
func (h *handed) Addr() net.Addr { return h.address }

// begun is a connection of which some bytes have been read.
type begun struct {
	net.Conn
	rest []byte // before all else
	err  error  // behind them, if nothing more can be read; else nil

	lingers *listen.Lingers
	// upload says that a request of HTTP/1 is being answered, on a connection that stays that.
	upload atomic.Bool
}

// begunKey is the context's key of the connection that a request came over.
type begunKey struct{}

// begunOf returns the begun connection of nc, with TLS or without; nil if there is none.
func begunOf(nc net.Conn) *begun {
	switch nc := nc.(type) {
	case *begun:
		return nc
	case begunTLS:
		return nc.begun
	}
	return nil
}

// Read implements net.Conn.
func (c *begun) Read(p []byte) (int, error) {
	switch {
	case len(c.rest) > 0:
	case c.err != nil:
		return 0, c.err
	default:
		return c.Conn.Read(p)
	}
	n := copy(p, c.rest)
	if c.rest = c.rest[n:]; len(c.rest) == 0 {
		c.rest = nil
	}
	return n, nil
}

// CloseWrite is what net/http calls before it closes a connection whose peer may still be sending.
// So the connection is then read on. After an upgrade it only closes its half.
func (c *begun) CloseWrite() error {
	w, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	err := w.CloseWrite()
	if err == nil && c.upload.Load() {
		c.lingers.Read(c.Conn, math.MaxInt64, make([]byte, minInput), nil)
	}
	return err
}

// stater is a connection with TLS.
type stater interface{ ConnectionState() tls.ConnectionState }

// begunTLS is a begun connection with TLS, whose state net/http asks for.
type begunTLS struct {
	*begun
	stater
}
