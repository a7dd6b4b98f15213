package h1

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"sync"
	"time"
)

// work is what a request needs, kept for the next one of any connection.
type work struct {
	s        *Server
	header   http.Header // of the request
	values   []string    // of its fields
	body     body
	response response
}

func newWork() *work {
	return &work{header: http.Header{}, response: response{header: http.Header{}}}
}

// begin makes the request whose head c has. ok is false if net/http has to judge it.
func (k *work) begin(c *conn) (q *request, ok bool) {
	k.s = c.s
	q = &request{c: c, work: k}
	q.http = new(http.Request).WithContext(q)
	q.http.Header = k.header
	k.values, ok = c.head.fill(q.http, &q.url, k.values[:0], c.in[c.r:])
	return q, ok
}

// release puts k back, unless an answer has made it large.
func (k *work) release() {
	if len(k.response.header) > maxFields || cap(k.response.out) > maxOut {
		return
	}
	clear(k.header)
	clear(k.values)
	clear(k.response.header)
	k.body = body{}
	k.response.c = nil
	k.s.pool.Put(k)
}

// request is a request that is in the handler, and its context. The context ends with the request,
// and before that if the client hangs up: but only once somebody asks for Done does a goroutine
// watch the connection for that. Decisions that need not wait never ask.
type request struct {
	http *http.Request
	c    *conn
	work *work
	url  url.URL

	mu     sync.Mutex
	ended  bool
	inner  context.Context // nil until somebody asks for Done
	cancel context.CancelFunc
	watch  watch
}

// fill adds the body, and what the connection tells.
func (q *request) fill(b []byte) {
	r := q.http
	r.RemoteAddr, r.TLS = q.c.remote, q.c.tls
	if r.ContentLength == 0 {
		r.Body = http.NoBody
		return
	}
	q.work.body = body{rest: b}
	r.Body = &q.work.body
}

// Deadline implements context.Context.
func (q *request) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }

// Done implements context.Context.
func (q *request) Done() <-chan struct{} {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.inner == nil {
		q.inner, q.cancel = context.WithCancel(q.c.s.ctx)
		if q.ended {
			q.cancel()
		} else {
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
	q.mu.Lock()
	q.ended = true
	started := q.inner != nil
	q.mu.Unlock()
	if started {
		q.watch.stop(q.c)
		q.cancel()
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
			// The deadline was stop's, or an old one, or that of Drain. stop says so before it sets
			// its own, which therefore is not lost here.
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

// stop ends it, and gives c what has come in.
func (w *watch) stop(c *conn) {
	w.mu.Lock()
	w.stopped = true
	w.mu.Unlock()
	_ = c.nc.SetReadDeadline(past)
	<-w.ended
	c.armed = past
	if w.n > 0 {
		if c.w == len(c.in) {
			c.makeRoom(c.w + w.n)
		}
		c.w += copy(c.in[c.w:], w.next[:w.n])
	}
}

// body is the body of a request.
type body struct {
	rest   []byte
	closed bool
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if b.closed {
		return 0, http.ErrBodyReadAfterClose
	}
	n := copy(p, b.rest)
	if b.rest = b.rest[n:]; len(b.rest) == 0 {
		return n, io.EOF
	}
	return n, nil
}

// Close implements io.Closer.
func (b *body) Close() error {
	b.closed = true
	return nil
}
