package regions

import (
	"context"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// BenchmarkTake is what the regions cost above a store in memory, which decides at once.
func BenchmarkTake(b *testing.B) {
	l := limit(b, algo.Config{Algorithm: algo.TokenBucket, N: algo.MaxN / 10, Window: time.Second})
	s := newTest(b, three, "eu", nil)
	for _, test := range []struct {
		name  string
		store store.Store
		c     *rule.Counter
	}{
		{"memory", s.inner, newCounter(l)},
		{"alone", s, newCounter(l)},
		{"sync", s, counterOf(l, rule.Regions{Sync: true})},
		{"over 0", s, counterOf(l, rule.Regions{})},
		{"over 20", s, counterOf(l, rule.Regions{Over: 20})},
	} {
		b.Run(test.name, func(b *testing.B) {
			charges, results := []store.Charge{charge(test.c, "key", 1)}, make([]algo.Result, 1)
			for b.Loop() {
				if _, err := test.store.Take(context.Background(), charges, results); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
