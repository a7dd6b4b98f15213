package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/pgtest"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/postgres"
)

// Ways to decide: Weir's, and other limiters' on PostgreSQL, with their own statements: a
// transaction that locks a row, reads and writes it (bucket4j's SELECT FOR UPDATE), one statement
// that counts (rate-limiter-flexible's), and the least that a decision can be. The other libraries
// say nothing of synchronous_commit, so that with them a decision waits for the disk, which is the
// server's default; so each is measured both ways.
var ways = map[string]func(b *testing.B, s *pgtest.Server) func(key string) error{
	"weir": func(b *testing.B, s *pgtest.Server) func(key string) error {
		return weirWay(b, s.URL())
	},
	"weir_synced": func(b *testing.B, s *pgtest.Server) func(key string) error {
		return weirWay(b, s.URL()+"&weir_tables=synced")
	},
	"weir_unlogged": func(b *testing.B, s *pgtest.Server) func(key string) error {
		return weirWay(b, s.URL()+"&weir_tables=unlogged")
	},
}

var others = map[string]func(b *testing.B, s *pgtest.Server) func(key string) error{
	"bucket4j": func(b *testing.B, s *pgtest.Server) func(key string) error {
		pool := otherPool(b, s, "create table bucket (id text primary key, state bytea)")
		return func(key string) error {
			ctx := context.Background()
			return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				var state []byte
				err := tx.QueryRow(ctx, "select state from bucket where id = $1 for update", key).Scan(&state)
				if errors.Is(err, pgx.ErrNoRows) {
					_, err = tx.Exec(ctx,
						"insert into bucket (id, state) values ($1, null) on conflict (id) do nothing", key)
				}
				if err == nil {
					_, err = tx.Exec(ctx, "update bucket set state = $1 where id = $2", make([]byte, 40), key)
				}
				return err
			})
		}
	},
	// It asks pg for a prepared statement, outside of any transaction.
	"rate_limiter_flexible": func(b *testing.B, s *pgtest.Server) func(key string) error {
		pool := otherPool(b, s,
			"create table points (key varchar(255) primary key, points integer not null default 0, expire bigint)")
		return func(key string) error {
			now := time.Now().UnixMilli()
			var points, expire int64
			return pool.QueryRow(context.Background(), `insert into points values ($1, $2, $3)
				on conflict (key) do update set
				points = case when (points.expire <= $4 or 1 = $5) then $2 else points.points + ($2) end,
				expire = case when (points.expire <= $4 or 1 = $5) then $3 else points.expire end
				returning points, expire`, key, 1, now+3_600_000, now, 0).Scan(&points, &expire)
		}
	},
	"bare_update": func(b *testing.B, s *pgtest.Server) func(key string) error {
		pool := otherPool(b, s, "create table bare (key text primary key, n bigint) with (fillfactor = 60)")
		s.Exec("insert into bare select 'key ' || i, 0 from generate_series(0, $1) i", benchKeys)
		return func(key string) error {
			var n int64
			return pool.QueryRow(context.Background(), "update bare set n = n + 1 where key = $1 returning n",
				key).Scan(&n)
		}
	},
}

const benchKeys = 10_000

// way returns the way of a name. For other limiters the end _synced means the server's default, and
// without it their commits do not wait.
func way(b *testing.B, name string, s *pgtest.Server) func(key string) error {
	if of := ways[name]; of != nil {
		return of(b, s)
	}
	other, synced := strings.CutSuffix(name, "_synced")
	if !synced {
		s.Exec("alter role weir set synchronous_commit = off")
	}
	return others[other](b, s)
}

// otherPool makes a table, and returns a pool of 10 connections, which is the default of pg, and of
// the pool that programs on Java have most often.
func otherPool(b *testing.B, s *pgtest.Server, table string) *pgxpool.Pool {
	b.Helper()
	pool, err := pgxpool.New(context.Background(), s.URL()+"&pool_max_conns=10")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	if _, err := pool.Exec(context.Background(), table); err != nil {
		b.Fatal(err)
	}
	return pool
}

func weirWay(b *testing.B, url string) func(key string) error {
	b.Helper()
	s := open(b, postgres.Options{URL: url})
	c, err := counterOf(algo.Config{Algorithm: algo.TokenBucket, N: 1e9, Window: time.Hour})
	if err != nil {
		b.Fatal(err)
	}
	return func(key string) error {
		charges := [1]store.Charge{{Counter: c, Limit: c.Limit, Key: []byte(key), Ask: algo.Ask{Cost: 1, MaxDelay: -1}}}
		var results [1]algo.Result
		_, err := s.Take(context.Background(), charges[:], results[:])
		return err
	}
}

// BenchmarkDecisions measures decisions on PostgreSQL: uniform keys and one hot key with 64
// callers, and one caller alone. What ends with _synced waits for the disk.
func BenchmarkDecisions(b *testing.B) {
	for _, load := range []struct {
		name          string
		callers, keys int
	}{{"uniform", 64, benchKeys}, {"hot", 64, 1}, {"alone", 1, benchKeys}} {
		for _, name := range []string{
			"weir", "weir_synced", "weir_unlogged", "bucket4j", "bucket4j_synced",
			"rate_limiter_flexible", "rate_limiter_flexible_synced", "bare_update", "bare_update_synced",
		} {
			b.Run(load.name+"/"+name, func(b *testing.B) {
				s := pgtest.Start(b, "fsync = on", "shared_buffers = 128MB", "max_wal_size = 1GB")
				decide := way(b, name, s)
				run := func(n int, draw func(i int64) int) (took []time.Duration) {
					var mu sync.Mutex
					var left atomic.Int64
					left.Store(int64(n))
					var wg sync.WaitGroup
					for range load.callers {
						wg.Go(func() {
							var mine []time.Duration
							for i := left.Add(-1); i >= 0; i = left.Add(-1) {
								key := fmt.Sprint("key ", draw(i))
								began := time.Now()
								if err := decide(key); err != nil {
									b.Error(err)
									return
								}
								mine = append(mine, time.Since(began))
							}
							mu.Lock()
							took = append(took, mine...)
							mu.Unlock()
						})
					}
					wg.Wait()
					return took
				}
				// All keys have been seen, and all connections are open.
				run(max(load.keys, 200), func(i int64) int { return int(i) % load.keys })
				before := s.CPU()
				b.ResetTimer()
				took := run(b.N, func(int64) int { return rand.IntN(load.keys) })
				b.StopTimer()
				slices.Sort(took)
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "decisions/s")
				b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
				b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
				b.ReportMetric(float64((s.CPU()-before).Microseconds())/float64(b.N), "server-µs/op")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
