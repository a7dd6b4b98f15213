package redis_test

import (
	"testing"
	"time"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/store/redis"
	"github.com/weir-rl/weir/store/storetest"
)

// open opens a store on a Redis of the test's own. A machine that is slow must not make a decision fail.
func open(t testing.TB, o redis.Options) *redis.Store {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Logf == nil {
		o.Logf = t.Logf
	}
	s, err := redis.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n := s.Stats().Disagreements; n != 0 {
			t.Errorf("Lua and Go disagreed %d times", n)
		}
		_ = s.Close()
	})
	return s
}

func TestContractInCluster(t *testing.T) {
	cluster := redistest.StartCluster(t, 3, 0)
	storetest.Run(t, func(t *testing.T, clock func() int64) weir.Store {
		return open(t, redis.Options{URL: cluster.URL(), Clock: clock, Partitions: 1})
	})
}

// TestDifferential: Lua decides as Go does.
func TestDifferential(t *testing.T) {
	server := redistest.Start(t)
	steps := 100_000
	if testing.Short() {
		steps = 2000
	}
	storetest.Differential(t, func(t *testing.T, clock func() int64) weir.Store {
		return open(t, redis.Options{URL: server.URL(), Clock: clock})
	}, steps, 0)
}

// TestMatrix: each kind of throttling of each algorithm.
func TestMatrix(t *testing.T) {
	storetest.Matrix(t, open(t, redis.Options{URL: redistest.Start(t).URL()}))
}

func TestContract(t *testing.T) {
	server := redistest.Start(t)
	storetest.Run(t, func(t *testing.T, clock func() int64) weir.Store {
		return open(t, redis.Options{URL: server.URL(), Clock: clock})
	})
}
