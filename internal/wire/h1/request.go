package h1

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// work is the memory of a request, kept for the next one of any connection.
type work struct {
	header http.Header // of the request
	values []string    // of its fields

	answer http.Header
	keys   []string // of answer, or of the one before, sorted
	buffer []byte   // of the answer's body
	out    []byte   // to be sent
}

func newWork() *work { return &work{header: http.Header{}, answer: http.Header{}} }

// begin makes the request whose head c has. ok is false if net/http has to judge it.
func (k *work) begin(c *conn) (q *request, ok bool) {
	q = &request{c: c}
	q.http = new(http.Request).WithContext(q)
	q.http.Header = k.header
	k.values, ok = c.head.fill(q.http, &q.url, k.values[:0], c.in[c.r:])
	if !ok {
		return nil, false
	}
	r := q.http
	r.RemoteAddr, r.TLS, r.Body = c.remote, c.tls, http.NoBody
	q.body.begin(q, c.in[c.r+c.head.next:c.w], c.head.length, after(c.begun, c.s.timeouts.read))
	if r.ContentLength != 0 {
		r.Body = &q.body
	}
	q.arrived = q.body.left == 0
	q.response.begin(q, k)
	return q, true
}

// release puts k back, unless an answer has made it large.
func (k *work) release(s *Server) {
	if len(k.answer) > maxFields || cap(k.out) > 2*maxOut {
		return
	}
	clear(k.header)
	clear(k.values)
	clear(k.answer)
	s.pool.Put(k)
}

// request is a request that is in the handler, and its context. The context ends with the request,
// and before that if the client hangs up: but only once somebody asks for Done does a goroutine
// watch the connection for that. Decisions that need not wait, and requests that are answered soon,
// never ask. Before the body has come in nobody can watch; then it is the body's reader who learns
// it.
//
// It is not used again: anybody who holds on to a part of it, as http.Transport may to the body,
// finds it closed.
type request struct {
	http     *http.Request
	c        *conn
	url      url.URL
	body     body
	response response

	mu      sync.Mutex
	ended   bool            // or the client is known to have hung up
	arrived bool            // all of the body has come in
	inner   context.Context // nil until somebody asks for Done
	cancel  context.CancelFunc
	watch   watch
}

// Deadline implements context.Context.
func (q *request) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// Done implements context.Context.
func (q *request) Done() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.inner == nil {
		q.inner, q.cancel = context.WithCancel(q.c.s.ctx)
		switch {
		case q.ended:
			q.cancel()
		case q.arrived:
			q.watch.start(q.c.nc, q.cancel)
		}
	}
	return q.inner.Done()
}

// Err implements context.Context.
func (q *request) Err() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.inner != nil:
		return q.inner.Err()
	case q.ended:
		return context.Canceled
	}
	return q.c.s.ctx.Err()
}

// Value implements context.Context.
func (q *request) Value(key any) any {
	switch key {
	case http.ServerContextKey:
		return q.c.s.rest
	case http.LocalAddrContextKey:
		return q.c.nc.LocalAddr()
	}
	q.mu.Lock()
	inner := q.inner
	q.mu.Unlock()
	if inner == nil {
		return nil
	}
	return inner.Value(key) // so that contexts of it need no goroutine to end with it
}

// end ends the context.
func (q *request) end() {
	q.hangUp()
	if q.watch.ended != nil {
		q.watch.stop(q.c)
	}
}

// abort ends it when the handler has panicked. The bytes sent so far show the client that the
// answer breaks off.
func (q *request) abort() {
	q.end()
	q.response.abort()
	_, _ = q.body.end(false)
}

// hangUp ends the context, since the connection has failed or the request is over.
func (q *request) hangUp() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	if q.cancel != nil {
		q.cancel()
	}
}

// hasArrived says that all of the body has come in.
func (q *request) hasArrived() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.arrived = true
	if q.inner != nil && !q.ended {
		q.watch.start(q.c.nc, q.cancel)
	}
}

// watch reads from a connection while a request is in the handler, to learn that its client has
// hung up.
type watch struct {
	ended   chan struct{}
	mu      sync.Mutex
	stopped bool
	n       int // of the bytes that came instead, which belong to a further request
	next    [1]byte
}

// start begins to watch nc, and calls gone if nothing more can come over it. The next one who reads
// or writes learns that as well: a client that has only ended its sending gets its answers.
func (w *watch) start(nc net.Conn, gone func()) {
	w.ended = make(chan struct{})
	go func() {
		defer close(w.ended)
		for {
			n, err := nc.Read(w.next[:])
			if n > 0 {
				w.n = n
				return
			}
			if !timeout(err) {
				gone()
				return
			}
			// The deadline was stop's, an old one, or Drain's. stop says so before it sets its own,
			// which therefore is not lost here.
			_ = nc.SetReadDeadline(time.Time{})
			w.mu.Lock()
			stopped := w.stopped
			w.mu.Unlock()
			if stopped {
				return
			}
		}
	}()
}

// stop ends it.
func (w *watch) stop(c *conn) {
	w.mu.Lock()
	w.stopped = true
	w.mu.Unlock()
	_ = c.nc.SetReadDeadline(past)
	<-w.ended
	c.armed = past
}

// give gives c the bytes that have come in. Nobody may read the body any more, whose bytes this may
// move.
func (w *watch) give(c *conn) {
	if w.n > 0 {
		if c.w == len(c.in) {
			c.makeRoom()
		}
		c.w += copy(c.in[c.w:], w.next[:w.n])
	}
}
