package redis_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
	"github.com/weir-rl/weir/store/storetest"
)

// open opens a store on a Redis of the test's own. A machine that is slow must not make a decision
// fail.
func open(t testing.TB, o redis.Options) *redis.Store {
	t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.New(logFunc(func(line string) { t.Log(line) }))
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
	patience.Until(t, "there is a connection, or there can be none", func() bool { return settled(s) })
	return s
}

// settled reports whether a store is connected, or cannot be. A server that a busy machine leaves
// alone may not answer the first attempt in time.
func settled(s *redis.Store) bool {
	_, err := s.Client()
	_, lasting := errors.AsType[*store.LastingError](err)
	return err == nil || lasting || errors.Is(err, syscall.ECONNREFUSED)
}

// emptied opens stores for storetest. What a store leaves goes when no store is open any more:
// Redis keeps states of virtual time, and a scan looks at all of them.
func emptied(o redis.Options, servers ...*redistest.Server) func(t *testing.T, clock func() int64) store.Store {
	var users atomic.Int64
	return func(t *testing.T, clock func() int64) store.Store {
		users.Add(1)
		t.Cleanup(func() {
			if users.Add(-1) == 0 {
				for _, server := range servers {
					server.Do("FLUSHALL")
				}
			}
		})
		o := o
		o.Clock = clock
		return open(t, o)
	}
}

func testContractInCluster(t *testing.T, cluster *redistest.Cluster) {
	storetest.Run(t, emptied(redis.Options{URL: cluster.URL(), Partitions: 1}, cluster.Nodes()...))
}

func testParted(t *testing.T, cluster *redistest.Cluster) {
	storetest.Parted(t, emptied(redis.Options{URL: cluster.URL()}, cluster.Nodes()...))
}

// TestDifferential: Lua decides as Go does. With WEIR_STEPS, of 100000 say, the seed is a new one.
func TestDifferential(t *testing.T) {
	server := redistest.Start(t)
	steps, seed := effort.Of(400, 8000), uint64(1)
	if os.Getenv("WEIR_STEPS") != "" {
		seed = 0
	}
	storetest.Differential(t, func(t *testing.T, clock func() int64) store.Store {
		return open(t, redis.Options{URL: server.URL(), Clock: clock})
	}, steps, seed)
}

// TestMatrix: each kind of throttling of each algorithm.
func TestMatrix(t *testing.T) {
	storetest.Matrix(t, open(t, redis.Options{URL: redistest.Start(t).URL()}))
}

func TestContract(t *testing.T) {
	server := redistest.Start(t)
	storetest.Run(t, emptied(redis.Options{URL: server.URL()}, server))
}

// logFunc is a slog.Handler that gets the messages.
type logFunc func(line string)

func (f logFunc) Enabled(context.Context, slog.Level) bool      { return true }
func (f logFunc) Handle(_ context.Context, r slog.Record) error { f(r.Message); return nil }
func (f logFunc) WithAttrs([]slog.Attr) slog.Handler            { return f }
func (f logFunc) WithGroup(string) slog.Handler                 { return f }
