package httplimit

import (
	"context"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
)

// waitingRoom holds requests until their turn in a leaky bucket has come, and lets those of one line leave in the order
// of their turns, however late their timers fire. The zero value is ready. Safe for concurrent use.
type waitingRoom struct {
	mu    sync.Mutex
	lines map[string]*line // by counter and key; a line without requests is forgotten
}

// line is the queue of one key, by turn.
type line struct{ tickets []*ticket }

type ticket struct {
	turn int64         // µs on the store's clock
	due  bool          // its timer has fired
	pass chan struct{} // closed when it may leave
}

// wait returns nil after delay, when all requests of the same line with an earlier turn have left; or the context's
// error if it is done before that.
func (w *waitingRoom) wait(ctx context.Context, name string, turn int64, delay time.Duration) error {
	t := &ticket{turn: turn, pass: make(chan struct{})}
	w.mu.Lock()
	if w.lines == nil {
		w.lines = make(map[string]*line)
	}
	l := w.lines[name]
	if l == nil {
		l = &line{}
		w.lines[name] = l
	}
	at := len(l.tickets)
	for at > 0 && l.tickets[at-1].turn > turn { // decisions may arrive here a little out of order
		at--
	}
	l.tickets = slices.Insert(l.tickets, at, t)
	w.mu.Unlock()

	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		w.mu.Lock()
		t.due = true
		w.advance(name, l)
		w.mu.Unlock()
	case <-ctx.Done():
		return w.leave(ctx, name, l, t)
	}
	select {
	case <-t.pass:
		return nil
	case <-ctx.Done():
		return w.leave(ctx, name, l, t)
	}
}

// leave takes t out of its line; nil if it had been let through already.
func (w *waitingRoom) leave(ctx context.Context, name string, l *line, t *ticket) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.Index(l.tickets, t)
	if i < 0 {
		return nil
	}
	l.tickets = slices.Delete(l.tickets, i, i+1)
	w.advance(name, l)
	return ctx.Err()
}

// advance lets those at the head of l through whose timers have fired. w.mu is held.
func (w *waitingRoom) advance(name string, l *line) {
	n := 0
	for n < len(l.tickets) && l.tickets[n].due {
		close(l.tickets[n].pass)
		n++
	}
	l.tickets = slices.Delete(l.tickets, 0, n)
	if len(l.tickets) == 0 && w.lines[name] == l {
		delete(w.lines, name)
	}
}

// readAheadMax bounds the body that is read while its request is held.
const readAheadMax = 64 << 10

// readAhead reads a small HTTP/1 body while its request is held, since net/http notices that a client hangs up only
// once the body is read. It is the body from then on.
type readAhead struct {
	body io.ReadCloser
	done chan struct{} // closed when buf and err are final
	buf  []byte
	err  error
}

// startReadAhead replaces r.Body, and calls hungUp if it cannot be read; it returns false if r's body is not to be read ahead.
func startReadAhead(r *http.Request, hungUp func()) bool {
	if r.ProtoMajor != 1 || r.Body == nil || r.Body == http.NoBody || r.ContentLength <= 0 || r.ContentLength > readAheadMax || r.Header.Get("Expect") != "" {
		return false
	}
	a := &readAhead{body: r.Body, done: make(chan struct{})}
	buf := make([]byte, r.ContentLength)
	r.Body = a
	go func() {
		defer close(a.done)
		var n int
		if n, a.err = io.ReadFull(a.body, buf); a.err == nil {
			// The end itself must be read: it is what sets net/http watching the connection.
			var extra [1]byte
			if _, a.err = a.body.Read(extra[:]); a.err == nil {
				a.err = io.ErrUnexpectedEOF
			}
		}
		a.buf = buf[:n]
		if a.err != io.EOF {
			hungUp()
		}
	}()
	return true
}

// Read implements io.Reader.
func (a *readAhead) Read(p []byte) (int, error) {
	<-a.done
	if len(a.buf) == 0 {
		return 0, a.err
	}
	n := copy(p, a.buf)
	a.buf = a.buf[n:]
	return n, nil
}

// Close implements io.Closer.
func (a *readAhead) Close() error { return a.body.Close() }
