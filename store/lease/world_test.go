package lease

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// start is when virtual time begins, by the store's clock: 2026-01-01T00:00:00Z.
const start = int64(1767225600_000000)

// world is virtual time: in ns, from 1 s on.
type world struct{ ns atomic.Int64 }

func newWorld() *world {
	w := new(world)
	w.ns.Store(int64(time.Second))
	return w
}

func (w *world) at() int64               { return w.ns.Load() }
func (w *world) now() int64              { return start + (w.ns.Load()-int64(time.Second))/1000 }
func (w *world) advance(d time.Duration) { w.ns.Add(int64(d)) }

// lender is a memory store in virtual time. fail makes its next calls fail, before or after they
// were made.
type lender struct {
	*memory.Store
	at    func() int64
	calls atomic.Int64
	fail  func() (err error, made bool)
}

func (l *lender) TakeAhead(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, ahead []algo.Ahead,
	results []algo.Result,
) (now, asked int64, err error) {
	l.calls.Add(1)
	if l.fail != nil {
		if err, made := l.fail(); err != nil {
			if made {
				_, _, _ = l.Store.TakeAhead(ctx, minWait, maxWait, charges, ahead, results)
			}
			clear(results)
			for i := range ahead {
				ahead[i].Got, ahead[i].Until, ahead[i].Out = 0, 0, 0
			}
			return 0, 0, err
		}
	}
	asked = l.at()
	now, _, err = l.Store.TakeAhead(ctx, minWait, maxWait, charges, ahead, results)
	return now, asked, err
}

func (l *lender) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	l.calls.Add(1)
	if l.fail != nil {
		if err, made := l.fail(); err != nil {
			if made {
				_, _ = l.Store.Take(ctx, charges, results)
			}
			return 0, err
		}
	}
	return l.Store.Take(ctx, charges, results)
}

func newLender(t testing.TB, w *world) *lender {
	t.Helper()
	m, err := memory.New(memory.Options{Clock: w.now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return &lender{Store: m, at: w.at}
}

// newNode returns a Store over a lender, whose background runs when the test says so.
func newNode(t testing.TB, w *world, primary store.Lender, o Options) *Store {
	t.Helper()
	o.Clock = w.at
	s, err := build(primary, o)
	if err != nil {
		t.Fatal(err)
	}
	s.manual = true
	return s
}

// step does what the background would do.
func (s *Store) step(ctx context.Context) {
	s.tick(s.at())
	s.pump(ctx)
}

var lastID atomic.Uint64

func mustLimit(t testing.TB, c algo.Config) *algo.Limit {
	t.Helper()
	l, err := algo.New(c)
	if err != nil {
		t.Fatalf("algo.New(%+v): %v", c, err)
	}
	return l
}

func counterFor(l *algo.Limit) *rule.Counter {
	id := lastID.Add(1)
	c := &rule.Counter{ID: id * 0x9E3779B97F4A7C15, Domain: "lease", Rule: fmt.Sprintf("rule-%d", id),
		Window: fmt.Sprintf("rule-%d", id), Limit: l}
	if n := l.Lease(); n != nil {
		c.Lease = counterFor(n)
	}
	return c
}

func counterOf(t testing.TB, c algo.Config) *rule.Counter {
	t.Helper()
	return counterFor(mustLimit(t, c))
}

func charge(c *rule.Counter, key string, cost int64) store.Charge {
	return store.Charge{Counter: c, Limit: c.Limit, Key: []byte(key), Ask: algo.Ask{Cost: cost, MaxDelay: -1}}
}

// take is one call that must not fail.
func take(t testing.TB, s store.Store, charges ...store.Charge) []algo.Result {
	t.Helper()
	results := make([]algo.Result, len(charges))
	if _, err := s.Take(context.Background(), charges, results); err != nil {
		t.Fatalf("Take: %v", err)
	}
	return results
}
