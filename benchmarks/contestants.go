package benchmarks

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"
	"unsafe"

	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	"github.com/throttled/throttled/v2/store/memstore"
	ulule "github.com/ulule/limiter/v3"
	ululememory "github.com/ulule/limiter/v3/drivers/store/memory"
	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
	"golang.org/x/time/rate"
)

// Limit is the limit of all contestants: N per window, all of which may come at once.
type Limit struct {
	N      int64
	Window time.Duration
}

// A Decider decides one request; it reports whether it is admitted. What fails is not. One is made
// for each goroutine. Some contestants keep the key that they are first asked with, so it must not
// change after that.
type Decider func(key []byte) bool

// Contestant makes what decides.
type Contestant struct {
	Name string
	// Make gets the number of keys. The deciders last until closed is called.
	Make func(l Limit, keys int) (deciders func() Decider, closed func() error, err error)
}

// text is a key as a string, without a copy, for rivals that want strings.
func text(key []byte) string { return unsafe.String(unsafe.SliceData(key), len(key)) }

func nothing() error { return nil }

// Contestants are those that decide in the process that asks.
var Contestants = []Contestant{
	{"floor", func(l Limit, keys int) (func() Decider, func() error, error) {
		f := newFloor(keys, l.Window/time.Duration(l.N), l.Window)
		return func() Decider { return f.Take }, nothing, nil
	}},
	{"floor-answer", func(l Limit, keys int) (func() Decider, func() error, error) {
		f := newFloor(keys, l.Window/time.Duration(l.N), l.Window)
		return func() Decider {
			var a answer
			return func(key []byte) bool {
				f.Answer(key, &a)
				return a.allowed
			}
		}, nothing, nil
	}},
	{"sharded-map", func(l Limit, _ int) (func() Decider, func() error, error) {
		m := newShardedMap(l.Window/time.Duration(l.N), l.Window)
		return func() Decider { return m.Take }, nothing, nil
	}},
	storeContestant("weir-store", algo.TokenBucket),
	storeContestant("weir-store-fixed_window", algo.FixedWindow),
	storeContestant("weir-store-sliding_window", algo.SlidingWindow),
	{"weir", func(l Limit, keys int) (func() Decider, func() error, error) {
		return MakeLimiter(keys,
			fmt.Sprintf(
				"limits:\n  - name: per-user\n    when: { path: /api/** }\n    per: [user]\n    allow: { rate: %d/%s, burst: %d }\n", l.N, l.Window, l.N))
	}},
	{"x-time-rate-map", func(l Limit, _ int) (func() Decider, func() error, error) {
		var mu sync.Mutex
		limiters := map[string]*rate.Limiter{}
		return func() Decider {
			return func(key []byte) bool {
				mu.Lock()
				r := limiters[text(key)]
				if r == nil {
					r = rate.NewLimiter(rate.Every(l.Window/time.Duration(l.N)), int(l.N))
					limiters[string(key)] = r
				}
				mu.Unlock()
				return r.Allow()
			}
		}, nothing, nil
	}},
	{"sethvargo", func(l Limit, _ int) (func() Decider, func() error, error) {
		s, err := memorystore.New(&memorystore.Config{Tokens: uint64(l.N), Interval: l.Window})
		if err != nil {
			return nil, nil, err
		}
		return func() Decider {
			return func(key []byte) bool {
				_, _, _, ok, err := s.Take(context.Background(), text(key))
				return ok && err == nil
			}
		}, func() error { return s.Close(context.Background()) }, nil
	}},
	{"throttled", func(l Limit, _ int) (func() Decider, func() error, error) {
		s, err := memstore.NewCtx(0)
		if err != nil {
			return nil, nil, err
		}
		// Its burst is counted beyond the first request, and so is its emission interval's unit.
		t, err := throttled.NewGCRARateLimiterCtx(s,
			throttled.RateQuota{MaxRate: throttled.PerDuration(int(l.N), l.Window), MaxBurst: int(l.N) - 1})
		if err != nil {
			return nil, nil, err
		}
		return func() Decider {
			return func(key []byte) bool {
				limited, _, err := t.RateLimitCtx(context.Background(), text(key), 1)
				return !limited && err == nil
			}
		}, nothing, nil
	}},
	{"ulule", func(l Limit, _ int) (func() Decider, func() error, error) {
		u := ulule.New(ululememory.NewStoreWithOptions(ulule.StoreOptions{Prefix: "l", CleanUpInterval: time.Hour}),
			ulule.Rate{Period: l.Window, Limit: l.N})
		return func() Decider {
			return func(key []byte) bool {
				c, err := u.Get(context.Background(), text(key))
				return !c.Reached && err == nil
			}
		}, nothing, nil
	}},
}

// newStore makes a store that holds the keys, which may be more than it holds by default.
func newStore(keys int) (*memory.Store, error) {
	o := memory.Options{}
	if keys > memory.DefaultMaxKeys/2 {
		o.MaxKeys, o.MaxBytes = 2*keys, math.MaxInt64
	}
	return memory.New(o)
}

// storeContestant is Weir's store alone, without rules.
func storeContestant(name string, a algo.Algorithm) Contestant {
	return Contestant{name, func(l Limit, keys int) (func() Decider, func() error, error) {
		limit, err := algo.New(algo.Config{Algorithm: a, N: l.N, Window: l.Window})
		if err != nil {
			return nil, nil, err
		}
		s, err := newStore(keys)
		if err != nil {
			return nil, nil, err
		}
		counter := &rule.Counter{ID: rand.Uint64(), Limit: limit}
		return func() Decider {
			charges := []store.Charge{{Counter: counter, Limit: limit, Ask: algo.Ask{Cost: 1}}}
			results := make([]algo.Result, 1)
			return func(key []byte) bool {
				charges[0].Key = key
				_, err := s.Take(context.Background(), charges, results)
				return results[0].Allowed && err == nil
			}
		}, s.Close, nil
	}}
}

// NewLimiter makes a whole limiter on a store of its own, of the text of rule files.
func NewLimiter(keys int, rules ...string) (limiter *weir.Limiter, closed func() error, err error) {
	var sources []file.Source
	for i, text := range rules {
		sources = append(sources, file.Source{Name: fmt.Sprintf("rules-%d.yaml", i), Data: []byte(text)})
	}
	set, _, err := file.Load(sources, file.Options{})
	if err != nil {
		return nil, nil, err
	}
	s, err := newStore(keys)
	if err != nil {
		return nil, nil, err
	}
	if limiter, err = weir.New(s, weir.WithRules(set)); err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return limiter, s.Close, nil
}

// MakeLimiter is Contestant.Make for a limiter with such rules; the key is the user.
func MakeLimiter(keys int, rules string) (func() Decider, func() error, error) {
	limiter, closed, err := NewLimiter(keys, rules)
	if err != nil {
		return nil, nil, err
	}
	return func() Decider {
		attributes := rule.Pairs{{Name: "method", Value: "GET"}, {Name: "path", Value: "/api/orders"}, {Name: "user"}}
		request := weir.Request{Domain: "default", Attributes: attributes, Hits: 1}
		var d weir.Decision
		return func(key []byte) bool {
			attributes[2].Value = text(key)
			err := limiter.Decide(context.Background(), &request, &d)
			return err == nil && d.Allowed && len(d.Limits) > 0
		}
	}, closed, nil
}
