//go:build !race

package memory

import (
	"context"
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/storetest"
)

// TestCapacity measures what docs/operating/capacity.md says of bytes for each user: users with a
// key of 16 bytes that have each used a limit up to its end. It fails when a figure of the docs no
// longer holds.
//
//	go test ./store/memory -run TestCapacity -v
func TestCapacity(t *testing.T) {
	effort.Long(t, "fills stores with seven million decisions")
	const users, steps = 50_000, 20
	for _, tc := range []struct {
		name   string
		config algo.Config
		// units that a user takes at once, twenty times, spread evenly over the window
		cost int64
		most float64 // bytes for each user, key included
	}{
		{"token_bucket", algo.Config{Algorithm: algo.TokenBucket, N: 100, Window: time.Hour}, 1, 80},
		{"leaky_bucket", algo.Config{Algorithm: algo.LeakyBucket, N: 100, Window: time.Hour}, 1, 80},
		{"fixed_window", algo.Config{Algorithm: algo.FixedWindow, N: 100, Window: time.Hour}, 1, 80},
		{"sliding_window, 1 bucket", algo.Config{Algorithm: algo.SlidingWindow, N: 100, Window: time.Hour}, 1, 80},
		{"sliding_window, 60 buckets", algo.Config{Algorithm: algo.SlidingWindow, N: 500, Window: time.Hour, Buckets: 60}, 25, 440},
		{"sliding_log of 60", algo.Config{Algorithm: algo.SlidingLog, N: 60, Window: time.Hour}, 3, 500},
		{"sliding_log of 500", algo.Config{Algorithm: algo.SlidingLog, N: 500, Window: time.Hour}, 25, 3000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			limit, err := algo.New(tc.config)
			if err != nil {
				t.Fatal(err)
			}
			now := int64(1767225600) * 1e6
			before := heapInUse()
			s, err := New(Options{Clock: func() int64 { return now }})
			if err != nil {
				t.Fatal(err)
			}
			counter := &rule.Counter{ID: 1, Domain: "d", Rule: "r", Window: "r", Limit: limit}
			charges, results := make([]store.Charge, 1), make([]algo.Result, 1)
			step := tc.config.Window.Microseconds() / (steps + 1)
			for range steps {
				for user := range users {
					charges[0] = store.Charge{Counter: counter, Limit: limit, Key: fmt.Appendf(nil, "user-%011d", user),
						Ask: algo.Ask{Cost: tc.cost, MaxDelay: -1}}
					if _, err := s.Take(context.Background(), charges, results); err != nil {
						t.Fatal(err)
					}
				}
				now += step
			}
			if keys := s.Stats().Keys; keys != users {
				t.Fatalf("%d keys", keys)
			}
			bytes := float64(heapInUse()-before) / users
			t.Logf("%-27s %6.0f bytes a user, %6.2f GB for a million", tc.name, bytes, bytes*1e6/1e9)
			if bytes > tc.most {
				t.Errorf("%.0f bytes a user, above the %.0f that the docs allow for", bytes, tc.most)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestContractSmall runs the contract on a store of one shard, whose index and arena grow and
// shrink all the time.
func TestContractSmall(t *testing.T) {
	effort.Long(t, "TestContract runs the same with all shards")
	storetest.Run(t, func(t *testing.T, clock func() int64) store.Store {
		s := newTest(t, Options{Clock: clock})
		s.shards, s.shift = s.shards[:1], 64
		return s
	})
}

func TestNoAllocations(t *testing.T) {
	s := newTest(t, Options{})
	ctx := context.Background()
	for _, cfg := range []algo.Config{
		{Algorithm: algo.TokenBucket, N: 100, Window: time.Minute},
		{Algorithm: algo.FixedWindow, N: 100, Window: time.Minute, CountDenied: true},
		{Algorithm: algo.SlidingWindow, N: 100, Window: time.Minute},
		{Algorithm: algo.SlidingWindow, N: 100, Window: time.Minute, Buckets: 60},
		{Algorithm: algo.SlidingLog, N: 100, Window: time.Minute},
		{Algorithm: algo.LeakyBucket, N: 100, Window: time.Minute},
		{Algorithm: algo.Concurrency, N: 100},
		{Algorithm: algo.TokenBucket, N: 100, Window: time.Minute, Lease: 10},
	} {
		charges, results := make([]store.Charge, 3), make([]algo.Result, 3)
		for i := range charges {
			c := counter(t, cfg)
			if cfg.Lease > 0 {
				withLease(c)
			}
			charges[i] = store.Charge{Counter: c, Limit: c.Limit, Key: []byte("0123456789abcdef"),
				Ask: algo.Ask{Cost: 1}}
		}
		charges[1].Mode = rule.Shadow
		for range 200 { // until the variable parts have their size
			s.Take(ctx, charges, results)
			s.Take(ctx, charges[:1], results[:1])
		}
		for _, n := range []int{1, 2, 3} {
			if got := testing.AllocsPerRun(300, func() { s.Take(ctx, charges[:n], results[:n]) }); got != 0 {
				t.Errorf("%v: %v allocations for %d charges", cfg.Algorithm, got, n)
			}
		}
	}
}

// TestLeaseAllocs: lending from a key and reporting on it allocate nothing, once its state is long
// enough.
func TestLeaseAllocs(t *testing.T) {
	for _, a := range lendingKinds {
		clock := newClock()
		s := newTest(t, Options{Clock: clock.read})
		l := withLease(counter(t, algo.Config{Algorithm: a, N: 1000, Window: time.Second, Lease: 50,
			LeaseFor: 10 * time.Millisecond}))
		charges := []store.Charge{{Counter: l, Limit: l.Limit, Key: []byte("k"), Ask: algo.Ask{Cost: 1}}}
		ahead, results, ctx := make([]algo.Ahead, 1), make([]algo.Result, 1), context.Background()
		var told algo.Told
		step := func() {
			ahead[0] = algo.Ahead{Told: [2]algo.Told{told}, Want: 20, First: true}
			if _, _, err := s.TakeAhead(ctx, 0, 0, charges, ahead, results); err != nil {
				t.Fatal(err)
			}
			told = algo.Told{End: ahead[0].Until, Used: ahead[0].Got / 2}
			clock.advance(7001 * time.Microsecond)
		}
		for range 1000 {
			step()
		}
		if n := testing.AllocsPerRun(1000, step); n != 0 {
			t.Errorf("%v: %v allocations", l.Limit, n)
		}
	}
}

// TestBytesPerKey measures the heap with a million keys of 16 bytes.
func TestBytesPerKey(t *testing.T) {
	effort.Long(t, "fills stores with three million keys")
	const n = 1_000_000
	for _, cfg := range []algo.Config{
		{Algorithm: algo.TokenBucket, N: 10, Window: time.Hour},
		{Algorithm: algo.FixedWindow, N: 10, Window: time.Hour},
		{Algorithm: algo.SlidingWindow, N: 10, Window: time.Hour},
	} {
		clock := newClock()
		before := heapInUse()
		s := newTest(t, Options{Clock: clock.read})
		c := counter(t, cfg)
		charges, results := make([]store.Charge, 1), make([]algo.Result, 1)
		key := make([]byte, 16)
		charges[0] = store.Charge{Counter: c, Limit: c.Limit, Key: key, Ask: algo.Ask{Cost: 1}}
		for i := range n {
			binary.LittleEndian.PutUint64(key, uint64(i))
			binary.LittleEndian.PutUint64(key[8:], uint64(i)*0x9E3779B97F4A7C15)
			s.Take(context.Background(), charges, results)
		}
		used := float64(heapInUse()-before) / n
		st := s.Stats()
		if st.Keys != n {
			t.Fatalf("%d keys", st.Keys)
		}
		if counted := float64(st.Bytes) / n; counted < used*0.95 || counted > used*1.05 {
			t.Errorf("Stats counts %.1f bytes a key, the heap %.1f", counted, used)
		}
		t.Logf("%v: %.1f bytes of heap a key, of which the key is 16", cfg.Algorithm, used)
		if used-16 > 64 {
			t.Errorf("%v: %.1f bytes a key beyond the key itself, more than 64", cfg.Algorithm, used-16)
		}
		runtime.KeepAlive(s)
	}
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
