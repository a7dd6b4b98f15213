package redis

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/redistest"
	"github.com/weir-rl/weir/rule"
)

// TestMerged: decisions that go to Redis as one come out as if each had gone alone, over several limits and with all
// that those may be.
func TestMerged(t *testing.T) {
	server := redistest.Start(t)
	now := int64(1767225600_000000)
	s, err := Open(Options{URL: server.URL(), Clock: func() int64 { return now }, Timeout: 30 * time.Second, Logf: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	p := s.partitions[0]
	rnd := rand.New(rand.NewPCG(rand.Uint64(), 1))
	configs := []algo.Config{
		{Algorithm: algo.FixedWindow, N: 5, Window: 10 * time.Second},
		{Algorithm: algo.FixedWindow, N: 5, Window: 10 * time.Second, CountDenied: true},
		{N: 7, Window: 10 * time.Second},
		{N: 7, Window: 10 * time.Second, CountDenied: true},
		{N: 7, Window: 10 * time.Second, Buckets: 5},
		{N: 7, Window: 10 * time.Second, Buckets: 5, CountDenied: true},
		{Algorithm: algo.SlidingLog, N: 6, Window: 10 * time.Second},
		{Algorithm: algo.SlidingLog, N: 1, Window: time.Second},
		{Algorithm: algo.TokenBucket, N: 5, Window: 10 * time.Second, Burst: 4},
		{Algorithm: algo.TokenBucket, N: 5, Window: 10 * time.Second, Burst: 4, RefillInterval: true},
		{Algorithm: algo.LeakyBucket, N: 5, Window: 10 * time.Second, Burst: 4},
		{Algorithm: algo.TokenBucket, N: 0, Window: 10 * time.Second},
	}
	id := uint64(0)
	most := 0
	for range 400 {
		// The limits of one rule or two, charged together step by step.
		var charges []weir.Charge
		group := rnd.Uint64()
		for range 1 + rnd.IntN(4) {
			l, err := algo.New(configs[rnd.IntN(len(configs))])
			if err != nil {
				t.Fatal(err)
			}
			if id++; rnd.IntN(2) == 0 {
				group = rnd.Uint64()
			}
			charges = append(charges, weir.Charge{
				Counter: &rule.Counter{ID: id * 0x9E3779B97F4A7C15, Group: group, Limit: l}, Limit: l, Key: []byte("k"),
				Mode: []rule.Mode{rule.Enforce, rule.Enforce, rule.Shadow, rule.Quota}[rnd.IntN(4)],
			})
		}
		if !s.newCall(p, charges).apart {
			continue // these are settled one by one
		}
		states := make([]algo.State, len(charges))
		for range 20 {
			now += rnd.Int64N(3_000_000)
			for i := range charges {
				charges[i].Ask = algo.Ask{Cost: 1 + rnd.Int64N(2), MaxDelay: -1}
				if rnd.IntN(8) == 0 {
					charges[i].Ask.MaxDelay = rnd.Int64N(4_000_000)
				}
			}
			var batch []*call
			for range 1 + rnd.IntN(12) {
				batch = append(batch, s.newCall(p, charges))
			}
			p.decide(context.Background(), batch)
			most = max(most, batch[0].group)
			for n, c := range batch {
				if c.err != nil || c.odd {
					t.Fatalf("%v, odd %v", c.err, c.odd)
				}
				want := settled(charges, states, now)
				for i := range charges {
					if c.results[i] != want[i] {
						t.Fatalf("decision %d of %d, charge %d of %s:\n got %+v\nwant %+v", n, len(batch), i, describe(charges), c.results[i], want[i])
					}
				}
			}
		}
	}
	if most < 2 || s.Stats().Disagreements > 0 {
		t.Errorf("groups of up to %d; %d disagreements", most, s.Stats().Disagreements)
	}
}

func describe(charges []weir.Charge) (text string) {
	for i := range charges {
		text += fmt.Sprintf("[%v mode %d %+v]", charges[i].Limit, charges[i].Mode, charges[i].Ask)
	}
	return text
}

// settled decides by algo alone.
func settled(charges []weir.Charge, states []algo.State, now int64) []algo.Result {
	results := make([]algo.Result, len(charges))
	verdict := newVerdict()
	for i := range charges {
		results[i] = charges[i].Limit.Check(&states[i], now, charges[i].Ask)
		verdict.add(charges[i].Mode, results[i].Allowed)
	}
	for i := range charges {
		c, was := &charges[i], results[i]
		if len(charges) > 1 && verdict.denied() && c.Mode != rule.Shadow && !c.Limit.CountDenied() {
			continue
		}
		results[i] = c.Limit.Take(&states[i], now, c.Ask)
		results[i].Allowed = was.Allowed
	}
	return results
}
