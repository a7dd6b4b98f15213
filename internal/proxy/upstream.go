package proxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// upstream keeps connections to the upstream for the direct way. Safe for concurrent use.
type upstream struct {
	address string
	connect func(ctx context.Context, network, address string) (net.Conn, error)
	wait    time.Duration // for the header of a response; 0 for ever

	mu      sync.Mutex
	conns   []*upstreamConn // idle, the longest idle first
	sweeper *time.Timer     // nil before the first connection was idle
	sweeps  bool            // the sweeper runs
}

const (
	// sweepEvery is how often idle connections are looked after: those that have been idle for long and those that the upstream
	// has closed are closed.
	sweepEvery = 5 * time.Second
	// watchAfter is how long a request waits for its upstream before the client's hang-up is watched for. What is
	// answered sooner is not worth the watching.
	watchAfter = 50 * time.Millisecond
	// responseBuffer is the size of a connection's read buffer; http.Transport's is the same.
	responseBuffer = 4 << 10
)

// upstreamConn is one connection. It is used by one request at a time.
type upstreamConn struct {
	pool *upstream
	net.Conn
	raw  syscall.RawConn // nil if the connection is not to be kept
	in   *bufio.Reader   // from Read
	idle time.Time       // since when

	// Of the request under way.
	ctx    context.Context
	by     time.Time   // when the header must be there; zero for ever, and after it
	stop   func() bool // of the watch for ctx's end; nil while it is not watched
	limit  int64       // bytes that may still be read
	failed error       // what Read returned last, if it was an error
	cut    bool        // the upstream did not take all of the request
	fields [maxFields]field
	reply  delivery
	// beforeRead is called before more is read from the connection; nil for nothing.
	beforeRead func()

	until time.Time // the deadline that is set; zero for none
	quiet bool      // what probe found
	probe func(fd uintptr)
}

// timeoutError says that the upstream took too long. It is a net.Error.
type timeoutError struct{}

// Error implements error.
func (timeoutError) Error() string { return "it did not answer in time" }

// Timeout implements net.Error.
func (timeoutError) Timeout() bool { return true }

// Temporary implements net.Error.
func (timeoutError) Temporary() bool { return true }

var (
	errNoAnswer    = errors.New("it closed the connection without an answer")
	errHeaderLarge = errors.New("the header of its answer is larger than 1 MiB")
)

// idle takes the connection that was used last and that the upstream neither has closed nor said something on; nil if there is none.
func (u *upstream) idle() *upstreamConn {
	for {
		u.mu.Lock()
		n := len(u.conns) - 1
		if n < 0 {
			u.mu.Unlock()
			return nil
		}
		c := u.conns[n]
		u.conns[n] = nil
		u.conns = u.conns[:n]
		u.mu.Unlock()
		if c.alive() {
			return c
		}
		c.close()
	}
}

// dial opens a connection.
func (u *upstream) dial(ctx context.Context) (*upstreamConn, error) {
	conn, err := u.connect(ctx, "tcp", u.address)
	if err != nil {
		return nil, err
	}
	c := &upstreamConn{pool: u, Conn: conn}
	c.in = bufio.NewReaderSize(c, responseBuffer)
	c.prepare()
	return c, nil
}

// put takes a connection back whose response has ended.
func (u *upstream) put(c *upstreamConn) {
	c.idle = time.Now()
	u.mu.Lock()
	if len(u.conns) >= idlePerHost {
		u.mu.Unlock()
		c.close()
		return
	}
	u.conns = append(u.conns, c)
	if !u.sweeps {
		u.sweeps = true
		if u.sweeper == nil {
			u.sweeper = time.AfterFunc(sweepEvery, u.sweep)
		} else {
			u.sweeper.Reset(sweepEvery)
		}
	}
	u.mu.Unlock()
}

// sweep closes connections that have been idle for long, or that the upstream has closed. It runs as long as there are any.
func (u *upstream) sweep() {
	now := time.Now()
	var gone []*upstreamConn
	u.mu.Lock()
	kept := u.conns[:0]
	for _, c := range u.conns {
		if now.Sub(c.idle) >= idleTimeout || !c.alive() {
			gone = append(gone, c)
		} else {
			kept = append(kept, c)
		}
	}
	clear(u.conns[len(kept):])
	u.conns = kept
	if u.sweeps = len(kept) > 0; u.sweeps {
		u.sweeper.Reset(sweepEvery)
	}
	u.mu.Unlock()
	for _, c := range gone {
		c.close()
	}
}

// ask sends a request and waits for the first byte of its response. sent tells, after an error, whether the upstream may have seen some
// of it.
func (c *upstreamConn) ask(ctx context.Context, now time.Time, request []byte) (sent bool, err error) {
	c.ctx, c.limit, c.by, c.failed = ctx, maxRespHeader, time.Time{}, nil
	first := watchAfter
	if c.pool.wait > 0 {
		c.by, first = now.Add(c.pool.wait), min(first, c.pool.wait)
	}
	// Setting a deadline costs more than looking at one: it moves when half of it is over.
	if left := c.until.Sub(now); left < first/2 || left > first {
		c.setDeadline(now.Add(first))
	}
	n, failed := c.write(request)
	c.cut = failed != nil
	if n == 0 && failed != nil {
		return false, failed
	}
	// An upstream may answer and close before it has read all: what it says counts more than that it did not listen.
	if _, err := c.in.Peek(1); err != nil {
		switch {
		case failed != nil:
			err = failed
		case err == io.EOF:
			err = errNoAnswer
		}
		return true, err
	}
	return true, nil
}

func (c *upstreamConn) write(p []byte) (n int, err error) {
	for n < len(p) {
		m, err := c.Conn.Write(p[n:])
		n += m
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = c.late()
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// Read implements io.Reader.
func (c *upstreamConn) Read(p []byte) (int, error) {
	if c.limit <= 0 {
		c.failed = errHeaderLarge
		return 0, c.failed
	}
	if int64(len(p)) > c.limit {
		p = p[:c.limit]
	}
	if c.beforeRead != nil {
		c.beforeRead()
	}
	for {
		n, err := c.Conn.Read(p)
		if err != nil && errors.Is(err, os.ErrDeadlineExceeded) {
			if err = c.late(); err == nil && n == 0 {
				continue
			}
		}
		c.limit -= int64(n)
		c.failed = err
		return n, err
	}
}

// late is called when a deadline is over. It returns an error if that is the end of the request; else it sets the next deadline.
func (c *upstreamConn) late() error {
	if !c.by.IsZero() && !time.Now().Before(c.by) {
		return timeoutError{}
	}
	c.setDeadline(c.by)
	if c.stop == nil {
		c.stop = context.AfterFunc(c.ctx, c.abort)
	}
	// Looked at after the deadline was set, which may have undone what abort did.
	if c.ctx.Err() != nil {
		return context.Cause(c.ctx)
	}
	return nil
}

func (c *upstreamConn) setDeadline(t time.Time) {
	_ = c.SetDeadline(t) // fails only on a closed connection, as will what follows
	c.until = t
}

// abort ends what the connection waits for, since the client is gone.
func (c *upstreamConn) abort() { _ = c.SetDeadline(time.Unix(1, 0)) }

// headerRead says that the header is there: the body may take as long as it flows.
func (c *upstreamConn) headerRead() {
	c.by, c.limit = time.Time{}, math.MaxInt64
}

// done ends a request. The connection is kept for the next one if nothing is left on it and keep allows it.
func (c *upstreamConn) done(keep bool) {
	if c.stop != nil {
		keep = c.stop() && keep // else abort may be about to set a deadline
		c.stop = nil
	}
	c.ctx = nil
	if !keep || c.cut || c.raw == nil || c.in.Buffered() > 0 {
		c.close()
		return
	}
	c.pool.put(c)
}

// close gives the connection up.
func (c *upstreamConn) close() {
	if c.stop != nil {
		c.stop()
	}
	_ = c.Conn.Close() // nothing is expected of it any more
}
