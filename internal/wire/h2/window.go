package h2

import (
	"context"
	"sync"
	"time"
)

// widenStep is by how much the window of a connection grows and shrinks.
const widenStep = 256 << 10

// openWindow lets the client send as much more on the connection as has been read by those whom it
// was for. mu must be held.
func (c *conn) openWindow() {
	c.widen()
	left := connWindow + c.extra - c.unread
	if more := left - c.recvWindow; more >= max(left/2, maxFrame) {
		c.out = appendWindowUpdate(c.out, 0, more)
		c.recvWindow += more
	}
	if shut := c.recvWindow < maxFrame; shut != c.shut {
		c.shut = shut
		c.window.set(shut)
	}
}

// widen makes the window of the connection wider, so that bodies that nobody reads do not shut it
// for others, and narrower when they have been read. mu must be held.
func (c *conn) widen() {
	if c.dead {
		return
	}
	want := max(0, c.unread-connWindow/2)
	for c.extra < want && c.s.lend(c.extra) {
		c.extra += widenStep
	}
	if c.extra-want >= widenStep {
		n := min(c.extra-want, connWindow+c.extra-c.unread-c.recvWindow) / widenStep * widenStep
		c.extra -= n
		c.s.extra.Add(-int64(n))
	}
}

// lend lets a connection whose window is so much wider already make it wider by a step. All windows
// together are wider by an eighth of the budget for memory at most, and no connection has more of
// that than is left.
func (s *Server) lend(has int) bool {
	lent := s.extra.Add(widenStep)
	if int64(has+widenStep) > int64(s.o.MaxMemory/8)-(lent-widenStep) {
		s.extra.Add(-widenStep)
		return false
	}
	return true
}

// Window measures for how long the client of a connection could not send bodies, since others of
// its own had not been read. Safe for concurrent use.
type Window struct {
	mu    sync.Mutex
	total time.Duration
	since time.Time // when it was shut; zero while it is open
}

// WindowOf returns the Window of the connection of a request, by its context; nil if it came over
// another protocol.
func WindowOf(ctx context.Context) *Window {
	if c, ok := ctx.Value(connKey{}).(*conn); ok {
		return &c.window
	}
	return nil
}

// Shut returns how long it has been shut so far. It is 0 for a nil Window.
func (w *Window) Shut() time.Duration {
	if w == nil {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.since.IsZero() {
		return w.total
	}
	return w.total + time.Since(w.since)
}

func (w *Window) isShut() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.since.IsZero()
}

func (w *Window) set(shut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case shut == !w.since.IsZero():
	case shut:
		w.since = time.Now()
	default:
		w.total += time.Since(w.since)
		w.since = time.Time{}
	}
}

// dueAgain is after how long a deadline is looked at again that has passed while the window of the
// connection is shut.
const dueAgain = 100 * time.Millisecond

// due is when the deadline of reading the body of st passes: time in which the window of the
// connection is shut does not count. mu must be held.
func (c *conn) due(st *stream) time.Time {
	by := st.readBy.Add(c.window.Shut() - st.shut)
	if c.window.isShut() {
		if again := time.Now().Add(dueAgain); by.Before(again) {
			return again
		}
	}
	return by
}
