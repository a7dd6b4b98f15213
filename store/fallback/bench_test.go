package fallback

import (
	"testing"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
)

// BenchmarkTake measures the cost of a decision beside the primary's, which is one in memory.
func BenchmarkTake(b *testing.B) {
	p := newMemory(b, nil)
	for name, s := range map[string]store.Store{"alone": p, "behind": newOver(b, &punctual{Store: p}, Options{})} {
		b.Run(name, func(b *testing.B) {
			charges, results := []store.Charge{charge(perHour(b, 1_000_000_000), "k", 1)}, make([]algo.Result, 1)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Take(b.Context(), charges, results); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
