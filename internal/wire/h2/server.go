package h2

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/internal/util/sparselog"
	"github.com/weir-rl/weir/internal/wire/listen"
	"github.com/weir-rl/weir/internal/wire/shed"
)

// Server serves HTTP/2. Make one with New. Safe for concurrent use.
type Server struct {
	o        Options
	tls      *tls.Config // with h2 among its protocols
	sessions *listen.Group[*session]

	held     atomic.Int64 // bytes as in Options.MaxBuffered
	kept     atomic.Int64 // the rest of the budget Options.MaxMemory
	leaving  atomic.Int64 // of both, what connections keep that are being ended
	left     atomic.Int64 // of kept, but not of leaving, what connections keep that have ended
	most     atomic.Int64 // of held and kept, the most that one client keeps, as far as is known
	extra    atomic.Int64 // bytes by which the windows of connections are wider than connWindow
	handlers atomic.Int64 // calls in Options.Handler

	relieving sync.Mutex    // of relieve
	awaiting  atomic.Int64  // readers in awaitRoom
	freed     chan struct{} // wakes one of them when memory was given back
	behind    struct {      // connections that have ended, and keep something all the same
		sync.Mutex
		conns map[*conn]bool
	}
	clients    clients
	overMemory struct {
		connections, requests atomic.Uint64 // ended, and refused
		told                  sparselog.Line
	}

	ctx    context.Context // ends with Stop
	cancel context.CancelFunc
	jobs   *shed.Queue[*job]
	wake   chan struct{} // a worker, for a job
	often  Status        // of calls that are turned away
	idle   atomic.Int64  // workers that wait for jobs
	// to goroutines that wait for a request for the handler, how many they are, and closed when
	// they need wait no longer, since there is no connection
	handing      chan handling
	idleHandlers atomic.Int64
	quiet        atomic.Pointer[chan struct{}]
	all          sync.WaitGroup // goroutines of connections, and the watch
	dated        atomic.Pointer[dateText]
	linger       time.Duration                    // lingerTime, but in tests
	logf         func(format string, args ...any) // of panics

	mu struct {
		sync.Mutex
		serving  int  // sessions
		watching bool // the watch runs: while there are any
	}
}

// New returns a server that waits for Serve.
func New(o Options) *Server {
	s := &Server{o: o.orDefaults(), jobs: shed.NewQueue[*job](o.Line), wake: make(chan struct{}),
		handing: make(chan handling), freed: make(chan struct{}, 1), linger: lingerTime}
	if o.Turn != nil {
		if _, status := o.Turn(nil); status.Message != "" {
			s.often = status
		}
	}
	s.logf = func(format string, args ...any) { s.o.Logger.Error(fmt.Sprintf(format, args...)) }
	s.behind.conns, s.clients.of = map[*conn]bool{}, map[netip.Addr]*client{}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.sessions = listen.NewGroup(s.newSession, listen.GroupOptions{Max: s.o.MaxConnections, Cancel: s.cancel})
	if o.TLS != nil {
		s.tls = o.TLS.Clone()
		if !slices.Contains(s.tls.NextProtos, "h2") {
			s.tls.NextProtos = append([]string{"h2"}, s.tls.NextProtos...)
		}
	}
	return s
}

// Serve accepts connections from l until Shutdown or Stop; then it returns nil. It closes l.
func (s *Server) Serve(l net.Listener) error { return s.sessions.Serve(l) }

// Shutdown closes the listeners, asks the clients to make no new calls, and waits until those under
// way are answered and all connections closed. When ctx ends before that, it does as Stop and
// returns the error of ctx.
func (s *Server) Shutdown(ctx context.Context) error {
	err := s.sessions.Shutdown(ctx)
	s.Stop()
	return err
}

// Stop closes the listeners and all connections at once, and cancels the calls under way. It waits
// for the connections' goroutines, but not for calls that ignore their cancellation.
func (s *Server) Stop() {
	s.sessions.Stop()
	s.all.Wait()
}

// session is a connection from the moment it is accepted. It has a conn once it is set up.
type session struct {
	s      *Server
	raw    net.Conn
	handed *handed // nil if we have accepted it

	mu     sync.Mutex
	conn   *conn // nil until the client has said that it speaks HTTP/2
	closed bool  // before it had a conn
}

func (s *Server) newSession(raw net.Conn) *session {
	return &session{s: s, raw: raw}
}

// begin and end count the sessions that are served, for which the watch runs.
func (s *Server) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.serving++; !s.mu.watching {
		s.mu.watching = true
		quiet := make(chan struct{})
		s.quiet.Store(&quiet)
		s.all.Go(s.watchAll)
	}
}

func (s *Server) end() {
	s.mu.Lock()
	s.mu.serving--
	s.mu.Unlock()
}

// unwatched reports whether the watch has nothing to do any more. Then nobody waits for a request
// for the handler either.
func (s *Server) unwatched() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.watching = s.mu.serving > 0; !s.mu.watching {
		close(*s.quiet.Load())
	}
	return !s.mu.watching
}

// ready notes that c is set up; it returns false if the server is going away.
func (p *session) ready(c *conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return false
	}
	p.conn = c
	return true
}

// open returns the conn; nil if it is not set up.
func (p *session) open() *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conn
}

// Drain implements listen.Conn. A connection that is not set up is closed: nothing was asked on it.
func (p *session) Drain() {
	if c := p.orClose(); c != nil {
		c.drain("the server is shutting down")
	}
}

// Close implements listen.Conn.
func (p *session) Close() error {
	if c := p.orClose(); c != nil {
		return c.nc.Close()
	}
	return nil
}

// orClose returns the conn, or closes a connection that is not set up.
func (p *session) orClose() *conn {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn == nil {
		p.closed = true
		_ = p.raw.Close()
	}
	return p.conn
}

// tlsConn is a connection with TLS, of crypto/tls or around it.
type tlsConn interface {
	HandshakeContext(ctx context.Context) error
	ConnectionState() tls.ConnectionState
}

// Serve implements listen.Conn: it sets the connection up and serves it until it ends.
func (p *session) Serve() {
	s, raw := p.s, p.raw
	defer raw.Close()
	s.begin()
	defer s.end()
	if h := p.handed; h != nil {
		_ = raw.SetDeadline(time.Now().Add(s.o.HandshakeTimeout))
		newConn(p, raw, h.tls).serve()
		return
	}
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
	newConn(p, nc, state).serve()
}

// hold takes n bytes of Options.MaxBuffered; false if fewer are left.
func (s *Server) hold(n int) bool {
	held := s.held.Add(int64(n))
	if held > int64(s.o.MaxBuffered) || held+s.kept.Load() > int64(s.o.MaxMemory) {
		s.held.Add(-int64(n))
		return false
	}
	return true
}

// defect logs a panic.
func (s *Server) defect(p any) { s.logf("h2: panic: %v\n%s", p, debug.Stack()) }
