package h2

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/net/http/httpguts"
)

// startHandler hands a request to Options.Handler.
func (c *conn) startHandler(st *stream) error {
	c.mu.Lock()
	if c.handlers >= c.s.o.MaxHandlers || !c.s.takeHandler() {
		c.resetLocked(st.id, refusedStream)
		c.mu.Unlock()
		return c.spend(2, "too many requests at once")
	}
	c.handlers++
	st.async = true
	ctx := context.WithValue(c.ctx, http.LocalAddrContextKey, c.nc.LocalAddr())
	ctx, st.cancel = context.WithCancel(ctx)
	c.mu.Unlock()
	go c.handle(ctx, st)
	return nil
}

// takeHandler counts one more call in Options.Handler, unless there are too many.
func (s *Server) takeHandler() bool {
	if s.handlers.Add(1) > int64(s.o.MaxAllHandlers) {
		s.handlers.Add(-1)
		return false
	}
	return true
}

// handle runs Options.Handler for st.
func (c *conn) handle(ctx context.Context, st *stream) {
	w := &response{c: c, st: st, header: http.Header{}}
	defer func() {
		p := recover()
		if p != nil && p != http.ErrAbortHandler {
			c.s.defect(p)
		}
		var trailer []byte
		if p == nil {
			trailer = w.finish()
		}
		st.cancel()
		c.mu.Lock()
		defer c.mu.Unlock()
		// Before the end of the answer can be sent: a client that has read it may ask again.
		c.handlers--
		c.s.handlers.Add(-1)
		if p == nil {
			w.end(trailer)
		}
		st.async = false
		switch {
		case st.closed:
			c.orphans--
		case p != nil:
			c.resetLocked(st.id, internalError)
		default:
			c.finish(st)
		}
		c.repaid++
		c.flush()
	}()
	r, err := c.httpRequest(ctx, st, w)
	if err != nil {
		http.Error(w, "the request's :path is no path", http.StatusBadRequest)
		return
	}
	w.head = r.Method == http.MethodHead
	c.s.o.Handler.ServeHTTP(w, r)
}

// httpRequest is the request of st as net/http has it.
func (c *conn) httpRequest(ctx context.Context, st *stream, w *response) (*http.Request, error) {
	q := st.request
	r := &http.Request{
		Method: q.method, Proto: "HTTP/2.0", ProtoMajor: 2, Header: make(http.Header, len(q.fields)), Host: q.authority,
		RemoteAddr: c.remote, RequestURI: q.path, TLS: c.tls, Body: http.NoBody,
	}
	var err error
	if q.method == http.MethodConnect {
		r.URL, r.RequestURI = &url.URL{Host: q.authority}, q.authority
	} else if r.URL, err = url.ParseRequestURI(q.path); err != nil {
		return nil, err
	}
	for _, f := range q.fields {
		name := http.CanonicalHeaderKey(f.Name)
		if old := r.Header[name]; name == "Cookie" && len(old) == 1 {
			old[0] += "; " + f.Value
			continue
		}
		r.Header[name] = append(r.Header[name], f.Value)
	}
	if r.Host == "" {
		r.Host = r.Header.Get("Host")
	}
	delete(r.Header, "Host")
	c.mu.Lock()
	bodiless := st.remoteClosed && len(st.in) == 0
	c.mu.Unlock()
	if !bodiless {
		r.ContentLength = q.length
		body := &body{c: c, st: st, w: w}
		if httpguts.HeaderValuesContainsToken(r.Header["Expect"], "100-continue") {
			delete(r.Header, "Expect")
			body.proceed.Store(true)
		}
		r.Body = body
	}
	return r.WithContext(ctx), nil
}

// feed takes the next bytes of a body that a handler reads. mu must be held.
func (c *conn) feed(st *stream, p []byte) {
	if len(p) > 0 && !c.hold(st, len(p)) {
		c.resetLocked(st.id, enhanceYourCalm)
		return
	}
	st.in = append(st.in, p...)
	st.cond.Broadcast()
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
		case len(st.in) > 0 && len(p) > 0:
			n := copy(p, st.in)
			if st.in = st.in[n:]; len(st.in) == 0 {
				st.in = nil
			}
			c.letGo(st, n)
			b.owed += n
			if !st.remoteClosed && b.owed >= streamWindow/4 {
				st.recvWindow += b.owed
				c.out = appendWindowUpdate(c.out, st.id, b.owed)
				b.owed = 0
				c.flush()
			}
			return n, nil
		case st.closed:
			return 0, errStreamClosed
		case st.remoteClosed:
			return 0, io.EOF
		case len(p) == 0:
			return 0, nil
		}
		st.cond.Wait()
	}
}

// Close implements io.Closer.
func (b *body) Close() error {
	b.closed.Store(true)
	b.c.mu.Lock()
	b.st.cond.Broadcast()
	b.c.mu.Unlock()
	return nil
}

// response implements http.ResponseWriter and http.Flusher. Not safe for concurrent use.
type response struct {
	c       *conn
	st      *stream
	header  http.Header
	trailer []string // names that were announced
	status  int      // 0 until WriteHeader
	block   []byte   // fields as they were at WriteHeader, until they are sent
	sent    bool     // the header is
	length  bool     // it gives the length of the body
	head    bool     // the request is a HEAD
	unsent  int      // how long the body would be for another than that
	buffer  []byte   // of the body
}

// responseBuffer is how much of a body is sent at once, if the handler does not flush.
const responseBuffer = 4 << 10

// Header implements http.ResponseWriter.
func (w *response) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter. Informational statuses are not sent.
func (w *response) WriteHeader(status int) {
	if w.status != 0 || status >= 100 && status < 200 {
		return
	}
	if status < 200 || status > 999 {
		status = http.StatusInternalServerError
	}
	w.status = status
	for _, list := range w.header["Trailer"] {
		for name := range strings.SplitSeq(list, ",") {
			if name = http.CanonicalHeaderKey(strings.TrimSpace(name)); httpguts.ValidTrailerHeader(name) {
				w.trailer = append(w.trailer, name)
			}
		}
	}
	w.block = w.appendFields(nil, func(name string) bool {
		return !strings.HasPrefix(name, http.TrailerPrefix) && !slices.Contains(w.trailer, name)
	})
	w.length = len(w.header["Content-Length"]) > 0
}

// appendFields appends those header fields that keep holds for.
func (w *response) appendFields(b []byte, keep func(name string) bool) []byte {
	for name, values := range w.header {
		if !keep(name) {
			continue
		}
		lower := strings.ToLower(strings.TrimPrefix(name, http.TrailerPrefix))
		switch lower {
		case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade":
			continue
		}
		if !validName(lower) {
			continue
		}
		for _, v := range values {
			if httpguts.ValidHeaderFieldValue(v) {
				b = appendField(b, lower, v)
			}
		}
	}
	return b
}

// Write implements http.ResponseWriter.
func (w *response) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if w.status == http.StatusNoContent || w.status == http.StatusNotModified {
		return 0, http.ErrBodyNotAllowed
	}
	if w.head {
		w.unsent += len(p)
		return len(p), nil
	}
	if len(w.buffer)+len(p) <= responseBuffer {
		w.buffer = append(w.buffer, p...)
		return len(p), nil
	}
	if err := w.flush(); err != nil {
		return 0, err
	}
	for n := 0; n < len(p); n += maxFrame { // so that little is copied at once
		if err := w.send(p[n:min(n+maxFrame, len(p))]); err != nil {
			return n, err
		}
	}
	return len(p), nil
}

// Flush implements http.Flusher.
func (w *response) Flush() { _ = w.FlushError() }

// FlushError is called by http.ResponseController.
func (w *response) FlushError() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	return w.flush()
}

// flush sends the header, unless it is sent, and the buffered bytes.
func (w *response) flush() error {
	err := w.send(w.buffer)
	w.buffer = w.buffer[:0]
	return err
}

// send sends the header, if it is not sent, and p, and waits until the windows have let it pass.
func (w *response) send(p []byte) error {
	c, st := w.c, w.st
	c.mu.Lock()
	defer c.mu.Unlock()
	if st.closed {
		return errStreamClosed
	}
	w.sendHeader(false)
	if len(p) > 0 {
		if !c.hold(st, len(p)) {
			st.abort()
			c.resetLocked(st.id, enhanceYourCalm)
			return errStreamClosed
		}
		st.out = append([]byte(nil), p...)
		c.send(st)
		c.repaid++
	}
	c.flush()
	for len(st.out) > 0 && !st.closed {
		st.cond.Wait()
	}
	if st.closed {
		return errStreamClosed
	}
	c.letGo(st, len(p))
	return nil
}

// sendHeader sends the header once. mu must be held.
func (w *response) sendHeader(end bool) {
	if w.sent {
		return
	}
	w.sent = true
	c := w.c
	start := len(c.out)
	c.out = append(c.out, frameRoom[:]...)
	c.out = appendStatus(c.enc.begin(c.out), w.status)
	c.out = append(c.out, w.block...)
	w.block = nil
	c.sealBlock(start, w.st.id, end)
}

// informContinue tells a client that waits for a 100 to send its body.
func (w *response) informContinue() {
	c := w.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.sent || w.st.closed {
		return
	}
	start := len(c.out)
	c.out = append(c.out, frameRoom[:]...)
	c.out = appendStatus(c.enc.begin(c.out), http.StatusContinue)
	c.sealBlock(start, w.st.id, false)
	c.flush()
}

// finish sends what the body still lacks, and returns the fields of the trailer, for end.
func (w *response) finish() (trailer []byte) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	trailer = w.appendFields(nil, func(name string) bool {
		return strings.HasPrefix(name, http.TrailerPrefix) || slices.Contains(w.trailer, name)
	})
	if !w.sent && !w.length && w.status != http.StatusNoContent && w.status != http.StatusNotModified && (!w.head || w.unsent > 0) {
		w.block = appendField(w.block, "content-length", strconv.Itoa(max(len(w.buffer), w.unsent)))
	}
	if len(w.buffer) > 0 {
		_ = w.flush() // fails if the stream is closed, which end sees
	}
	return trailer
}

// end ends the answer; conn.finish does the rest. mu must be held.
func (w *response) end(trailer []byte) {
	c, st := w.c, w.st
	switch {
	case st.closed:
	case len(trailer) > 0:
		w.sendHeader(false)
		start := len(c.out)
		c.out = append(c.out, frameRoom[:]...)
		c.out = append(c.enc.begin(c.out), trailer...)
		c.sealBlock(start, st.id, true)
	case !w.sent:
		w.sendHeader(true)
	default:
		c.out = appendFrameHeader(c.out, 0, frameData, flagEndStream, st.id)
	}
}
