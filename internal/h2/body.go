package h2

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync/atomic"
)

// feed takes the next bytes of a body that a handler reads. mu must be held.
func (c *conn) feed(st *stream, p []byte) {
	if len(p) > 0 && !c.hold(st, len(p)) {
		c.resetLocked(st.id, enhanceYourCalm)
		return
	}
	if st.inAt > st.unread() { // or a body that is never caught up with would be kept whole
		st.in, st.inAt = append(st.in[:0], st.in[st.inAt:]...), 0
	}
	st.in = append(st.in, p...)
	c.unread += len(p)
	st.cond.Broadcast()
}

// unread is how much of the body has come in that the handler has not read. conn.mu must be held.
func (st *stream) unread() int { return len(st.in) - st.inAt }

// openWindow lets the client send as much more on the connection as has been read by those whom it
// was for. mu must be held.
func (c *conn) openWindow() {
	left := connWindow - c.unread
	if more := left - c.recvWindow; more >= max(left/2, maxFrame) {
		c.out = appendWindowUpdate(c.out, 0, more)
		c.recvWindow += more
	}
}

var (
	errStreamClosed = errors.New("h2: the client has cancelled the request, or its connection broke")
	errBodyClosed   = errors.New("http: invalid Read on closed Body")
)

// body is the body of a request. Unlike in net/http, any goroutine may read it, not just the
// handler's.
type body struct {
	c       *conn
	st      *stream
	w       *response
	trailer http.Header // the request's: what was announced, without values
	proceed atomic.Bool // the client waits to be told to send it
	closed  atomic.Bool
	owed    int // bytes that were read, and of which the client is not yet told
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	c, st := b.c, b.st
	if b.proceed.CompareAndSwap(true, false) {
		b.w.informContinue()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		switch {
		case b.closed.Load():
			return 0, errBodyClosed
		case st.unread() > 0 && len(p) > 0:
			return b.take(p), nil
		case st.late:
			return 0, os.ErrDeadlineExceeded
		case st.closed:
			return 0, errStreamClosed
		case st.remoteClosed:
			for name := range b.trailer {
				if lines := st.trailer[name]; len(lines) > 0 {
					b.trailer[name] = lines
				}
			}
			return 0, io.EOF
		case len(p) == 0:
			return 0, nil
		}
		st.cond.Wait()
	}
}

// take reads what has come in, and opens the windows for more. mu must be held.
func (b *body) take(p []byte) int {
	c, st := b.c, b.st
	n := copy(p, st.in[st.inAt:])
	if st.inAt += n; st.inAt == len(st.in) {
		st.in, st.inAt = st.in[:0], 0
		if cap(st.in) > maxInput {
			st.in = nil
		}
	}
	c.letGo(st, n)
	c.unread -= n
	told := len(c.out)
	if b.owed += n; !st.remoteClosed && !st.closed && b.owed >= c.s.o.Window/4 {
		st.recvWindow += b.owed
		c.out = appendWindowUpdate(c.out, st.id, b.owed)
		b.owed = 0
	}
	if c.openWindow(); len(c.out) > told {
		c.flush()
	}
	return n
}

// Close implements io.Closer.
func (b *body) Close() error {
	b.closed.Store(true)
	b.c.mu.Lock()
	b.st.cond.Broadcast()
	b.c.mu.Unlock()
	return nil
}
