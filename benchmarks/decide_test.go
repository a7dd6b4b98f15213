package benchmarks

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync"
	"testing"
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

// limit is what all of them are set to: n per window, all of which may come at once.
type limit struct {
	n      int64
	window time.Duration
}

// A decider decides one request; it reports whether it is admitted. One is made for each goroutine.
type decider func(key []byte) bool

// contestant makes what decides; it is given how many keys there will be.
type contestant struct {
	name string
	make func(b testing.TB, l limit, keys int) func() decider
}

// text is a key as a string, without a copy: what a rival that wants strings would be given.
func text(key []byte) string { return unsafe.String(unsafe.SliceData(key), len(key)) }

var contestants = []contestant{
	{"floor", func(b testing.TB, l limit, keys int) func() decider {
		f := newFloor(keys, l.window/time.Duration(l.n), l.window)
		return func() decider { return f.Take }
	}},
	{"floor-answer", func(b testing.TB, l limit, keys int) func() decider {
		f := newFloor(keys, l.window/time.Duration(l.n), l.window)
		return func() decider {
			var a answer
			return func(key []byte) bool {
				f.Answer(key, &a)
				return a.allowed
			}
		}
	}},
	{"sharded-map", func(b testing.TB, l limit, keys int) func() decider {
		m := newShardedMap(l.window/time.Duration(l.n), l.window)
		return func() decider { return m.Take }
	}},
	{"weir-store", func(b testing.TB, l limit, keys int) func() decider {
		return storeOf(b, algo.Config{Algorithm: algo.TokenBucket, N: l.n, Window: l.window})
	}},
	{"weir-store-fixed_window", func(b testing.TB, l limit, keys int) func() decider {
		return storeOf(b, algo.Config{Algorithm: algo.FixedWindow, N: l.n, Window: l.window})
	}},
	{"weir-store-sliding_window", func(b testing.TB, l limit, keys int) func() decider {
		return storeOf(b, algo.Config{Algorithm: algo.SlidingWindow, N: l.n, Window: l.window})
	}},
	{"weir", func(b testing.TB, l limit, keys int) func() decider {
		return limiterOf(b, fmt.Sprintf("limits:\n  - name: per-user\n    when: { path: /api/** }\n    per: [user]\n    allow: { rate: %d/%s, burst: %d }\n", l.n, l.window, l.n))
	}},
	{"x-time-rate-map", func(b testing.TB, l limit, keys int) func() decider {
		var mu sync.Mutex
		limiters := map[string]*rate.Limiter{}
		return func() decider {
			return func(key []byte) bool {
				mu.Lock()
				r := limiters[text(key)]
				if r == nil {
					r = rate.NewLimiter(rate.Every(l.window/time.Duration(l.n)), int(l.n))
					limiters[string(key)] = r
				}
				mu.Unlock()
				return r.Allow()
			}
		}
	}},
	{"sethvargo", func(b testing.TB, l limit, keys int) func() decider {
		s, err := memorystore.New(&memorystore.Config{Tokens: uint64(l.n), Interval: l.window})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { s.Close(context.Background()) })
		return func() decider {
			return func(key []byte) bool {
				_, _, _, ok, err := s.Take(context.Background(), text(key))
				return ok && err == nil
			}
		}
	}},
	{"throttled", func(b testing.TB, l limit, keys int) func() decider {
		s, err := memstore.NewCtx(0)
		if err != nil {
			b.Fatal(err)
		}
		// Its burst is counted beyond the first request, and so is its emission interval's unit.
		t, err := throttled.NewGCRARateLimiterCtx(s, throttled.RateQuota{MaxRate: throttled.PerDuration(int(l.n), l.window), MaxBurst: int(l.n) - 1})
		if err != nil {
			b.Fatal(err)
		}
		return func() decider {
			return func(key []byte) bool {
				limited, _, err := t.RateLimitCtx(context.Background(), text(key), 1)
				return !limited && err == nil
			}
		}
	}},
	{"ulule", func(b testing.TB, l limit, keys int) func() decider {
		u := ulule.New(ululememory.NewStoreWithOptions(ulule.StoreOptions{Prefix: "l", CleanUpInterval: time.Hour}), ulule.Rate{Period: l.window, Limit: l.n})
		return func() decider {
			return func(key []byte) bool {
				c, err := u.Get(context.Background(), text(key))
				return !c.Reached && err == nil
			}
		}
	}},
}

func newStore(b testing.TB) *memory.Store {
	s, err := memory.New(memory.Options{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := s.Close(); err != nil {
			b.Error(err)
		}
	})
	return s
}

func storeOf(b testing.TB, c algo.Config) func() decider {
	l, err := algo.New(c)
	if err != nil {
		b.Fatal(err)
	}
	var s store.Store = newStore(b)
	counter := &rule.Counter{ID: rand.Uint64(), Limit: l}
	return func() decider {
		charges := []store.Charge{{Counter: counter, Limit: l, Ask: algo.Ask{Cost: 1}}}
		results := make([]algo.Result, 1)
		return func(key []byte) bool {
			charges[0].Key = key
			if _, err := s.Take(context.Background(), charges, results); err != nil {
				b.Error(err)
			}
			return results[0].Allowed
		}
	}
}

// limiterOf is a whole limiter with these rules, asked by user.
func limiterOf(b testing.TB, rules string) func() decider {
	set, _, err := file.Load([]file.Source{{Name: "rules.yaml", Data: []byte(rules)}}, file.Options{})
	if err != nil {
		b.Fatal(err)
	}
	limiter, err := weir.New(newStore(b), weir.WithRules(set))
	if err != nil {
		b.Fatal(err)
	}
	return func() decider {
		attributes := rule.Pairs{{Name: "method", Value: "GET"}, {Name: "path", Value: "/api/orders"}, {Name: "user"}}
		request := weir.Request{Domain: "default", Attributes: attributes, Hits: 1}
		var d weir.Decision
		return func(key []byte) bool {
			attributes[2].Value = text(key)
			if err := limiter.Decide(context.Background(), &request, &d); err != nil {
				b.Error(err)
			}
			return d.Allowed && len(d.Limits) > 0
		}
	}
}

const keyLength = 16

// randomKeys returns n keys, one after the other.
func randomKeys(n int) []byte {
	keys := make([]byte, n*keyLength)
	rand.NewChaCha8([32]byte{}).Read(keys)
	return keys
}

// TestContestants holds all of them to the same limit, so that the benchmarks compare like with
// like.
func TestContestants(t *testing.T) {
	keys := randomKeys(3)
	for _, c := range contestants {
		decide := c.make(t, limit{5, time.Hour}, 3)()
		for k := range 3 {
			for i := range 7 {
				if ok := decide(keys[k*keyLength:][:keyLength]); ok != (i < 5) {
					t.Errorf("%s: request %d of key %d: %v", c.name, i, k, ok)
				}
			}
		}
	}
}

// BenchmarkHot asks for one key all the time. All is admitted.
func BenchmarkHot(b *testing.B) {
	key := randomKeys(1)
	for _, c := range contestants {
		b.Run(c.name, func(b *testing.B) {
			deciders := c.make(b, limit{100_000_000, time.Second}, 1)
			deciders()(key)
			b.ReportAllocs()
			b.ResetTimer()
			defer reportCPU(b, cpuTime())
			b.RunParallel(func(pb *testing.PB) {
				decide := deciders()
				for pb.Next() {
					if !decide(key) {
						b.Error("refused")
						return
					}
				}
			})
		})
	}
}

// BenchmarkMillion asks for a random one of a million keys that are all there.
func BenchmarkMillion(b *testing.B) {
	const n = 1_000_000
	keys := randomKeys(n)
	pick := func(r uint64) []byte {
		i, _ := bits.Mul64(r, n)
		return keys[i*keyLength:][:keyLength]
	}
	b.Run("nothing", func(b *testing.B) { // choosing and reading the key alone
		defer reportCPU(b, cpuTime())
		b.RunParallel(func(pb *testing.PB) {
			r, sum := rand.Uint64(), byte(0)
			for pb.Next() {
				r = r*6364136223846793005 + 1442695040888963407
				sum += pick(r)[0]
			}
			sink.Add(uint64(sum))
		})
	})
	for _, c := range contestants {
		b.Run(c.name, func(b *testing.B) {
			deciders := filled(b, c, keys)
			b.ReportAllocs()
			b.ResetTimer()
			defer reportCPU(b, cpuTime())
			b.RunParallel(func(pb *testing.PB) {
				decide, r := deciders(), rand.Uint64()
				for pb.Next() {
					r = r*6364136223846793005 + 1442695040888963407
					decide(pick(r))
				}
			})
		})
	}
}

// BenchmarkLimits asks for one key that meets 1 to 20 limits, each of a rule of its own; for two
// limits of one rule; and for two limits on two keys. All is admitted.
func BenchmarkLimits(b *testing.B) {
	key := randomKeys(1)
	one := func(i int, per, allow string) string {
		return fmt.Sprintf("  - { name: limit-%d, when: { path: /api/** }, per: [%s], allow: %s }\n", i, per, allow)
	}
	hourly := func(i int) string { return fmt.Sprintf("%d/h", 1_000_000_000-i) }
	ask := func(name, rules string) {
		b.Run(name, func(b *testing.B) {
			decide := limiterOf(b, "limits:\n"+rules)()
			decide(key)
			b.ReportAllocs()
			b.ResetTimer()
			defer reportCPU(b, cpuTime())
			for range b.N {
				if !decide(key) {
					b.Fatal("refused")
				}
			}
		})
	}
	rules := ""
	for i := range 20 {
		rules += one(i, "user", hourly(i))
		switch n := i + 1; n {
		case 1, 2, 3, 5, 8, 20:
			ask(fmt.Sprint(n), rules)
		}
	}
	ask("2-of-one-rule", one(0, "user", "[1000000000/h, 1000000000/d]"))
	ask("2-on-two-keys", one(0, "user", hourly(0))+one(1, "method", hourly(1)))
}
