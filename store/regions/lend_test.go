package regions

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// TestLender: what holders say they used of lent units is told once for a limit, by its own
// numbers, and what is lent or returned is not.
func TestLender(t *testing.T) {
	now := start
	s := newTest(t, three, "eu", func() int64 { return now })
	l := limit(t, algo.Config{Algorithm: algo.TokenBucket, N: 40, Window: time.Minute, Lease: 50})
	both, own, synced, alone := counterOf(l, rule.Regions{Over: 20}), counterOf(l, rule.Regions{}),
		counterOf(l, rule.Regions{Sync: true}), counterOf(l, rule.Regions{})
	alone.Regions = nil
	inner, ok := store.As[store.Lender](s)
	if !ok {
		t.Fatal("the store lends nothing")
	}
	lends := s.Lender(inner)
	charges := s.Expand([]store.Charge{charge(both, "b", 0), charge(own, "o", 0), charge(synced, "s", 0),
		charge(alone, "a", 0)}, nil)
	ahead, results := make([]algo.Ahead, len(charges)), make([]algo.Result, len(charges))
	ask := func() (heard []string) {
		t.Helper()
		list := listen(s)
		if _, _, err := lends.TakeAhead(context.Background(), 0, 0, charges, ahead, results); err != nil {
			t.Fatal(err)
		}
		return *list
	}
	for i := range ahead {
		ahead[i] = algo.Ahead{Want: 8, First: true}
	}
	if heard := ask(); heard != nil || ahead[0].Got != 8 || ahead[1].Got != 8 || ahead[2].Got != 8 {
		t.Fatalf("heard %q, lent %+v", heard, ahead)
	}
	for i := range ahead {
		ahead[i] = algo.Ahead{Told: [2]algo.Told{{End: ahead[i].Until, Used: 5, Returned: 1}}}
	}
	if heard, want := ask(), []string{"told b 5 of 40", "told o 5 of 40", "told s 5 of 40"}; !slices.Equal(heard,
		want) {
		t.Errorf("heard %q, want %q", heard, want)
	}
	// 24 and 20 is all that there is, of which a half may be out.
	take(t, s, charge(both, "b", 13), charge(own, "o", 10))
	for i := range ahead {
		ahead[i] = algo.Ahead{Want: 8}
	}
	if heard, want := ask(), []string{"short b for 8: 4 of 24 left, N 40", "short o for 8: 3 of 20 left, N 40"}; !slices.Equal(heard, want) {
		t.Errorf("heard %q, want %q", heard, want)
	}
	s.ceilings.cache.Store(new(counterCache)) // whose limits are forgotten
	other := limit(t, algo.Config{Algorithm: algo.TokenBucket, N: 41, Window: time.Minute, Lease: 50})
	if got := s.ceilings.whole(charges[0].Limit, other); got != other {
		t.Errorf("%v", got)
	}
}

// brokenLender fails.
type brokenLender struct{ store.Lender }

var errBroken = errors.New("broken")

func (brokenLender) TakeAhead(context.Context, time.Duration, time.Duration, []store.Charge, []algo.Ahead,
	[]algo.Result) (int64, int64, error) {
	return 0, 0, errBroken
}

// TestLenderFails: after an error nobody knows whether it was told, and it is not told.
func TestLenderFails(t *testing.T) {
	s := newTest(t, three, "eu", nil)
	heard := listen(s)
	c := counterOf(limit(t, algo.Config{N: 40, Window: time.Minute, Lease: 50}), rule.Regions{})
	ahead := []algo.Ahead{{Told: [2]algo.Told{{End: start, Used: 5}}}}
	if _, _, err := s.Lender(brokenLender{}).TakeAhead(context.Background(), 0, 0, s.Expand([]store.Charge{charge(c, "k", 0)}, nil), ahead, make([]algo.Result, 1)); !errors.Is(err, errBroken) || *heard != nil {
		t.Errorf("%v, heard %q", err, *heard)
	}
}
