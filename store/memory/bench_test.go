package memory

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// BenchmarkTake decides on ten thousand keys in turn.
func BenchmarkTake(b *testing.B) {
	const keys = 10_000
	bucket := algo.Config{Algorithm: algo.TokenBucket, N: 1000, Window: time.Hour, Burst: 1_000_000}
	soft := bucket
	soft.Burst, soft.Soft, soft.SoftFor = 100, 10, time.Minute
	for _, bench := range []struct {
		name    string
		config  algo.Config
		charges int
	}{
		{"token_bucket", bucket, 1},
		{"sliding_window", algo.Config{N: 1_000_000_000, Window: time.Hour}, 1},
		{"token_bucket, two charges", bucket, 2},
		{"token_bucket, margin closes", soft, 1},
	} {
		b.Run(bench.name, func(b *testing.B) {
			s := newTest(b, Options{})
			counters := make([]*rule.Counter, bench.charges)
			for i := range counters {
				if counters[i] = counter(b, bench.config); bench.config.SoftFor > 0 {
					withMargin(counters[i])
				}
			}
			calls := make([][]store.Charge, keys)
			for k := range calls {
				for _, c := range counters {
					calls[k] = append(calls[k], store.Charge{Counter: c, Limit: c.Limit,
						Key: fmt.Appendf(nil, "user-%08d", k), Ask: algo.Ask{Cost: 1}})
				}
			}
			results := make([]algo.Result, bench.charges)
			b.ReportAllocs()
			for i := range b.N {
				if _, err := s.Take(context.Background(), calls[i%keys], results); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkMillion decides on a million keys of 16 bytes at random, where waiting for memory is
// what costs.
func BenchmarkMillion(b *testing.B) {
	const keys = 1 << 20
	s := newTest(b, Options{})
	c := counter(b, algo.Config{Algorithm: algo.TokenBucket, N: 1000, Window: time.Hour, Burst: 1_000_000})
	all := make([]byte, 0, keys*16)
	for k := range keys {
		all = fmt.Appendf(all, "user-%011d", k)
	}
	charges, results := make([]store.Charge, 1), make([]algo.Result, 1)
	at := uint32(1)
	ask := func() {
		at = at*1664525 + 1013904223
		k := int(at>>12) * 16
		charges[0] = store.Charge{Counter: c, Limit: c.Limit, Key: all[k : k+16], Ask: algo.Ask{Cost: 1}}
		if _, err := s.Take(context.Background(), charges, results); err != nil {
			b.Fatal(err)
		}
	}
	for range 4 * keys {
		ask()
	}
	b.ReportAllocs()
	for b.Loop() {
		ask()
	}
}
