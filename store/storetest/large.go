package storetest

import (
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
)

// testLarge holds that fixed windows count to the last unit as far as integers allow, and no
// further, for whatever a request costs.
func testLarge(t *testing.T, newStore newStore) {
	p := newPair(t, newStore)
	const most = int64(algo.MaxFixedN)
	for _, config := range []algo.Config{
		{Algorithm: algo.FixedWindow, N: most, Window: time.Minute},
		{Algorithm: algo.FixedWindow, N: most, Window: time.Minute, FirstRequest: true},
		{Algorithm: algo.FixedWindow, N: most, Calendar: algo.Month},
		{Algorithm: algo.FixedWindow, N: most, Window: time.Minute, CountDenied: true},
		{Algorithm: algo.FixedWindow, N: most / 2, Window: time.Minute, Soft: 100},
		{Algorithm: algo.FixedWindow, N: most / 2, Window: time.Minute, Soft: 100, SoftFor: 10 * time.Second},
	} {
		p.restart()
		c, beside := counterOf(t, config), counterOf(t,
			algo.Config{Algorithm: algo.FixedWindow, N: 5_000_000_000, Window: time.Hour})
		join(c, c.ID)
		limit := c.Limit.Check(&algo.State{}, start, algo.Ask{}).SoftLimit
		for _, step := range []struct {
			cost    int64
			allowed bool
		}{
			{3_000_000_000, true}, {limit - 3_000_000_001, true}, {2, false}, {1, !config.CountDenied}, {1, false},
			{algo.MaxCost, false}, {-limit, true}, {limit, !config.CountDenied},
		} {
			if r := p.take(t, charge(c, "k", step.cost)); r[0].Allowed != step.allowed {
				t.Errorf("%+v: %d: %+v, want %v", config, step.cost, r[0], step.allowed)
			}
		}
		// One after the other, some of them in one call of the store.
		for range 4 {
			p.take(t, charge(c, "l", limit/3), charge(beside, "l", 1_500_000_000))
		}
		// Beyond the limit, as a commit may go.
		if s, ok := p.store.(store.Reserver); ok {
			over := store.Settlement{Counter: beside, Limit: beside.Limit, Key: []byte("l"), At: p.clock.read(),
				Reserved: 1, Actual: 7_000_000_000}
			if err := s.Settle(t.Context(), []store.Settlement{over}); err != nil {
				t.Fatal(err)
			}
			p.model.settle(&over, p.clock.read())
		}
		p.take(t, charge(beside, "l", 0))
		p.take(t, charge(beside, "l", 1))
		p.clock.advance(time.Minute)
		p.take(t, charge(c, "k", limit/2))
	}
}
