package upstream

import (
	"bufio"
	"context"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"syscall"
	"time"
)

// conn is one connection. It is used by one request at a time.
type conn struct {
	client *Client
	net.Conn
	raw  syscall.RawConn // nil if the connection is not to be kept
	in   *bufio.Reader   // from Read
	idle time.Time       // since when

	// Of the request under way.
	ctx      context.Context
	by       time.Time   // when the header must be there; zero for ever, and after it
	stop     func() bool // of the watch for ctx's end; nil while it is not watched
	leaver   Leaver      // asked when ctx ends before the header is there; nil cuts
	limit    int64       // bytes that may still be read
	failed   error       // what Read returned last, if it was an error
	cut      bool        // the server did not take all of the request
	closed   bool        // see close
	sender   *sender     // of the rest of a large body; else nil
	fields   [maxFields]field
	response Response
	waits    func() // called before more is waited for; nil for nothing

	until time.Time // the deadline that is set; zero for none
	quiet bool      // what probe found
	probe func(fd uintptr)
	take  func(fd uintptr) bool // of readNow
	into  []byte
	taken int
}

// timeoutError says that the server took too long. It is a net.Error.
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

// dial opens a connection.
func (c *Client) dial(ctx context.Context) (*conn, error) {
	c.Connections.add()
	open, err := c.Dial(ctx, "tcp", c.Address)
	if err != nil {
		c.Connections.remove()
		return nil, err
	}
	conn := &conn{client: c, Conn: open}
	conn.in = bufio.NewReaderSize(conn, readBuffer)
	conn.prepare()
	return conn, nil
}

// ask sends a request and waits for the first byte of its response. sent says, after an error,
// whether the upstream may have seen some of it.
func (c *conn) ask(ctx context.Context, now time.Time, q *Request) (sent bool, err error) {
	c.ctx, c.limit, c.by, c.failed, c.leaver = ctx, MaxHeader, time.Time{}, nil, q.leaver
	c.response = Response{conn: c, method: q.method, keep: true}
	first := watchAfter
	if c.client.HeaderTimeout > 0 {
		c.by, first = now.Add(c.client.HeaderTimeout), min(first, c.client.HeaderTimeout)
	}
	// Setting a deadline costs more than looking at one: it moves when half of it is over.
	if left := c.until.Sub(now); left < first/2 || left > first {
		c.setDeadline(now.Add(first))
	}
	n, failed := c.write(q.b)
	c.cut = failed != nil
	switch {
	case failed == nil:
	case n == 0:
		return false, failed
	case ctx.Err() != nil: // then nobody waits for an answer
		return true, failed
	}
	if q.rest != nil && failed == nil {
		c.sender = newSender(c, q)
		go c.sender.run()
		// Most bodies are sent by then, and nobody has to look for an early answer meanwhile, which
		// would cost its own waiting, and the connection if it ends first.
		c.sender.wait(first)
	}
	// A server may answer and close before it has read all: the answer counts more than the error.
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

func (c *conn) write(p []byte) (n int, err error) {
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
func (c *conn) Read(p []byte) (int, error) {
	if c.limit <= 0 {
		c.failed = errHeaderLarge
		return 0, c.failed
	}
	if int64(len(p)) > c.limit {
		p = p[:c.limit]
	}
	if c.waits != nil {
		if n := c.readNow(p); n > 0 {
			c.limit -= int64(n)
			return n, nil
		}
		c.waits()
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

// late is called when a deadline is over. It returns an error if that is the end of the request;
// else it sets the next deadline.
func (c *conn) late() error {
	by := c.by
	if !by.IsZero() {
		now := time.Now()
		if c.sender != nil {
			by = c.sender.by(now, c.client.HeaderTimeout)
		}
		if !now.Before(by) {
			return timeoutError{}
		}
	}
	c.setDeadline(by)
	if c.stop == nil {
		c.stop = context.AfterFunc(c.ctx, c.abort)
	}
	// Looked at after the deadline was set, which may have undone what abort or the sender did.
	if c.sender != nil {
		if err := c.sender.failure(); err != nil {
			return err
		}
	}
	if !c.wanted() {
		return context.Cause(c.ctx)
	}
	return nil
}

// wanted reports whether the answer is still waited for. A request that nobody waits for may go on
// to its header all the same.
func (c *conn) wanted() bool {
	if c.ctx.Err() == nil {
		return true
	}
	if c.leaver == nil {
		return false
	}
	ctx := c.leaver.Abandon()
	if c.leaver = nil; ctx == nil {
		return false
	}
	if c.stop != nil {
		c.stop() // it has run, or is about to: late meets that once more
	}
	c.ctx, c.stop = ctx, context.AfterFunc(ctx, c.abort)
	return ctx.Err() == nil
}

// setDeadline bounds the waits of the connection, except a sender's, which bounds its own. It fails
// only on a closed connection, as will the calls after it.
func (c *conn) setDeadline(t time.Time) {
	if c.sender != nil {
		_ = c.SetReadDeadline(t)
		return
	}
	_ = c.SetDeadline(t)
	c.until = t
}

// abort ends every wait of the connection, since the context has ended.
func (c *conn) abort() { _ = c.SetDeadline(time.Unix(1, 0)) }

// headerRead says that the header is there: the body may take as long as it flows.
func (c *conn) headerRead() {
	c.by, c.limit, c.leaver = time.Time{}, math.MaxInt64, nil
}

// done ends a request. The connection is kept for the next one if nothing is left on it and keep
// allows it.
func (c *conn) done(keep bool) {
	if s := c.sender; s != nil {
		keep = keep && s.ended()
		c.sender, c.until = nil, time.Time{} // the two directions may have different deadlines
	}
	c.waits, c.response = nil, Response{}
	if c.stop != nil {
		keep = c.stop() && keep // else abort may be about to set a deadline
		c.stop = nil
	}
	c.ctx, c.leaver = nil, nil
	if !keep || c.cut || c.raw == nil || c.in.Buffered() > 0 {
		c.close()
		return
	}
	c.client.put(c)
}

// close gives the connection up.
func (c *conn) close() {
	if c.stop != nil {
		c.stop()
	}
	_ = c.Conn.Close() // nothing is expected of it any more
	if !c.closed {
		c.closed = true
		c.client.Connections.remove()
	}
}
