// Package spoe is the door for HAProxy: an agent of its Stream Processing Offload Engine, which
// speaks the protocol SPOP 2.0 over a stream (HAProxy's doc/SPOE.txt). HAProxy 2.6 and all later
// ones are served.
//
// A NOTIFY is one request: the arguments of its messages are the attributes, and its ACK sets
// variables that HAProxy's configuration refuses by and writes headers from (Variables). Answers
// come in the order in which the store gives them; pipelining is all that is announced, so that no
// frame comes in pieces.
//
// Begin with Agent.Serve (agent.go), and follow a frame from conn.go to call.go and ack.go.
package spoe

import (
	"cmp"
	"context"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/util/sparselog"
	"github.com/weir-rl/weir/internal/wire/listen"
	"github.com/weir-rl/weir/internal/wire/shed"
)

// Options tune New. The zero value is right for a store that never waits, but trusts nobody.
type Options struct {
	// Domain applies to requests that name none; "" means the only domain that the rules hold.
	Domain string
	// EncodedSlash says how to treat requests whose path holds %2F, %5C or a backslash; by default
	// they are refused.
	EncodedSlash httplimit.EncodedSlash
	// Fields refuses requests with fields that servers read in different ways; nil is one that
	// refuses all of them. A field that comes twice has two arguments of its name.
	Fields *httplimit.FieldGuard
	// Trusted reports whether the other end of a connection, with the address of net.Conn, may
	// refund and ask for more than 1,000 hits; nil trusts nobody. It must be safe for concurrent
	// use.
	Trusted func(peer string) bool
	// Parallel is how many requests may wait for their decision at a time, over all connections. 0
	// decides the requests of a connection one after the other, which is wrong for a store over a
	// network, and for rule sets that try hundreds of rules on a request (rule.Set.MatchNow).
	Parallel int
	// MaxFrameSize bounds a frame in bytes, without its length, and is kept within 256 and 1 MiB; 0
	// means 65,536, four times what HAProxy sends by default.
	MaxFrameSize int
	// HelloTimeout bounds the time until a connection has introduced itself; 0 means 10 s.
	HelloTimeout time.Duration
	// FrameTimeout bounds the time from the first byte of a frame to its last; 0 means 10 s.
	FrameTimeout time.Duration
	// IdleTimeout is how long a connection may be silent; 0 means 10 minutes, which is longer than
	// HAProxy should keep one.
	IdleTimeout time.Duration
	// WriteTimeout bounds the time in which answers must be taken; 0 means 10 s.
	WriteTimeout time.Duration
	// Stopwatch times decisions; nil means that nobody does.
	Stopwatch weir.Stopwatch
	// Tracer follows decisions in traces, by the arguments traceparent and tracestate; nil means
	// that nobody does.
	Tracer door.Tracer
	// Line turns away requests that waited too long. nil turns none away.
	Line *shed.Door
	// Logger logs connections that went wrong, at most one line a minute; nil means nobody.
	Logger *slog.Logger
}

// Agent serves HAProxy. Make one with New. Safe for concurrent use.
type Agent struct {
	limiter *weir.Limiter
	o       Options
	log     *slog.Logger
	calls   sync.Pool // of *call
	remarks remarks
	workers workers
	ctx     context.Context // of decisions; ends when Shutdown cuts connections off
	cancel  context.CancelFunc
	conns   *listen.Group[*conn]
}

// remarks are logged once, or once in a while.
type remarks struct {
	unnamed, domain sync.Once
	frames          sync.Once
	broken          sparselog.Line
}

// New returns an agent that asks l.
func New(l *weir.Limiter, o Options) *Agent {
	o.Parallel = max(o.Parallel, 0)
	o.MaxFrameSize = min(max(cmp.Or(o.MaxFrameSize, defaultFrame), minFrameLimit), maxFrameLimit)
	o.HelloTimeout = cmp.Or(o.HelloTimeout, 10*time.Second)
	o.FrameTimeout = cmp.Or(o.FrameTimeout, 10*time.Second)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 10*time.Minute)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 10*time.Second)
	a := &Agent{limiter: l, o: o, log: o.Logger}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	if a.o.Fields == nil {
		a.o.Fields = &httplimit.FieldGuard{Logger: a.log}
	}
	a.calls.New = func() any { return newCall(a) }
	a.ctx, a.cancel = context.WithCancel(context.Background())
	a.workers.init(o.Parallel)
	a.conns = listen.NewGroup(a.newConn, listen.GroupOptions{
		Retrying: func(err error, pause time.Duration) {
			a.log.Error("spoe: a connection cannot be accepted; trying again", "error", err, "in", pause.String())
		},
		Cancel: a.cancel,
	})
	return a
}

// Serve accepts connections from l until Shutdown; then it returns nil. It closes l.
func (a *Agent) Serve(l net.Listener) error { return a.conns.Serve(l) }

// Shutdown stops the agent: it accepts no new connections, answers the requests that have come in,
// and tells HAProxy the end of each connection (AGENT-DISCONNECT). When ctx is done it cuts off the
// rest, and returns the error of ctx.
func (a *Agent) Shutdown(ctx context.Context) error {
	err := a.conns.Shutdown(ctx)
	a.cancel()
	a.workers.stop()
	return err
}

// broken logs a connection that ended badly, unless it logged one within the last minute: a client
// that can connect must not be able to fill the log.
func (a *Agent) broken(peer string, s status, detail string) {
	if a.remarks.broken.Due(time.Minute) == 0 {
		return
	}
	a.log.Warn("spoe: a connection was ended", "peer", peer, "status", uint32(s), "reason", s.String(),
		"detail", detail)
}
