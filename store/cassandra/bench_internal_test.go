package cassandra

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/cassandratest"
	"github.com/weir-rl/weir/internal/pgtest"
	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/postgres"
	"github.com/weir-rl/weir/store/redis"
)

// BenchmarkDecision measures decisions as nodes make them, of Cassandra with either way of Paxos,
// and of PostgreSQL and Redis beside it: the figures of docs/stores.md. Each operation is one
// decision; so
//
//	go test ./store/cassandra -run '^$' -bench Decision -benchtime 5s
func BenchmarkDecision(b *testing.B) {
	for _, variant := range []string{"v1", "v2"} {
		b.Run("cassandra, paxos "+variant, func(b *testing.B) {
			options := []string{"paxos_variant: " + variant}
			if variant == "v2" {
				options = append(options, "paxos_state_purging: repaired")
			}
			server := cassandratest.Start(b, options...)
			url := server.URL(server.Keyspace())
			benchmark(b, server.CPU, func(b *testing.B) store.Store { return openStore(b, Options{URL: url}) })
		})
	}
	b.Run("postgres", func(b *testing.B) {
		server := pgtest.Start(b)
		benchmark(b, server.CPU, func(b *testing.B) store.Store {
			s, err := postgres.Open(postgres.Options{URL: server.URL(), Timeout: 30 * time.Second})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = s.Close() })
			return s
		})
	})
	b.Run("redis", func(b *testing.B) {
		server := redistest.Start(b)
		benchmark(b, server.CPU, func(b *testing.B) store.Store {
			s, err := redis.Open(redis.Options{URL: server.URL(), Timeout: 30 * time.Second})
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = s.Close() })
			return s
		})
	})
}

func benchmark(b *testing.B, cpu func() time.Duration, open func(b *testing.B) store.Store) {
	for _, load := range []struct {
		name                 string
		nodes, callers, keys int
		limit                int64
	}{
		{"one caller", 1, 1, 10_000, 1_000_000_000},
		{"uniform, 64 callers", 1, 64, 10_000, 1_000_000_000},
		{"hot key, 64 callers", 1, 64, 1, 1_000_000_000},
		{"hot key, 4 nodes of 64 callers", 4, 64, 1, 1_000_000_000},
		{"refused, 64 callers", 1, 64, 1, 1},
	} {
		b.Run(load.name, func(b *testing.B) {
			c := benchCounter(b, load.limit)
			var stores []store.Store
			for range load.nodes {
				s := open(b)
				stores = append(stores, s)
				for {
					if _, err := ask(b.Context(), s, c, "first"); err == nil {
						break
					}
					time.Sleep(time.Millisecond)
				}
			}
			// What a server compiles as it runs, it has compiled by then.
			drive(b, stores, c, load.callers, load.keys, 2000)
			spent := cpu()
			b.ResetTimer()
			took := drive(b, stores, c, load.callers, load.keys, b.N)
			elapsed := b.Elapsed()
			b.ReportMetric(float64(len(took))/elapsed.Seconds(), "decisions/s")
			b.ReportMetric(float64((cpu()-spent).Microseconds())/float64(len(took)), "server-µs/decision")
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func benchCounter(b *testing.B, limit int64) *rule.Counter {
	b.Helper()
	l, err := algo.New(algo.Config{Algorithm: algo.FixedWindow, N: limit, Window: 24 * time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	return &rule.Counter{ID: rand.Uint64(), Limit: l}
}

func ask(ctx context.Context, s store.Store, c *rule.Counter, key string) (algo.Result, error) {
	var results [1]algo.Result
	_, err := s.Take(ctx, []store.Charge{{Counter: c, Limit: c.Limit, Key: []byte(key), Ask: algo.Ask{Cost: 1, MaxDelay: -1}}}, results[:])
	return results[0], err
}

// drive makes n decisions, and returns how long each took.
func drive(b *testing.B, stores []store.Store, c *rule.Counter, callers, keys, n int) (all []time.Duration) {
	b.Helper()
	var mu sync.Mutex
	var wg sync.WaitGroup
	parts := callers * len(stores)
	for i := range parts {
		wg.Go(func() {
			var took []time.Duration
			for range (n + parts - 1 - i) / parts {
				begun := time.Now()
				if _, err := ask(b.Context(), stores[i%len(stores)], c, fmt.Sprint("key ", rand.IntN(keys))); err != nil {
					b.Error(err)
					return
				}
				took = append(took, time.Since(begun))
			}
			mu.Lock()
			all = append(all, took...)
			mu.Unlock()
		})
	}
	wg.Wait()
	return all
}
