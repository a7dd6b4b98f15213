package cas_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/castest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/cas"
)

func counterOf(t testing.TB, id uint64, c algo.Config) *rule.Counter {
	t.Helper()
	l, err := algo.New(c)
	if err != nil {
		t.Fatal(err)
	}
	counter := &rule.Counter{ID: id * 0x9E3779B97F4A7C15, Domain: "d", Rule: fmt.Sprint("rule ", id), Limit: l}
	if m := l.Margin(); m != nil {
		counter.Margin = &rule.Counter{ID: counter.ID + 1, Limit: m}
	}
	return counter
}

func charge(c *rule.Counter, key string, cost int64) store.Charge {
	return store.Charge{Counter: c, Limit: c.Limit, Key: []byte(key), Ask: algo.Ask{Cost: cost, MaxDelay: -1}}
}

// BenchmarkTake measures what a decision costs on this node: the engine is in this process.
func BenchmarkTake(b *testing.B) {
	bucket := algo.Config{Algorithm: algo.TokenBucket, N: 1_000_000_000, Window: time.Second}
	window := algo.Config{Algorithm: algo.SlidingWindow, N: 1_000_000_000, Window: time.Minute}
	for _, test := range []struct {
		name    string
		keys    int
		callers int
		limits  []algo.Config
	}{
		{"one caller", 1, 1, []algo.Config{bucket}},
		{"hot key", 1, 64, []algo.Config{bucket}},
		{"hot key, two windows", 1, 64, []algo.Config{bucket, window}},
		{"10000 keys", 10_000, 64, []algo.Config{bucket}},
		{"denied", 1, 64, []algo.Config{{Algorithm: algo.FixedWindow, N: 0, Window: time.Hour}}},
	} {
		b.Run(test.name, func(b *testing.B) {
			s := open(b, castest.New(), cas.Options{})
			var counters []*rule.Counter
			for i, c := range test.limits {
				counter := counterOf(b, uint64(i+1), c)
				counter.Group = 7
				counters = append(counters, counter)
			}
			keys := make([]string, test.keys)
			for i := range keys {
				keys[i] = fmt.Sprint("client ", i)
			}
			var next atomic.Uint64
			b.SetParallelism(test.callers)
			b.ReportAllocs()
			before := s.Stats()
			run := func(more func() bool) {
				charges, results := make([]store.Charge, len(counters)), make([]algo.Result, len(counters))
				for i, c := range counters {
					charges[i] = charge(c, "", 1)
				}
				at := next.Add(1) * 7919
				for more() {
					at++
					for i := range charges {
						charges[i].Key = append(charges[i].Key[:0], keys[at%uint64(len(keys))]...)
					}
					if _, err := s.Take(context.Background(), charges, results); err != nil {
						b.Error(err)
						return
					}
				}
			}
			if test.callers == 1 {
				left := b.N
				run(func() bool { left--; return left >= 0 })
			} else {
				b.RunParallel(func(pb *testing.PB) { run(pb.Next) })
			}
			after := s.Stats()
			b.ReportMetric(float64(after.Decisions-before.Decisions)/float64(max(1, after.Calls-before.Calls)),
				"decisions/call")
			b.ReportMetric(float64(after.Conflicts-before.Conflicts), "conflicts")
		})
	}
}
