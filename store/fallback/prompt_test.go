package fallback

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// now decides charges at once, or fails.
func now(t testing.TB, s *Store, charges ...store.Charge) []algo.Result {
	t.Helper()
	results := make([]algo.Result, len(charges))
	if _, ok := s.TakeNow(charges, results); !ok {
		t.Fatalf("%+v has to wait", charges)
	}
	return results
}

func hasToWait(t testing.TB, s *Store, charges ...store.Charge) {
	t.Helper()
	if _, ok := s.TakeNow(charges, make([]algo.Result, len(charges))); ok {
		t.Errorf("%+v was decided at once", charges)
	}
}

// TestNowIsKnown: what the primary decides at once bounds the share of a later outage, as what it
// is asked for does.
func TestNowIsKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newMemory(t, nil)
		p := &primary{Store: inner}
		s := newOver(t, &quick{Store: p, Prompt: inner.(store.Prompt)}, Options{FixedNodes: 2})
		c := perHour(t, 6)
		for range 4 {
			if r := now(t, s, charge(c, "k", 1))[0]; !r.Allowed {
				t.Fatalf("%+v", r)
			}
		}
		p.set(refuses)
		for range tripAfter {
			take(t, s, charge(c, "other", 0))
		}
		for i := range 2 {
			if r := now(t, s, charge(c, "k", 1))[0]; r.Allowed != (i == 0) {
				t.Errorf("of two that were left, request %d on one of two nodes: %+v", i, r)
			}
		}
		if st := s.Stats(); st.LocalAllowed != 1+tripAfter || st.LocalDenied != 1 {
			t.Errorf("%+v", st)
		}
		mend(t, s, p)
		if n := used(t, s, c, "k"); n != 5 {
			t.Errorf("%d were charged", n)
		}
	})
}

// remembering is a Prompt that refuses from memory, with old results of other limits.
type remembering []algo.Result

func (r remembering) TakeNow(charges []store.Charge, results []algo.Result) (int64, bool) {
	copy(results, r[:len(charges)])
	return time.Now().UnixMicro(), true
}

// TestNowRemembered: a refusal that the primary repeats from memory is no news of the other limits.
func TestNowRemembered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &primary{Store: newMemory(t, nil)}
		fresh := algo.Result{Allowed: true, Limit: 6, Remaining: 6}
		s := newOver(t, &quick{Store: p, Prompt: remembering{{Limit: 1, RetryAfter: 1e6, ResetAfter: 1e6}, fresh}},
			Options{})
		one, other := perHour(t, 1), perHour(t, 6)
		take(t, s, charge(other, "k", 6))
		time.Sleep(time.Minute)
		if got := now(t, s, charge(one, "k", 1), charge(other, "k", 1)); got[0].Allowed || got[1] != fresh {
			t.Fatalf("%+v", got)
		}
		cut(t, s, p, refuses)
		if r := take(t, s, charge(other, "k", 1))[0]; r.Allowed {
			t.Errorf("the share believes a result from memory: %+v", r)
		}
	})
}

// TestNowAway: while the primary is away, a call that is decided at once comes out as Take decides
// it, and is accounted for alike.
func TestNowAway(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				random := rand.New(rand.NewPCG(seed, 1))
				nodes := 1 + random.IntN(3)
				var stores [2]*Store
				var primaries [2]*primary
				for i := range stores {
					stores[i], primaries[i] = newTest(t, Options{FixedNodes: nodes})
				}
				var counters []*rule.Counter
				for _, name := range []string{"fixed_window", "sliding_log", "token_bucket", "leaky_bucket",
					"concurrency"} {
					counters = append(counters, counter(t, shapes[name]))
				}
				draw := func() (charges []store.Charge) {
					for range 1 + random.IntN(3) {
						c := charge(counters[random.IntN(len(counters))], "ab"[random.IntN(2):][:1],
							int64(random.IntN(4)))
						c.Mode = []rule.Mode{rule.Enforce, rule.Enforce, rule.Shadow, rule.Quota}[random.IntN(4)]
						c.OnStoreError = []rule.StoreErrorPolicy{rule.Local, rule.Local, rule.Local,
							rule.AllowAll}[random.IntN(4)]
						charges = append(charges, c)
					}
					return charges
				}
				for range random.IntN(10) { // what is known of the keys
					charges := draw()
					take(t, stores[0], slices.Clone(charges)...)
					take(t, stores[1], charges...)
				}
				cut(t, stores[0], primaries[0], refuses)
				cut(t, stores[1], primaries[1], refuses)
				for range 30 {
					charges := draw()
					want, got := take(t, stores[0], slices.Clone(charges)...), now(t, stores[1], charges...)
					if !slices.Equal(got, want) {
						t.Fatalf("%+v:\n got %+v\nwant %+v", charges, got, want)
					}
				}
				if a, b := stores[0].Stats(), stores[1].Stats(); a != b {
					t.Errorf("the books differ:\n%+v\n%+v", a, b)
				}
				mend(t, stores[0], primaries[0])
				mend(t, stores[1], primaries[1])
				if a, b := stores[0].Stats(), stores[1].Stats(); a != b {
					t.Errorf("the books differ when all is settled:\n%+v\n%+v", a, b)
				}
				for _, c := range counters {
					for _, key := range []string{"a", "b"} {
						if a, b := used(t, stores[0], c, key), used(t, stores[1], c, key); a != b {
							t.Errorf("%s %s: %d and %d were charged", c.Limit.Algorithm(), key, a, b)
						}
					}
				}
			})
		})
	}
}

// TestNowLeavesToTake: what fails, or what nobody here can decide at once, is Take's, and nothing
// is counted twice.
func TestNowLeavesToTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := perHour(t, 6)
		strict := charge(c, "k", 1)
		strict.OnStoreError = rule.DenyAll
		s, p := newTest(t, Options{})
		hasToWait(t, s, charge(c, "k", 1)) // the primary answers nothing at once
		hasToWait(t, s, store.Charge{})
		cut(t, s, p, refuses)
		before := s.Stats()
		hasToWait(t, s, strict)
		hasToWait(t, s, charge(c, "k", 1), strict)
		local := &primary{Store: newMemory(t, nil)} // no Prompt
		other, q := newTest(t, Options{Local: local})
		cut(t, other, q, refuses)
		hasToWait(t, other, charge(c, "k", 1))
		if after := s.Stats(); after != before {
			t.Errorf("%+v, %+v", before, after)
		}
		if r := take(t, other, charge(c, "k", 1))[0]; r.Remaining != 5 {
			t.Errorf("%+v", r)
		}
	})
}

// TestLeasedWhileAway: units that the primary has set aside for this node are used while it is
// away, by Take too; when there are none, the share decides.
func TestLeasedWhileAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := newMemory(t, nil)
		p := &primary{Store: inner}
		units := 2
		lease := promptFunc(func(charges []store.Charge, results []algo.Result) (int64, bool) {
			if units < len(charges) {
				return 0, false
			}
			units -= len(charges)
			return inner.(store.Prompt).TakeNow(charges, results)
		})
		s := newOver(t, &quick{Store: p, Prompt: lease}, Options{})
		plain, leased := perHour(t, 6), counter(t,
			algo.Config{Algorithm: algo.FixedWindow, N: 6, Window: time.Hour, Lease: 50, LeaseFor: time.Second})
		leased.Lease = &rule.Counter{ID: lastID.Add(1), Limit: leased.Limit.Lease(), Index: -1}
		cut(t, s, p, refuses)
		before := s.Stats().LocalAllowed
		take(t, s, charge(plain, "k", 1))
		take(t, s, charge(plain, "k", 1), charge(leased, "k", 1))
		if n := s.Stats().LocalAllowed - before; n != 2 || units != 2 {
			t.Fatalf("%d were decided on the share, %d units are left", n, units)
		}
		take(t, s, charge(leased, "k", 1))
		now(t, s, charge(leased, "k", 1))
		if n := s.Stats().LocalAllowed - before; n != 2 || units != 0 {
			t.Fatalf("%d were decided on the share, %d units are left", n, units)
		}
		take(t, s, charge(leased, "k", 1))
		now(t, s, charge(leased, "k", 1))
		if n := s.Stats().LocalAllowed - before; n != 4 {
			t.Errorf("%d were decided on the share", n)
		}
	})
}

type promptFunc func(charges []store.Charge, results []algo.Result) (int64, bool)

func (f promptFunc) TakeNow(charges []store.Charge, results []algo.Result) (int64, bool) {
	return f(charges, results)
}
