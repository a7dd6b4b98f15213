// Package h1 serves HTTP/1.1 on a loop of its own: one goroutine for a connection reads the head of
// a request, calls the handler, and writes the answer. net/http spends two thirds of the time of a
// small request on a second goroutine that watches the connection, on deadlines, header maps and
// contexts.
//
// The loop serves only requests that it fully understands (head.go): a request for a path in
// HTTP/1.1, with one Host, a head that is not large, and a body whose length is given, if there is
// one. At the first byte of anything else it hands the connection to net/http, with all bytes that
// nobody has answered, and for good: chunked bodies, Expect, Upgrade, HTTP/2, HTTP/1.0, malformed
// heads. So odd requests are judged by one parser only, and each answer is, byte for byte, the one
// that net/http would give.
//
// Begin with Server (this file), then conn.next and conn.answer (conn.go), and head.line (head.go).
package h1

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/weir-rl/weir/internal/wire/listen"
)

// Server serves the connections of a door. Make one with New. Safe for concurrent use.
type Server struct {
	rest     *http.Server // serves connections that are handed over
	handler  http.Handler
	conns    *listen.Group[*conn]
	handed   *handed
	lingers  *listen.Lingers
	maxHead  int
	pool     sync.Pool // of *work
	ctx      context.Context
	cancel   context.CancelFunc
	timeouts timeouts
}

// timeouts are as in http.Server; 0 means none.
type timeouts struct {
	header, read, write, idle time.Duration
}

// Bounds of the requests that the loop serves. Larger ones go to net/http.
const (
	maxHead   = 16 << 10
	maxFields = 100 // a connection keeps room for as many as it has ever had
)

// New returns a server that serves as s does, at less cost. Handler, ErrorLog, the time-outs and
// MaxHeaderBytes of s hold for all requests; its hooks (BaseContext, ConnContext, ConnState) see
// only connections that are handed over to it. s is not to be changed or used otherwise any more.
//
// The handler may keep neither the request nor its header, nor the ResponseWriter, once it has
// returned: they are used again. Of http.ResponseController it has Flush, SetReadDeadline,
// SetWriteDeadline and EnableFullDuplex; it cannot hijack, and sets no Transfer-Encoding. An answer
// is sent when it is flushed, when there are some 32 KiB of it, and when the handler returns.
func New(s *http.Server) *Server {
	or := func(d, otherwise time.Duration) time.Duration {
		if d == 0 {
			d = otherwise
		}
		return max(d, 0)
	}
	h := &Server{rest: s, handler: s.Handler, handed: newHanded(), lingers: listen.NewLingers(), maxHead: maxHead,
		timeouts: timeouts{
			header: or(s.ReadHeaderTimeout, s.ReadTimeout), read: max(s.ReadTimeout, 0), write: max(s.WriteTimeout, 0),
			idle: or(s.IdleTimeout, s.ReadTimeout),
		}}
	if h.handler == nil {
		h.handler = http.DefaultServeMux
	}
	if s.MaxHeaderBytes > 0 {
		h.maxHead = min(h.maxHead, s.MaxHeaderBytes)
	}
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.conns = listen.NewGroup(h.newConn,
		listen.GroupOptions{Cancel: h.cancel, Retrying: func(err error, pause time.Duration) {
			h.logf("http: Accept error: %v; retrying in %v", err, pause)
		}})
	h.pool.New = func() any { return newWork() }
	s.Handler = http.HandlerFunc(h.serveRest)
	more := s.ConnContext
	s.ConnContext = func(ctx context.Context, nc net.Conn) context.Context {
		if b := begunOf(nc); b != nil {
			ctx = context.WithValue(ctx, begunKey{}, b)
		}
		if more != nil {
			ctx = more(ctx, nc)
		}
		return ctx
	}
	return h
}

// serveRest serves requests of connections that are handed over.
func (s *Server) serveRest(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 2 && s.conns.Closing() {
		// With this answer net/http asks the client to go. By itself it would do so only once no
		// stream is open, or the loop has ended, which a slow client can delay until all is cut
		// off.
		w.Header().Set("Connection", "close")
	}
	if b, ok := r.Context().Value(begunKey{}).(*begun); ok {
		b.upload.Store(r.ProtoMajor == 1 && r.Header["Upgrade"] == nil)
	}
	s.handler.ServeHTTP(w, r)
}

// Serve accepts connections from l until Shutdown; then it returns nil. It closes l.
func (s *Server) Serve(l net.Listener) error {
	s.handed.address = l.Addr()
	rest := make(chan error, 1)
	go func() { rest <- s.rest.Serve(s.handed) }()
	err := s.conns.Serve(l)
	if err != nil {
		_ = s.handed.Close() // and so ends rest
	}
	// After a Shutdown the other server ends with it.
	if other := <-rest; err == nil && !errors.Is(other, http.ErrServerClosed) {
		err = other
	}
	return err
}

// Shutdown closes the listener and what nothing is asked on, and waits until all that has come in
// is answered. When ctx ends before that, it cuts the rest off, and returns the error of ctx.
func (s *Server) Shutdown(ctx context.Context) error {
	s.lingers.End()
	s.rest.SetKeepAlivesEnabled(false) // its connections end with their next answer
	err := s.conns.Shutdown(ctx)       // connections handed over meanwhile are still served
	if other := s.rest.Shutdown(ctx); other != nil {
		_ = s.rest.Close()
		err = other
	}
	s.cancel()
	return err
}

// logf logs as net/http does.
func (s *Server) logf(format string, args ...any) {
	if l := s.rest.ErrorLog; l != nil {
		l.Printf(format, args...)
		return
	}
	log.Printf(format, args...)
}
