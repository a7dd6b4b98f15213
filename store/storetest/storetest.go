// Package storetest is the contract of store.Store as tests: every store runs them in three lines.
//
//	func TestContract(t *testing.T) {
//		storetest.Run(t, func(t *testing.T, clock func() int64) store.Store { … })
//	}
//
// Begin with Run (storetest.go); Board, Matrix, Differential, Lender, Regional and Parted are run
// apart. model.go is the plain model that stores are compared with.
package storetest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"pgregory.net/rapid"
)

// Run runs the whole contract. newStore returns an empty store that reads the time from clock (µs
// since the Unix epoch), or from its own clock if clock is nil; it sees to it that the store is
// closed when the test ends.
func Run(t *testing.T, newStore func(t *testing.T, clock func() int64) store.Store) {
	for _, a := range algorithms {
		t.Run("Differential/"+a.String(), func(t *testing.T) { testDifferential(t, newStore, a) })
	}
	t.Run("RandomCalls", func(t *testing.T) { testRandomCalls(t, newStore) })
	t.Run("Prompt", func(t *testing.T) { testPrompt(t, newStore) })
	t.Run("Deadliner", func(t *testing.T) { testDeadliner(t, newStore) })
	t.Run("Parted", func(t *testing.T) { Parted(t, newStore) })
	t.Run("ClockBackwards", func(t *testing.T) { testClockBackwards(t, newStore) })
	t.Run("AllOrNothing", func(t *testing.T) { testAllOrNothing(t, newStore) })
	t.Run("Modes", func(t *testing.T) { testModes(t, newStore) })
	t.Run("SameStateTwice", func(t *testing.T) { testSameStateTwice(t, newStore) })
	t.Run("KeysApart", func(t *testing.T) { testKeysApart(t, newStore) })
	t.Run("ManyCharges", func(t *testing.T) { testManyCharges(t, newStore) })
	t.Run("Reload", func(t *testing.T) { testReload(t, newStore) })
	t.Run("Large", func(t *testing.T) { testLarge(t, newStore) })
	t.Run("Release", func(t *testing.T) { testRelease(t, newStore) })
	t.Run("BadCalls", func(t *testing.T) { testBadCalls(t, newStore) })
	t.Run("Margin", func(t *testing.T) { testMargin(t, newStore) })
	t.Run("MarginMended", func(t *testing.T) { testMarginMended(t, newStore) })
	for _, a := range algorithms {
		t.Run("Schedule/"+a.String(), func(t *testing.T) { testSchedule(t, newStore, a) })
	}
	t.Run("ScheduleOff", func(t *testing.T) { testScheduleOff(t, newStore) })
	t.Run("Settle", func(t *testing.T) { testSettle(t, newStore) })
	for _, a := range algorithms {
		t.Run("Inspect/"+a.String(), func(t *testing.T) { testInspect(t, newStore, a) })
	}
	t.Run("Reset", func(t *testing.T) { testReset(t, newStore) })
	t.Run("Reservations", func(t *testing.T) { testReservations(t, newStore) })
	for _, a := range algorithms {
		t.Run("Concurrent/"+a.String(), func(t *testing.T) { testConcurrent(t, newStore, a) })
	}
	t.Run("Concurrent/two limits", func(t *testing.T) { testConcurrentTwoLimits(t, newStore) })
	t.Run("Concurrent/crossed keys", func(t *testing.T) { testConcurrentCrossed(t, newStore) })
}

type newStore = func(t *testing.T, clock func() int64) store.Store

var algorithms = []algo.Algorithm{
	algo.SlidingWindow, algo.SlidingLog, algo.FixedWindow, algo.TokenBucket, algo.LeakyBucket, algo.Concurrency,
}

// configs are the limits that random tests draw from.
var configs = map[algo.Algorithm][]algo.Config{
	algo.SlidingWindow: {
		{N: 5, Window: 10 * time.Second},
		{N: 7, Window: time.Minute, Buckets: 6},
		{N: 12, Window: time.Hour, Buckets: 60},
		{N: 5, Window: 10 * time.Second, Buckets: 2, CountDenied: true},
		{N: 10, Window: time.Second, Soft: 20},
		{N: 5, Window: time.Second, Soft: 40, SoftFor: 700 * time.Millisecond},
	},
	algo.SlidingLog: {
		{N: 5, Window: 10 * time.Second},
		{N: 3, Window: time.Minute, CountDenied: true},
		{N: 10, Window: time.Second, Soft: 20},
		{N: 5, Window: time.Second, Soft: 40, SoftFor: 2500 * time.Millisecond},
	},
	algo.FixedWindow: {
		{N: 5, Window: 10 * time.Second},
		{N: 4, Window: time.Minute, CountDenied: true},
		{N: 4, Window: 10 * time.Second, FirstRequest: true},
		{N: 6, Window: 24 * time.Hour, Calendar: algo.Day},
		{N: 10, Window: time.Second, Soft: 20},
		{N: 5, Window: time.Second, Soft: 40, SoftFor: 2500 * time.Millisecond},
		{N: 4, Window: 10 * time.Second, Soft: 50, SoftFor: time.Second, CountDenied: true},
		{N: 1 << 50, Window: time.Minute},
		{N: 1 << 50, Calendar: algo.Month, CountDenied: true},
		{N: 5_000_000_000, Window: time.Minute, Soft: 20, SoftFor: 2500 * time.Millisecond},
	},
	algo.TokenBucket: {
		{N: 4, Window: time.Minute},
		{N: 333, Window: time.Second, Burst: 5},
		{N: 3, Window: 10 * time.Second, RefillInterval: true},
		{N: 10, Window: 10 * time.Second, Burst: 10, Soft: 20},
		{N: 10, Window: 10 * time.Second, Burst: 5, Soft: 40, SoftFor: 1500 * time.Millisecond},
		{N: 3, Window: 10 * time.Second, Burst: 5, RefillInterval: true, Soft: 40, SoftFor: 15 * time.Second},
	},
	algo.LeakyBucket: {
		{N: 1, Window: time.Second, Burst: 4},
		{N: 3, Window: time.Second, Burst: algo.NoBurst},
		{N: 7, Window: time.Second},
		{N: 5, Window: time.Second, Burst: 4, Soft: 50, SoftFor: 300 * time.Millisecond},
	},
	algo.Concurrency: {
		{N: 3},
		{N: 5, Timeout: 2 * time.Second},
	},
}

func mustLimit(t rapid.TB, c algo.Config) *algo.Limit {
	t.Helper()
	l, err := algo.New(c)
	if err != nil {
		t.Fatalf("algo.New(%+v): %v", c, err)
	}
	return l
}

// start is when virtual time begins: 2026-01-01T00:00:00Z.
const start = int64(1767225600_000000)

// virtual is a clock that a test sets.
type virtual struct{ now atomic.Int64 }

func newVirtual() *virtual {
	v := &virtual{}
	v.now.Store(start)
	return v
}

func (v *virtual) read() int64                               { return v.now.Load() }
func (v *virtual) advance(d time.Duration)                   { v.now.Add(d.Microseconds()) }
func (v *virtual) make(t *testing.T, n newStore) store.Store { return n(t, v.read) }

// lastID makes the identities of counters differ over all tests, so that one store serves many.
var lastID atomic.Uint64

func newCounter(l *algo.Limit) *rule.Counter {
	id := lastID.Add(1)
	return &rule.Counter{ID: id * 0x9E3779B97F4A7C15, Domain: "storetest", Rule: fmt.Sprintf("rule-%d", id),
		Window: fmt.Sprintf("rule-%d", id), Limit: l}
}

func counterOf(t testing.TB, c algo.Config) *rule.Counter { return counterFor(mustLimit(t, c)) }

// counterFor returns a counter, together with the counter of the soft margin if the limit's margin
// closes, and the counter of the units lent if the limit lends.
func counterFor(l *algo.Limit) *rule.Counter {
	c := newCounter(l)
	if m := l.Margin(); m != nil {
		c.Margin = newCounter(m)
	}
	if n := l.Lease(); n != nil {
		c.Lease = newCounter(n)
	}
	return c
}

// join makes a counter one of a group.
func join(c *rule.Counter, group uint64) {
	c.Group = group
	for _, of := range []*rule.Counter{c.Margin, c.Lease} {
		if of != nil {
			of.Group = group
		}
	}
}

// succeed makes a counter carry on others.
func succeed(c *rule.Counter, others ...*rule.Counter) {
	c.Previous = others
	for _, o := range others {
		if c.Margin != nil && o.Margin != nil {
			c.Margin.Previous = append(c.Margin.Previous, o.Margin)
		}
		if c.Lease != nil && o.Lease != nil {
			c.Lease.Previous = append(c.Lease.Previous, o.Lease)
		}
	}
}

// charge is a charge of a counter's own limit.
func charge(c *rule.Counter, key string, cost int64) store.Charge {
	return store.Charge{Counter: c, Limit: c.Limit, Key: []byte(key), Ask: algo.Ask{Cost: cost, MaxDelay: -1}}
}

// take is one call that must not fail.
func take(t rapid.TB, s store.Store, charges ...store.Charge) ([]algo.Result, int64) {
	t.Helper()
	results := make([]algo.Result, len(charges))
	now, err := s.Take(context.Background(), charges, results)
	if err != nil {
		t.Fatalf("Take: %v", err)
	}
	return results, now
}

// held is a slot that a random test has not given back.
type held struct {
	c    *rule.Counter
	key  string
	slot uint64
}

// pair is a store and its model.
type pair struct {
	store store.Store
	model *model
	clock *virtual
	slots []held
}

// take asks both and compares everything.
func (p *pair) take(t rapid.TB, charges ...store.Charge) []algo.Result {
	t.Helper()
	got, now := take(t, p.store, charges...)
	if now != p.clock.read() {
		t.Fatalf("decided at %d, the clock says %d", now, p.clock.read())
	}
	want := make([]algo.Result, len(charges))
	p.model.take(charges, want, now)
	for i := range charges {
		c := &charges[i]
		if got[i] != want[i] {
			t.Fatalf("charge %d of %d (%v %+v, key %q, mode %d):\n got %+v\nwant %+v", i, len(charges),
				c.Limit.Algorithm(), c.Ask, c.Key, c.Mode, got[i], want[i])
		}
		if c.Limit.Algorithm() == algo.Concurrency && c.Ask.Slot != 0 {
			if !got[i].Allowed || got[i].Off || c.Ask.Cost <= 0 {
				t.Fatalf("charge %d took no slot but names one", i)
			}
			p.slots = append(p.slots, held{c.Counter, string(c.Key), c.Ask.Slot})
		} else if c.Ask.Slot != 0 {
			t.Fatalf("charge %d of %v names a slot", i, c.Limit.Algorithm())
		}
	}
	return got
}

// release gives a random slot back.
func (p *pair) release(t *rapid.T) {
	if len(p.slots) == 0 {
		return
	}
	i := rapid.IntRange(0, len(p.slots)-1).Draw(t, "slot")
	h := p.slots[i]
	if rapid.IntRange(0, 3).Draw(t, "keep") != 0 {
		p.slots = append(p.slots[:i], p.slots[i+1:]...)
	}
	got, err := p.store.Release(context.Background(), h.c, []byte(h.key), h.slot)
	if err != nil {
		t.Fatalf("Release: %v", err)
	}
	if want := p.model.release(h.c, []byte(h.key), h.slot, p.clock.read()); got != want {
		t.Fatalf("Release: got %v, want %v", got, want)
	}
}

// pass lets some time pass: often none, often up to an instant named by the last result, or one µs
// less.
func (p *pair) pass(t *rapid.T, last algo.Result) {
	var d int64
	switch rapid.IntRange(0, 7).Draw(t, "pass") {
	case 0:
		d = rapid.Int64Range(0, 3_000_000).Draw(t, "µs")
	case 1:
		d = max(0, last.RetryAfter)
	case 2:
		d = max(0, last.RetryAfter-1)
	case 3:
		d = last.ResetAfter
	case 4:
		d = rapid.Int64Range(0, 90_000_000).Draw(t, "µs")
	case 5:
		d = 1
	}
	p.clock.now.Add(d)
}

func drawAsk(t *rapid.T, l *algo.Limit) algo.Ask {
	n := l.Config().N
	ask := algo.Ask{MaxDelay: -1}
	switch rapid.IntRange(0, 9).Draw(t, "ask") {
	case 0:
		ask.Cost, ask.Room = 0, rapid.Bool().Draw(t, "room")
	case 1:
		ask.Cost = -rapid.Int64Range(1, 3).Draw(t, "refund")
	case 2:
		ask.Cost = rapid.Int64Range(1, n+3).Draw(t, "cost")
	case 3:
		ask.Cost = algo.MaxCost
	case 4:
		ask.Cost, ask.MaxDelay = 1, rapid.Int64Range(0, 2_000_000).Draw(t, "max delay")
	default:
		ask.Cost = 1
	}
	if l.Algorithm() == algo.Concurrency {
		ask.Cost = max(ask.Cost, 0) // a slot goes back by Release only
	}
	return ask
}

var keys = []string{"", "a", "b", "a longer key than the others, of more than sixty-four bytes in all, to see"}

func testDifferential(t *testing.T, n newStore, a algo.Algorithm) {
	clock := newVirtual()
	s := clock.make(t, n)
	rapid.Check(t, func(rt *rapid.T) {
		p := &pair{store: s, model: newModel(), clock: clock}
		cfg := rapid.SampledFrom(configs[a]).Draw(rt, "limit")
		cfg.Algorithm = a
		counter := counterOf(t, cfg)
		cfg.N += 3
		other := mustLimit(t, fit(cfg))
		var last algo.Result
		// From some step on other numbers are in force. (Not back and forth: a state that is fresh
		// under one N may be forgotten.)
		until := rapid.IntRange(0, 100).Draw(rt, "other N")
		for step := range rapid.IntRange(1, 60).Draw(rt, "steps") {
			p.pass(rt, last)
			if a == algo.Concurrency && rapid.Bool().Draw(rt, "release") {
				p.release(rt)
				continue
			}
			c := charge(counter, rapid.SampledFrom(keys).Draw(rt, "key"), 0)
			if step >= until {
				c.Limit = other
			}
			c.Ask = drawAsk(rt, c.Limit)
			results := p.take(rt, c)
			last = results[0]
			p.settle(rt, []store.Charge{c}, results)
		}
	})
}

// atOnce asks a store first to decide without waiting.
type atOnce struct {
	store.Store
	prompt store.Prompt
}

func (s atOnce) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	if now, ok := s.prompt.TakeNow(charges, results); ok {
		return now, nil
	}
	return s.Store.Take(ctx, charges, results)
}

func (s atOnce) Unwrap() store.Store { return s.Store }

// testPrompt: a decision without waiting equals one with waiting; and a call that cannot be decided
// so has changed nothing.
func testPrompt(t *testing.T, n newStore) {
	testRandomCalls(t, func(t *testing.T, clock func() int64) store.Store {
		s := n(t, clock)
		prompt, ok := s.(store.Prompt)
		if !ok {
			t.Skip("it decides nothing without waiting")
		}
		return atOnce{s, prompt}
	})
}

func testRandomCalls(t *testing.T, n newStore) {
	clock := newVirtual()
	s := clock.make(t, n)
	rapid.Check(t, func(rt *rapid.T) {
		p := &pair{store: s, model: newModel(), clock: clock}
		var counters []*rule.Counter
		group := uint64(0)
		if rapid.Bool().Draw(rt, "group") {
			group = lastID.Add(1) << 32
		}
		for range rapid.IntRange(1, 4).Draw(rt, "counters") {
			a := rapid.SampledFrom(algorithms).Draw(rt, "algorithm")
			cfg := rapid.SampledFrom(configs[a]).Draw(rt, "limit")
			cfg.Algorithm = a
			counter := counterOf(t, cfg)
			if rapid.IntRange(0, 3).Draw(rt, "scheduled") == 0 {
				counter = counterFor(schedule(t, cfg))
			}
			join(counter, group)
			counters = append(counters, counter)
		}
		var last algo.Result
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			p.pass(rt, last)
			if rapid.IntRange(0, 5).Draw(rt, "release") == 0 {
				p.release(rt)
				continue
			}
			var charges []store.Charge
			for range rapid.SampledFrom([]int{0, 1, 2, 2, 3, 3, 4, 5, 12, 20}).Draw(rt, "charges") {
				c := charge(rapid.SampledFrom(counters).Draw(rt, "counter"), rapid.SampledFrom(keys).Draw(rt, "key"), 0)
				c.Ask = drawAsk(rt, c.Limit)
				c.Mode = rapid.SampledFrom([]rule.Mode{rule.Enforce, rule.Enforce, rule.Shadow, rule.Quota}).Draw(rt,
					"mode")
				charges = append(charges, c)
			}
			results := p.take(rt, charges...)
			if len(results) > 0 {
				last = results[len(results)-1]
			}
			p.settle(rt, charges, results)
		}
	})
}

// testClockBackwards lets the clock leap both ways under one key.
func testClockBackwards(t *testing.T, n newStore) {
	clock := newVirtual()
	store := clock.make(t, n)
	rapid.Check(t, func(rt *rapid.T) {
		clock.now.Store(start)
		p := &pair{store: store, model: newModel(), clock: clock}
		a := rapid.SampledFrom(algorithms).Draw(rt, "algorithm")
		cfg := rapid.SampledFrom(configs[a]).Filter(func(c algo.Config) bool { return c.N < 100 }).Draw(rt, "limit")
		cfg.Algorithm = a
		counter := counterOf(t, cfg)
		p.take(rt, charge(counter, "key", 1))
		for range rapid.IntRange(1, 20).Draw(rt, "steps") {
			// The clock is ahead by less than any of these limits needs to be fresh again: nothing
			// is forgotten.
			clock.now.Add(rapid.Int64Range(-400_000, 1000).Draw(rt, "µs"))
			p.take(rt, charge(counter, "key", rapid.Int64Range(0, 2).Draw(rt, "cost")))
		}
	})
}
