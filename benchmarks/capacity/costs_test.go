package capacity

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
)

// BenchmarkStore measures what Redis takes for a decision where many nodes ask it, each over a
// connection of its own, in calls of few decisions: Measured.Store is from here.
func BenchmarkStore(b *testing.B) {
	limit := perMinute(b, 1_000_000)
	counter := &rule.Counter{ID: 1, Group: 1, Domain: "test", Limit: limit}
	for _, c := range []struct {
		nodes, callers, keys int
	}{{1, 1, 10_000}, {16, 1, 10_000}, {64, 1, 10_000}, {200, 1, 10_000}, {64, 4, 10_000}, {64, 16, 10_000},
		{8, 64, 10_000}, {64, 4, 1}, {64, 16, 1}} {
		b.Run(fmt.Sprintf("nodes=%d/callers=%d/keys=%d", c.nodes, c.callers, c.keys), func(b *testing.B) {
			server := redistest.Start(b)
			stores := make([]*redis.Store, c.nodes)
			for i := range stores {
				var err error
				if stores[i], err = redis.Open(redis.Options{URL: server.URL(), Timeout: time.Minute}); err != nil {
					b.Fatal(err)
				}
				defer func() { _ = stores[i].Close() }()
				if _, err := stores[i].Time(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			before := server.CPU()
			b.ResetTimer()
			var all sync.WaitGroup
			for g := range c.nodes * c.callers {
				all.Go(func() {
					rng := rand.New(rand.NewPCG(uint64(g), 1))
					charges, results := make([]store.Charge, 1), make([]algo.Result, 1)
					for n := g; n < b.N; n += c.nodes * c.callers {
						charges[0] = store.Charge{Counter: counter, Limit: limit,
							Key: fmt.Appendf(nil, "user-%011d", rng.IntN(c.keys)), Ask: algo.Ask{Cost: 1, MaxDelay: -1}}
						if _, err := stores[g%c.nodes].Take(b.Context(), charges, results); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			b.StopTimer()
			var sum redis.Stats
			for _, s := range stores {
				x := s.Stats()
				sum.Calls, sum.Decisions, sum.Merged = sum.Calls+x.Calls, sum.Decisions+x.Decisions, sum.Merged+x.Merged
			}
			n := float64(b.N)
			took := float64((server.CPU() - before) / time.Microsecond)
			model := Measured.Store.Of(float64(sum.Calls), float64(sum.Decisions-sum.Merged), n)
			b.ReportMetric(float64(sum.Calls)/n, "calls/op")
			b.ReportMetric(float64(sum.Decisions-sum.Merged)/n, "operations/op")
			b.ReportMetric(took/n, "redis-µs/op")
			b.ReportMetric(float64(model.Microseconds())/n, "model-µs/op")
		})
	}
}
