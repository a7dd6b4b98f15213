package redis_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
	"github.com/weir-rl/weir/store/storetest"
)

// TestOldRedis: a Redis 6, where scripts stand for functions, keeps the whole contract, and decides
// as Go does.
func TestOldRedis(t *testing.T) {
	server := redistest.StartOld(t)
	t.Run("Contract", func(t *testing.T) {
		storetest.Run(t, emptied(redis.Options{URL: server.URL()}, server))
	})
	t.Run("Matrix", func(t *testing.T) {
		storetest.Matrix(t, open(t, redis.Options{URL: server.URL(), Prefix: "matrix:"}))
	})
	t.Run("Differential", func(t *testing.T) {
		storetest.Differential(t, func(t *testing.T, clock func() int64) store.Store {
			return open(t, redis.Options{URL: server.URL(), Clock: clock, Prefix: "differential:"})
		}, effort.Of(400, 4000), 1)
	})
	t.Run("ExactAcrossNodes", func(t *testing.T) { testExactAcrossNodes(t, server.URL(), effort.Of(2000, 8000)) })
	t.Run("Reservations", func(t *testing.T) { testReservations(t, server.URL()) })
	t.Run("Linearizable", func(t *testing.T) {
		effort.Long(t, "TestLinearizable runs the same on a newer server")
		testLinearizable(t, redis.Options{URL: server.URL()}, server)
	})
	t.Run("LeastPrivilege", func(t *testing.T) {
		server.Do("FLUSHALL")
		testLeastPrivilege(t, server, true)
		for _, key := range server.Do("KEYS", "*").([]any) {
			if name, _ := key.(string); !strings.HasPrefix(name, redis.DefaultPrefix) {
				t.Errorf("the key %q is of no node", name)
			}
		}
	})
	t.Run("Refused", func(t *testing.T) {
		s := open(t, redis.Options{URL: server.URL()})
		told := []store.Told{{Units: 1}}
		for what, err := range map[string]error{
			"telling": s.Tell(t.Context(), 0, told),
			"hearing": func() error { _, _, _, _, err := s.Told(t.Context(), 0, "", 1, 0); return err }(),
		} {
			if fault, ok := errors.AsType[*store.LastingError](err); !ok ||
				!strings.Contains(fault.Advice, "regions must have Redis 7") {
				t.Errorf("%s of other regions: %v", what, err)
			}
		}
	})
}
