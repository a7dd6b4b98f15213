package regions

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
)

// grouped returns the Counter of a limit without regions, in a group as those of a rule are.
func grouped(t testing.TB, c algo.Config) *rule.Counter {
	t.Helper()
	n := newCounter(limit(t, c))
	n.Group = 0x7e57
	return n
}

// BenchmarkRedis says what a decision costs the Redis of its region, without regions (alone-ns),
// and as a multiple of that with the ceiling alone (over0), with both states (over20), and with
// sync. The four take turns, so that a busy machine slows down all of them alike. There are many
// keys, so that few decisions are merged, and each has been used before.
func BenchmarkRedis(b *testing.B) {
	const keys, callers, slice = 100_000, 64, 5_000
	names := make([][]byte, keys)
	for i := range names {
		names[i] = fmt.Appendf(nil, "user %d", i)
	}
	for _, a := range []algo.Algorithm{algo.TokenBucket, algo.SlidingWindow, algo.FixedWindow} {
		b.Run(a.String(), func(b *testing.B) {
			config := algo.Config{Algorithm: a, N: 1_000_000, Window: time.Hour}
			synced := grouped(b, config)
			synced.Regions = &rule.Regions{Sync: true, Tell: 2}
			kinds := []struct {
				name    string
				counter *rule.Counter
				used    time.Duration
				server  *redistest.Server
				s       *Store
			}{
				{name: "alone", counter: grouped(b, config)},
				{name: "over0", counter: borrowable(b, config, rule.Regions{Tell: 2})},
				{name: "over20", counter: borrowable(b, config, rule.Regions{Over: 20, Tell: 2})},
				{name: "sync", counter: synced},
			}
			for i := range kinds {
				k := &kinds[i]
				k.server = redistest.Start(b)
				own, err := redis.Open(redis.Options{URL: k.server.URL()})
				if err != nil {
					b.Fatal(err)
				}
				k.s, err = New(own, Options{Region: "eu", Table: []Region{{"eu", 1}, {"us", 1}, {"ap", 1}}, Own: own, Rules: rulesOf(k.counter)})
				if err != nil {
					b.Fatal(err)
				}
				defer k.s.Close()
			}
			// decide makes n decisions; key says of what.
			decide := func(s *Store, c *rule.Counter, n int, key func(rnd *rand.Rand, i int) []byte) {
				var all sync.WaitGroup
				for g := range callers {
					all.Go(func() {
						rnd := rand.New(rand.NewPCG(rand.Uint64(), 1))
						charges, results := make([]store.Charge, 1), make([]algo.Result, 1)
						for i := g; i < n; i += callers {
							charges[0] = store.Charge{Counter: c, Limit: c.Limit, Key: key(rnd, i), Ask: algo.Ask{Cost: 1}}
							if _, err := s.Take(b.Context(), charges, results); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				all.Wait()
			}
			for i := range kinds {
				decide(kinds[i].s, kinds[i].counter, keys, func(_ *rand.Rand, i int) []byte { return names[i] })
			}
			b.ResetTimer()
			for done := 0; done < b.N; done += slice {
				n := min(slice, b.N-done)
				for i := range kinds {
					k := &kinds[(i+done/slice)%len(kinds)] // none always comes after the same one
					before := k.server.CPU()
					decide(k.s, k.counter, n, func(rnd *rand.Rand, _ int) []byte { return names[rnd.IntN(keys)] })
					k.used += k.server.CPU() - before
				}
			}
			b.StopTimer()
			b.ReportMetric(0, "ns/op") // of all four
			b.ReportMetric(float64(kinds[0].used.Nanoseconds())/float64(b.N), "alone-ns")
			for _, k := range kinds[1:] {
				b.ReportMetric(float64(k.used)/float64(kinds[0].used), k.name)
			}
		})
	}
}
