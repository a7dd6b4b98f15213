// Package upstream is an HTTP/1.1 client for a reverse proxy: it sends requests to one server, over
// connections that it keeps, and hands the answers on as they come. Begin with Client.Send.
//
// It exists for speed. A request takes it in the goroutine that serves it, is written from one
// buffer, and its answer's header is parsed straight into the map from which net/http's server
// writes it. http.Transport hands each request and each response from goroutine to goroutine, and
// httputil.ReverseProxy copies both headers. `cd benchmarks && go run ./proxyload` measures the
// processor time of whole proxies: with this client, and package h1 before it, 1.5 times what nginx
// takes for a small request, where httputil.ReverseProxy without any limits takes 4 times
// (docs/operating/capacity.md). `go test -bench Proxy ./internal/door/proxy` sets both ways of the
// same proxy beside each other, with client and upstream.
//
// It does only what is common, so that little of it can be wrong, and refuses the rest, for which
// its user needs another client:
//
//   - Requests have no body, or one whose length is known. Its first MaxBody bytes are read before
//     anything is sent; the rest is sent as it comes (sender.go). There are no request trailers, no
//     Upgrade and no Expect.
//   - Request writes the fields that frame a message itself, and refuses them from its user. It
//     refuses input that would make two requests of one: line ends and other control characters,
//     spaces in a method or a target, names of fields that are no tokens. See Request.OK.
//   - No TLS, no HTTP/2, no proxies, no redirects, no compression.
//   - It parses a response itself only if the header is complete in the read buffer and has nothing
//     unusual. Every other response goes to http.ReadResponse, so that there is no second opinion
//     on its meaning. Its own parser must agree with http.ReadResponse, which the fuzz targets
//     hold.
//   - Everything is bounded: the header of a response (MaxHeader), its trailers and lines of chunks
//     (the read buffer), the connections that are kept (MaxIdle, Client.IdleTimeout), and the wait
//     for a header (Client.HeaderTimeout).
//   - A connection is used again only if the response says beyond doubt where it ends, all of the
//     request was taken, and nothing has come since.
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

// Bounds of a Client's memory and reads.
const (
	MaxIdle = 512 // connections that are kept idle
	// bytes of a response's header, each informational one for itself
	MaxHeader = 1 << 20
	// MaxBody is how much of the body of a request is read before it is sent, and is kept until it
	// is. A larger body is sent in parts.
	MaxBody = 32 << 10
	// MaxRepeat is the largest body that is kept whole until the answer begins, so that the request
	// can be sent again. See Repeatable.
	MaxRepeat = 64 << 10
)

// DefaultIdle is how long a connection is kept idle by default. It is less than common servers
// allow, of which gunicorn has the least, 2 s; with Node, Apache and uvicorn it is 5 s. A request
// that is sent just when its server closes the connection is lost.
const DefaultIdle = 1500 * time.Millisecond

const (
	// sweepEvery is how often idle connections are looked after, or more often where IdleTimeout is
	// less: connections that have been idle too long, or that the server has closed, are closed.
	sweepEvery = 5 * time.Second
	// watchAfter is how long a request waits for its response before it watches for the end of its
	// context. Quicker answers are not worth the watching.
	watchAfter = 50 * time.Millisecond
	// readBuffer is the size of a connection's read buffer; http.Transport's is the same.
	readBuffer = 4 << 10
)

// Dial opens a connection.
type Dial func(ctx context.Context, network, address string) (net.Conn, error)

// Client sends requests to one server. Set its fields before the first request. Safe for concurrent
// use.
type Client struct {
	// Address is the server's, as host:port.
	Address string
	// Dial opens a connection. It must not be nil.
	Dial Dial
	// Connections counts the connections, if it is not nil.
	Connections *Connections
	// HeaderTimeout is the longest wait for the header of a final response, counted from when the
	// request is sent; 0 is none. Of a body above MaxBody the server may take as long as the client
	// takes to send it, but none of its parts may wait for longer than this before the header.
	HeaderTimeout time.Duration
	// IdleTimeout is for how long a connection is kept idle; 0 means DefaultIdle, and below 0 none
	// is kept.
	IdleTimeout time.Duration

	again atomic.Uint64 // see Repeated

	mu      sync.Mutex
	conns   []*conn     // idle, the longest idle first
	sweeper *time.Timer // nil before the first connection was idle
	sweeps  bool        // the sweeper runs
}

var errRequest = errors.New("upstream: the request is not complete, or not valid")

// Send sends a request, and returns when the first byte of the response has come. Close must be
// called on the Response. After an error there is none; one that has taken too long is a net.Error
// with Timeout. The response may come while a body above MaxBody is still being sent; if reading
// that fails, so does all that waits for the response, with the same error.
//
// If the server closes the idle connection that is used before any byte of an answer, the request
// is sent once more on a new one, unless the server may have acted on it: if nothing of it was
// sent, or if its method is Repeatable or it has a field of RepeatKeys, and all of it is still held
// (MaxRepeat). HeaderTimeout counts anew then. Send does not keep q.
func (c *Client) Send(ctx context.Context, q *Request) (*Response, error) {
	if !q.complete() {
		return nil, errRequest
	}
	now := time.Now()
	if conn := c.idle(now); conn != nil {
		sent, err := conn.ask(ctx, now, q)
		if err == nil {
			return &conn.response, nil
		}
		conn.giveUp(ctx, q)
		if errors.Is(err, timeoutError{}) || ctx.Err() != nil || sent && !q.sendable() {
			return nil, err
		}
		if sent {
			c.again.Add(1)
		}
	}
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	if _, err := conn.ask(ctx, time.Now(), q); err != nil {
		conn.giveUp(ctx, q)
		return nil, err
	}
	return &conn.response, nil
}

// Repeated counts the requests that were sent a second time.
func (c *Client) Repeated() uint64 { return c.again.Load() }

// DropIdle closes the connection that has been idle longest, and reports whether there was one.
func (c *Client) DropIdle() bool {
	c.mu.Lock()
	if len(c.conns) == 0 {
		c.mu.Unlock()
		return false
	}
	conn := c.conns[0]
	c.conns = slices.Delete(c.conns, 0, 1)
	c.mu.Unlock()
	conn.close()
	return true
}

// CloseIdle closes the connections that are idle now.
func (c *Client) CloseIdle() {
	for c.DropIdle() {
	}
}

// idle takes the connection that was used last, if that is not too long ago and the server has
// neither closed it nor sent anything since; nil if there is none.
func (c *Client) idle(now time.Time) *conn {
	for {
		c.mu.Lock()
		n := len(c.conns) - 1
		if n < 0 {
			c.mu.Unlock()
			return nil
		}
		conn := c.conns[n]
		if now.Sub(conn.idle) >= c.idleTimeout() { // and so are all others: sweep closes them
			c.mu.Unlock()
			return nil
		}
		c.conns[n] = nil
		c.conns = c.conns[:n]
		c.mu.Unlock()
		if conn.alive() {
			return conn
		}
		conn.close()
	}
}

func (c *Client) idleTimeout() time.Duration {
	if c.IdleTimeout == 0 {
		return DefaultIdle
	}
	return c.IdleTimeout
}

// sweepAfter is how long sweep pauses.
func (c *Client) sweepAfter() time.Duration {
	return min(sweepEvery, max(c.idleTimeout(), sweepEvery/50))
}

// put takes a connection back whose response has ended.
func (c *Client) put(conn *conn) {
	conn.idle = time.Now()
	c.mu.Lock()
	if len(c.conns) >= MaxIdle || c.IdleTimeout < 0 {
		c.mu.Unlock()
		conn.close()
		return
	}
	c.conns = append(c.conns, conn)
	if !c.sweeps {
		c.sweeps = true
		if c.sweeper == nil {
			c.sweeper = time.AfterFunc(c.sweepAfter(), c.sweep)
		} else {
			c.sweeper.Reset(c.sweepAfter())
		}
	}
	c.mu.Unlock()
}

// sweep closes connections that have been idle too long, or that the server has closed. It runs as
// long as there are any.
func (c *Client) sweep() {
	now := time.Now()
	var gone []*conn
	c.mu.Lock()
	kept := c.conns[:0]
	for _, conn := range c.conns {
		if now.Sub(conn.idle) >= c.idleTimeout() || !conn.alive() {
			gone = append(gone, conn)
		} else {
			kept = append(kept, conn)
		}
	}
	clear(c.conns[len(kept):])
	c.conns = kept
	if c.sweeps = len(kept) > 0; c.sweeps {
		c.sweeper.Reset(c.sweepAfter())
	}
	c.mu.Unlock()
	for _, conn := range gone {
		conn.close()
	}
}
