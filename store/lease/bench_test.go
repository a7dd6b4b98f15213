package lease

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// wide is a limit that never refuses, and lends for so long that nothing is asked in between.
var wide = algo.Config{Algorithm: algo.TokenBucket, N: 1_000_000_000, Window: time.Hour, Lease: 90,
	LeaseFor: 2 * time.Minute}

// holding returns a Store that holds many units of a charge, by the real clock.
func holding(tb testing.TB, n int) (*Store, []store.Charge) {
	tb.Helper()
	m, err := memory.New(memory.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	s, err := New(m, Options{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { s.Close() })
	var charges []store.Charge
	for range n {
		charges = append(charges, charge(counterOf(tb, wide), "203.0.113.77", 1))
	}
	for i := range charges {
		c := &charges[i]
		take(tb, s, *c)
		take(tb, s, *c)
		c.Ask.Cost = 100_000_000
		take(tb, s, *c)
		c.Ask.Cost = 1
		take(tb, s, *c)
		h := s.hash(c)
		sh := s.shard(h)
		sh.mu.Lock()
		if left := sh.find(h, c.Counter.ID, c.Key).Left(s.at()); left < 50_000_000 {
			tb.Fatalf("%d units are held", left)
		}
		sh.mu.Unlock()
	}
	return s, charges
}

func BenchmarkHere(b *testing.B) {
	for _, n := range []int{1, 3} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s, charges := holding(b, n)
			results := make([]algo.Result, n)
			b.ReportAllocs()
			for b.Loop() {
				if _, ok := s.TakeNow(charges, results); !ok {
					b.Fatal("not decided here")
				}
			}
		})
	}
}

// BenchmarkExact is a charge of a limit that lends nothing, with and without a Store around.
func BenchmarkExact(b *testing.B) {
	cfg := wide
	cfg.Lease, cfg.LeaseFor = 0, 0
	charges := []store.Charge{charge(counterOf(b, cfg), "203.0.113.77", 1)}
	results := make([]algo.Result, 1)
	s, _ := holding(b, 0)
	for _, of := range []struct {
		name  string
		store store.Store
	}{{"without", s.primary}, {"with", s}} {
		b.Run(of.name, func(b *testing.B) {
			for b.Loop() {
				if _, err := of.store.Take(context.Background(), charges, results); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
