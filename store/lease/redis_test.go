package lease_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/lease"
	"github.com/weir-rl/weir/store/redis"
	"github.com/weir-rl/weir/store/storetest"
)

func openRedis(t *testing.T, url string) *redis.Store {
	t.Helper()
	s, err := redis.Open(redis.Options{URL: url, Timeout: 30 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestRedisContract: what has no lease is decided by Redis as without a Store between.
func TestRedisContract(t *testing.T) {
	effort.Long(t, "TestContract runs the same over a store in memory")
	server := redistest.Start(t)
	var users atomic.Int64
	storetest.Run(t, func(t *testing.T, clock func() int64) store.Store {
		// What is left goes when no store is open: a scan looks at all of it.
		users.Add(1)
		t.Cleanup(func() {
			if users.Add(-1) == 0 {
				server.Do("FLUSHALL")
			}
		})
		primary, err := redis.Open(redis.Options{URL: server.URL(), Clock: clock, Timeout: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		s, err := lease.New(primary, lease.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return s
	})
}

// TestRedisTotal: four nodes with leases of one Redis, by the real clock: at least 95 % of a limit
// are admitted under load, and all of it, and not one more, once what is left was returned.
func TestRedisTotal(t *testing.T) {
	server := redistest.Start(t)
	limit, err := algo.New(algo.Config{Algorithm: algo.SlidingLog, N: 10_000, Window: time.Hour, Lease: 5,
		LeaseFor: algo.MaxLeaseFor})
	if err != nil {
		t.Fatal(err)
	}
	c := &rule.Counter{
		ID: 0x1234567890ABCDEF, Domain: "test", Limit: limit,
		Lease: &rule.Counter{ID: 0xFEDCBA0987654321, Domain: "test", Limit: limit.Lease()},
	}
	var admitted, local atomic.Int64
	var nodes []*lease.Store
	for range 4 {
		s, err := lease.New(openRedis(t, server.URL()), lease.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		nodes = append(nodes, s)
	}
	load := func(requests int) {
		var work sync.WaitGroup
		for g := range 16 {
			work.Go(func() {
				s := nodes[g%len(nodes)]
				charges := []store.Charge{{Counter: c, Limit: limit, Key: []byte("key"), Ask: algo.Ask{Cost: 1}}}
				results := make([]algo.Result, 1)
				for range requests / 16 {
					if _, ok := s.TakeNow(charges, results); ok {
						local.Add(1)
					} else if _, err := s.Take(context.Background(), charges, results); err != nil {
						t.Error(err)
						return
					}
					if results[0].Allowed {
						admitted.Add(1)
					}
				}
			})
		}
		work.Wait()
	}
	decisions := effort.Of(50_000, 200_000)
	load(decisions)
	if n := admitted.Load(); n < 9500 || n > 10_000 {
		t.Errorf("%d admitted under load", n)
	}
	// TestExactTotal holds how many, in virtual time.
	t.Logf("%d admitted, %d of %d decisions made here", admitted.Load(), local.Load(), decisions)
	if local.Load() == 0 {
		t.Error("nothing was decided here")
	}
	for _, s := range nodes {
		if err := s.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if st := s.Stats(); st.Left+st.Untold != 0 || st.Limits[0].Lapsed != 0 || st.Late != 0 {
			t.Errorf("%+v", st)
		}
	}
	load(2000)
	if n := admitted.Load(); n != 10_000 {
		t.Errorf("%d admitted in the end", n)
	}
}
