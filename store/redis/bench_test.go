package redis_test

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

// BenchmarkTake measures decisions on a Redis of its own, for callers that each ask, wait and ask
// again: the time for each, and the processor time that this process and Redis spend on it.
func BenchmarkTake(b *testing.B) {
	limits := []struct {
		name string
		cfg  []algo.Config
	}{
		{"token_bucket", []algo.Config{{Algorithm: algo.TokenBucket, N: 1_000_000, Window: time.Hour}}},
		{"fixed_window counting denied", []algo.Config{{Algorithm: algo.FixedWindow, N: 1_000_000, Window: time.Hour, CountDenied: true}}},
		{"sliding_window", []algo.Config{{N: 1_000_000, Window: time.Hour}}},
		{"sliding_window 60", []algo.Config{{N: 1_000_000, Window: time.Hour, Buckets: 60}}},
		{"sliding_log 500", []algo.Config{{Algorithm: algo.SlidingLog, N: 500, Window: time.Minute}}},
		{"two windows", []algo.Config{{N: 1_000_000, Window: time.Minute}, {N: 5_000_000, Window: time.Hour}}},
	}
	server := redistest.Start(b)
	for _, l := range limits {
		var counters []*rule.Counter
		for i, cfg := range l.cfg {
			limit, err := algo.New(cfg)
			if err != nil {
				b.Fatal(err)
			}
			counters = append(counters, &rule.Counter{ID: uint64(i+1) * 0x9E3779B97F4A7C15, Group: 1, Limit: limit})
		}
		for _, pattern := range []string{"uniform", "zipf", "hot"} {
			for _, callers := range []int{1, 64, 256} {
				b.Run(fmt.Sprintf("%s/%s/callers=%d", l.name, pattern, callers), func(b *testing.B) {
					server.Do("FLUSHALL")
					store := open(b, redis.Options{URL: server.URL()})
					benchmarkTake(b, store, server, counters, pattern, callers)
				})
			}
		}
	}
}

// BenchmarkPartitions measures, on a Cluster of three masters, what the number of partitions does
// to the size of a batch, to the processor time of a decision, and to how evenly the masters are
// loaded (the busiest one's share, 1 is even).
func BenchmarkPartitions(b *testing.B) {
	cluster := redistest.StartCluster(b, 3, 0)
	limit, err := algo.New(algo.Config{Algorithm: algo.TokenBucket, N: 1_000_000, Window: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	counter := &rule.Counter{ID: 1, Group: 1, Limit: limit}
	for _, pattern := range []string{"uniform", "zipf"} {
		for _, partitions := range []int{1, 3, 8, 16, 32, 64, 128, 256, 1024} {
			b.Run(fmt.Sprintf("%s/partitions=%d", pattern, partitions), func(b *testing.B) {
				store := open(b, redis.Options{URL: cluster.URL(), Partitions: partitions})
				before := make([]time.Duration, 3)
				for i, node := range cluster.Nodes() {
					before[i] = node.CPU()
				}
				benchmarkTake(b, store, nil, []*rule.Counter{counter}, pattern, 256)
				var sum, most time.Duration
				for i, node := range cluster.Nodes() {
					used := node.CPU() - before[i]
					sum, most = sum+used, max(most, used)
				}
				stats := store.Stats()
				b.ReportMetric(float64(stats.Decisions)/float64(stats.Calls), "decisions/call")
				b.ReportMetric(float64(sum.Nanoseconds())/float64(b.N)/1e3, "redis-µs/op")
				b.ReportMetric(3*float64(most)/float64(sum), "busiest")
			})
		}
	}
}

// benchmarkTake lets callers decide b.N times. server may be nil.
func benchmarkTake(b *testing.B, s store.Store, server *redistest.Server, counters []*rule.Counter, pattern string,
	callers int) {
	const keys = 10_000
	names := make([][]byte, keys)
	for i := range names {
		names[i] = fmt.Appendf(nil, "user-%011d", i)
	}
	var wg sync.WaitGroup
	redis := func() time.Duration {
		if server == nil {
			return 0
		}
		return server.CPU()
	}
	own, before := processTime(), redis()
	b.ResetTimer()
	for g := range callers {
		n := b.N / callers
		if g < b.N%callers {
			n++
		}
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 1))
			zipf := rand.NewZipf(rnd, 1.1, 1, keys-1)
			charges, results := make([]store.Charge, len(counters)), make([]algo.Result, len(counters))
			for range n {
				key := names[0]
				switch pattern {
				case "uniform":
					key = names[rnd.IntN(keys)]
				case "zipf":
					key = names[zipf.Uint64()]
				}
				for i, c := range counters {
					charges[i] = store.Charge{Counter: c, Limit: c.Limit, Key: key,
						Ask: algo.Ask{Cost: 1, MaxDelay: -1}}
				}
				if _, err := s.Take(b.Context(), charges, results); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	b.ReportMetric(float64((processTime()-own).Nanoseconds())/float64(b.N)/1e3, "own-µs/op")
	if server != nil {
		b.ReportMetric(float64((redis()-before).Nanoseconds())/float64(b.N)/1e3, "redis-µs/op")
	}
}
