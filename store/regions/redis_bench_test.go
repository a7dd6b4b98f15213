package regions

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
)

// BenchmarkRedis says what a decision costs the Redis of its region: without regions, with the
// ceiling alone, with sync, and with both states; of many keys, so that few decisions are merged.
func BenchmarkRedis(b *testing.B) {
	server := redistest.Start(b)
	const keys = 100_000
	names := make([][]byte, keys)
	for i := range names {
		names[i] = fmt.Appendf(nil, "user %d", i)
	}
	for _, of := range []struct {
		name    string
		regions *rule.Regions
	}{
		{"alone", nil}, {"over 0", &rule.Regions{Tell: 2}}, {"sync", &rule.Regions{Sync: true, Tell: 2}}, {"over 20", &rule.Regions{Over: 20, Tell: 2}},
	} {
		for _, a := range []algo.Algorithm{algo.TokenBucket, algo.SlidingWindow, algo.FixedWindow} {
			b.Run(fmt.Sprintf("%s/%v", of.name, a), func(b *testing.B) {
				server.Do("FLUSHALL")
				config := algo.Config{Algorithm: a, N: 1_000_000, Window: time.Hour}
				if a == algo.SlidingWindow {
					config.Buckets = 1
				}
				var c *rule.Counter
				if of.regions != nil {
					c = borrowable(b, config, *of.regions)
				} else {
					c = newCounter(limit(b, config))
					c.Group = 0x7e57
				}
				own, err := redis.Open(redis.Options{URL: server.URL()})
				if err != nil {
					b.Fatal(err)
				}
				s, err := New(own, Options{Region: "eu", Table: []Region{{"eu", 1}, {"us", 1}, {"ap", 1}}, Own: own, Rules: rulesOf(c)})
				if err != nil {
					b.Fatal(err)
				}
				defer s.Close()
				b.SetParallelism(32)
				before := server.CPU()
				b.ResetTimer()
				b.RunParallel(func(pb *testing.PB) {
					rnd := rand.New(rand.NewPCG(rand.Uint64(), 1))
					charges, results := make([]store.Charge, 1), make([]algo.Result, 1)
					for pb.Next() {
						charges[0] = store.Charge{Counter: c, Limit: c.Limit, Key: names[rnd.IntN(keys)], Ask: algo.Ask{Cost: 1}}
						if _, err := s.Take(b.Context(), charges, results); err != nil {
							b.Error(err)
							return
						}
					}
				})
				b.StopTimer()
				b.ReportMetric(float64((server.CPU()-before).Nanoseconds())/float64(b.N), "redis-ns/op")
			})
		}
	}
}
