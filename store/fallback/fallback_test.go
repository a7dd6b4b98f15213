package fallback

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/storetest"
	"pgregory.net/rapid"
)

func TestContract(t *testing.T) {
	storetest.Run(t, func(t *testing.T, clock func() int64) store.Store {
		return newOver(t, newMemory(t, clock), Options{Local: newMemory(t, clock)})
	})
}

// TestAwayIsLocal: while the primary is away, calls come out as they would in a store that holds a
// node's share of each limit.
func TestAwayIsLocal(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		now := int64(1767225600_000000)
		clock := func() int64 { return now }
		nodes := rapid.IntRange(1, 4).Draw(rt, "nodes")
		p, reference := &primary{Store: newMemory(t, clock)}, newMemory(t, clock)
		p.set(refuses)
		s := newOver(t, p, Options{Local: newMemory(t, clock), FixedNodes: nodes})
		var counters []*rule.Counter
		for _, c := range []algo.Config{
			{N: 9, Window: time.Minute},
			{Algorithm: algo.FixedWindow, N: 20, Window: time.Minute, CountDenied: true},
			{Algorithm: algo.TokenBucket, N: 60, Window: time.Minute, Burst: 10},
			{Algorithm: algo.LeakyBucket, N: 60, Window: time.Minute, Burst: 5},
			{Algorithm: algo.Concurrency, N: 12},
		} {
			counters = append(counters, counter(t, c))
		}
		for range rapid.IntRange(1, 50).Draw(rt, "calls") {
			now += rapid.SampledFrom([]int64{0, 0, 1, 1_000_000, 20_000_000}).Draw(rt, "µs")
			charges := make([]store.Charge, rapid.IntRange(0, 4).Draw(rt, "charges"))
			alike := make([]store.Charge, len(charges))
			for i := range charges {
				c := charge(rapid.SampledFrom(counters).Draw(rt, "counter"),
					rapid.SampledFrom([]string{"a", "b"}).Draw(rt, "key"), 0)
				c.Mode = rapid.SampledFrom([]rule.Mode{rule.Enforce, rule.Enforce, rule.Shadow, rule.Quota}).Draw(rt,
					"mode")
				c.Ask.Cost = rapid.SampledFrom([]int64{1, 1, 1, 0, 2, 5, 100}).Draw(rt, "cost")
				charges[i], alike[i] = c, c
				alike[i].Limit = derive(c.Limit, int64(nodes))
			}
			got, want := take(t, s, charges...), take(t, reference, alike...)
			if !slices.Equal(got, want) {
				t.Fatalf("%+v:\n got %+v\nwant %+v", charges, got, want)
			}
		}
	})
}

func TestNewRefuses(t *testing.T) {
	m := newMemory(t, nil)
	for name, build := range map[string]func() (*Store, error){
		"primary":    func() (*Store, error) { return New(nil, Options{Local: m}) },
		"Local":      func() (*Store, error) { return New(m, Options{}) },
		"Deadline":   func() (*Store, error) { return New(m, Options{Local: m, Deadline: -1}) },
		"FixedNodes": func() (*Store, error) { return New(m, Options{Local: m, FixedNodes: -1}) },
	} {
		if _, err := build(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTakeWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &punctual{Store: newMemory(t, nil)}
		s := newOver(t, p, Options{MaxDeadline: 200 * time.Millisecond})
		for _, test := range []struct{ deadline, least, most time.Duration }{
			{time.Second, DefaultDeadline, 200 * time.Millisecond},
			{100 * time.Millisecond, DefaultDeadline, 75 * time.Millisecond},
			{8 * time.Millisecond, 6 * time.Millisecond, 6 * time.Millisecond},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), test.deadline)
			if _, err := s.Take(ctx, []store.Charge{charge(perHour(t, 1), "k", 1)}, make([]algo.Result, 1)); err != nil {
				t.Error(err)
			}
			cancel()
			if p.least != test.least || p.most != test.most {
				t.Errorf("a deadline of %v: to be answered after %v to %v, want %v to %v",
					test.deadline, p.least, p.most, test.least, test.most)
			}
		}
	})
}

// TestMemoryIsNoNews: a refusal that the primary gives from memory tells nothing of the keys
// beside, whatever it says of them.
func TestMemoryIsNoNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		real := &primary{Store: newMemory(t, nil)}
		p := &punctual{Store: real}
		s := newOver(t, p, Options{})
		user, addr := perHour(t, 1), perHour(t, 2)
		take(t, s, charge(addr, "a", 2))
		time.Sleep(time.Second)
		p.remembers = []algo.Result{
			{Limit: 1, SoftLimit: 1, RetryAfter: 1e9, ResetAfter: 1e9},
			{Limit: 2, SoftLimit: 2, Remaining: 2, Allowed: true},
		}
		take(t, s, charge(user, "u", 1), charge(addr, "a", 1))
		p.remembers = nil
		real.set(refuses)
		if r := take(t, s, charge(user, "v", 1), charge(addr, "a", 1)); r[1].Allowed {
			t.Errorf("a limit of which nothing was left: %+v", r[1])
		}
	})
}

func TestPolicies(t *testing.T) {
	const (
		local = rule.Local
		allow = rule.AllowAll
		deny  = rule.DenyAll
	)
	type part struct {
		policy rule.StoreErrorPolicy
		mode   rule.Mode
		full   bool // nothing is left of the share
	}
	for name, test := range map[string]struct {
		parts   []part
		err     bool
		allowed []bool
		charged []bool
		stats   Stats
	}{
		"local":                  {[]part{{policy: local}}, false, []bool{true}, []bool{true}, Stats{LocalAllowed: 1}},
		"local, full":            {[]part{{policy: local, full: true}}, false, []bool{false}, []bool{false}, Stats{LocalDenied: 1}},
		"allow":                  {[]part{{policy: allow}}, false, []bool{true}, []bool{false}, Stats{Uncounted: 1}},
		"deny":                   {[]part{{policy: deny}}, true, nil, nil, Stats{Refused: 1}},
		"local and allow":        {[]part{{policy: local}, {policy: allow}}, false, []bool{true, true}, []bool{true, false}, Stats{LocalAllowed: 1}},
		"full local and allow":   {[]part{{policy: local, full: true}, {policy: allow}, {policy: local}}, false, []bool{false, true, true}, []bool{false, false, false}, Stats{LocalDenied: 1}},
		"allow, local and deny":  {[]part{{policy: allow}, {policy: local}, {policy: deny}}, true, nil, nil, Stats{Refused: 1}},
		"deny in shadow":         {[]part{{policy: deny, mode: rule.Shadow}, {policy: local}}, false, []bool{true, true}, []bool{true, true}, Stats{LocalAllowed: 1}},
		"full, deny in shadow":   {[]part{{policy: deny, mode: rule.Shadow, full: true}, {policy: allow}}, false, []bool{false, true}, []bool{false, false}, Stats{LocalAllowed: 1}},
		"shadow beside a denial": {[]part{{policy: local, mode: rule.Shadow}, {policy: local, full: true}}, false, []bool{true, false}, []bool{true, false}, Stats{LocalDenied: 1}},
		"allow in shadow":        {[]part{{policy: allow, mode: rule.Shadow}, {policy: local}}, false, []bool{true, true}, []bool{false, true}, Stats{LocalAllowed: 1}},
		"quota that allows":      {[]part{{policy: allow, mode: rule.Quota}, {policy: local, mode: rule.Quota, full: true}, {policy: local}}, false, []bool{true, false, true}, []bool{false, false, true}, Stats{LocalAllowed: 1}},
		"quotas, full":           {[]part{{policy: local, mode: rule.Quota, full: true}, {policy: local}}, false, []bool{false, true}, []bool{false, false}, Stats{LocalDenied: 1}},
		"quota that denies":      {[]part{{policy: deny, mode: rule.Quota}}, true, nil, nil, Stats{Refused: 1}},
	} {
		for _, asked := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/asked %v", name, asked), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s, p := newTest(t, Options{FixedNodes: 2})
					if asked {
						p.set(refuses)
					} else {
						cut(t, s, p, refuses)
					}
					var charges []store.Charge
					for _, part := range test.parts {
						c := charge(perHour(t, 10), "k", 1)
						c.OnStoreError, c.Mode = part.policy, part.mode
						if part.full {
							fill := charge(c.Counter, "k", 5)
							fill.Limit = counter(t, algo.Config{Algorithm: algo.FixedWindow, N: 5,
								Window: time.Hour}).Limit
							take(t, s.o.Local, fill)
						}
						charges = append(charges, c)
					}
					before, results := s.Stats(), make([]algo.Result, len(charges))
					now, err := s.Take(t.Context(), charges, results)
					if (err != nil) != test.err || err != nil &&
						(!errors.Is(err, ErrUnavailable) || !errors.Is(err, errDown)) {
						t.Fatal(err)
					}
					after := s.Stats()
					if got := (Stats{LocalAllowed: after.LocalAllowed - before.LocalAllowed,
						LocalDenied: after.LocalDenied - before.LocalDenied,
						Uncounted:   after.Uncounted - before.Uncounted,
						Refused:     after.Refused - before.Refused}); got != test.stats {
						t.Errorf("counted %+v, want %+v", got, test.stats)
					}
					for i, allowed := range test.allowed {
						r, part := results[i], test.parts[i]
						if r.Allowed != allowed {
							t.Errorf("charge %d: allowed is %v", i, r.Allowed)
						}
						if part.policy == allow {
							var fresh algo.State
							if want := charges[i].Limit.Check(&fresh, now, algo.Ask{}); r != want {
								t.Errorf("charge %d: %+v, want %+v", i, r, want)
							}
						} else if r.Limit != 5 {
							t.Errorf("charge %d speaks of a limit of %d, the share is 5", i, r.Limit)
						}
						was := int64(0)
						if part.full {
							was = 5
						}
						if charged := used(t, s.o.Local, charges[i].Counter, "k") > was; charged != test.charged[i] {
							t.Errorf("charge %d: charged is %v", i, charged)
						}
						// What the primary may have charged already is not charged to it later.
						_, owed := s.parts[0].missed.entries[account{charges[i].Counter.ID, "k"}]
						if owed != (test.charged[i] && !asked) {
							t.Errorf("charge %d: owed is %v", i, owed)
						}
					}
				})
			})
		}
	}
}

// TestAllowAsksNobody: what Local happens to know of a limit that says allow changes nothing.
func TestAllowAsksNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p := newTest(t, Options{})
		cut(t, s, p, refuses)
		over, counted := charge(perHour(t, 10), "k", 1), charge(perHour(t, 10), "k", 1)
		fill := over
		fill.Ask.Cost = 10
		take(t, s.o.Local, fill)
		over.Limit, over.OnStoreError = perHour(t, 5).Limit, rule.AllowAll
		if r := take(t, s, over, counted); !r[0].Allowed || r[0].Remaining != 5 || !r[1].Allowed {
			t.Errorf("%+v", r)
		}
		if n := used(t, s.o.Local, counted.Counter, "k"); n != 1 {
			t.Errorf("%d are charged to the limit that says local, want 1", n)
		}
	})
}

func TestBothFail(t *testing.T) {
	p := &primary{Store: newMemory(t, nil)}
	p.set(refuses)
	s := newOver(t, p, Options{Local: p})
	_, err := s.Take(t.Context(), []store.Charge{charge(perHour(t, 1), "k", 1)}, make([]algo.Result, 1))
	if !errors.Is(err, errDown) || errors.Is(err, ErrUnavailable) {
		t.Error(err)
	}
}

// TestClose: nothing runs on, whatever was going on; synctest would find it.
func TestClose(t *testing.T) {
	for name, f := range map[string]func(t *testing.T, s *Store, p *primary){
		"closed": func(*testing.T, *Store, *primary) {},
		"tripped": func(t *testing.T, s *Store, p *primary) {
			cut(t, s, p, refuses)
		},
		"probing": func(t *testing.T, s *Store, p *primary) {
			cut(t, s, p, hangs)
			time.Sleep(100 * time.Millisecond)
		},
		"settling": func(t *testing.T, s *Store, p *primary) {
			cut(t, s, p, hangs)
			c := perHour(t, 10)
			for i := range 1000 {
				take(t, s, charge(c, fmt.Sprint(i), 1))
			}
			p.set(none)
			for s.Stats().Settled == 0 {
				time.Sleep(time.Millisecond)
			}
			p.set(hangs)
			time.Sleep(settleEvery)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, p := newTest(t, Options{})
				f(t, s, p)
				began := time.Now()
				for range 2 {
					if err := s.Close(); err != nil {
						t.Error(err)
					}
				}
				if d := time.Since(began); d != 0 {
					t.Errorf("Close took %v", d)
				}
				p.set(refuses)
				for range 2 * tripAfter {
					take(t, s, charge(perHour(t, 1), "k", 1)) // starts nothing
				}
			})
		})
	}
}
