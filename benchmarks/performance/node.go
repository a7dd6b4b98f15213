package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/throttled/throttled/v2"
	throttledredis "github.com/throttled/throttled/v2/store/goredisstore.v9"
	ulule "github.com/ulule/limiter/v3"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"
	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/benchmarks/internal/processor"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/redis"
)

const (
	nodeCallers = 64
	nodeKeys    = 10_000
	nodeLimit   = 1_000_000 // in a month, of each key
	month       = 30 * 24 * time.Hour
)

// nodeAsker decides a request of a key; it is called by several goroutines.
type nodeAsker func(ctx context.Context, key string) (allowed bool, err error)

// gcra is the algorithm as it is usually written for Redis: a limit, and the µs of one request.
const gcra = `local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local limit, each = tonumber(ARGV[1]), tonumber(ARGV[2])
local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or now), now)
local new = tat + each
local room = now - (new - each * limit)
if room < 0 then
  return {1, limit, 0, math.ceil(-room / 1000), math.ceil((tat - now) / 1000)}
end
redis.call('SET', KEYS[1], string.format('%d', new), 'PX', math.ceil((new - now) / 1000))
return {0, limit, math.floor(room / each), -1, math.ceil((new - now) / 1000)}`

// nodeAskers make the libraries of part nodes.
var nodeAskers = map[string]func(addr string) (nodeAsker, error){
	"weir": func(addr string) (nodeAsker, error) {
		s, err := redis.Open(redis.Options{URL: "redis://" + addr})
		if err != nil {
			return nil, err
		}
		limiter, err := weir.New(s, weir.Limit("user", fmt.Sprintf("%d/30d", nodeLimit), "user"))
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, key string) (bool, error) {
			var d weir.Decision
			err := limiter.Decide(ctx, &weir.Request{Attributes: rule.Pairs{{Name: "user", Value: key}}, Hits: 1}, &d)
			if err == nil && len(d.Limits) != 1 {
				err = errors.New("the request met no limit")
			}
			return d.Allowed, err
		}, nil
	},
	"script": func(addr string) (nodeAsker, error) {
		client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, DisableCache: true,
			ForceSingleClient: true})
		if err != nil {
			return nil, err
		}
		script := rueidis.NewLuaScript(gcra)
		arguments := []string{strconv.Itoa(nodeLimit), strconv.FormatInt(month.Microseconds()/nodeLimit, 10)}
		return func(ctx context.Context, key string) (bool, error) {
			list, err := script.Exec(ctx, client, []string{"script:" + key}, arguments).AsIntSlice()
			return err == nil && list[0] == 0, err
		}, nil
	},
	"throttled": func(addr string) (nodeAsker, error) {
		s, err := throttledredis.NewCtx(goredis.NewClient(&goredis.Options{Addr: addr}), "throttled:")
		if err != nil {
			return nil, err
		}
		t, err := throttled.NewGCRARateLimiterCtx(s,
			throttled.RateQuota{MaxRate: throttled.PerDuration(nodeLimit, month), MaxBurst: nodeLimit - 1})
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, key string) (bool, error) {
			limited, _, err := t.RateLimitCtx(ctx, key, 1)
			return !limited, err
		}, nil
	},
	"ulule": func(addr string) (nodeAsker, error) {
		s, err := ululeredis.NewStoreWithOptions(goredis.NewClient(&goredis.Options{Addr: addr}),
			ulule.StoreOptions{Prefix: "ulule"})
		if err != nil {
			return nil, err
		}
		u := ulule.New(s, ulule.Rate{Period: month, Limit: nodeLimit})
		return func(ctx context.Context, key string) (bool, error) {
			c, err := u.Get(ctx, key)
			return !c.Reached, err
		}, nil
	},
}

// node decides requests of many callers on a Redis for some time. It writes how many it decided in
// a second, and its processor time for each in µs.
func node(args []string, out io.Writer) error {
	if len(args) != 3 || nodeAskers[args[0]] == nil {
		return errors.New("node takes a library, the address of a Redis, and a duration")
	}
	duration, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	ask, err := nodeAskers[args[0]](args[1])
	if err != nil {
		return err
	}
	load := func(d time.Duration) (n int64, err error) {
		var sum atomic.Int64
		errs := make([]error, nodeCallers)
		var all sync.WaitGroup
		for i := range errs {
			all.Go(func() {
				r := rand.New(rand.NewPCG(uint64(os.Getpid()), uint64(i)))
				for begin := time.Now(); time.Since(begin) < d && errs[i] == nil; {
					allowed, err := ask(context.Background(), "key-"+strconv.Itoa(r.IntN(nodeKeys)))
					if err == nil && !allowed {
						err = errRefused
					}
					errs[i] = err
					sum.Add(1)
				}
			})
		}
		all.Wait()
		return sum.Load(), errors.Join(errs...)
	}
	if _, err := load(300 * time.Millisecond); err != nil {
		return err
	}
	before, err := processor.Time(os.Getpid())
	if err != nil {
		return err
	}
	begin := time.Now()
	n, err := load(duration)
	if err != nil {
		return err
	}
	took := time.Since(begin)
	after, err := processor.Time(os.Getpid())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(out, float64(n)/took.Seconds(), (after-before).Seconds()*1e6/float64(n))
	return err
}
