package h2

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Server serves HTTP/2. Make one with New. Safe for concurrent use.
type Server struct {
	o     Options
	tls   *tls.Config // with h2 among its protocols
	slots chan struct{}

	held     atomic.Int64 // bytes as in Options.MaxBuffered
	handlers atomic.Int64 // calls in Options.Handler

	ctx    context.Context // ends with Stop
	cancel context.CancelFunc
	jobs   chan *job
	idle   atomic.Int64   // workers that wait for jobs
	all    sync.WaitGroup // accepting, connections, and what they start

	mu struct {
		sync.Mutex
		listeners map[net.Listener]struct{}
		conns     map[*conn]struct{}
		opening   map[net.Conn]struct{} // that are being set up
		watching  bool
		draining  bool
		stopped   bool
		empty     chan struct{} // closed when the last connection ends while draining; nil if nobody waits
	}
}

// New returns a server that waits for Serve.
func New(o Options) *Server {
	s := &Server{o: o.orDefaults(), jobs: make(chan *job)}
	s.slots = make(chan struct{}, s.o.MaxConnections)
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.mu.listeners = map[net.Listener]struct{}{}
	s.mu.conns = map[*conn]struct{}{}
	s.mu.opening = map[net.Conn]struct{}{}
	if o.TLS != nil {
		s.tls = o.TLS.Clone()
		if !slices.Contains(s.tls.NextProtos, "h2") {
			s.tls.NextProtos = append([]string{"h2"}, s.tls.NextProtos...)
		}
	}
	return s
}

// Serve accepts connections from l until Shutdown or Stop; then it returns nil. It closes l.
func (s *Server) Serve(l net.Listener) error {
	defer l.Close()
	s.mu.Lock()
	if s.mu.draining || s.mu.stopped {
		s.mu.Unlock()
		return nil
	}
	s.mu.listeners[l] = struct{}{}
	s.all.Add(1)
	defer s.all.Done()
	if !s.mu.watching {
		s.mu.watching = true
		s.all.Go(s.watch)
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.mu.listeners, l)
		s.mu.Unlock()
	}()

	var pause time.Duration
	for {
		select {
		case s.slots <- struct{}{}:
		case <-s.ctx.Done():
			return nil
		}
		nc, err := l.Accept()
		if err == nil {
			pause = 0
			s.all.Go(func() {
				defer func() { <-s.slots }()
				s.serveConn(nc)
			})
			continue
		}
		<-s.slots
		s.mu.Lock()
		closing := s.mu.draining || s.mu.stopped
		s.mu.Unlock()
		if closing {
			return nil
		}
		// Out of file descriptors, say: it may pass.
		if temporary, ok := errors.AsType[interface {
			error
			Temporary() bool
		}](err); !ok || !temporary.Temporary() {
			return err
		}
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-s.ctx.Done():
			timer.Stop()
		}
	}
}

// open notes a connection that is to be set up; false if the server is going away.
func (s *Server) open(nc net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.draining || s.mu.stopped {
		return false
	}
	s.mu.opening[nc] = struct{}{}
	return true
}

// add notes that c is set up; false if the server has stopped meanwhile.
func (s *Server) add(c *conn) bool {
	s.mu.Lock()
	delete(s.mu.opening, c.raw)
	if s.mu.stopped {
		s.mu.Unlock()
		return false
	}
	s.mu.conns[c] = struct{}{}
	draining := s.mu.draining
	s.mu.Unlock()
	if draining {
		c.drain("the server is shutting down")
	}
	return true
}

func (s *Server) remove(nc net.Conn, c *conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.mu.opening, nc)
	if c != nil {
		delete(s.mu.conns, c)
	}
	s.tellEmpty()
}

// tellEmpty wakes Shutdown when there are no connections. s.mu must be held.
func (s *Server) tellEmpty() {
	if s.mu.empty != nil && len(s.mu.conns) == 0 && len(s.mu.opening) == 0 {
		close(s.mu.empty)
		s.mu.empty = nil
	}
}

// Shutdown closes the listeners, asks the clients to make no new calls, and waits until those under way are answered and
// all connections closed. When ctx ends before that, it does as Stop and returns the error of ctx.
func (s *Server) Shutdown(ctx context.Context) error {
	empty := make(chan struct{})
	s.mu.Lock()
	s.mu.draining = true
	for l := range s.mu.listeners {
		_ = l.Close()
	}
	for nc := range s.mu.opening { // nothing was asked yet
		_ = nc.Close()
	}
	if s.mu.empty == nil {
		s.mu.empty = empty
	} else {
		empty = s.mu.empty
	}
	s.tellEmpty()
	conns := make([]*conn, 0, len(s.mu.conns))
	for c := range s.mu.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		c.drain("the server is shutting down")
	}
	var err error
	select {
	case <-empty:
	case <-ctx.Done():
		err = ctx.Err()
	}
	s.Stop()
	return err
}

// Stop closes the listeners and all connections at once, and cancels the calls under way. It waits for what belongs to
// connections, but not for calls that do not heed that they are cancelled.
func (s *Server) Stop() {
	s.mu.Lock()
	s.mu.stopped = true
	for l := range s.mu.listeners {
		_ = l.Close()
	}
	for nc := range s.mu.opening {
		_ = nc.Close()
	}
	for c := range s.mu.conns {
		_ = c.nc.Close()
	}
	s.mu.Unlock()
	s.cancel()
	s.all.Wait()
}

// tlsConn is a connection with TLS, of crypto/tls or around it.
type tlsConn interface {
	HandshakeContext(ctx context.Context) error
	ConnectionState() tls.ConnectionState
}

// serveConn sets a connection up and serves it until it ends.
func (s *Server) serveConn(raw net.Conn) {
	defer raw.Close()
	if !s.open(raw) {
		return
	}
	var c *conn
	defer func() { s.remove(raw, c) }()
	nc := raw
	if s.tls != nil {
		nc = tls.Server(raw, s.tls)
	}
	deadline := time.Now().Add(s.o.HandshakeTimeout)
	_ = raw.SetDeadline(deadline)
	var state *tls.ConnectionState
	if t, ok := nc.(tlsConn); ok {
		ctx, cancel := context.WithDeadline(s.ctx, deadline)
		err := t.HandshakeContext(ctx)
		cancel()
		if err != nil {
			return
		}
		told := t.ConnectionState()
		state = &told
		if p := told.NegotiatedProtocol; p != "" && p != "h2" {
			return
		}
	}
	c = newConn(s, raw, nc, state)
	c.serve()
}

// hold takes n bytes of what Options.MaxBuffered allows; false if there is not as much.
func (s *Server) hold(n int) bool {
	if s.held.Add(int64(n)) > int64(s.o.MaxBuffered) {
		s.held.Add(-int64(n))
		return false
	}
	return true
}
