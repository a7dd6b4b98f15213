package regions

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// unwilling is the store of a region in which nothing can be put to use: what it is asked for, or
// to change, fails.
type unwilling struct {
	*memory.Store
	asked, changed atomic.Pointer[error]
}

func (s *unwilling) TakeAhead(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, ahead []algo.Ahead,
	results []algo.Result,
) (now, asked int64, err error) {
	if err := s.asked.Load(); err != nil {
		return 0, 0, *err
	}
	return s.Store.TakeAhead(ctx, minWait, maxWait, charges, ahead, results)
}

func (s *unwilling) Change(
	ctx context.Context, part int, log, from, to string, changes []store.Change, done []store.Changed,
) (int64, error) {
	if err := s.changed.Load(); err != nil && len(changes) > 0 {
		return 0, *err
	}
	return s.Store.Change(ctx, part, log, from, to, changes, done)
}

// TestLoanGoesBack: units that certainly were not put to use go back to the region that lent them,
// whatever stood in the way here. Where it is not known, they do not.
func TestLoanGoesBack(t *testing.T) {
	broken, notCharged := errBroken, error(store.ErrNotCharged)
	for name, test := range map[string]struct {
		asked, changed *error
		lost, used     bool
	}{
		"the state cannot be read": {asked: &broken},
		"the change is not made":   {changed: &notCharged},
		"the change may be made":   {changed: &broken, lost: true},
		"nothing":                  {used: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := borrowable(t, lasting(kinds[1]), rule.Regions{Tell: 2})
			table := []Region{{"eu", 1}, {"us", 1}}
			own, other := &unwilling{Store: newMemory(t)}, newMemory(t)
			us, err := New(other, Options{Region: "us", Table: table, Own: other, Rules: rulesOf(c)})
			if err != nil {
				t.Fatal(err)
			}
			defer us.Close()
			eu, err := New(own.Store, Options{Region: "eu", Table: table, Own: own,
				Peers: map[string]Neighbour{"us": other}, Rules: rulesOf(c)})
			if err != nil {
				t.Fatal(err)
			}
			defer eu.Close()
			patience.Until(t, "eu can borrow", func() bool { return store.Monotonic() < eu.x.peers[0].agrees.Load() })
			own.asked.Store(test.asked)
			own.changed.Store(test.changed)
			ask(t, eu, c, "k", 440) // of 450
			patience.Until(t, "eu has borrowed", func() bool {
				b := &eu.x.borrower
				b.mu.Lock()
				defer b.mu.Unlock()
				for _, n := range b.loans {
					if n.busy || n.last == 0 {
						return false
					}
				}
				return eu.Stats().Peers[0].Asked > 0
			})
			charges := us.Expand([]store.Charge{charge(c, "k", 0)}, nil)
			ahead := make([]algo.Ahead, 1)
			if _, _, err := other.TakeAhead(context.Background(), 0, 0, charges, ahead, make([]algo.Result, 1)); err != nil {
				t.Fatal(err)
			}
			p := eu.Stats().Peers[0]
			if p.Lost > 0 != test.lost || p.Borrowed > 0 != test.used || ahead[0].Out > 0 != (test.lost || test.used) {
				t.Errorf("%d units are lost, %d in use, and %d out", p.Lost, p.Borrowed, ahead[0].Out)
			}
		})
	}
}
