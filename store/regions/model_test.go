package regions

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/leasecheck"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"pgregory.net/rapid"
)

// drawConfig draws a limit of a kind with small numbers. Windows are of 10 s.
func drawConfig(t *rapid.T, a algo.Algorithm) algo.Config {
	c := algo.Config{Algorithm: a, N: rapid.Int64Range(0, 12).Draw(t, "N"), Window: 10 * time.Second,
		Soft: rapid.SampledFrom([]int{0, 0, 50}).Draw(t, "soft")}
	switch a {
	case algo.SlidingWindow:
		c.Buckets = rapid.SampledFrom([]int{1, 5}).Draw(t, "buckets")
	case algo.TokenBucket, algo.LeakyBucket:
		c.Burst = rapid.Int64Range(algo.NoBurst, 12).Draw(t, "burst")
	case algo.Concurrency:
		c.Window = 0
	}
	return c
}

// drawOver draws a percentage that fits a kind of limit.
func drawOver(t *rapid.T, a algo.Algorithm) int {
	if a == algo.LeakyBucket || a == algo.Concurrency {
		return 0
	}
	return rapid.SampledFrom([]int{0, 0, 20, 50, 250, 1000}).Draw(t, "over")
}

var algorithms = []algo.Algorithm{algo.SlidingWindow, algo.SlidingLog, algo.FixedWindow, algo.TokenBucket,
	algo.LeakyBucket, algo.Concurrency}

// TestBound: what all regions admit together obeys a limit of N × (1 + over), and of as much
// that a bucket holds, whatever is asked where, and though no region hears of another. With a
// ceiling of its own the same is reached.
func TestBound(t *testing.T) {
	for _, a := range algorithms {
		t.Run(a.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				cfg, over := drawConfig(t, a), drawOver(t, a)
				c := counterOf(limit(t, cfg), rule.Regions{Over: over})
				table := drawTable(t)
				now := start
				var stores []*Store
				for _, r := range table {
					stores = append(stores, newTest(t, table, r.Name, func() int64 { return now }))
				}
				var admissions []leasecheck.Admission
				held := map[int]int64{}
				inFlight := int64(0)
				whole := boundOf(c.Limit, over)
				for range rapid.IntRange(1, 60).Draw(t, "requests") {
					now += rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 12_000_000)).Draw(t, "µs")
					i := rapid.IntRange(0, len(stores)-1).Draw(t, "region")
					e := charge(c, "k", rapid.SampledFrom([]int64{1, 1, 2, 5}).Draw(t, "cost"))
					if a == algo.Concurrency {
						now = start // no slot times out
					}
					charges := []store.Charge{e}
					results := make([]algo.Result, 1)
					if _, err := stores[i].Take(context.Background(), charges, results); err != nil {
						t.Fatal(err)
					}
					if !results[0].Allowed {
						continue
					}
					admissions = append(admissions, leasecheck.Admission{Lo: now, Hi: now, Cost: e.Ask.Cost})
					held[i] += e.Ask.Cost
					inFlight += e.Ask.Cost
				}
				if a == algo.Concurrency {
					if most := whole.N + whole.N*int64(whole.Soft)/100; inFlight > most {
						t.Fatalf("%d in flight, %d are allowed", inFlight, most)
					}
					return
				}
				extra := int64(0)
				if a == algo.SlidingWindow {
					// An estimate is rounded down, here in each region by itself.
					extra = int64(len(table) - 1)
				}
				v, err := leasecheck.Check(whole, extra, admissions)
				if err != nil {
					t.Fatal(err)
				}
				if v != nil {
					t.Fatalf("%+v, %d %% over, among %v: %v", cfg, over, table, v)
				}
			})
		})
	}
}

// boundOf is the limit that all regions together obey.
func boundOf(l *algo.Limit, over int) algo.Config {
	c := l.Config()
	c.N = c.N * int64(100+over) / 100
	switch c.Algorithm {
	case algo.LeakyBucket: // from without it is a token bucket that holds one more
		c.Algorithm = algo.TokenBucket
		c.Burst = max(0, c.Burst) + 1
	case algo.TokenBucket:
		if c.Burst = max(0, c.Burst) * int64(100+over) / 100; c.Burst == 0 {
			c.Burst = algo.NoBurst
		}
	}
	return c
}

// TestBoundIsReached: where all regions ask for more than there is, they admit all of the bound of
// TestBound together, and a bound of one unit less would be too small.
func TestBoundIsReached(t *testing.T) {
	for _, a := range algorithms {
		for _, over := range []int{0, 50} {
			if over > 0 && (a == algo.LeakyBucket || a == algo.Concurrency) {
				continue // they know ceilings alone
			}
			cfg := algo.Config{Algorithm: a, N: 12, Window: 10 * time.Second}
			switch a {
			case algo.TokenBucket, algo.LeakyBucket:
				cfg.Burst = 6
			case algo.Concurrency:
				cfg.Window = 0
			}
			c := counterOf(limit(t, cfg), rule.Regions{Over: over})
			var admissions []leasecheck.Admission
			for _, r := range three {
				s := newTest(t, three, r.Name, func() int64 { return start })
				for range 100 {
					if take(t, s, charge(c, "k", 1))[0].Allowed {
						admissions = append(admissions, leasecheck.Admission{Lo: start, Hi: start, Cost: 1})
					}
				}
			}
			whole := boundOf(c.Limit, over)
			most := whole.N
			if whole.Burst > 0 {
				most = whole.Burst
			}
			if int64(len(admissions)) != most {
				t.Errorf("%v, %d %% over: %d were admitted, want %d", a, over, len(admissions), most)
			}
			if a == algo.Concurrency {
				continue
			}
			if v, err := leasecheck.Check(whole, 0, admissions); err != nil || v != nil {
				t.Errorf("%v, %d %% over: %v, %v", a, over, v, err)
			}
			if whole.N--; whole.Burst > 0 {
				whole.Burst--
			}
			if v, err := leasecheck.Check(whole, 0, admissions); err != nil || v == nil {
				t.Errorf("%v, %d %% over: one unit less would have been enough; %v", a, over, err)
			}
		}
	}
}

// TestBoundOfIntervals: a bucket that is refilled at intervals gets N × (1 + over) at each of
// them, which come at other times in other regions.
func TestBoundOfIntervals(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cfg := drawConfig(t, algo.TokenBucket)
		cfg.RefillInterval, cfg.Soft = true, 0
		over := drawOver(t, algo.TokenBucket)
		c := counterOf(limit(t, cfg), rule.Regions{Over: over})
		now := start
		var stores []*Store
		for _, r := range three {
			stores = append(stores, newTest(t, three, r.Name, func() int64 { return now }))
		}
		most := func(n int64) int64 { return n * int64(100+over) / 100 }
		var at, costs []int64
		for range rapid.IntRange(1, 60).Draw(t, "requests") {
			now += rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 12_000_000)).Draw(t, "µs")
			cost := rapid.SampledFrom([]int64{1, 1, 2, 5}).Draw(t, "cost")
			if !take(t, stores[rapid.IntRange(0, 2).Draw(t, "region")], charge(c, "k", cost))[0].Allowed {
				continue
			}
			at, costs = append(at, now), append(costs, cost)
			sum := int64(0)
			for i, u := range slices.Backward(at) {
				sum += costs[i]
				intervals := (now-u)/cfg.Window.Microseconds() + 1
				if bound := most(max(0, c.Limit.Config().Burst)) + intervals*most(cfg.N); sum > bound {
					t.Fatalf("%d within %d intervals, the bound is %d", sum, intervals, bound)
				}
			}
		}
	})
}

// model decides as a Store does, by hand.
type model struct {
	table  []Region
	region string
	states map[string]*modelState
}

type modelState struct{ own, ownBeside, all, allBeside algo.State }

// ceiling is what the region has of n × (1 + over): each region its part, and then one for each of
// the first until nothing is left over. If one gets nothing, though there is one for each, they get
// one each before.
func (m *model) ceiling(n int64, over int) int64 {
	return m.divide(n*int64(100+over), 0)
}

func (m *model) divide(hundredths, each int64) int64 {
	table := slices.Clone(m.table)
	slices.SortFunc(table, func(a, b Region) int { return strings.Compare(a.Name, b.Name) })
	sum, weighted := int64(0), int64(0)
	for _, r := range table {
		if sum += int64(r.Weight); r.Weight > 0 {
			weighted++
		}
	}
	all := hundredths / 100
	left := all
	parts := map[string]int64{}
	for _, r := range table {
		parts[r.Name] = hundredths * int64(r.Weight) / sum / 100
		left -= parts[r.Name]
	}
	for _, r := range table {
		if left > 0 && r.Weight > 0 {
			parts[r.Name]++
			left--
		}
	}
	for _, r := range table {
		if r.Weight > 0 && parts[r.Name]+each == 0 && all >= weighted {
			return m.divide(100*(all-weighted), 1)
		}
	}
	if i := slices.IndexFunc(table, func(r Region) bool { return r.Name == m.region }); table[i].Weight == 0 {
		return 0
	}
	return parts[m.region] + each
}

func (m *model) part(l *algo.Limit, over int) (*algo.Limit, error) {
	return l.Each(func(l *algo.Limit) (*algo.Limit, error) {
		c := l.Config()
		c.N = m.ceiling(c.N, over)
		switch c.Algorithm {
		case algo.LeakyBucket:
			if c.Burst = m.ceiling(max(0, c.Burst)+1, over) - 1; c.Burst < 0 {
				c.N = 0
			}
			if c.Burst <= 0 {
				c.Burst = algo.NoBurst
			}
		case algo.TokenBucket:
			if c.Burst = m.ceiling(max(0, c.Burst), over); c.Burst == 0 {
				c.Burst = algo.NoBurst
			}
		}
		size := c.N
		if c.Burst != 0 {
			size = max(0, c.Burst)
		}
		if size*int64(c.Soft)/100 == 0 {
			c.SoftFor = 0
		}
		return algo.New(c)
	})
}

// take decides charges of different states.
func (m *model) take(t *rapid.T, charges []store.Charge, now int64) []algo.Result {
	type halves struct {
		st       *modelState
		own, all *algo.Limit // all is nil if it has no say
	}
	var each []halves
	denied, quotas, left := false, false, false
	admits := make([]bool, len(charges))
	for i := range charges {
		c := &charges[i]
		c.Ask.Slot = uint64(now) + uint64(i) + 1
		name := c.Counter.Rule + "/" + string(c.Key)
		if m.states[name] == nil {
			m.states[name] = &modelState{}
		}
		h := halves{st: m.states[name], own: c.Limit}
		of := c.Counter.Regions
		if of != nil && !of.Sync {
			var err error
			if h.own, err = m.part(c.Limit, of.Over); err != nil {
				t.Fatal(err)
			}
			if of.Over > 0 && c.Mode != rule.Quota {
				h.all = c.Limit
			}
		}
		each = append(each, h)
		r := h.own.CheckWith(&h.st.own, &h.st.ownBeside, now, c.Ask)
		admits[i] = r.Allowed && (h.all == nil || h.all.CheckWith(&h.st.all, &h.st.allBeside, now, c.Ask).Allowed)
		if r.Off {
			continue
		}
		switch c.Mode {
		case rule.Enforce:
			denied = denied || !admits[i]
		case rule.Quota:
			quotas, left = true, left || admits[i]
		}
	}
	denied = denied || quotas && !left
	results := make([]algo.Result, len(charges))
	for i := range charges {
		c, h := &charges[i], &each[i]
		made := admits[i] && (!denied || c.Mode == rule.Shadow)
		decide := func(l *algo.Limit, s, beside *algo.State, made bool) algo.Result {
			if made {
				return l.TakeWith(s, beside, now, c.Ask)
			}
			l.Take(s, now, algo.Ask{}) // which mends it
			return l.CheckWith(s, beside, now, c.Ask)
		}
		own := decide(h.own, &h.st.own, &h.st.ownBeside, made || c.Limit.CountDenied())
		r := &results[i]
		*r = own
		if own.Off || c.Counter.Regions == nil || c.Counter.Regions.Sync {
			continue
		}
		if h.all == nil {
			whole := c.Limit.Check(&algo.State{}, now, algo.Ask{})
			r.Limit, r.SoftLimit = whole.Limit, whole.SoftLimit
			continue
		}
		l := h.all
		if l.CountDenied() {
			cfg := l.Config()
			cfg.CountDenied = false
			l = limit(t, cfg)
		}
		all := decide(l, &h.st.all, &h.st.allBeside, made)
		r.Limit, r.SoftLimit = all.Limit, all.SoftLimit
		r.Remaining = min(own.Remaining, all.Remaining)
		r.Allowed = own.Allowed && all.Allowed
		r.RetryAfter = 0
		for _, half := range []algo.Result{own, all} {
			if !half.Allowed && r.RetryAfter != algo.Never &&
				(half.RetryAfter == algo.Never || half.RetryAfter > r.RetryAfter) {
				r.RetryAfter = half.RetryAfter
			}
		}
		if all.ResetAfter == algo.Never || own.ResetAfter != algo.Never && all.ResetAfter > own.ResetAfter {
			r.ResetAfter = all.ResetAfter
		}
		r.Soft = r.Allowed && (own.Soft || all.Soft)
	}
	return results
}

// TestModel: calls with limits that hold over regions and others are decided as by hand: all or
// nothing, both halves of a limit or none, and each field of a result.
func TestModel(t *testing.T) {
	pairs, denials := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		table := drawTable(t)
		region := rapid.SampledFrom(table).Draw(t, "region").Name
		now := start
		s := newTest(t, table, region, func() int64 { return now })
		m := &model{table: table, region: region, states: map[string]*modelState{}}
		var counters []*rule.Counter
		for range rapid.IntRange(1, 4).Draw(t, "counters") {
			a := rapid.SampledFrom(algorithms).Draw(t, "algorithm")
			cfg := drawConfig(t, a)
			if a == algo.SlidingLog || a == algo.FixedWindow || a == algo.SlidingWindow {
				cfg.CountDenied = rapid.IntRange(0, 3).Draw(t, "count denied") == 0
			}
			l := limit(t, cfg)
			if rapid.IntRange(0, 3).Draw(t, "scheduled") == 0 && a != algo.Concurrency && !cfg.CountDenied {
				twice := cfg
				twice.N *= 2
				var err error
				if l, err = algo.Scheduled(l, []algo.Phase{{Until: 20 * time.Second, Limit: limit(t, twice)}, {From: time.Minute, Until: 70 * time.Second}}, nil); err != nil {
					t.Fatal(err)
				}
			}
			of := rule.Regions{Over: drawOver(t, a)}
			if rapid.IntRange(0, 4).Draw(t, "sync") == 0 {
				of = rule.Regions{Sync: true}
			}
			c := counterOf(l, of)
			if rapid.IntRange(0, 4).Draw(t, "alone") == 0 {
				c.Regions = nil
			}
			counters = append(counters, c)
		}
		// Others are heard of by forced charges, which are decided elsewhere.
		hear := func(c *rule.Counter, key string, units int64) {
			if of := c.Regions; of == nil || of.All == nil || c.Limit.Algorithm() != algo.FixedWindow ||
				c.Limit.CountDenied() || c.Limit.Scheduled() {
				return
			}
			other := charge(c.Regions.All, key, units)
			if take(t, s.inner, other)[0].Allowed {
				name := c.Rule + "/" + key
				if m.states[name] == nil {
					m.states[name] = &modelState{}
				}
				c.Limit.Take(&m.states[name].all, now, other.Ask)
			}
		}
		for range rapid.IntRange(1, 40).Draw(t, "calls") {
			now += rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 12_000_000)).Draw(t, "µs")
			key := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "key")
			var charges []store.Charge
			for _, c := range counters {
				if rapid.IntRange(0, 3).Draw(t, "left out") == 0 {
					continue
				}
				e := charge(c, key, rapid.SampledFrom([]int64{0, 1, 1, 1, 2, 4}).Draw(t, "cost"))
				if rapid.IntRange(0, 5).Draw(t, "refund") == 0 && !c.Limit.CountDenied() &&
					c.Limit.Algorithm() != algo.Concurrency {
					e.Ask.Cost = -1
				}
				e.Mode = rapid.SampledFrom([]rule.Mode{rule.Enforce, rule.Enforce, rule.Shadow, rule.Quota}).Draw(t,
					"mode")
				charges = append(charges, e)
				if rapid.IntRange(0, 3).Draw(t, "hear") == 0 {
					hear(c, key, 2)
				}
			}
			want := m.take(t, slices.Clone(charges), now)
			got := take(t, s, charges...)
			for i := range got {
				if got[i] != want[i] {
					t.Fatalf("charge %d of %d, %v, regions %+v, mode %d, %+v:\n got %+v\nwant %+v", i, len(got),
						charges[i].Limit, charges[i].Counter.Regions, charges[i].Mode, charges[i].Ask, got[i], want[i])
				}
				if of := charges[i].Counter.Regions; of != nil && of.All != nil {
					pairs++
					if !got[i].Allowed {
						denials++
					}
				}
				if has := charges[i].Ask.Slot != 0; has != (charges[i].Limit.Algorithm() == algo.Concurrency &&
					got[i].Allowed && charges[i].Ask.Cost > 0 && !got[i].Off) &&
					!store.VerdictOf(charges, got).Denied() {
					t.Fatalf("charge %d has the slot %d", i, charges[i].Ask.Slot)
				}
			}
		}
	})
	t.Logf("%d charges became two, %d were denied", pairs, denials)
}
