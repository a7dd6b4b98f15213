package h2

import (
	"errors"
	"io"
	"math/bits"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// part is a piece of a body that has come in. b[at:] is not read yet.
type part struct {
	next *part
	at   int
	b    []byte
}

// parts are those that are free, by size: minPart, twice that, and so on to maxFrame. So nothing is
// allocated for a body in the long run, and nothing of it is moved as it grows.
var parts [maxPart + 1]sync.Pool

const (
	minPart = 512
	maxPart = 5 // minPart << maxPart is maxFrame
)

// newPart returns an empty part with room for n bytes or more, which is to follow last. It is not
// much larger than last's contents or n, so that small bodies take little memory.
func newPart(last *part, n int) *part {
	if last != nil {
		n = max(n, 2*cap(last.b))
	}
	size := min(bits.Len(uint(n-1)/minPart), maxPart)
	if p, ok := parts[size].Get().(*part); ok {
		return p
	}
	return &part{b: make([]byte, 0, minPart<<size)}
}

// free ends the use of p.
func (p *part) free() {
	p.next, p.at, p.b = nil, 0, p.b[:0]
	parts[bits.Len(uint(cap(p.b)/minPart))-1].Put(p)
}

// feed takes the next bytes of a body that a handler reads. mu must be held.
func (c *conn) feed(st *stream, p []byte) {
	var in int // how much of p goes into the last part
	last := st.lastPart
	if last != nil {
		in = min(len(p), cap(last.b)-len(last.b))
	}
	if in < len(p) {
		more := newPart(last, len(p)-in)
		if !c.hold(st, cap(more.b)) {
			more.free()
			c.resetLocked(st.id, enhanceYourCalm)
			return
		}
		more.b = append(more.b, p[in:]...)
		if st.lastPart = more; last == nil {
			st.parts = more
		} else {
			last.next = more
		}
	}
	if last != nil {
		last.b = append(last.b, p[:in]...)
	}
	st.unread += len(p)
	c.unread += len(p)
	st.cond.Broadcast()
}

// takeParts moves unread bytes of the body to p, as many as fit. mu must be held.
func (c *conn) takeParts(st *stream, p []byte) (n int) {
	for n < len(p) && st.parts != nil {
		first := st.parts
		m := copy(p[n:], first.b[first.at:])
		n += m
		if first.at += m; first.at == len(first.b) {
			c.letGo(st, cap(first.b))
			st.dropPart()
		}
	}
	st.unread -= n
	c.unread -= n
	return n
}

// dropPart forgets the first part. conn.mu must be held.
func (st *stream) dropPart() {
	first := st.parts
	if st.parts = first.next; st.parts == nil {
		st.lastPart = nil
	}
	first.free()
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
	trailer http.Header // the request's: the announced fields, without values
	proceed atomic.Bool // the client waits for a 100 to send it
	closed  atomic.Bool
	owed    int // bytes that were read, and not yet returned to the client's window
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
		case st.unread > 0 && len(p) > 0:
			return b.take(p), nil
		case st.closed:
			return 0, errStreamClosed
		case st.remoteClosed:
			for name := range b.trailer {
				if lines := st.trailer[name]; len(lines) > 0 {
					b.trailer[name] = lines
				}
			}
			return 0, io.EOF
		case st.late: // after the bytes that have come whole
			return 0, os.ErrDeadlineExceeded
		case len(p) == 0:
			return 0, nil
		}
		if !st.readBy.IsZero() && !st.wakeBy(c.due(st)) {
			return 0, os.ErrDeadlineExceeded
		}
		st.cond.Wait()
	}
}

// wakeBy sees to it that who waits for the body looks again at t, or before; false if t has passed.
// A deadline that nobody waits for costs no timer, and one that moves on moves none. conn.mu must
// be held.
func (st *stream) wakeBy(t time.Time) bool {
	left := time.Until(t)
	switch {
	case left <= 0:
		return false
	case !st.wakeAt.IsZero() && !st.wakeAt.After(t):
	case st.readTimer == nil:
		st.wakeAt = t
		st.readTimer = time.AfterFunc(left, st.wake)
	default:
		st.wakeAt = t
		st.readTimer.Reset(left)
	}
	return true
}

// wake has who waits for the body look again.
func (st *stream) wake() {
	st.cond.L.Lock()
	defer st.cond.L.Unlock()
	st.wakeAt = time.Time{}
	st.cond.Broadcast()
}

// take reads the bytes that have come in, and opens the windows for more. mu must be held.
func (b *body) take(p []byte) int {
	c, st := b.c, b.st
	n := c.takeParts(st, p)
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
