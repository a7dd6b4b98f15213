// Package spoe is the door for HAProxy: an agent of its Stream Processing Offload Engine, which speaks the protocol SPOP 2.0 over
// a stream (HAProxy's doc/SPOE.txt). HAProxy 2.6 and all later ones are served.
//
// A NOTIFY is one request: the arguments of its messages are the attributes, and its ACK sets variables that HAProxy's configuration
// refuses by and writes headers from (Variables). Answers come in the order in which the store gives them; pipelining is all that is
// announced, so that no frame comes in pieces.
package spoe

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
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

// Options tune New. The zero value is right for a store that never waits, but trusts nobody.
type Options struct {
	// Domain is that of requests that name none; "" means the only domain that the rules hold.
	Domain string
	// Trusted reports whether the other end of a connection, as net.Conn tells it, may refund and ask for more than 1,000 hits; nil
	// trusts nobody. It must be safe for concurrent use.
	Trusted func(peer string) bool
	// Parallel is how many requests may be decided at a time, of all connections together. 0 decides those of a connection one
	// after the other, which is the quickest for a store that never waits, and wrong for one over a network.
	Parallel int
	// MaxFrameSize bounds a frame in bytes, without its length, and is kept within 256 and 1 MiB; 0 means 65,536, four times what
	// HAProxy sends by default.
	MaxFrameSize int
	// HelloTimeout bounds the time until a connection has introduced itself; 0 means 10 s.
	HelloTimeout time.Duration
	// FrameTimeout bounds the time from the first byte of a frame to its last; 0 means 10 s.
	FrameTimeout time.Duration
	// IdleTimeout is how long a connection may be silent; 0 means 10 minutes, which is longer than HAProxy should keep one.
	IdleTimeout time.Duration
	// WriteTimeout bounds the time in which answers must be taken; 0 means 10 s.
	WriteTimeout time.Duration
	// Stopwatch times decisions; nil means that nobody does.
	Stopwatch Stopwatch
	// Logger is told of connections that went wrong, in a line a minute at most; nil means nobody.
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

	draining atomic.Bool

	mu struct {
		sync.Mutex
		listeners []net.Listener
		conns     map[*conn]struct{}
		stopped   bool
	}
	serving sync.WaitGroup // connections
}

// remarks are what is said once, or once in a while.
type remarks struct {
	unnamed, domain sync.Once
	frames          sync.Once
	broken          atomic.Int64 // Unix seconds of the last line on a broken connection
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
	a.calls.New = func() any { return newCall(a) }
	a.ctx, a.cancel = context.WithCancel(context.Background())
	a.workers.init(o.Parallel)
	a.mu.conns = map[*conn]struct{}{}
	return a
}

// Serve accepts connections from l until Shutdown; then it returns nil. It closes l.
func (a *Agent) Serve(l net.Listener) error {
	defer l.Close()
	a.mu.Lock()
	if a.mu.stopped {
		a.mu.Unlock()
		return nil
	}
	a.mu.listeners = append(a.mu.listeners, l)
	a.mu.Unlock()
	var pause time.Duration
	for {
		nc, err := l.Accept()
		switch {
		case err == nil:
			pause = 0
			a.start(nc)
		case a.draining.Load():
			return nil
		case temporary(err):
			// Such as too many open files: others are served meanwhile.
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			a.log.Error("spoe: a connection cannot be accepted; trying again", "error", err, "in", pause.String())
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case <-a.ctx.Done():
				timer.Stop()
			}
		default:
			return err
		}
	}
}

// temporary reports whether it is worth while to accept again. net.Error's Temporary is what net/http goes by too.
func temporary(err error) bool {
	t, ok := errors.AsType[interface {
		error
		Temporary() bool
	}](err)
	return ok && t.Temporary()
}

// start serves a connection in a goroutine of its own.
func (a *Agent) start(nc net.Conn) {
	c := newConn(a, nc)
	a.mu.Lock()
	if a.mu.stopped {
		a.mu.Unlock()
		_ = nc.Close()
		return
	}
	a.mu.conns[c] = struct{}{}
	a.serving.Add(1)
	a.mu.Unlock()
	go func() {
		defer a.serving.Done()
		defer func() {
			a.mu.Lock()
			delete(a.mu.conns, c)
			a.mu.Unlock()
		}()
		c.serve()
	}()
}

// Shutdown stops the agent: no new connections, what has come in is answered, and HAProxy is told of the end of each connection
// (AGENT-DISCONNECT). What is not over when ctx is done is cut off, and the error is that of ctx.
func (a *Agent) Shutdown(ctx context.Context) error {
	a.draining.Store(true)
	a.mu.Lock()
	a.mu.stopped = true
	for _, l := range a.mu.listeners {
		_ = l.Close()
	}
	for c := range a.mu.conns {
		c.wake()
	}
	a.mu.Unlock()
	done := make(chan struct{})
	go func() {
		a.serving.Wait()
		close(done)
	}()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = ctx.Err()
		a.cancel()
		a.mu.Lock()
		for c := range a.mu.conns {
			_ = c.net.Close()
		}
		a.mu.Unlock()
		<-done
	}
	a.cancel()
	a.workers.stop()
	return err
}

// broken tells of a connection that ended badly, unless something like it was told within the last minute: whoever can connect must
// not be able to fill the log.
func (a *Agent) broken(peer string, s status, detail string) {
	now := time.Now().Unix()
	last := a.remarks.broken.Load()
	if now-last < 60 || !a.remarks.broken.CompareAndSwap(last, now) {
		return
	}
	a.log.Warn("spoe: a connection was ended", "peer", peer, "status", uint32(s), "reason", s.String(), "detail", detail)
}
