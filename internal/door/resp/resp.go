// Package resp is the door that speaks the Redis protocol, so that every Redis client is a client:
// CL.THROTTLE answered as redis-cell does, THROTTLE as throttlecrab does, WEIR.LIMIT for the rules,
// and the few other commands that clients send. Begin with New; a connection reads and answers in
// conn.go, and an asker decides one command at a time.
//
// Everything that a connection may take is bounded: the bytes of a command, of unread answers, and
// of all connections together, and the time that a command takes to arrive and an answer to be
// read.
package resp

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/wire/listen"
	"github.com/weir-rl/weir/internal/wire/shed"
	"github.com/weir-rl/weir/store"
)

// Options tune New. The zero value is right for most, but trusts nobody.
type Options struct {
	// Domain applies to WEIR.LIMIT with an empty one; "" means the only domain that the rules hold.
	Domain string
	// Trusted reports whether the other end of a connection, with the address of net.Conn, may
	// refund and ask for more than 1,000 hits without AUTH. It is asked once for a connection. nil
	// means nobody.
	Trusted func(peer string) bool
	// Auth judges the password of AUTH and HELLO from a peer, with the address of net.Conn; it
	// ignores the user's name. It slows down guessing: a connection has three guesses, but anybody
	// may open another one. nil means that there are no passwords.
	Auth func(peer, password string) auth.Verdict
	// Watch calls gone when Auth would no longer take a password that it has taken, unless stop was
	// called before: then the connection that has sent it ends. nil means that passwords stay good.
	Watch func(password string, gone func()) (stop func())
	// Required refuses all commands but those that authenticate until Auth has agreed.
	Required bool
	// Concurrent is how many commands of a pipeline wait for their decision at a time; those on the
	// same key stay in order. Where a decision is a question to another server it makes one wait of
	// many, and where it takes long to look at the rules, several processors take part. Below 2:
	// one after the other.
	Concurrent int
	// MaxMemory bounds the bytes that all connections together take; 0 means 256 MiB. A connection
	// that would need more is closed.
	MaxMemory int64
	// Patience is how long a command that has begun may take to come whole, and the first command
	// of a connection to come; 0 means 30 s.
	Patience time.Duration
	// Stall is how long a client may leave answers unread; 0 means 1 min.
	Stall time.Duration
	// Line turns away commands that decide and waited too long. nil turns none away.
	Line *shed.Door
	// Version is Weir's, for INFO.
	Version string
	// Stopwatch times decisions; nil means that nobody does.
	Stopwatch weir.Stopwatch
	// Tracer follows decisions in traces, for WEIR.LIMIT by its attributes traceparent and
	// tracestate. nil means that nobody does.
	Tracer door.Tracer
	// StoreError is called when the store failed on CL.THROTTLE or THROTTLE; nil means nobody.
	// WEIR.LIMIT has the limiter's hooks.
	StoreError func(error)
	// Throttled is called with the decisions of CL.THROTTLE ("cl.throttle") and THROTTLE
	// ("throttle"): the key and the quantity that was asked for, the time of the store in µs, and
	// the result. It is not called for peeks, refunds and failures. It must keep neither key nor
	// result. nil means nobody. WEIR.LIMIT has the limiter's hooks.
	Throttled func(command string, key []byte, quantity, now int64, r *algo.Result)
	// Logger logs defects in weir itself that ended a connection; nil means nobody.
	Logger *slog.Logger
}

// The defaults of Options.
const (
	DefaultMaxMemory = 256 << 20
	// idle is how long a connection may be silent: longer than the pools of most clients keep one
	// that they do not use.
	idle            = 10 * time.Minute
	defaultPatience = 30 * time.Second
	defaultStall    = time.Minute
)

// Server answers commands. Make one with New. Safe for concurrent use.
type Server struct {
	o          Options
	limiter    *weir.Limiter
	store      store.Store
	prompt     store.Prompt // the store, if it is one
	limits     limits
	lanes      chan struct{} // holds a token for each lane that runs; nil if there are none
	askers     sync.Pool     // of *asker
	begun      time.Time
	decisions  [verbs][outcomes]atomic.Uint64
	others     atomic.Uint64 // commands that decide nothing
	accepted   atomic.Uint64
	memory     atomic.Int64 // bytes of all connections
	dropped    [drops]atomic.Uint64
	lastClient atomic.Int64

	conns *listen.Group[*conn]
}

// maxLanes bounds the commands of all connections that are decided beside the goroutines of their
// connections.
const maxLanes = 4096

// New returns a server over the limiter, for WEIR.LIMIT, and the store that keeps the states of
// CL.THROTTLE and THROTTLE.
func New(l *weir.Limiter, states store.Store, o Options) *Server {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.MaxMemory == 0 {
		o.MaxMemory = DefaultMaxMemory
	}
	if o.Patience == 0 {
		o.Patience = defaultPatience
	}
	if o.Stall == 0 {
		o.Stall = defaultStall
	}
	s := &Server{o: o, limiter: l, store: states, begun: time.Now()}
	s.prompt, _ = states.(store.Prompt)
	s.conns = listen.NewGroup(s.newConn, listen.GroupOptions{})
	s.askers.New = func() any { return &asker{Server: s} }
	if o.Concurrent > 1 {
		s.lanes = make(chan struct{}, maxLanes)
	}
	return s
}

// Serve answers the connections of l until Shutdown, after which it returns nil. It closes l.
func (s *Server) Serve(l net.Listener) error { return s.conns.Serve(l) }

// Shutdown closes the listeners, lets commands that have come be answered, and closes the
// connections; when ctx ends it cuts off the rest and returns ctx's error.
func (s *Server) Shutdown(ctx context.Context) error { return s.conns.Shutdown(ctx) }

// take takes bytes of the memory that connections may have; it reports false if there is not so
// much.
func (s *Server) take(n int) bool {
	if s.memory.Add(int64(n)) > s.o.MaxMemory {
		s.memory.Add(int64(-n))
		return false
	}
	return true
}

func (s *Server) giveBack(n int) { s.memory.Add(int64(-n)) }

// defect logs a panic.
func (s *Server) defect(p any) {
	s.o.Logger.Error(fmt.Sprintf("resp: panic: %v\n%s", p, debug.Stack()))
}

// drop is why the server closed a connection by itself.
type drop uint8

const (
	dropProtocol drop = iota // against the protocol
	dropOther                // HTTP
	// a command did not come whole in time, or answers were not read in time
	dropSlow
	dropIdle
	dropMemory
	dropAuth // too many wrong passwords, or the right one is no longer good
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
	// Dropped are connections that the server closed by itself; Name is why: protocol, http, slow,
	// idle, memory, auth.
	Dropped []Count
}

// Count is how often something happened: what, and for decisions with which outcome (allowed,
// denied, peek, refund, error).
type Count struct {
	Name, Outcome string
	N             uint64
}

var outcomeNames = [outcomes]string{"allowed", "denied", "peek", "refund", "error"}

// Stats returns a reading.
func (s *Server) Stats() Stats {
	st := Stats{Connections: s.conns.Len(), Accepted: s.accepted.Load(), Memory: s.memory.Load(),
		Other: s.others.Load()}
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
