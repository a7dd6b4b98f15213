//go:build !race

package regions

import (
	"context"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// TestTakeAllocates: a call allocates nothing, with limits that hold over regions and without.
func TestTakeAllocates(t *testing.T) {
	l := limit(t, algo.Config{Algorithm: algo.TokenBucket, N: 1_000_000, Window: time.Minute})
	alone, shared, strict, sync := newCounter(l), counterOf(l, rule.Regions{Over: 20}),
		counterOf(l, rule.Regions{Over: 0}), counterOf(l, rule.Regions{Sync: true})
	for _, test := range []struct {
		name    string
		charges []store.Charge
	}{
		{"none", []store.Charge{charge(alone, "k", 1)}},
		{"a percentage", []store.Charge{charge(shared, "k", 1)}},
		{"never more", []store.Charge{charge(strict, "k", 1)}},
		{"sync", []store.Charge{charge(sync, "k", 1)}},
		{"all", []store.Charge{charge(alone, "k", 1), charge(shared, "k", 1), charge(strict, "k", 1), charge(sync, "k", 1)}},
	} {
		s := newTest(t, three, "eu", nil)
		told := 0
		s.hooks.told = func(*rule.Counter, *algo.Limit, []byte, int64, int64, *algo.Result) { told++ }
		results := make([]algo.Result, len(test.charges))
		ctx := context.Background()
		ask := map[string]func(){
			"Take": func() {
				if _, err := s.Take(ctx, test.charges, results); err != nil || !results[0].Allowed {
					t.Fatal(err, results)
				}
			},
			"TakeNow": func() {
				if _, ok := s.TakeNow(test.charges, results); !ok || !results[0].Allowed {
					t.Fatal(ok, results)
				}
			},
		}
		for name, f := range ask {
			f()
			if n := testing.AllocsPerRun(1000, f); n > 0 {
				t.Errorf("%s with %s: %v allocations", name, test.name, n)
			}
		}
		if (told > 0) != (test.name != "none") {
			t.Errorf("%s: told %d times", test.name, told)
		}
	}
}

// TestTellingAllocates: what a key used is taken down without an allocation.
func TestTellingAllocates(t *testing.T) {
	for _, g := range []rule.Regions{{Over: 20, Tell: 2}, {Tell: 2}, {Sync: true, Tell: 2}} {
		c := borrowable(t, algo.Config{Algorithm: algo.TokenBucket, N: 1_000_000, Window: time.Minute}, g)
		s := near(t, c, map[string]int{"eu": 1, "us": 1})["eu"]
		charges, results := []store.Charge{charge(c, "k", 1)}, make([]algo.Result, 1)
		ctx := context.Background()
		f := func() {
			if _, err := s.Take(ctx, charges, results); err != nil || !results[0].Allowed {
				t.Fatal(err, results)
			}
		}
		f()
		if n := testing.AllocsPerRun(5000, f); n > 0 {
			t.Errorf("%+v: %v allocations", g, n)
		}
	}
}
