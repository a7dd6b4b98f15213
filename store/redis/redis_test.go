package redis_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/effort"
	"github.com/weir-rl/weir/internal/redistest"
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
	return s
}

func TestContractInCluster(t *testing.T) {
	effort.Long(t, "TestContract runs the same on one server")
	cluster := redistest.StartCluster(t, 3, 0)
	storetest.Run(t, func(t *testing.T, clock func() int64) store.Store {
		return open(t, redis.Options{URL: cluster.URL(), Clock: clock, Partitions: 1})
	})
}

// TestDifferential: Lua decides as Go does.
func TestDifferential(t *testing.T) {
	server := redistest.Start(t)
	steps := 100_000
	if !effort.All() || effort.Detector { // each store is asked by one goroutine
		steps = 2000
	}
	storetest.Differential(t, func(t *testing.T, clock func() int64) store.Store {
		return open(t, redis.Options{URL: server.URL(), Clock: clock})
	}, steps, 0)
}

// TestMatrix: each kind of throttling of each algorithm.
func TestMatrix(t *testing.T) {
	storetest.Matrix(t, open(t, redis.Options{URL: redistest.Start(t).URL()}))
}

func TestContract(t *testing.T) {
	server := redistest.Start(t)
	storetest.Run(t, func(t *testing.T, clock func() int64) store.Store {
		return open(t, redis.Options{URL: server.URL(), Clock: clock})
	})
}

// logFunc is a slog.Handler that gets the messages.
type logFunc func(line string)

func (f logFunc) Enabled(context.Context, slog.Level) bool      { return true }
func (f logFunc) Handle(_ context.Context, r slog.Record) error { f(r.Message); return nil }
func (f logFunc) WithAttrs([]slog.Attr) slog.Handler            { return f }
func (f logFunc) WithGroup(string) slog.Handler                 { return f }
