package redis

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/internal/waiting"
)

// mergeConfigs are limits of all forms that merging knows.
var mergeConfigs = []algo.Config{
	{Algorithm: algo.FixedWindow, N: 5, Window: 10 * time.Second},
	{Algorithm: algo.FixedWindow, N: 5, Window: 10 * time.Second, CountDenied: true},
	{N: 7, Window: 10 * time.Second},
	{N: 7, Window: 10 * time.Second, CountDenied: true},
	{N: 7, Window: 10 * time.Second, Buckets: 5},
	{N: 7, Window: 10 * time.Second, Buckets: 5, CountDenied: true},
	{Algorithm: algo.SlidingLog, N: 6, Window: 10 * time.Second},
	{Algorithm: algo.SlidingLog, N: 6, Window: 10 * time.Second, CountDenied: true},
	{Algorithm: algo.SlidingLog, N: 1, Window: time.Second},
	{Algorithm: algo.TokenBucket, N: 5, Window: 10 * time.Second, Burst: 4},
	{Algorithm: algo.TokenBucket, N: 5, Window: 10 * time.Second, Burst: 4, RefillInterval: true},
	{Algorithm: algo.LeakyBucket, N: 5, Window: 10 * time.Second, Burst: 4},
	{Algorithm: algo.TokenBucket, N: 0, Window: 10 * time.Second},
	{Algorithm: algo.Concurrency, N: 4, Timeout: 5 * time.Second},
}

// TestMerged: decisions that go to Redis as one come out as if each had gone alone, over several
// limits and with all that those may be: soft margins that close, and schedules. WEIR_MERGES sets
// how many sets of limits.
func TestMerged(t *testing.T) {
	server := redistest.Start(t)
	now := int64(1767225600_000000)
	s, err := Open(Options{URL: server.URL(), Clock: func() int64 { return now }, Timeout: 30 * time.Second,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p := s.partitions[0]
	rnd := rand.New(rand.NewPCG(Seed(t), 1))
	id := uint64(0)
	seen := struct{ most, odd, off, soft, alone int }{}
	for range atLeast(t, "WEIR_MERGES", 300, 25) {
		// The limits of one rule or two, charged together step by step.
		var charges []store.Charge
		group := rnd.Uint64()
		for range 1 + rnd.IntN(4) {
			l := mergeLimit(t, rnd, now)
			if id++; rnd.IntN(2) == 0 {
				group = rnd.Uint64()
			}
			c := &rule.Counter{ID: id * 0x9E3779B97F4A7C15, Group: group, Limit: l}
			if l.Margin() != nil {
				id++
				c.Margin = &rule.Counter{ID: id * 0x9E3779B97F4A7C15, Group: group, Limit: l.Margin()}
				if rnd.IntN(4) == 0 {
					c.Margin.Group = 0
				}
			}
			charges = append(charges, store.Charge{
				Counter: c, Limit: l, Key: []byte("k"), Mode: []rule.Mode{rule.Enforce, rule.Enforce, rule.Enforce, rule.Shadow, rule.Quota}[rnd.IntN(5)],
			})
		}
		if !s.newCall(p, charges, nil).disjoint {
			t.Fatalf("%s do not lie apart", describe(charges))
		}
		model := newMergeModel(charges)
		for range 20 {
			now += rnd.Int64N(3_000_000)
			for i := range charges {
				charges[i].Ask = algo.Ask{Cost: 1 + rnd.Int64N(2), MaxDelay: -1}
				switch rnd.IntN(12) {
				case 0:
					charges[i].Ask.MaxDelay = rnd.Int64N(4_000_000)
				case 1:
					charges[i].Ask.Cost = rnd.Int64N(2) * -1
				}
			}
			var batch []*call
			for range 1 + rnd.IntN(12) {
				batch = append(batch, s.newCall(p, charges, nil))
			}
			p.decide(context.Background(), batch)
			for n, c := range batch {
				seen.most = max(seen.most, c.group)
				if c.err != nil || c.undecided && !c.marginCloses && !refundsWindows(charges) {
					t.Fatalf("%s: %v, odd %v", describe(charges), c.err, c.undecided)
				}
				if !c.undecided {
					model.compare(t, charges, c.results, now, fmt.Sprintf("decision %d of %d", n, len(batch)))
				}
			}
			for n, c := range batch {
				if c.undecided {
					seen.odd++
					results := make([]algo.Result, len(charges))
					if _, err := p.swapTake(&waiting.Waiter{Ctx: context.Background()}, charges, nil, results, c.slots, false); err != nil {
						t.Fatal(err)
					}
					model.compare(t, charges, results, now, fmt.Sprintf("decision %d of %d, settled", n, len(batch)))
					copy(c.results, results)
				}
				for i := range c.results {
					r := &c.results[i]
					if r.Off {
						seen.off++
					}
					if r.Soft && r.Allowed {
						seen.soft++
					}
				}
				if c.marginCloses && !c.undecided {
					seen.alone++
				}
			}
		}
	}
	t.Logf("%+v", seen)
	if seen.most < 2 || seen.odd == 0 || seen.off == 0 || seen.soft == 0 || seen.alone == 0 ||
		s.Stats().Disagreements > 0 {
		t.Errorf("%+v; %d disagreements", seen, s.Stats().Disagreements)
	}
}

// mergeLimit makes a limit, now and then with a margin that closes, and now and then with a
// schedule that changes within seconds.
func mergeLimit(t *testing.T, rnd *rand.Rand, now int64) *algo.Limit {
	c := mergeConfigs[rnd.IntN(len(mergeConfigs))]
	make := func() *algo.Limit {
		c := c
		if c.N > 1 {
			c.N += rnd.Int64N(4)
		}
		if c.Burst > 0 {
			c.Burst += rnd.Int64N(4)
		}
		if c.N > 1 && c.Algorithm != algo.Concurrency && rnd.IntN(2) == 0 {
			c.Soft, c.SoftFor = 60+rnd.IntN(60), time.Duration(1+rnd.IntN(8))*time.Second
		}
		l, err := algo.New(c)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := make()
	if rnd.IntN(2) == 0 {
		return l
	}
	var phases []algo.Phase
	at := time.Duration(now%86_400_000_000) * time.Microsecond
	for range 1 + rnd.IntN(3) {
		from := at + time.Duration(rnd.Int64N(20_000_000))*time.Microsecond
		phase := algo.Phase{From: from % (24 * time.Hour),
			Until: (from + time.Duration(rnd.Int64N(10_000_000))*time.Microsecond) % (24 * time.Hour)}
		if rnd.IntN(3) > 0 {
			phase.Limit = make()
		}
		phases = append(phases, phase)
	}
	if rnd.IntN(4) == 0 && phases[0].Limit != nil {
		l = nil
	}
	l, err := algo.Scheduled(l, phases, nil)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// refundsWindows: what is given back to a window of several buckets is for the node.
func refundsWindows(charges []store.Charge) bool {
	return slices.ContainsFunc(charges,
		func(c store.Charge) bool { return c.Ask.Cost < 0 && c.Limit.Config().Buckets > 1 })
}

func describe(charges []store.Charge) (text string) {
	for i := range charges {
		text += fmt.Sprintf("[%v mode %d %+v]", charges[i].Limit, charges[i].Mode, charges[i].Ask)
	}
	return text
}

// mergeModel decides by algo alone.
type mergeModel struct {
	states, margins []algo.State
	slot            uint64
}

func newMergeModel(charges []store.Charge) *mergeModel {
	return &mergeModel{states: make([]algo.State, len(charges)), margins: make([]algo.State, len(charges))}
}

func (m *mergeModel) compare(t *testing.T, charges []store.Charge, got []algo.Result, now int64, what string) {
	t.Helper()
	want := m.settled(charges, now)
	for i := range charges {
		if got[i] != want[i] {
			in, until := charges[i].Limit.At(now)
			t.Fatalf("%s, charge %d of %s\nin force: %v for %d µs\n got %+v\nwant %+v", what, i, describe(charges), in,
				until-now, got[i], want[i])
		}
	}
}

func (m *mergeModel) settled(charges []store.Charge, now int64) []algo.Result {
	results := make([]algo.Result, len(charges))
	var verdict store.Verdict
	for i := range charges {
		results[i] = charges[i].Limit.CheckWith(&m.states[i], &m.margins[i], now, charges[i].Ask)
		verdict.Add(charges[i].Mode, &results[i])
	}
	for i := range charges {
		c, was := &charges[i], results[i]
		if len(charges) > 1 && verdict.Denied() && c.Mode != rule.Shadow && !c.Limit.CountDenied() {
			continue
		}
		m.slot++
		ask := c.Ask
		ask.Slot = m.slot
		results[i] = c.Limit.TakeWith(&m.states[i], &m.margins[i], now, ask)
		results[i].Allowed = was.Allowed
	}
	return results
}
