// Package lease wraps a store that lends units ahead (store.Lender), and decides most calls of busy
// keys on this node, without asking the store. No call is admitted that the store would not have
// admitted, see docs/operating/redis.md.
//
// Begin with Store.TakeNow (here.go), which decides a call here if it can. Other calls go to the
// store, together with reports and wishes (ask.go). Package internal/leasing/lessee has the
// protocol: the books of a key, and all rules about when and how much. A table of keys (table.go)
// keeps them. In the background, lanes (lane.go) ask for units before they are needed, and report
// the use of units before they end; guard.go watches the clocks, and drain.go returns everything.
package lease

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// DefaultMaxKeys is the default of Options.MaxKeys.
const DefaultMaxKeys = 65_536

// Options configure New. The zero value is right for most.
type Options struct {
	// MaxKeys bounds the keys that hold leases at a time, or may soon; 0 means 65,536. When there
	// are more, keys that hold nothing make room for others, the least recently used first. The
	// store decides on keys for which there is no room.
	MaxKeys int
	// Clock is this node's clock, in ns: it must never go back. nil means store.Monotonic, which is
	// right except in tests, whose store must take the instants that it returns as asked from the
	// same clock. A clock that is given is the only one: it is not compared with others, as this
	// node's own is to notice that the machine was suspended.
	Clock func() int64
}

// Store implements store.Store over a primary. Make one with New. Safe for concurrent use.
//
// A key that is asked for often enough leases units of its limits from the primary, and requests
// are admitted with these. Limits that lend nothing (algo.Config.Lease) are decided by the primary,
// and so is every request for which a unit is missing, or that is no plain charge: peeks, refunds,
// settlements, releases and resets.
//
// For a request that is admitted here, Limit, SoftLimit and Allowed are as the primary would say.
// Remaining and ResetAfter are this node's knowledge: the primary's last answer, less the units
// that were used here since. now is this node's idea of the primary's clock, and never later than
// it. When the primary refuses a request of such a key, others like it are refused here for a short
// time; RetryAfter says so.
type Store struct {
	primary store.Lender
	timed   store.Deadliner // the primary, if it keeps deadlines by itself; else nil
	parted  store.Parted    // the primary, if it has parts; else nil
	prompt  store.Prompt
	maxKeys int64
	clock   func() int64 // nil: store.Monotonic
	seed    maphash.Seed
	terms   termsCache
	calls   sync.Pool // *call
	lanes   []*lane   // one for each part of the primary
	dropped [causes]atomic.Uint64

	_        [64]byte
	keys     atomic.Int64
	inFlight atomic.Int64 // calls that may change the books when they end
	next     atomic.Int64 // when entries are visited next, by this node's clock
	drained  atomic.Bool
	// when it was last noticed that this node's clock stood still: the instants of earlier
	// questions are not certain
	gap atomic.Int64
	_   [64]byte

	shards [1 << shardBits]shard

	guard guard
	ctx   context.Context // ends at Close
	stop  context.CancelFunc
	work  sync.WaitGroup
	life  struct {
		sync.Mutex
		closed bool
	}
	wake chan struct{} // holds one value if entries are to be visited earlier than at next

	// for tests
	manual  bool                                            // nothing runs in the background
	decided func(c *store.Charge, r *algo.Result, at int64) // an admission from a lease
}

var (
	_ store.Store     = (*Store)(nil)
	_ store.Prompt    = (*Store)(nil)
	_ store.Deadliner = (*Store)(nil)
	_ store.Wrapper   = (*Store)(nil)
)

// New returns a Store over primary, and closes primary when it is closed.
func New(primary store.Lender, o Options) (*Store, error) {
	s, err := build(primary, o)
	if err != nil {
		return nil, err
	}
	s.start()
	return s, nil
}

func build(primary store.Lender, o Options) (*Store, error) {
	if primary == nil {
		return nil, errors.New("lease: New needs a primary store")
	}
	if o.MaxKeys < 0 {
		return nil, fmt.Errorf("lease: MaxKeys (%d) must not be negative; 0 means %d", o.MaxKeys, DefaultMaxKeys)
	}
	if o.MaxKeys == 0 {
		o.MaxKeys = DefaultMaxKeys
	}
	s := &Store{primary: primary, maxKeys: int64(o.MaxKeys), clock: o.Clock, seed: maphash.MakeSeed(),
		wake: make(chan struct{}, 1)}
	s.timed, _ = primary.(store.Deadliner)
	s.parted, _ = primary.(store.Parted)
	s.prompt, _ = store.Store(primary).(store.Prompt)
	s.gap.Store(math.MinInt64)
	s.calls.New = func() any { return new(call) }
	s.ctx, s.stop = context.WithCancel(context.Background())
	parts := 1
	if s.parted != nil {
		parts = max(1, s.parted.Parts())
	}
	for range parts {
		s.lanes = append(s.lanes, newLane(s))
	}
	return s, nil
}

func (s *Store) start() {
	if s.clock == nil {
		s.guard.start()
	}
	s.work.Go(s.run)
	for _, l := range s.lanes {
		s.work.Go(l.run)
	}
}

// at reads this node's clock.
func (s *Store) at() int64 {
	if s.clock == nil {
		return store.Monotonic()
	}
	return s.clock()
}

func (s *Store) laneOf(c *rule.Counter, key []byte) *lane {
	if len(s.lanes) == 1 {
		return s.lanes[0]
	}
	return s.lanes[s.parted.PartOf(c, key)]
}

// Unwrap implements store.Wrapper.
func (s *Store) Unwrap() store.Store { return s.primary }

// Take implements store.Store.
func (s *Store) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	if !anyLends(charges) {
		return s.primary.Take(ctx, charges, results)
	}
	now, _, err := s.TakeWithin(ctx, 0, 0, charges, results)
	return now, err
}

// TakeWithin implements store.Deadliner; the deadline is for the primary. remembered reports that
// this node has decided by itself, or that the primary did from memory: the results are then no
// news of the primary.
func (s *Store) TakeWithin(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, results []algo.Result,
) (now int64, remembered bool, err error) {
	if !anyLends(charges) || len(charges) != len(results) || s.drained.Load() {
		return s.pass(ctx, minWait, maxWait, charges, results)
	}
	if now, ok := s.here(charges, results); ok {
		return now, true, nil
	}
	return s.ask(ctx, minWait, maxWait, charges, results)
}

func anyLends(charges []store.Charge) bool {
	for i := range charges {
		if lends(&charges[i]) {
			return true
		}
	}
	return false
}

// pass lets the primary decide.
func (s *Store) pass(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, results []algo.Result,
) (now int64, remembered bool, err error) {
	switch {
	case s.timed != nil:
		return s.timed.TakeWithin(ctx, minWait, maxWait, charges, results)
	case maxWait > 0:
		limited, cancel := context.WithTimeout(ctx, minWait)
		defer cancel()
		ctx = limited
	}
	now, err = s.primary.Take(ctx, charges, results)
	return now, false, err
}

// TakeNow implements store.Prompt: it decides if all charges are of keys that hold enough units, or
// one of them is refused for now.
func (s *Store) TakeNow(charges []store.Charge, results []algo.Result) (now int64, ok bool) {
	if !anyLends(charges) {
		if s.prompt != nil {
			return s.prompt.TakeNow(charges, results)
		}
		return 0, false
	}
	if len(charges) != len(results) || s.drained.Load() {
		return 0, false
	}
	return s.here(charges, results)
}

// Release implements store.Store: it is the primary's.
func (s *Store) Release(ctx context.Context, c *rule.Counter, key []byte, slot uint64) (bool, error) {
	return s.primary.Release(ctx, c, key, slot)
}

// Close returns the units held, as far as that is possible within a second, stops the background
// and closes the primary. A second Close does nothing.
func (s *Store) Close() error {
	s.life.Lock()
	closed := s.life.closed
	s.life.closed = true
	s.life.Unlock()
	if closed {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, time.Second)
	_ = s.Drain(ctx) // units it could not return count as used in the end
	cancel()
	s.stop()
	s.work.Wait()
	return s.primary.Close()
}
