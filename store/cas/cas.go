package cas

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/internal/refusals"
	"github.com/weir-rl/weir/store/internal/waiting"
)

// Options configure New. The zero value of every field suits most.
type Options struct {
	// Name begins the store's errors, such as "postgres store"; "" means "cas store".
	Name string
	// Connections is how many calls to the engine may be under way at a time; 0 means 8 for an
	// engine that Spans, and 64 for another, whose calls each go to one place.
	Connections int
	// Timeout is how long one call to the engine may take before its outcome counts as unknown; 0
	// means 1 s. It is not the deadline of a decision, which the caller's context (or package
	// fallback) sets: it bounds how long a hanging call keeps its keys.
	Timeout time.Duration
	// RememberRefusals is how long at most this node repeats a refusal without asking the engine; 0
	// means never. A second is good.
	RememberRefusals time.Duration
	// Freed is called with a key that may be admitted earlier than nodes were told before, and the
	// id of its counter, so that the others call ForgetHere; nil means no calls. It must be quick
	// and safe for concurrent use, and key is valid during the call only.
	Freed func(id uint64, key []byte)
	// KnownKeys bounds the values that this node remembers, with 512 bytes for each on average: a
	// decision on one of these takes one round trip if nobody else has changed it. 0 means 65,536.
	KnownKeys int
	// Logger gets warnings for operators; nil means that nothing is logged.
	Logger *slog.Logger
	// Clock is for tests: it returns the instant of each decision, in µs since the Unix epoch, in
	// place of the engine's clock. Values are then kept for a day, whatever their states say.
	Clock func() int64
}

// The defaults of Options.
const (
	DefaultName      = "cas store"
	DefaultTimeout   = time.Second
	DefaultKnownKeys = 65_536

	connections      = 8
	connectionsApart = 64
)

// Store implements store.Store over an Engine. Make one with New. Safe for concurrent use.
//
// A decision whose answer was lost counts as charged, and is never made twice.
type Store struct {
	o        Options
	engine   Engine
	locker   Locker // nil: nothing can be locked
	spans    bool
	server   server
	clock    clock
	versions versions
	probing  probe
	refusals *refusals.Memory // nil: none are remembered
	calls    sync.Pool        // *call
	stats    counters
	warned   atomic.Bool // of damaged states

	ctx  context.Context // ends at Close
	stop context.CancelFunc
	life sync.WaitGroup

	mu      sync.Mutex
	queue   []*call
	known   known
	scans   uint64  // of the queue
	dropped []*call // withdrawn, and off the queue
	wake    chan struct{}
	workers int // that have been started
	idle    int // of these, waiting for wake
	closed  bool
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Prompt    = (*Store)(nil)
	_ store.Remote    = (*Store)(nil)
	_ store.Forgetter = (*Store)(nil)
	_ store.Deadliner = (*Store)(nil)
	_ store.Parted    = (*Store)(nil)
)

// server is what this node knows about the engine's database.
type server struct {
	detector waiting.Detector
	flying   atomic.Int64  // calls under way
	answers  atomic.Uint64 // decisions that the engine has made
	heard    atomic.Int64  // when the last answer came, by the monotonic clock, in ns; 0: none
	timeout  int64         // Options.Timeout, in ns
}

func (p *server) sent(now int64) {
	p.flying.Add(1)
	p.detector.Sent(now)
}

func (p *server) answered(now, took int64) {
	p.heard.Store(now)
	p.detector.Answered(now, took)
	if p.flying.Add(-1) > 0 {
		p.detector.Sent(now)
	}
}

// stallLeast is by how much a call is late at least if this process did not run. On a busy machine
// it is late by less.
const stallLeast = int64(50 * time.Millisecond)

// lost notes that a call failed, and when it was sent, and returns its error. One that was given up
// says that nothing was heard, unless it ended so late that this process cannot have run meanwhile:
// then it is as if its connection broke, and the server as if it had answered just now. To make a
// new connection takes longer than any answer over the old ones did, so that where one broke the
// server does not count as silent for as long as a call may take, and then as if nothing were known
// of how long it takes.
func (p *server) lost(ctx context.Context, now, sent int64, err error) error {
	overdue := now - sent - p.timeout
	if end, ok := ctx.Deadline(); ok {
		overdue = max(overdue, int64(time.Since(end)))
	}
	late := errors.Is(err, context.DeadlineExceeded)
	stalled := late && overdue >= stallLeast
	heeded := stalled && p.detector.Resumed(now-overdue, now)
	if last := p.flying.Add(-1) == 0; last && (!late || heeded) {
		p.detector.Lost()
	}
	if stalled {
		err = oversleptError{err}
		if p.heard.Load() != 0 {
			p.heard.Store(now)
		}
	}
	if errors.Is(err, ErrBroken) && (!stalled || heeded) {
		p.detector.Begin(now)
		p.detector.Awaited(now + p.timeout)
	}
	return err
}

// oversleptError is the error of a call that took so long that this process did not run meanwhile.
type oversleptError struct{ error }

func isOverslept(err error) bool {
	var e oversleptError
	return errors.As(err, &e)
}

// Unwrap says that it is ErrBroken, too.
func (e oversleptError) Unwrap() []error { return []error{e.error, ErrBroken} }

// New returns a Store over e, which it closes in the end. The database need not be reachable. An
// error means that the options make no sense.
func New(e Engine, o Options) (*Store, error) {
	if e == nil {
		return nil, errors.New("cas store: New needs an Engine")
	}
	s := &Store{engine: e, spans: e.Spans()}
	if o.Name == "" {
		o.Name = DefaultName
	}
	if o.Connections == 0 {
		if o.Connections = connections; !s.spans {
			o.Connections = connectionsApart
		}
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.KnownKeys == 0 {
		o.KnownKeys = DefaultKnownKeys
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.Connections < 1 || o.Connections > 4096:
		return nil, fmt.Errorf("%s: the number of connections is %d; it must be from 1 to 4096", o.Name, o.Connections)
	case o.Timeout < 0 || o.RememberRefusals < 0 || o.KnownKeys < 0:
		return nil, fmt.Errorf("%s: Timeout (%v), RememberRefusals (%v) and KnownKeys (%d) must not be negative",
			o.Name, o.Timeout, o.RememberRefusals, o.KnownKeys)
	}
	s.o = o
	s.locker, _ = e.(Locker)
	s.server.timeout = int64(o.Timeout)
	s.server.detector.Begin(store.Monotonic())
	s.known.init(o.KnownKeys)
	s.versions.init()
	s.calls.New = func() any { return &call{done: make(chan struct{}, 1)} }
	s.wake = make(chan struct{}, o.Connections)
	if o.RememberRefusals > 0 {
		s.refusals = refusals.New(o.RememberRefusals)
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Close ends calls under way, and closes the engine. Calls that wait fail.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	waiting := s.queue
	s.queue = nil
	for _, c := range waiting {
		if s.unpin(c); c.stage == queued {
			c.err, c.stage = errClosed, delivered
			c.done <- struct{}{}
		}
	}
	close(s.wake)
	s.mu.Unlock()
	s.stop()
	s.life.Wait()
	return s.engine.Close()
}

// background runs f in a goroutine that Close waits for. After Close it does nothing and reports
// false.
func (s *Store) background(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.life.Go(f)
	return true
}

// Remote implements store.Remote.
func (s *Store) Remote() bool { return true }

// Parts implements store.Parted: the database is one part.
func (s *Store) Parts() int { return 1 }

// PartOf implements store.Parted.
func (s *Store) PartOf(*rule.Counter, []byte) int { return 0 }

// PartOfID implements store.Parted.
func (s *Store) PartOfID(string) int { return 0 }

// Answers implements store.Parted.
func (s *Store) Answers(int) uint64 { return s.server.answers.Load() }

// Time asks the engine for its clock, in µs since the Unix epoch. It is a round trip.
func (s *Store) Time(ctx context.Context) (int64, error) {
	var now int64
	err := s.ask(ctx, func() (clock int64, err error) {
		_, now, err = s.engine.Read(ctx, nil)
		return now, err
	})
	if err != nil {
		return 0, s.wrap(err)
	}
	if s.o.Clock != nil {
		return s.o.Clock(), nil
	}
	return now, nil
}

// Now returns the engine's clock as this node estimates it, in µs since the Unix epoch. ok is
// false until the engine has answered once.
func (s *Store) Now() (now int64, ok bool) {
	if s.o.Clock != nil {
		return s.o.Clock(), true
	}
	return s.clock.at(store.Monotonic()), s.clock.known.Load()
}

// leastLife is how long a value lives at least after a change. A busy key whose state is fresh
// within moments would else be forgotten between its decisions, and each of them take two round
// trips.
const leastLife = time.Minute

// until returns when a value may be forgotten that is changed now and whose states are fresh from
// an instant on.
func (s *Store) until(now, fresh int64) int64 {
	if s.o.Clock == nil {
		return max(fresh, now+leastLife.Microseconds())
	}
	return s.clock.at(store.Monotonic()) + (24 * time.Hour).Microseconds()
}

// notChargedError marks an error after which nothing was charged.
type notChargedError struct{ error }

func (e notChargedError) Unwrap() error        { return e.error }
func (e notChargedError) Is(target error) bool { return target == store.ErrNotCharged }

func (s *Store) wrap(err error) error { return fmt.Errorf("%s: %w", s.o.Name, err) }

func (s *Store) notCharged(err error) error { return notChargedError{s.wrap(err)} }

func isNotCharged(err error) bool { return err != nil && errors.Is(err, store.ErrNotCharged) }

// damaged takes note of states that cannot be read. They count as fresh.
func (s *Store) damaged(n int) {
	s.stats.damaged.Add(uint64(n))
	if !s.warned.Swap(true) {
		s.o.Logger.Warn(s.o.Name +
			": a value in the database has a form that is not known; its states count as fresh, and are overwritten")
	}
}
