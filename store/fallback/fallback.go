// Package fallback wraps a store that may be away (Redis), and decides meanwhile as the rules want it: in this process on
// the node's share of each limit, or by admitting or refusing everything.
package fallback

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// ErrUnavailable is what Take returns, together with its cause, when the primary is away and a limit of the call says
// on_store_error: deny.
var ErrUnavailable = errors.New("fallback: the store is away, and a rule wants refusal meanwhile")

// DefaultDeadline is the default of Options.Deadline.
const DefaultDeadline = 20 * time.Millisecond

// Options configure New. Local is required; the zero value of all else is right for a single node.
type Options struct {
	// Local is the store in this process that decides for rules with on_store_error: local. What it counts outlives
	// the outages, so that no outage begins with a fresh share.
	Local weir.Store
	// Deadline is how long a decision waits for the primary; 0 means 20 ms. A caller whose own deadline is sooner is
	// answered when three quarters of its time have passed.
	Deadline time.Duration
	// Nodes returns how many nodes the primary last knew alive, this one included; below 1 means that it is not
	// known, and a nil function that it never is. It is called for each decision without the primary: it must be
	// quick and safe for concurrent use.
	Nodes func() int
	// FixedNodes is the number of nodes at least, and while Nodes knows none; 0 means 1.
	FixedNodes int
	// Probe asks whether the primary is back; nil asks it for a decision on nothing. It has to answer before its context ends,
	// at Deadline, and must return then. It runs in the background, and only while the primary is away.
	Probe func(ctx context.Context) error
	// Transition is told of each change of state, once, in order, from the background; cause is nil when to is Closed.
	// nil means nobody is told. It must not call Close.
	Transition func(from, to State, cause error)
}

// Store implements weir.Store over a primary. Make one with New.
//
// While the circuit breaker is closed the primary decides. If it fails on a call, or misses the deadline, that call is
// decided without it; after a few such failures in a row the breaker opens, and all calls are, at once. Probes
// in the background close it again.
//
// What is decided without the primary goes by weir.Charge.OnStoreError. An enforcing charge with DenyAll fails the call with
// ErrUnavailable. AllowAll is answered as allowed, uncounted. All others (those in shadow that say DenyAll too) are
// decided by Options.Local, all or nothing, on this node's share: a limit of ceil(N / nodes).
//
// Once the primary is back it is charged, in the background, what was admitted locally meanwhile, as far as that still
// counts and finds room. A charge whose answer was lost is treated as made: it is neither repeated nor charged later.
type Store struct {
	primary weir.Store
	timed   timed         // the primary, if it keeps deadlines by itself
	answers func() uint64 // of the primary, if it answers some calls from memory
	o       Options

	breaker atomic.Pointer[breaker] // changed with mu held
	run     run
	shares  atomic.Pointer[shares]
	missed  ledger
	outages outages
	scratch sync.Pool // *scratch
	stats   counters

	tripped chan struct{} // holds one value when the breaker has opened and the background has not seen it yet

	ctx  context.Context // ends at Close
	stop context.CancelFunc
	wg   sync.WaitGroup
	mu   struct {
		sync.Mutex
		tending bool // the background runs
		closed  bool
	}
}

// timed is what a primary may implement to keep the deadline by itself, which a context with a time-out does at the
// price of allocations. TakeWithin is Take, but fails with an error that is context.DeadlineExceeded once within, which
// is above 0, has passed.
type timed interface {
	TakeWithin(ctx context.Context, within time.Duration, charges []weir.Charge, results []algo.Result) (now int64, err error)
}

// remembering is what a primary implements that answers some calls itself from what it remembers. Answers is how many
// answers it has got for others: where that stands still, its answers do not tell that it is there.
type remembering interface{ Answers() uint64 }

var _ weir.Store = (*Store)(nil)

// New returns a Store over primary, which may be away as yet. The Store closes both primary and o.Local.
//
// What the primary is asked must return when its context ends, and leave charges and results alone from then on. If the
// primary has a method TakeWithin(ctx, within, charges, results), that is called instead of Take: the same, but it fails
// with context.DeadlineExceeded once the duration within, above 0, has passed.
func New(primary weir.Store, o Options) (*Store, error) {
	switch {
	case primary == nil:
		return nil, errors.New("fallback: New needs a primary store")
	case o.Local == nil:
		return nil, errors.New("fallback: Options.Local is missing; it is the store in this process, such as memory.New(memory.Options{})")
	case o.Deadline < 0 || o.FixedNodes < 0:
		return nil, fmt.Errorf("fallback: Deadline (%v) and FixedNodes (%d) must not be negative; 0 means the default", o.Deadline, o.FixedNodes)
	}
	if o.Deadline == 0 {
		o.Deadline = DefaultDeadline
	}
	if o.Probe == nil {
		o.Probe = func(ctx context.Context) error {
			_, err := primary.Take(ctx, nil, nil)
			return err
		}
	}
	s := &Store{primary: primary, o: o}
	s.timed, _ = primary.(timed)
	if r, ok := primary.(remembering); ok {
		s.answers = r.Answers
	}
	s.breaker.Store(&breaker{since: time.Now()})
	s.shares.Store(&shares{nodes: 1})
	s.missed.init()
	s.scratch.New = func() any { return new(scratch) }
	s.tripped = make(chan struct{}, 1)
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Take implements weir.Store. It fails only with ErrUnavailable, with the error of a caller that gave up, if Local fails as
// well, or if the charges make no sense.
func (s *Store) Take(ctx context.Context, charges []weir.Charge, results []algo.Result) (int64, error) {
	if err := check(charges, results); err != nil {
		return 0, err
	}
	if b := s.breaker.Load(); b.state != Closed {
		return s.without(ctx, charges, results, b.refusal, false)
	}
	now, err := s.ask(ctx, charges, results)
	if err == nil || ctx.Err() != nil {
		return now, err
	}
	return s.without(ctx, charges, results, refusal(err), !errors.Is(err, weir.ErrNotCharged))
}

// check finds what would make any store fail, and says nothing of the primary.
func check(charges []weir.Charge, results []algo.Result) error {
	if len(charges) != len(results) {
		return errors.New("fallback: there must be one result for each charge")
	}
	for i := range charges {
		if charges[i].Counter == nil || charges[i].Limit == nil {
			return fmt.Errorf("fallback: charge %d needs a Counter and a Limit", i)
		}
	}
	return nil
}

// ask lets the primary decide, within the deadline, and tells the breaker how it went.
func (s *Store) ask(ctx context.Context, charges []weir.Charge, results []algo.Result) (now int64, err error) {
	patience, began := s.patience(ctx), s.run.begin()
	if s.timed != nil {
		now, err = s.timed.TakeWithin(ctx, patience, charges, results)
	} else {
		limited, cancel := context.WithTimeout(ctx, patience)
		now, err = s.primary.Take(limited, charges, results)
		cancel()
	}
	s.heard(ctx, patience, began, err)
	return now, err
}

// patience is how long a caller can wait for the primary, and still hear in time what is decided without it; above 0.
func (s *Store) patience(ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return min(s.o.Deadline, max(time.Until(end)*3/4, 1))
	}
	return s.o.Deadline
}

// heard takes note of how the primary answered a call that began at began.
func (s *Store) heard(ctx context.Context, patience time.Duration, began uint32, err error) {
	if err == nil {
		s.run.succeeded(s.answers)
		return
	}
	if ctx.Err() != nil {
		return // the caller gave up
	}
	if errors.Is(err, context.DeadlineExceeded) {
		s.stats.deadlineMisses.Add(1)
		if patience < s.o.Deadline/2 {
			return // which tells of the caller rather than of the primary
		}
	}
	if s.run.failed(began, s.answers) {
		s.trip(err)
	}
}

// Release implements weir.Store. While the primary is away, a slot that Local does not know is taken for one of the
// primary's: ok is then true, and the slot is given back when the primary returns.
func (s *Store) Release(ctx context.Context, c *rule.Counter, key []byte, slot uint64) (bool, error) {
	if c == nil {
		return false, errors.New("fallback: Release needs a Counter")
	}
	if slot == 0 {
		return false, nil
	}
	// Ids are random in both stores: one that Local knows is not the primary's.
	if ok, err := s.o.Local.Release(ctx, c, key, slot); ok || err != nil {
		return ok, err
	}
	why := s.breaker.Load().refusal
	if why == nil {
		ok, err := s.askRelease(ctx, c, key, slot)
		if err == nil || ctx.Err() != nil {
			return ok, err
		}
		why = err
	}
	if !s.missed.addRelease(c, key, slot) {
		return false, why
	}
	s.tendIfClosed()
	return true, nil
}

func (s *Store) askRelease(ctx context.Context, c *rule.Counter, key []byte, slot uint64) (bool, error) {
	patience, began := s.patience(ctx), s.run.begin()
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ok, err := s.primary.Release(limited, c, key, slot)
	s.heard(ctx, patience, began, err)
	return ok, err
}

// Close stops the background and closes the primary and Local. What has not been settled is forgotten. A second
// Close does nothing.
func (s *Store) Close() error {
	s.mu.Lock()
	closed := s.mu.closed
	s.mu.closed = true
	s.mu.Unlock()
	if closed {
		return nil
	}
	s.stop()
	s.wg.Wait()
	return errors.Join(s.primary.Close(), s.o.Local.Close())
}
