package regions

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// listen has a store tell into a list.
func listen(s *Store) (heard *[]string) {
	heard = new([]string)
	s.hooks.told = func(c *rule.Counter, l *algo.Limit, key []byte, units, _ int64, _ *algo.Result) {
		*heard = append(*heard, fmt.Sprintf("told %s %d of %d", key, units, l.Config().N))
	}
	s.hooks.short = func(_ *rule.Counter, l *algo.Limit, key []byte, cost, _ int64, own *algo.Result) {
		*heard = append(*heard, fmt.Sprintf("short %s for %d: %d of %d left, N %d", key, cost, own.Remaining, own.Limit,
			l.Config().N))
	}
	return heard
}

// TestHooks: the hooks hear of units as they are really charged, and a ceiling is short only where
// the limit has room.
func TestHooks(t *testing.T) {
	l := limit(t, algo.Config{N: 40, Window: time.Minute})
	counted := limit(t, algo.Config{N: 40, Window: time.Minute, CountDenied: true})
	never := charge(newCounter(limit(t, algo.Config{N: 0, Window: time.Minute})), "never", 1)
	with := func(of rule.Regions, l *algo.Limit) *rule.Counter { return counterOf(l, of) }
	mode := func(c store.Charge, m rule.Mode) store.Charge { c.Mode = m; return c }
	for _, test := range []struct {
		name    string
		counter *rule.Counter
		before  int64 // units used
		heard   int64 // units of others
		charges func(c *rule.Counter) []store.Charge
		want    []string
	}{
		{"admitted", with(rule.Regions{Over: 20}, l), 0, 0, func(c *rule.Counter) []store.Charge { return []store.Charge{charge(c, "k", 2)} }, []string{"told k 2 of 40"}},
		{"never more", with(rule.Regions{}, l), 0, 0, func(c *rule.Counter) []store.Charge { return []store.Charge{charge(c, "k", 2)} }, []string{"told k 2 of 40"}},
		{"sync", with(rule.Regions{Sync: true}, l), 39, 0, func(c *rule.Counter) []store.Charge { return []store.Charge{charge(c, "k", 1)} }, []string{"told k 1 of 40"}},
		{"sync, full", with(rule.Regions{Sync: true}, l), 40, 0, func(c *rule.Counter) []store.Charge { return []store.Charge{charge(c, "k", 1)} }, nil},
		{"alone", newCounter(l), 0, 0, func(c *rule.Counter) []store.Charge { return []store.Charge{charge(c, "k", 2)} }, nil},
		{"a peek", with(rule.Regions{Over: 20}, l), 24, 0, func(c *rule.Counter) []store.Charge { return []store.Charge{charge(c, "k", 0)} }, nil},
		{"a refund", with(rule.Regions{Over: 20}, l), 24, 0, func(c *rule.Counter) []store.Charge { return []store.Charge{charge(c, "k", -3)} }, []string{"told k -3 of 40"}},
		{"a fifth is left", with(rule.Regions{}, l), 15, 0, func(c *rule.Counter) []store.Charge { return []store.Charge{charge(c, "k", 1)} }, []string{"told k 1 of 40"}},
		{"less is left", with(rule.Regions{}, l), 16, 0, func(c *rule.Counter) []store.Charge { return []store.Charge{charge(c, "k", 1)} }, []string{"told k 1 of 40", "short k for 1: 3 of 20 left, N 40"}},
		{"the ceiling refuses", with(rule.Regions{Over: 20}, l), 24, 0, func(c *rule.Counter) []store.Charge { return []store.Charge{charge(c, "k", 1)} }, []string{"short k for 1: 0 of 24 left, N 40"}},
		{"all is full", with(rule.Regions{Over: 20}, l), 22, 18, func(c *rule.Counter) []store.Charge { return []store.Charge{charge(c, "k", 1)} }, nil},
		{"another limit refuses", with(rule.Regions{Over: 20}, l), 0, 0, func(c *rule.Counter) []store.Charge { return []store.Charge{charge(c, "k", 2), never} }, nil},
		{"another limit refuses one in shadow", with(rule.Regions{Over: 20}, l), 0, 0,
			func(c *rule.Counter) []store.Charge {
				return []store.Charge{mode(charge(c, "k", 2), rule.Shadow), never}
			}, []string{"told k 2 of 40"}},
		{"another limit in shadow refuses", with(rule.Regions{Over: 20}, l), 0, 0,
			func(c *rule.Counter) []store.Charge {
				return []store.Charge{charge(c, "k", 2), mode(never, rule.Shadow)}
			}, []string{"told k 2 of 40"}},
		{"denied and counted", with(rule.Regions{Over: 20}, counted), 24, 0, func(c *rule.Counter) []store.Charge { return []store.Charge{charge(c, "k", 1)} }, []string{"short k for 1: 0 of 24 left, N 40"}},
		{"of two quotas", with(rule.Regions{}, l), 20, 0, func(c *rule.Counter) []store.Charge {
			other := counterOf(l, rule.Regions{})
			return []store.Charge{mode(charge(c, "k", 1), rule.Quota), mode(charge(other, "other", 1), rule.Quota)}
		}, []string{"short k for 1: 0 of 20 left, N 40", "told other 1 of 40"}},
	} {
		for _, now := range []bool{false, true} {
			s := newTest(t, three, "eu", func() int64 { return start })
			if test.before > 0 {
				take(t, s, charge(test.counter, "k", test.before))
			}
			if test.heard > 0 {
				take(t, s.inner, charge(test.counter.Regions.All, "k", test.heard))
			}
			heard := listen(s)
			charges := test.charges(test.counter)
			if results := make([]algo.Result, len(charges)); !now {
				take(t, s, charges...)
			} else if _, ok := s.TakeNow(charges, results); !ok {
				if charges[0].Mode != rule.Shadow {
					t.Errorf("%s: it was not decided at once", test.name)
				}
				continue
			}
			if !slices.Equal(*heard, test.want) {
				t.Errorf("%s: heard %q, want %q", test.name, *heard, test.want)
			}
		}
	}
}

// TestShadow: a limit in shadow counts a request in both its states, or in neither.
func TestShadow(t *testing.T) {
	l := limit(t, algo.Config{Algorithm: algo.SlidingLog, N: 40, Window: time.Minute})
	c := counterOf(l, rule.Regions{Over: 20})
	s := newTest(t, three, "eu", func() int64 { return start })
	left := func() (own, all int64) {
		own = take(t, s, charge(c, "k", 0))[0].Remaining // the smaller of the two
		all = take(t, s.inner, charge(c.Regions.All, "k", 0))[0].Remaining
		return own, all
	}
	shadow := charge(c, "k", 1)
	shadow.Mode = rule.Shadow
	take(t, s, charge(c, "k", 24)) // the ceiling is reached
	if r := take(t, s, shadow)[0]; r.Allowed || r.Remaining != 0 || r.RetryAfter != 60_000_000 || r.Limit != 40 {
		t.Errorf("%+v", r)
	}
	if _, all := left(); all != 16 {
		t.Errorf("a request that the ceiling refuses is counted: %d left, want 16", all)
	}
	take(t, s.inner, charge(c.Regions.All, "k", 16)) // others use the rest
	take(t, s, charge(c, "k", -4))                   // room in both
	take(t, s.inner, charge(c.Regions.All, "k", 4))  // but again in the ceiling alone
	ceiling := charge(c, "k", 0)
	ceiling.Limit = s.ceilings.of(l, 20).own
	before := take(t, s.inner, ceiling)[0].Remaining
	if r := take(t, s, shadow)[0]; r.Allowed || r.Remaining != 0 {
		t.Errorf("%+v", r)
	}
	if after := take(t, s.inner, ceiling)[0].Remaining; before != 4 || after != before {
		t.Errorf("a request that all refuse is counted: %d left of the ceiling, before %d", after, before)
	}
}

// TestExpand: the charges that a lender is asked for are those that the store makes.
func TestExpand(t *testing.T) {
	s := newTest(t, three, "eu", nil)
	l := limit(t, algo.Config{N: 40, Window: time.Minute})
	alone, both, own, synced := newCounter(l), counterOf(l, rule.Regions{Over: 20}), counterOf(l, rule.Regions{}),
		counterOf(l, rule.Regions{Sync: true})
	charges := []store.Charge{charge(alone, "a", 1), charge(both, "b", 2), charge(own, "o", 3), charge(synced, "s", 4)}
	got := s.Expand(charges, make([]store.Charge, 1)[:0])
	var text []string
	for _, c := range got {
		text = append(text, fmt.Sprintf("%s %d of %d by %s", c.Key, c.Ask.Cost, c.Limit.Config().N, c.Counter.Rule))
	}
	want := []string{
		"a 1 of 40 by " + alone.Rule, "b 2 of 24 by " + both.Rule, "b 2 of 40 by " + both.Regions.All.Rule, "o 3 of 20 by " + own.Rule, "s 4 of 40 by " + synced.Rule,
	}
	if !slices.Equal(text, want) {
		t.Errorf("got %q, want %q", text, want)
	}
	if again := s.Expand(charges, nil); again[1].Limit != got[1].Limit || charges[1].Limit != l {
		t.Error("the limits are made anew each time, or the charges are changed")
	}
}

// TestSettle: the real cost counts under the ceiling and to all regions, and the difference is
// told.
func TestSettle(t *testing.T) {
	l := limit(t, algo.Config{N: 40, Window: time.Minute})
	alone, both, own, synced := newCounter(l), counterOf(l, rule.Regions{Over: 20}), counterOf(l, rule.Regions{}),
		counterOf(l, rule.Regions{Sync: true})
	s := newTest(t, three, "eu", func() int64 { return start })
	take(t, s, charge(alone, "a", 10), charge(both, "b", 10), charge(own, "o", 10), charge(synced, "s", 10))
	heard := listen(s)
	of := func(c *rule.Counter, key string, actual int64) store.Settlement {
		return store.Settlement{Counter: c, Limit: l, Key: []byte(key), At: start, Reserved: 10, Actual: actual}
	}
	if err := s.Settle(context.Background(), []store.Settlement{of(alone, "a", 4), of(both, "b", 4), of(own, "o", 12), of(synced, "s", 10)}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"told b -6 of 40", "told o 2 of 40"}; !slices.Equal(*heard, want) {
		t.Errorf("heard %q, want %q", *heard, want)
	}
	for _, c := range []struct {
		counter *rule.Counter
		key     string
		want    int64
	}{{alone, "a", 36}, {both, "b", 20}, {own, "o", 8}, {synced, "s", 30}} {
		if got := take(t, s, charge(c.counter, c.key, 0))[0].Remaining; got != c.want {
			t.Errorf("%s: %d left, want %d", c.key, got, c.want)
		}
	}
	if got := take(t, s.inner, charge(both.Regions.All, "b", 0))[0].Remaining; got != 36 {
		t.Errorf("of all %d are left, want 36", got)
	}
}
