package h1

import (
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// conn is a connection. Only its own goroutine touches it, except for draining and a watch.
type conn struct {
	s      *Server
	nc     net.Conn
	remote string
	began  time.Time // when it was accepted

	in    []byte // in[r:w] has come in and is not yet answered
	r, w  int
	head  head
	begun time.Time // when the request in hand began to come in; zero while there is none
	used  bool      // a request has come in whole
	post  bool      // the last one was a POST

	failed error // of reading

	due   time.Time // when the awaited bytes have to be there; zero for never
	armed time.Time // the read deadline that is set; zero for none. It is never later than due, so
	// that it has to be moved only once it has passed
	writable time.Time // the write deadline that is set

	current *request             // the one that is in the handler
	tls     *tls.ConnectionState // nil without TLS

	draining atomic.Bool
	mu       sync.Mutex
	given    bool // to net/http; under mu
}

const (
	minInput = 4 << 10
	// freshFor is how long a new connection may be without a request when the server goes away, as
	// in net/http: its client may have sent one.
	freshFor = 5 * time.Second
)

func (s *Server) newConn(nc net.Conn) *conn {
	return &conn{s: s, nc: nc, began: time.Now()}
}

// past is a deadline that has passed.
var past = time.Unix(1, 0)

// Drain implements listen.Conn.
func (c *conn) Drain() {
	c.draining.Store(true)
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.given {
		_ = c.nc.SetReadDeadline(past) // c.more looks whether something has begun to come in
	}
}

// Close implements listen.Conn.
func (c *conn) Close() error { return c.nc.Close() }

// Serve implements listen.Conn.
func (c *conn) Serve() {
	defer func() {
		if p := recover(); p != nil && p != http.ErrAbortHandler {
			c.s.logf("http: panic serving %v: %v\n%s", c.remote, p, debug.Stack())
		}
		if c.current != nil {
			c.current.abort()
		}
		if !c.given {
			_ = c.nc.Close()
		}
	}()
	if t, ok := c.nc.(stater); ok {
		state := t.ConnectionState()
		c.tls = &state
		if state.NegotiatedProtocol == "h2" {
			c.give(c.nc)
			return
		}
	}
	if a := c.nc.RemoteAddr(); a != nil {
		c.remote = a.String()
	}
	c.in = make([]byte, minInput)
	for {
		switch c.next() {
		case partial:
			return
		case odd:
			c.handOver()
			return
		case whole:
		}
		keep, understood := c.answer()
		if !understood { // its target is odd
			c.handOver()
			return
		}
		if !keep {
			return
		}
	}
}

// handOver gives net/http the connection, with the bytes that were read from it.
func (c *conn) handOver() {
	const preface = "PRI "
	if in := c.in[c.r:min(c.w, c.r+len(preface))]; c.used && len(in) > 0 && string(in) == preface[:len(in)] {
		// To net/http the connection is a new one, on which this would begin HTTP/2. Who is behind
		// a proxy must not be able to change the protocol of its connection.
		c.bound()
		_, _ = io.WriteString(c.nc,
			"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request")
		return
	}
	b := &begun{Conn: c.nc, lingers: c.s.lingers, rest: c.in[c.r:c.w:c.w], err: c.failed}
	if t, ok := c.nc.(stater); ok {
		c.give(begunTLS{b, t})
		return
	}
	c.give(b)
}

// give gives net/http the connection, as nc.
func (c *conn) give(nc net.Conn) {
	c.mu.Lock()
	c.given = true
	c.mu.Unlock()
	_ = nc.SetDeadline(time.Time{})
	c.s.handed.give(nc)
}

// next reads the head of the next request. It returns partial when none comes any more, and odd
// when net/http has to judge it.
func (c *conn) next() state {
	c.head.reset()
	c.begun = time.Time{}
	t := &c.s.timeouts
	if c.used {
		c.due = after(time.Now(), t.idle)
	} else {
		c.due = after(c.began, t.header)
	}
	for {
		if c.w-c.r >= len("GET ") && c.begun.IsZero() {
			c.begun = time.Now()
			if c.used {
				c.due = after(c.begun, t.header)
			}
			if c.post && !c.skipBlank() {
				continue
			}
		}
		if !c.begun.IsZero() {
			switch state := c.head.read(c.in[c.r:c.w]); {
			case state == whole && c.head.next <= c.s.maxHead:
				return whole
			case state != partial || c.w-c.r > c.s.maxHead:
				return odd
			}
		}
		if err := c.more(); err != nil {
			if c.w == c.r || c.used && c.begun.IsZero() {
				return partial
			}
			c.failed = err
			return odd // net/http knows how to answer a head that is cut off
		}
	}
}

// skipBlank leaves out line ends that old clients send behind the body of a POST, as net/http does.
// It returns false if it needs more bytes than there are now.
func (c *conn) skipBlank() bool {
	c.post = false
	n := 0
	for n < 4 && (c.in[c.r+n] == '\r' || c.in[c.r+n] == '\n') {
		n++
	}
	c.r += n
	return c.r < c.w
}

// after is d after t; zero if d is no bound.
func after(t time.Time, d time.Duration) time.Time {
	if d == 0 {
		return time.Time{}
	}
	return t.Add(d)
}

func timeout(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// more reads until there are more bytes, or until c.due.
func (c *conn) more() error {
	if c.r == c.w {
		c.r, c.w = 0, 0
	}
	if c.w == len(c.in) {
		c.makeRoom()
	}
	for {
		c.arm()
		// Drain sets the flag before the deadline, and arm came before this, so that one of the two
		// is seen.
		if c.draining.Load() && c.idle() {
			return os.ErrDeadlineExceeded
		}
		n, err := c.nc.Read(c.in[c.w:])
		c.w += n
		switch {
		case n > 0:
			return nil
		case err == nil:
		case !timeout(err):
			return err
		case !c.due.IsZero() && !time.Now().Before(c.due):
			return err
		default:
			c.armed = past // it may have been Drain's
		}
	}
}

// arm sets the read deadline, unless the one that is set will do.
func (c *conn) arm() {
	if c.armed == past || !c.due.IsZero() && (c.armed.IsZero() || c.armed.After(c.due)) {
		_ = c.nc.SetReadDeadline(c.due)
		c.armed = c.due
	}
}

// idle reports whether nothing has been asked, and nothing will be that the server would have to
// wait for.
func (c *conn) idle() bool {
	switch {
	case !c.begun.IsZero():
		return false
	case c.used:
		// as in net/http, though the line end that some send behind a body may be there, or up to
		// three bytes of a request
		return true
	case c.r < c.w:
		return false
	}
	if end := c.began.Add(freshFor); c.due.IsZero() || c.due.After(end) {
		c.due = end
		c.arm()
	}
	return false
}

// makeRoom makes room for at least one byte more. It grows the buffer only as bytes come in.
func (c *conn) makeRoom() {
	if c.r > 0 {
		copy(c.in, c.in[c.r:c.w])
		c.w -= c.r
		c.r = 0
		if c.w < len(c.in) {
			return
		}
	}
	bigger := make([]byte, 2*len(c.in))
	copy(bigger, c.in[:c.w])
	c.in = bigger
}

// answer answers the request whose head is there. keep reports whether another one may follow. A
// request that is not understood is for net/http.
func (c *conn) answer() (keep, understood bool) {
	work := c.s.pool.Get().(*work)
	q, ok := work.begin(c)
	if !ok {
		work.release(c.s)
		return false, false
	}
	inBuffer := c.head.next + len(q.body.rest)
	c.bound()
	c.current = q
	c.s.handler.ServeHTTP(&q.response, q.http)
	q.end()
	keep = q.response.finish()
	kept, cut := q.body.end(q.response.err == nil && !q.http.Close)
	q.watch.give(c)
	if q.response.hasDeadline.Load() {
		c.writable = time.Time{}
		_ = c.nc.SetWriteDeadline(c.writable)
	}
	c.current = nil
	work.release(c.s)
	if cut > 0 && q.response.err == nil {
		c.linger(cut)
	}
	c.used, c.post = true, c.head.method == http.MethodPost
	c.r += inBuffer
	if len(c.in) > minInput && c.w-c.r < minInput { // a large request was rare
		c.shrink()
	}
	return keep && kept && !c.draining.Load(), true
}

// linger lets a client that has still to send so many bytes take its answer: if the connection were
// closed at once, the answer could be lost. Where there is no room for that, it gets as long as
// net/http gives it.
func (c *conn) linger(left int64) {
	if w, ok := c.nc.(interface{ CloseWrite() error }); ok {
		_ = w.CloseWrite()
	}
	if !c.s.lingers.Read(c.nc, left, c.in, c.draining.Load) {
		time.Sleep(500 * time.Millisecond)
	}
}

// shrink gives a large buffer back.
func (c *conn) shrink() {
	small := make([]byte, minInput)
	c.w = copy(small, c.in[c.r:c.w])
	c.r, c.in = 0, small
}

// bound makes the answer to a request that is there fail if it takes too long: at least as long as
// the server's time-out says, and at most a quarter longer. To set the deadline for each answer
// would cost more than the rest of this.
func (c *conn) bound() {
	d := c.s.timeouts.write
	if d == 0 {
		return
	}
	if now := time.Now(); c.writable.Sub(now) < d {
		c.writable = now.Add(d + d/4)
		_ = c.nc.SetWriteDeadline(c.writable)
	}
}
