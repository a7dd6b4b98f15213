package regions

import (
	"fmt"
	"math/big"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"pgregory.net/rapid"
)

// drawTable draws regions, at least one of which has a weight.
func drawTable(t *rapid.T) []Region {
	var table []Region
	weights := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 3), rapid.IntRange(0, MaxWeight)), 1, 7).Draw(t, "weights")
	sum := 0
	for i, w := range weights {
		table = append(table, Region{fmt.Sprintf("region-%d", (i*3)%7), w})
		sum += w
	}
	if sum == 0 {
		table[0].Weight = 1
	}
	return table
}

// TestCeilings: the ceilings of all regions sum to N × (1 + over), rounded down. Each is as large
// as its weight says to within one unit, and the units left by rounding go to the first; or, where
// one would get nothing so, each gets one unit first.
func TestCeilings(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := drawTable(t)
		over := rapid.IntRange(0, 1000).Draw(t, "over")
		n := rapid.OneOf(rapid.Int64Range(0, 30), rapid.Int64Range(0, algo.MaxN)).Draw(t, "N")
		weights, weighted := int64(0), int64(0)
		for _, r := range table {
			if weights += int64(r.Weight); r.Weight > 0 {
				weighted++
			}
		}
		first, err := newCeilings(table, table[0].Name)
		if err != nil {
			t.Fatal(err)
		}
		want := n * int64(100+over) / 100
		var parts []int64
		sum := int64(0)
		for _, r := range first.table {
			c, err := newCeilings(table, r.Name)
			if err != nil {
				t.Fatal(err)
			}
			got := c.part(n, over)
			switch {
			case r.Weight == 0 && got != 0:
				t.Errorf("%s has no weight, and gets %d", r.Name, got)
			case r.Weight > 0 && got == 0 && want >= weighted:
				t.Errorf("%s gets nothing of %d", r.Name, want)
			}
			sum += got
			parts = append(parts, got)
		}
		if sum != want {
			t.Errorf("the ceilings sum to %d, want %d", sum, want)
		}
		// In doubles, since the products are larger than what is tested.
		plain := func(whole float64, each int64) bool {
			left := true
			for i, r := range first.table {
				exact, got := whole*float64(r.Weight)/float64(weights), float64(parts[i]-each)
				if d := got - exact; r.Weight > 0 && (d < -1 || d > 1 || d > 0 && !left) {
					return false
				}
				left = left && (r.Weight == 0 || got >= exact)
			}
			return true
		}
		if !plain(float64(n)*float64(100+over)/100, 0) && !plain(float64(want-weighted), 1) {
			t.Errorf("%v of %d among %+v", parts, want, first.table)
		}
	})
}

// TestSmallCeilings: a region whose weight is small gets a unit where there is one for each.
func TestSmallCeilings(t *testing.T) {
	table := []Region{{"a", 50}, {"b", 0}, {"c", 49}, {"d", 1}}
	for _, of := range []struct {
		n    int64
		over int
		want [4]int64
	}{
		{1, 0, [4]int64{1, 0, 0, 0}}, {2, 0, [4]int64{2, 0, 0, 0}}, {3, 0, [4]int64{1, 0, 1, 1}}, {5, 0, [4]int64{3, 0, 1, 1}},
		{10, 20, [4]int64{6, 0, 5, 1}}, {49, 0, [4]int64{25, 0, 23, 1}}, {1000, 0, [4]int64{500, 0, 490, 10}},
	} {
		for i, r := range table {
			c, err := newCeilings(table, r.Name)
			if err != nil {
				t.Fatal(err)
			}
			if got := c.part(of.n, of.over); got != of.want[i] {
				t.Errorf("%s gets %d of %d with %d %%, want %d", r.Name, got, of.n, of.over, of.want[i])
			}
		}
	}
}

// TestCeilingsOfLimits: so it is for the numbers of each kind of limit, in each phase of a
// schedule.
func TestCeilingsOfLimits(t *testing.T) {
	scheduled, err := algo.Scheduled(limit(t, algo.Config{N: 10, Window: time.Minute}),
		[]algo.Phase{{Days: 1 << time.Thursday, Until: 12 * time.Hour,
			Limit: limit(t, algo.Config{N: 101, Window: time.Minute})}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		of   *algo.Limit
		over int
		want int64
	}{
		{limit(t, algo.Config{N: 10, Window: time.Minute}), 0, 10},
		{limit(t, algo.Config{N: 10, Window: time.Minute}), 25, 12},
		{limit(t, algo.Config{Algorithm: algo.TokenBucket, N: 10, Burst: 33, Window: time.Minute}), 10, 36},
		{limit(t, algo.Config{Algorithm: algo.LeakyBucket, N: 10, Burst: 10, Window: time.Minute}), 0, 11},
		{limit(t, algo.Config{Algorithm: algo.LeakyBucket, N: 10, Burst: algo.NoBurst, Window: time.Minute}), 0, 1},
		{limit(t, algo.Config{Algorithm: algo.Concurrency, N: 10}), 0, 10},
		{scheduled, 0, 101}, // start is a Thursday
	} {
		sum := int64(0)
		for _, r := range three {
			s := newTest(t, three, r.Name, func() int64 { return start })
			d := s.ceilings.of(c.of, c.over)
			in, _ := d.own.At(start)
			if r := in.Check(&algo.State{}, start, algo.Ask{}); in.Config().N > 0 {
				sum += r.Limit
			}
			if s.ceilings.of(c.of, c.over) != d || s.ceilings.of(c.of, c.over+1).own == d.own ||
				s.ceilings.of(c.of, c.over) != d {
				t.Error("what is derived is not kept")
			}
		}
		if sum != c.want {
			t.Errorf("%v with %d %%: ceilings hold %d, want %d", c.of, c.over, sum, c.want)
		}
	}
}

// TestCacheBound: limits of requests and grants do not fill the memory.
func TestCacheBound(t *testing.T) {
	c, err := newCeilings(three, "eu")
	if err != nil {
		t.Fatal(err)
	}
	for range 2*maxCached + 10 {
		c.of(limit(t, algo.Config{N: 10, Window: time.Minute}), 0)
	}
	if n := c.cache.Load().n.Load(); n > maxCached {
		t.Errorf("%d are kept", n)
	}
}

// TestCeilingsOfLargeLimits: so it is for limits that are larger than what a product has room for.
func TestCeilingsOfLargeLimits(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table := drawTable(t)
		over := rapid.IntRange(0, 1000).Draw(t, "over")
		n := rapid.Int64Range(algo.MaxN, algo.MaxFixedN).Draw(t, "N")
		weights := int64(0)
		for _, r := range table {
			weights += int64(r.Weight)
		}
		whole := new(big.Int).Mul(big.NewInt(n), big.NewInt(int64(100+over)))
		sum := new(big.Int)
		for _, r := range table {
			c, err := newCeilings(table, r.Name)
			if err != nil {
				t.Fatal(err)
			}
			got := c.part(n, over)
			sum.Add(sum, big.NewInt(got))
			exact := new(big.Int).Mul(whole, big.NewInt(int64(r.Weight)))
			exact.Div(exact, big.NewInt(100*weights))
			if d := got - exact.Int64(); d < 0 || d > 1 {
				t.Errorf("%s gets %d, want %v or one more", r.Name, got, exact)
			}
		}
		if want := new(big.Int).Div(whole, big.NewInt(100)); sum.Cmp(want) != 0 {
			t.Errorf("the ceilings sum to %v, want %v", sum, want)
		}
	})
}
