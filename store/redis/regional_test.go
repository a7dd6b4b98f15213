package redis_test

import (
	"testing"

	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
	"github.com/weir-rl/weir/store/storetest"
)

// TestRegional: Redis tells and hears as the pure algorithms do.
func TestRegional(t *testing.T) {
	server := redistest.Start(t)
	storetest.Regional(t, func(t *testing.T, clock func() int64) store.Store {
		return open(t, redis.Options{URL: server.URL(), Clock: clock})
	})
}

func TestRegionalInCluster(t *testing.T) {
	cluster := redistest.StartCluster(t, 3, 0)
	storetest.Regional(t, func(t *testing.T, clock func() int64) store.Store {
		return open(t, redis.Options{URL: cluster.URL(), Clock: clock})
	})
}
