// Package fallback wraps a primary store that may be unavailable, such as Redis. While it is, calls
// are decided as the rules say: in this process on the node's share of each limit, or by admitting
// or refusing everything.
//
// Begin at Store.Take (fallback.go). It asks the primary through the circuit breaker of the part
// that holds the keys (breaker.go, part.go), or of several parts (across.go). Without the primary
// it decides locally (without.go), on a share of each limit (share.go) and within the primary's
// last results for a key (known.go). A ledger for each part keeps the charges that the primary has
// missed (ledger.go); they are made in the background when the part is back (tend.go). The books
// account for every unit that was admitted on a share (books.go).
package fallback

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// ErrUnavailable is the error of Take, joined with its cause, when the primary is away and a limit
// of the call has on_store_error: deny.
var ErrUnavailable = errors.New("fallback: the store is away, and a rule wants refusal meanwhile")

// DefaultDeadline is the default of Options.Deadline.
const DefaultDeadline = 20 * time.Millisecond

// Options configure New. Local is required; the zero value of all else is right for a single node.
type Options struct {
	// Local is the store in this process that decides for rules with on_store_error: local. Its
	// counts outlive an outage, so the next outage does not begin with a fresh share.
	Local store.Store
	// Deadline is the shortest time that a decision waits for the primary; 0 means 20 ms. A caller
	// with an earlier deadline of its own is answered after three quarters of its time.
	Deadline time.Duration
	// MaxDeadline is how long it waits at most. In between it depends on the primary, see New: one
	// that is known to be slow is waited for. 0, or less than Deadline, means Deadline.
	MaxDeadline time.Duration
	// Nodes returns how many nodes the primary last knew alive, this one included; below 1 means
	// that it is not known, and a nil function that it never is. It is called for each decision
	// without the primary: it must be quick and safe for concurrent use.
	Nodes func() int
	// FixedNodes is the least number of nodes, and the number in use while Nodes knows none; 0
	// means 1.
	FixedNodes int
	// Probe asks whether the primary is back; nil asks it for a decision on nothing. It has to
	// answer before its context ends, at MaxDeadline, and must return then. It runs in the
	// background, and only while the primary is away. A primary with parts is asked for each by
	// itself, see New.
	Probe func(ctx context.Context) error
	// Transition is called for each change of state, once, in order, from the background; cause is
	// nil when to is Closed. nil means no calls. It must not call Close. If the primary has parts,
	// it gets the states of the whole, as State returns them.
	Transition func(from, to State, cause error)
	// Exceeded is called with the units that this node's share has admitted beyond limits: at most
	// once a minute, with each rule's excess since the last call, and the time since which it
	// counts. nil means no calls. It must not call Close.
	Exceeded func(since time.Time, rules []Excess)
	// Lasting is called with a fault of the primary that does not pass by itself when it is met: at
	// most once a minute with the same one. It must be quick, and safe for concurrent use. nil
	// means no calls. See Store.Lasting.
	Lasting func(fault *store.LastingError)
	// Unanswered is called at most once a minute. It counts the decisions that this node made by
	// itself while the primary counted as there, since the last call. nil means no calls. It must
	// not call Close.
	Unanswered func(Unanswered)
	// Random returns a number from 0 up, below most, which is above 0. It spreads the probes of
	// nodes that lost the primary together. nil means math/rand/v2, which is right except for
	// simulations, which must be able to repeat a run. It must be safe for concurrent use.
	Random func(most int64) int64
}

// Store implements store.Store over a primary. Make one with New.
//
// While the circuit breaker is closed, the primary decides. If the primary fails a call or misses
// the deadline, that call is decided without it, and counted (Unanswered). After a few such
// failures in a row the breaker opens, and all calls are decided without the primary at once.
// Probes in the background close the breaker again. If parts of a primary can be away separately,
// each part has a breaker.
//
// Without the primary, store.Charge.OnStoreError decides. An enforcing charge with DenyAll fails
// the call with ErrUnavailable. A charge with AllowAll is allowed and not counted. Options.Local
// decides all other charges (also those in shadow mode with DenyAll), all or nothing, on this
// node's share: a limit of ceil(N / nodes). The share is also bounded by the primary's last answer
// for the key: it admits at most this node's part of the units that were left, and nothing if none
// were (see known).
//
// When the primary is back, the background charges it for the units that were admitted locally, as
// far as they still count and the limit has room. A call whose answer from the primary is late is
// decided locally too, and the answer is heeded when it comes. If the primary charged the call, the
// charge is settled, or given back if the call was refused here. If the primary refused the call,
// its units went beyond the limit. If no answer ever comes, the charge is not repeated. Stats
// counts the outcome of each unit.
type Store struct {
	primary store.Store
	timed   store.Deadliner // the primary, if it keeps deadlines by itself
	parted  store.Parted    // the primary, or the store it wraps, if that has parts
	prompt  prompt
	o       Options

	parts      []part
	shares     atomic.Pointer[shares]
	known      *known
	books      *books
	unanswered unanswered
	scratch    sync.Pool // *scratch
	stats      counters
	nobody     *rule.Counter // see split
	lasting    atomic.Pointer[met]

	ctx  context.Context // ends at Close
	stop context.CancelFunc
	wg   sync.WaitGroup
	mu   struct {
		sync.Mutex
		closed bool
	}
	announced struct {
		sync.Mutex // held while Transition is called
		state      State
	}
}

var (
	_ store.Store  = (*Store)(nil)
	_ store.Prompt = (*Store)(nil)
)

// New returns a Store over primary, which may still be away. The Store closes both primary and
// o.Local.
//
// Each call to the primary must return when its context ends, and must not touch charges and
// results from then on. A primary that is a store.Deadliner has until MaxDeadline while it seems to
// be there; any other one has until Deadline. If an error of the primary is a store.Pending, the
// Store takes the answer when it comes.
//
// If the primary is a store.Prompt, TakeNow asks it. While it is away, so does Take for limits that
// are leased. Each part of a store.Parted has a breaker of its own. A store.Wrapper may leave all
// optional interfaces of package store to the store that it wraps, but store.Prompt and
// store.Deadliner.
func New(primary store.Store, o Options) (*Store, error) {
	switch {
	case primary == nil:
		return nil, errors.New("fallback: New needs a primary store")
	case o.Local == nil:
		return nil, errors.New(
			"fallback: Options.Local is missing; it is the store in this process, such as memory.New(memory.Options{})")
	case o.Deadline < 0 || o.FixedNodes < 0:
		return nil, fmt.Errorf("fallback: Deadline (%v) and FixedNodes (%d) must not be negative; 0 means the default",
			o.Deadline, o.FixedNodes)
	}
	if o.Deadline == 0 {
		o.Deadline = DefaultDeadline
	}
	if o.Random == nil {
		o.Random = rand.Int64N
	}
	o.MaxDeadline = max(o.Deadline, o.MaxDeadline)
	s := &Store{primary: primary, o: o, known: newKnown(), nobody: noLimit()}
	s.timed, _ = primary.(store.Deadliner)
	s.parted, _ = store.As[store.Parted](primary)
	s.prompt.primary, _ = primary.(store.Prompt)
	s.prompt.local, _ = o.Local.(store.Prompt)
	s.books = newBooks(s.known, o.Exceeded)
	s.unanswered.report = o.Unanswered
	s.initParts()
	s.shares.Store(&shares{nodes: 1})
	s.scratch.New = func() any { return new(scratch) }
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// Take implements store.Store. It fails only with ErrUnavailable, with the error of a caller that
// gave up, if Local fails as well, or if the charges make no sense.
func (s *Store) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	if err := check(charges, results); err != nil {
		return 0, err
	}
	p := s.together(charges)
	if p == nil {
		return s.takeAcross(ctx, charges, results)
	}
	if b := p.breaker.Load(); b.state != Closed {
		if now, ok := s.onLease(charges, results); ok {
			return now, nil
		}
		return s.without(ctx, charges, results, b.refusal, nil)
	}
	began := p.run.begin()
	now, patience, err := s.ask(ctx, charges, results)
	s.heard(ctx, p, patience, began, err)
	switch {
	case err == nil:
		return now, nil
	case ctx.Err() != nil:
		s.abandoned(charges, err)
		return now, err
	}
	return s.without(ctx, charges, results, refuse(err), err)
}

// check finds errors in the call that would fail in any store, whatever the state of the primary.
func check(charges []store.Charge, results []algo.Result) error {
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

// ask lets the primary decide, within the deadline, and records its answer.
func (s *Store) ask(
	ctx context.Context, charges []store.Charge, results []algo.Result,
) (now int64, patience time.Duration, err error) {
	minWait, maxWait := s.patience(ctx)
	remembered := false
	if s.timed != nil {
		now, remembered, err = s.timed.TakeWithin(ctx, minWait, maxWait, charges, results)
	} else {
		limited, cancel := context.WithTimeout(ctx, minWait)
		now, err = s.primary.Take(limited, charges, results)
		cancel()
	}
	if err == nil && !remembered {
		s.known.record(charges, results, now)
	}
	return now, minWait, err
}

// patience returns the shortest and the longest time to wait for the primary, such that the caller
// still gets the local decision in time. Both are above 0.
func (s *Store) patience(ctx context.Context) (minWait, maxWait time.Duration) {
	if end, ok := ctx.Deadline(); ok {
		own := max(time.Until(end)*3/4, 1)
		return min(s.o.Deadline, own), min(s.o.MaxDeadline, own)
	}
	return s.o.Deadline, s.o.MaxDeadline
}

// heard takes note of how a part of the primary has answered a call, which began at began.
func (s *Store) heard(ctx context.Context, p *part, patience time.Duration, began uint32, err error) {
	if err == nil {
		p.run.succeeded(p.answers)
		return
	}
	s.meet(err)
	if ctx.Err() != nil {
		return // the caller gave up
	}
	b, told := errors.AsType[store.PartError](err)
	if told && !b.Failed(p.number) {
		return
	}
	if errors.Is(err, context.DeadlineExceeded) {
		s.stats.deadlineMisses.Add(1)
		// This failure is due to a caller in a hurry, not to the primary.
		if told && !b.Silent() || !told && patience < s.o.Deadline/2 {
			return
		}
	}
	if p.run.failed(began, p.answers) {
		s.trip(p, err)
	}
}

// Release implements store.Store. While the primary is away, a slot that Local does not know is
// taken for one of the primary's: ok is then true, and the slot is given back when the primary
// returns.
func (s *Store) Release(ctx context.Context, c *rule.Counter, key []byte, slot uint64) (bool, error) {
	if c == nil {
		return false, errors.New("fallback: Release needs a Counter")
	}
	if slot == 0 {
		return false, nil
	}
	// Ids are random in both stores: one that Local knows is not the primary's.
	if ok, err := s.o.Local.Release(ctx, c, key, slot); ok || err != nil {
		if ok {
			s.known.free(c, key, 1)
		}
		return ok, err
	}
	p := s.partOf(c, key)
	why := p.breaker.Load().refusal
	if why == nil {
		ok, err := s.askRelease(ctx, p, c, key, slot)
		if err == nil || ctx.Err() != nil {
			return ok, err
		}
		why = err
	}
	if !p.missed.addRelease(c, key, slot) {
		return false, why
	}
	s.known.gain(c, key)
	s.tendIfClosed(p)
	return true, nil
}

func (s *Store) askRelease(ctx context.Context, p *part, c *rule.Counter, key []byte, slot uint64) (bool, error) {
	_, patience := s.patience(ctx)
	began := p.run.begin()
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ok, err := s.primary.Release(limited, c, key, slot)
	if ok {
		s.known.gain(c, key)
	}
	s.heard(ctx, p, patience, began, err)
	return ok, err
}

// Close stops the background, makes the last report to Exceeded, and closes the primary and Local.
// Units that have not been settled are forgotten. A second Close does nothing.
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
	err := s.primary.Close() // answers that came late are heard by then
	s.books.close()
	s.unanswered.close()
	return errors.Join(err, s.o.Local.Close())
}
