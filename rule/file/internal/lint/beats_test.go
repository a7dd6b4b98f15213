package lint

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
)

// TestBeats checks beats on numbers, and on random sequences of requests through the algorithms
// themselves: where it says that a beats b, b never refuses what a admits.
func TestBeats(t *testing.T) {
	const m, h = time.Minute, time.Hour
	window := func(a algo.Algorithm, n int64, w time.Duration) algo.Config {
		return algo.Config{Algorithm: a, N: n, Window: w}
	}
	bucket := func(a algo.Algorithm, n int64, w time.Duration, burst int64) algo.Config {
		return algo.Config{Algorithm: a, N: n, Window: w, Burst: burst}
	}
	soft := func(c algo.Config, percent int) algo.Config { c.Soft = percent; return c }
	const log, sliding, fixed, token, leaky = algo.SlidingLog, algo.SlidingWindow, algo.FixedWindow, algo.TokenBucket,
		algo.LeakyBucket
	for i, c := range []struct {
		a, b algo.Config
		want bool
	}{
		{window(log, 10, m), window(log, 600, h), true},
		{window(log, 10, m), window(log, 599, h), false},
		{window(log, 10, m), window(log, 10, m), true},
		{window(log, 10, m), window(log, 9, m), false},
		{soft(window(log, 10, m), 10), window(log, 600, h), false},
		{soft(window(log, 10, m), 10), window(log, 660, h), true},
		{window(log, 10, 7*time.Second), window(log, 110, m), true},
		{window(log, 10, 7*time.Second), window(log, 80, m), false},
		{window(log, 10, m), window(fixed, 600, h), true},
		{window(fixed, 10, m), window(fixed, 600, h), true},
		{window(fixed, 10, m), window(log, 600, h), false},
		{window(fixed, 10, m), window(log, 620, h), true},
		{window(sliding, 10, m), window(log, 10000, h), false},
		{window(sliding, 10, m), window(sliding, 600, h), false},
		{window(sliding, 10, m), window(sliding, 620, h), true},
		{window(sliding, 10, m), window(sliding, 10, m), true},
		{window(log, 10, m), window(token, 600, h), false},
		{bucket(token, 10, m, 20), window(log, 621, h), true},
		{bucket(token, 10, m, 20), window(log, 620, h), false},
		{bucket(token, 10, m, 20), bucket(token, 20, m, 20), true},
		{bucket(token, 10, m, 20), bucket(token, 20, m, 19), false},
		{bucket(token, 10, m, 20), bucket(token, 5, m, 40), false},
		{bucket(token, 10, m, 20), bucket(leaky, 20, m, 40), false},
		{bucket(leaky, 10, m, 20), bucket(leaky, 20, m, 20), true},
		{algo.Config{Algorithm: algo.Concurrency, N: 5}, algo.Config{Algorithm: algo.Concurrency, N: 5}, true},
		{algo.Config{Algorithm: algo.Concurrency, N: 5}, algo.Config{Algorithm: algo.Concurrency, N: 4}, false},
		{algo.Config{Algorithm: algo.Concurrency, N: 5}, window(log, 100, h), false},
	} {
		a, b := mustLimit(t, c.a), mustLimit(t, c.b)
		if got := beats(a.Config(), b.Config()); got != c.want {
			t.Errorf("case %d: beats(%+v, %+v) = %v", i, c.a, c.b, got)
		}
		if !c.want || a.Algorithm() == algo.Concurrency {
			continue
		}
		random := rand.New(rand.NewPCG(uint64(i), 1))
		var sa, sb algo.State
		now := int64(1_000_000_000_000_000)
		for range 5000 {
			now += random.Int64N(int64(c.a.Window/time.Microsecond) / max(1, c.a.N/2))
			ask := algo.Ask{Cost: 1, MaxDelay: -1}
			allowed := a.Check(&sa, now, ask).Allowed
			if allowed && !b.Check(&sb, now, ask).Allowed {
				t.Errorf("case %d: %+v refused what %+v admitted", i, c.b, c.a)
				break
			}
			if allowed {
				a.Take(&sa, now, ask)
				b.Take(&sb, now, ask)
			}
		}
	}
}

func mustLimit(t *testing.T, c algo.Config) *algo.Limit {
	t.Helper()
	l, err := algo.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
