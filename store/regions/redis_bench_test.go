package regions

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
)

// grouped returns the Counter of a limit without regions, in a group as a rule's Counters are.
func grouped(t testing.TB, c algo.Config) *rule.Counter {
	t.Helper()
	n := newCounter(limit(t, c))
	n.Group = 0x7e57
	return n
}

// onRedis is a node with a Redis of its own, for a benchmark.
type onRedis struct {
	b       *testing.B
	server  *redistest.Server
	s       *Store
	counter *rule.Counter
	used    time.Duration // processor time of Redis
}

func openOnRedis(b *testing.B, c *rule.Counter, tells bool) *onRedis {
	b.Helper()
	n := &onRedis{b: b, server: redistest.Start(b), counter: c}
	own, err := redis.Open(redis.Options{URL: n.server.URL()})
	if err != nil {
		b.Fatal(err)
	}
	o := Options{Region: "eu", Table: []Region{{"eu", 1}, {"us", 1}, {"ap", 1}}}
	if tells {
		o.Own, o.Rules = own, rulesOf(c)
	}
	if n.s, err = New(own, o); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { n.s.Close() })
	return n
}

// decide has 64 callers make n decisions of cost; key returns the key of each.
func (n *onRedis) decide(decisions int, cost int64, key func(rnd *rand.Rand, i int) []byte) {
	const callers = 64
	before := n.server.CPU()
	var all sync.WaitGroup
	for g := range callers {
		all.Go(func() {
			rnd := rand.New(rand.NewPCG(rand.Uint64(), 1))
			charges, results := make([]store.Charge, 1), make([]algo.Result, 1)
			for i := g; i < decisions; i += callers {
				charges[0] = store.Charge{Counter: n.counter, Limit: n.counter.Limit, Key: key(rnd, i),
					Ask: algo.Ask{Cost: cost}}
				if _, err := n.s.Take(n.b.Context(), charges, results); err != nil {
					n.b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	n.used += n.server.CPU() - before
}

// inTurns has the nodes make b.N decisions each of random keys, in turns, so that a busy machine
// slows down all of them alike, after each key was used once.
func inTurns(b *testing.B, nodes []*onRedis, keys int, cost int64) {
	const slice = 5_000
	names := make([][]byte, keys)
	for i := range names {
		names[i] = fmt.Appendf(nil, "user %06d", i)
	}
	for _, n := range nodes {
		n.decide(keys, cost, func(_ *rand.Rand, i int) []byte { return names[i] })
		n.used = 0
	}
	b.ResetTimer()
	for done := 0; done < b.N; done += slice {
		for i := range nodes {
			n := nodes[(i+done/slice)%len(nodes)] // none always comes after the same one
			n.decide(min(slice, b.N-done), cost, func(rnd *rand.Rand, _ int) []byte { return names[rnd.IntN(keys)] })
		}
	}
	b.StopTimer()
	b.ReportMetric(0, "ns/op") // of all
	b.ReportMetric(float64(nodes[0].used.Nanoseconds())/float64(b.N), "redis-ns")
}

// BenchmarkRedis says what a decision costs the Redis of its region, without regions (redis-ns),
// and as a multiple of that with the ceiling alone (over0), with both states (over20), and with
// sync. There are many keys, so that few decisions are merged.
func BenchmarkRedis(b *testing.B) {
	for _, a := range []algo.Algorithm{algo.TokenBucket, algo.SlidingWindow, algo.FixedWindow} {
		b.Run(a.String(), func(b *testing.B) {
			config := algo.Config{Algorithm: a, N: 1_000_000, Window: time.Hour}
			synced := grouped(b, config)
			synced.Regions = &rule.Regions{Sync: true, Tell: 2}
			nodes := []*onRedis{
				openOnRedis(b, grouped(b, config), true),
				openOnRedis(b, borrowable(b, config, rule.Regions{Tell: 2}), true),
				openOnRedis(b, borrowable(b, config, rule.Regions{Over: 20, Tell: 2}), true),
				openOnRedis(b, synced, true),
			}
			inTurns(b, nodes, 100_000, 1)
			for i, name := range []string{"over0", "over20", "sync"} {
				b.ReportMetric(float64(nodes[i+1].used)/float64(nodes[0].used), name)
			}
		})
	}
}

// BenchmarkTelling says how much more of Redis' processor decisions take with reports (percent),
// for a limit of 600 and the default of 2 %, so that each key reports at every twelfth decision.
func BenchmarkTelling(b *testing.B) {
	config := algo.Config{Algorithm: algo.TokenBucket, N: 6_000_000, Window: time.Hour}
	nodes := []*onRedis{
		openOnRedis(b, borrowable(b, config, rule.Regions{Over: 20, Tell: 2}), false),
		openOnRedis(b, borrowable(b, config, rule.Regions{Over: 20, Tell: 2}), true),
	}
	inTurns(b, nodes, 4000, 10_000)
	b.ReportMetric(100*(float64(nodes[1].used)/float64(nodes[0].used)-1), "percent")
	told := nodes[1].s.Stats().Limits[testLimit].Told.Used
	b.ReportMetric(float64(told)/10_000/float64(b.N+4000), "told") // the share of the units
}
