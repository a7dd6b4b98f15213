//go:build !race

// Nothing in this process is measured, but the race detector would make it many times as slow.

package redis_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
)

// TestMemory measures the cost in Redis (INFO memory, used_memory) of a user whose limit is used
// up, key, expiry and tables included; beside the keys that envoyproxy/ratelimit writes for the
// same, and beside sorted sets. The table of docs/operating/redis.md is its output. Names of users
// are 16 bytes long. Redis' own overhead for a key, whatever it holds, is another in each version
// of Redis, and its own buffers are another each time: the bounds are for the memory beyond a key,
// rounded up to the next size that an allocator has.
func TestMemory(t *testing.T) {
	effort.Long(t, "fills nine servers")
	const users = 20_000
	minute, hour := int64(60), int64(3600)
	now := time.Now().Unix()
	for _, test := range []struct {
		name   string
		limits []algo.Config
		fill   int64 // requests of each user
		most   int64 // bytes a user, beyond the keys alone
		// direct writes what another way would, instead of the store.
		direct func(user string) [][]string
	}{
		{"token_bucket", []algo.Config{{Algorithm: algo.TokenBucket, N: 100, Window: time.Hour}}, 100, 64, nil},
		{"fixed_window", []algo.Config{{Algorithm: algo.FixedWindow, N: 100, Window: time.Hour}}, 100, 64, nil},
		{"sliding_window", []algo.Config{{N: 100, Window: time.Hour}}, 100, 64, nil},
		{"sliding_window, 10/min and 500/hour", []algo.Config{{N: 10, Window: time.Minute}, {N: 500, Window: time.Hour}}, 10, 80, nil},
		{"sliding_window of 60 buckets", []algo.Config{{N: 500, Window: time.Hour, Buckets: 60}}, 500, 384, nil},
		{"sliding_log of 500", []algo.Config{{Algorithm: algo.SlidingLog, N: 500, Window: time.Hour}}, 500, 3800, nil},
		{"concurrency, 10 held", []algo.Config{{Algorithm: algo.Concurrency, N: 10, Timeout: time.Hour}}, 10, 384, nil},
		{"envoyproxy/ratelimit, 10/min and 500/hour", nil, 0, 100, func(user string) [][]string {
			return [][]string{
				{"SET", fmt.Sprintf("bench_user_%s_%d", user, now/minute*minute), "10", "EX", "60"},
				{"SET", fmt.Sprintf("bench_user_%s_%d", user, now/hour*hour), "500", "EX", "3600"},
			}
		}},
		{"sorted set of 500", nil, 0, 100_000, func(user string) [][]string {
			add := []string{"ZADD", "bench_" + user}
			for i := range 500 {
				at := fmt.Sprint(now*1_000_000 + int64(i)*7919)
				add = append(add, at, at)
			}
			return [][]string{add, {"EXPIRE", "bench_" + user, "3600"}}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			n := users
			if test.most > 1000 {
				n = 500
			}
			server := redistest.Start(t)
			loaded := open(t, redis.Options{URL: server.URL()})
			_ = loaded.Close()
			before := server.UsedMemory() // with the functions, but without a client's buffers
			store := open(t, redis.Options{URL: server.URL()})
			if test.direct != nil {
				conn := server.Dial()
				for i := range n {
					conn.Do(test.direct(fmt.Sprintf("%016d", i))...)
				}
				conn.Close()
			} else {
				fill(t, store, test.limits, n, test.fill)
			}
			_ = store.Close()
			each, bare := (server.UsedMemory()-before)/int64(n), bareMemory(t, server)/int64(n)
			t.Logf("%-45s %6d bytes a user, %d of them in its keys", test.name, each, bare)
			if each <= 0 || each-bare > test.most {
				t.Errorf("%d bytes a user beside %d of its keys, want up to %d", each-bare, bare, test.most)
			}
		})
	}
}

// bareMemory returns what the keys that a server has need with an expiry and a number that Redis
// keeps once for all keys.
func bareMemory(t *testing.T, of *redistest.Server) int64 {
	t.Helper()
	server := redistest.Start(t)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true})
	if err != nil {
		t.Fatal(err)
	}
	client.Close()
	before := server.UsedMemory()
	if client, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{server.Addr()}, DisableCache: true}); err != nil {
		t.Fatal(err)
	}
	var sets []rueidis.Completed
	for _, name := range of.Do("KEYS", "*").([]any) {
		sets = append(sets, client.B().Set().Key(name.(string)).Value("1").ExSeconds(3600).Build())
	}
	for _, reply := range client.DoMulti(t.Context(), sets...) {
		if err := reply.Error(); err != nil {
			t.Fatal(err)
		}
	}
	client.Close()
	return server.UsedMemory() - before
}

// fill lets each of n users make requests until their limits are used up.
func fill(t *testing.T, s store.Store, limits []algo.Config, n int, requests int64) {
	t.Helper()
	var counters []*rule.Counter
	for i, cfg := range limits {
		l, err := algo.New(cfg)
		if err != nil {
			t.Fatal(err)
		}
		counters = append(counters, &rule.Counter{ID: uint64(i+1) * 0x9E3779B97F4A7C15, Group: 1, Limit: l})
	}
	var wg sync.WaitGroup
	const workers = 64
	for w := range workers {
		wg.Go(func() {
			for user := w; user < n; user += workers {
				for left := requests; left > 0; {
					cost := int64(1)
					if counters[0].Limit.Algorithm() != algo.SlidingLog &&
						counters[0].Limit.Algorithm() != algo.Concurrency {
						cost = left
					}
					left -= cost
					var charges []store.Charge
					for _, c := range counters {
						charges = append(charges, store.Charge{Counter: c, Limit: c.Limit,
							Key: fmt.Appendf(nil, "\x00\x10%016d", user), Ask: algo.Ask{Cost: cost, MaxDelay: -1}})
					}
					if _, err := s.Take(context.Background(), charges, make([]algo.Result, len(charges))); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}
