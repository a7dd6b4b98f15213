// Package resp is the door that speaks the Redis protocol, so that every Redis client is a client: CL.THROTTLE answered as
// redis-cell does, THROTTLE as throttlecrab does, WEIR.LIMIT for the rules, and what clients say beside that.
//
// What a connection may take is bounded: the bytes of a command, of the answers that nobody reads, of all connections
// together, and the time that a command takes to come and an answer to go.
package resp

import (
	"context"
	"errors"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	weir "github.com/weir-rl/weir"
)

// Stopwatch times a sample of the decisions, from reading the question to writing the answer.
type Stopwatch interface {
	// Begin returns 0 for a decision that is not in the sample.
	Begin() (start int64)
	// End is given what Begin returned, unless that was 0.
	End(start int64)
}

// Verdict is what comes of a password.
type Verdict uint8

// The verdicts.
const (
	Wrong   Verdict = iota
	TooMany         // its sender has sent too many wrong ones: it was not looked at
	Right
)

// Options tune New. The zero value is right for most, but trusts nobody.
type Options struct {
	// Domain is that of WEIR.LIMIT with an empty one; "" means the only domain that the rules hold.
	Domain string
	// Trusted reports whether the other end of a connection, as net.Conn tells it, may refund and ask for more than 1,000 hits without
	// AUTH. It is asked once for a connection. nil means nobody.
	Trusted func(peer string) bool
	// Auth judges the password of AUTH and HELLO that a peer sent, as net.Conn tells its address; a user's name is not looked at. It
	// slows down those who guess: a connection has three guesses, but anybody may open another one. nil means that there are no
	// passwords.
	Auth func(peer, password string) Verdict
	// Required refuses all commands but those that authenticate until Auth has agreed.
	Required bool
	// Concurrent is how many commands of a pipeline are decided at a time; those on the same key stay in order. Where a decision is a
	// question to another server it makes one wait of many. Below 2: one after the other.
	Concurrent int
	// MaxMemory bounds the bytes that all connections together take; 0 means 256 MiB. A connection that would need more is
	// closed.
	MaxMemory int64
	// Idle is how long a connection may be silent; 0 means 10 min.
	Idle time.Duration
	// Patience is how long a command that has begun may take to come whole, and the first command of a connection to come; 0 means
	// 30 s.
	Patience time.Duration
	// Stall is how long a client may leave answers unread; 0 means 1 min.
	Stall time.Duration
	// Version is Weir's, for INFO.
	Version string
	// Stopwatch times decisions; nil means that nobody does.
	Stopwatch Stopwatch
	// StoreError is called when the store failed on CL.THROTTLE or THROTTLE; nil means nobody. WEIR.LIMIT has the limiter's hooks.
	StoreError func(error)
	// Logf is told of a defect in weir itself that ended a connection; nil means nobody.
	Logf func(format string, args ...any)
}

// The defaults of Options.
const (
	DefaultMaxMemory = 256 << 20
	DefaultIdle      = 10 * time.Minute
	defaultPatience  = 30 * time.Second
	defaultStall     = time.Minute
)

// Server answers commands. Make one with New. Safe for concurrent use.
type Server struct {
	o          Options
	limiter    *weir.Limiter
	store      weir.Store
	limits     limits
	lanes      chan struct{} // holds a token for each lane that runs; nil if there are none
	askers     sync.Pool     // of *asker, for lanes
	begun      time.Time
	decisions  [verbs][outcomes]atomic.Uint64
	others     atomic.Uint64 // commands that decide nothing
	accepted   atomic.Uint64
	memory     atomic.Int64 // bytes of all connections
	dropped    [drops]atomic.Uint64
	lastClient atomic.Int64

	closing atomic.Bool
	mu      sync.Mutex
	open    map[net.Listener]struct{}
	conns   map[*conn]struct{}
	serving sync.WaitGroup
}

// maxLanes bounds the commands of all connections that are decided beside the goroutines of their connections.
const maxLanes = 4096

// New returns a server over the limiter, for WEIR.LIMIT, and the store that keeps the states of CL.THROTTLE and THROTTLE.
func New(l *weir.Limiter, store weir.Store, o Options) *Server {
	if o.MaxMemory == 0 {
		o.MaxMemory = DefaultMaxMemory
	}
	if o.Idle == 0 {
		o.Idle = DefaultIdle
	}
	if o.Patience == 0 {
		o.Patience = defaultPatience
	}
	if o.Stall == 0 {
		o.Stall = defaultStall
	}
	s := &Server{o: o, limiter: l, store: store, begun: time.Now(), open: map[net.Listener]struct{}{}, conns: map[*conn]struct{}{}}
	if o.Concurrent > 1 {
		s.lanes = make(chan struct{}, maxLanes)
		s.askers.New = func() any { return &asker{Server: s} }
	}
	return s
}

// Serve answers the connections of l until Shutdown, after which it returns nil. It closes l.
func (s *Server) Serve(l net.Listener) error {
	defer l.Close()
	s.mu.Lock()
	if s.closing.Load() {
		s.mu.Unlock()
		return nil
	}
	s.open[l] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.open, l)
		s.mu.Unlock()
	}()
	pause := time.Duration(0)
	for {
		nc, err := l.Accept()
		if err != nil {
			if s.closing.Load() {
				return nil
			}
			// Out of file descriptors, say: others may close.
			if t, ok := errors.AsType[net.Error](err); !ok || !isTemporary(t) {
				return err
			}
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			time.Sleep(pause)
			continue
		}
		pause = 0
		s.accepted.Add(1)
		c := newConn(s, nc)
		if !s.enter(c) {
			_ = nc.Close()
			continue
		}
		go c.run()
	}
}

// isTemporary reports whether Accept may succeed later.
func isTemporary(err net.Error) bool {
	//lint:ignore SA1019 there is no other way to tell what the listener says of itself
	return err.Temporary()
}

// enter takes up a connection, unless the server is closing.
func (s *Server) enter(c *conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing.Load() {
		return false
	}
	s.conns[c] = struct{}{}
	s.serving.Add(1)
	return true
}

func (s *Server) leave(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	s.mu.Unlock()
	s.serving.Done()
}

// Shutdown closes the listeners, lets commands that have come be answered, and closes the connections; when ctx ends it cuts off
// what is left and returns ctx's error.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.closing.Store(true)
	for l := range s.open {
		_ = l.Close()
	}
	for c := range s.conns {
		_ = c.nc.SetReadDeadline(longAgo)
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() {
		s.serving.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	for c := range s.conns {
		_ = c.nc.Close()
	}
	s.mu.Unlock()
	<-done
	return ctx.Err()
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// take takes bytes of the memory that connections may have; it reports false if there is not so much.
func (s *Server) take(n int) bool {
	if s.memory.Add(int64(n)) > s.o.MaxMemory {
		s.memory.Add(int64(-n))
		return false
	}
	return true
}

func (s *Server) giveBack(n int) { s.memory.Add(int64(-n)) }

// defect tells of a panic.
func (s *Server) defect(p any) {
	if s.o.Logf != nil {
		s.o.Logf("resp: panic: %v\n%s", p, debug.Stack())
	}
}

// drop is why the server closed a connection by itself.
type drop uint8

const (
	dropProtocol drop = iota // against the protocol
	dropOther                // HTTP
	dropSlow                 // a command did not come whole in time, or answers were not read in time
	dropIdle
	dropMemory
	dropAuth // too many wrong passwords
	drops
)

var dropNames = [drops]string{"protocol", "http", "slow", "idle", "memory", "auth"}

// Stats is a reading of the server's doings.
type Stats struct {
	Connections int    // open now
	Accepted    uint64 // connections since the start
	Memory      int64  // bytes that connections take
	Decisions   []Count
	Other       uint64 // commands that decide nothing
	// Dropped are connections that the server closed by itself; Name is why: protocol, http, slow, idle, memory, auth.
	Dropped []Count
}

// Count is how often something happened: what, and for decisions with which outcome (allowed, denied, peek, refund, error).
type Count struct {
	Name, Outcome string
	N             uint64
}

var outcomeNames = [outcomes]string{"allowed", "denied", "peek", "refund", "error"}

// Stats returns a reading.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	open := len(s.conns)
	s.mu.Unlock()
	st := Stats{Connections: open, Accepted: s.accepted.Load(), Memory: s.memory.Load(), Other: s.others.Load()}
	for v := range s.decisions {
		for o := range s.decisions[v] {
			st.Decisions = append(st.Decisions, Count{verbNames[v], outcomeNames[o], s.decisions[v][o].Load()})
		}
	}
	for d := range s.dropped {
		st.Dropped = append(st.Dropped, Count{Name: dropNames[d], N: s.dropped[d].Load()})
	}
	return st
}
