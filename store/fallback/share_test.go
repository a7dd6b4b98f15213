package fallback

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"pgregory.net/rapid"
)

func TestDerive(t *testing.T) {
	for _, test := range []struct {
		of    algo.Config
		nodes int64
		want  algo.Config
	}{
		{algo.Config{N: 10, Window: time.Minute}, 3, algo.Config{N: 4, Window: time.Minute}},
		{algo.Config{N: 10, Window: time.Minute, Soft: 50, Buckets: 6}, 5, algo.Config{N: 2, Window: time.Minute, Soft: 50, Buckets: 6}},
		{algo.Config{N: 0, Window: time.Minute}, 3, algo.Config{N: 0, Window: time.Minute}},
		{algo.Config{N: 2, Window: time.Minute}, 100, algo.Config{N: 1, Window: time.Minute}},
		{algo.Config{Algorithm: algo.TokenBucket, N: 10, Window: time.Minute, Burst: 7}, 4, algo.Config{Algorithm: algo.TokenBucket, N: 3, Window: time.Minute, Burst: 2}},
		{algo.Config{Algorithm: algo.TokenBucket, N: 10, Window: time.Minute}, 4, algo.Config{Algorithm: algo.TokenBucket, N: 3, Window: time.Minute, Burst: 3}},
		{algo.Config{Algorithm: algo.LeakyBucket, N: 10, Window: time.Second, Burst: algo.NoBurst}, 4, algo.Config{Algorithm: algo.LeakyBucket, N: 3, Window: time.Second, Burst: algo.NoBurst}},
		{algo.Config{Algorithm: algo.Concurrency, N: 10, Timeout: time.Minute}, 4, algo.Config{Algorithm: algo.Concurrency, N: 3, Timeout: time.Minute}},
		{algo.Config{Algorithm: algo.FixedWindow, N: 10, Calendar: algo.Month}, 4, algo.Config{Algorithm: algo.FixedWindow, N: 3, Calendar: algo.Month}},
	} {
		want := counter(t, test.want).Limit.Config()
		if got := derive(counter(t, test.of).Limit, test.nodes).Config(); got != want {
			t.Errorf("%+v among %d nodes: got %+v, want %+v", test.of, test.nodes, got, want)
		}
	}
}

// TestDeriveOdd: a share has less in common with an odd window, but is never more than its part.
func TestDeriveOdd(t *testing.T) {
	const prime = 1_000_003
	l := counter(t, algo.Config{Algorithm: algo.TokenBucket, N: prime, Window: prime * 20_000_001 * time.Microsecond,
		Burst: 100_000_000}).Limit
	if c := derive(l, 2).Config(); c.N != prime/2+1 || c.Burst < 1 || c.Burst > 50_000_000 {
		t.Errorf("%+v", c)
	}
	rapid.Check(t, func(t *rapid.T) {
		c := algo.Config{
			Algorithm: rapid.SampledFrom([]algo.Algorithm{algo.TokenBucket, algo.LeakyBucket, algo.SlidingWindow}).Draw(t, "algorithm"),
			N:         rapid.Int64Range(0, algo.MaxN).Draw(t, "N"),
			Window:    time.Duration(rapid.Int64Range(1, int64(algo.MaxWindow/time.Microsecond)).Draw(t, "µs")) * time.Microsecond,
		}
		l, err := algo.New(c)
		if err != nil {
			t.Skip()
		}
		nodes := rapid.Int64Range(2, 1000).Draw(t, "nodes")
		d := derive(l, nodes).Config()
		if d.N != ceil(l.Config().N, nodes) || d.Burst > max(0, ceil(l.Config().Burst, nodes)) {
			t.Errorf("%v among %d: %+v", l, nodes, d)
		}
	})
}

func TestShares(t *testing.T) {
	nodes := 0
	s, _ := newTest(t, Options{Nodes: func() int { return nodes }})
	if s.Share() != 1 {
		t.Errorf("%d nodes if none is known", s.Share())
	}
	s.o.FixedNodes = 3
	if s.Share() != 3 {
		t.Errorf("%d nodes, 3 are configured", s.Share())
	}
	nodes = 5
	if s.Share() != 5 {
		t.Errorf("%d nodes, 5 are known", s.Share())
	}
	l := perHour(t, 10).Limit
	first := s.sharesNow().of(l)
	if s.sharesNow().of(l) != first || first.Config().N != 2 {
		t.Error("a share is not kept")
	}
	nodes = 2
	if s.Share() != 3 {
		t.Errorf("%d nodes, 2 are known and 3 are configured", s.Share())
	}
	s.o.FixedNodes = 0
	if n := s.sharesNow().of(l).Config().N; n != 5 {
		t.Errorf("a share of %d, want 5", n)
	}
	for range 3 * maxShares {
		s.sharesNow().of(perHour(t, 10).Limit)
	}
	if n := s.shares.Load().n.Load(); n > maxShares {
		t.Errorf("%d shares are kept", n)
	}
}

// TestBound: n nodes that share a primary which comes and goes admit at most N + n × ceil(N/n) in
// one window.
func TestBound(t *testing.T) {
	for _, n := range []int{1, 2, 3, 7} {
		for _, f := range []fault{refuses, hangs, loses} {
			t.Run(fmt.Sprintf("%d nodes, fault %d", n, f), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					const limit = 100
					shared := newMemory(t, nil)
					c := perHour(t, limit)
					stores, primaries := make([]*Store, n), make([]*primary, n)
					for i := range stores {
						primaries[i] = &primary{Store: shared}
						stores[i] = newOver(t, primaries[i], Options{FixedNodes: n})
					}
					admitted := int64(0)
					ask := func(times int) {
						for range times {
							for _, s := range stores {
								if take(t, s, charge(c, "k", 1))[0].Allowed {
									admitted++
								}
							}
						}
					}
					for range 10 {
						for _, p := range primaries {
							p.set(f)
						}
						ask(20)
						time.Sleep(time.Second)
						ask(20)
						for _, p := range primaries {
							p.set(none)
						}
						time.Sleep(5 * time.Second)
						ask(3)
					}
					bound := limit + int64(n)*ceil(limit, int64(n))
					if admitted > bound {
						t.Errorf("%d were admitted, the bound is %d", admitted, bound)
					}
					if left := take(t, shared, charge(c, "k", 0))[0].Remaining; left != 0 {
						t.Errorf("the test does not reach the bound: %d left of the primary", left)
					}
				})
			})
		}
	}
}
