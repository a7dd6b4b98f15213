package histogram

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A quantile is the true one, or up to a class more.
func TestQuantile(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all []time.Duration
		var one, two Histogram
		for _, d := range rapid.SliceOfN(rapid.Int64Range(0, int64(time.Hour)), 1, 50).Draw(t, "times") {
			h := &one
			if d%2 == 0 {
				h = &two
			}
			h.Add(time.Duration(d), 1)
			all = append(all, time.Duration(d))
		}
		one.Merge(&two)
		slices.Sort(all)
		for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 1} {
			rank := 0
			for float64(rank+1) < q*float64(len(all))-1e-9 {
				rank++
			}
			want := all[rank]
			if got := one.Quantile(q); got < want-2 || float64(got) > float64(want)*1.023+2 {
				t.Fatalf("quantile %v of %v is %v, not %v", q, all, got, want)
			}
		}
		if one.Longest() != all[len(all)-1] || one.Total() != float64(len(all)) {
			t.Fatalf("%v of %v times", one.Longest(), one.Total())
		}
		if n := one.Between(0, 2*time.Hour); n != one.Total() {
			t.Fatalf("%v times of %v are shorter than two hours", n, one.Total())
		}
	})
}
