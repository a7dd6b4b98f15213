//go:build unix

package rls

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/fallback"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/redis"
)

// redisEnv names the Redis of the servers below, which run in processes of their own.
const redisEnv = "WEIR_TEST_REDIS"

func init() {
	doortest.CPUServers["redis"] = overRedis("1000000")
	doortest.CPUServers["refused"] = overRedis("1")
}

// overRedis serves a limit a day as `weir serve` does with a Redis.
func overRedis(limit string) func(net.Listener) error {
	return func(l net.Listener) error {
		set, _, err := file.Load([]file.Source{{Name: "r.yaml", Data: []byte(
			"domain: bench\ndescriptors:\n- {key: user, rate_limit: {unit: day, requests_per_unit: " + limit + "}}\n")}}, file.Options{})
		if err != nil {
			return err
		}
		local, err := memory.New(memory.Options{})
		if err != nil {
			return err
		}
		primary, err := redis.Open(redis.Options{URL: os.Getenv(redisEnv), RememberRefusals: time.Second})
		if err != nil {
			return err
		}
		s, err := fallback.New(primary, fallback.Options{Local: local})
		if err != nil {
			return err
		}
		limiter, err := weir.New(s, weir.WithRules(set))
		if err != nil {
			return err
		}
		return NewServer(New(limiter, Options{}), ServerOptions{}).Serve(l)
	}
}

// BenchmarkCPURLSOverRedis is the processor time of a decision that Redis makes, and of a refusal
// that the node remembers, with 64 callers on one connection. Use -benchtime 9x.
func BenchmarkCPURLSOverRedis(b *testing.B) {
	b.Setenv(redisEnv, redistest.Start(b).URL())
	requests := benchRequests()[:1000]
	doortest.CompareCPU(b, func(addr string) func() int { return round(b, addr, requests, 64, 400) }, "redis",
		"refused")
}
