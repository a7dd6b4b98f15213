package cas_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/castest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/cas"
)

// TestSettlementGivenUp: a settlement whose caller gave up, and that another node then overtakes,
// is made all the same: it counts as made.
func TestSettlementGivenUp(t *testing.T) {
	m := castest.New()
	s, other, c := open(t, m, cas.Options{}), open(t, m, cas.Options{}), counterOf(t, 1, wide)
	results := take(t, s, charge(c, "k", 10))
	at, err := s.Take(t.Context(), []store.Charge{charge(c, "k", 0)}, results)
	if err != nil {
		t.Fatal(err)
	}
	take(t, other, charge(c, "k", 1))
	ctx, giveUp := context.WithCancel(t.Context())
	settled := make(chan error)
	var begun atomic.Bool
	m.Before = func(_ context.Context, call castest.Call) error {
		if call == castest.Swap && !begun.Swap(true) {
			giveUp()
			if err := <-settled; err == nil || errors.Is(err, store.ErrNotCharged) {
				t.Errorf("its caller gave up, and is told %v", err)
			}
			take(t, other, charge(c, "k", 1))
		}
		return nil
	}
	settled <- s.Settle(ctx,
		[]store.Settlement{{Counter: c, Limit: c.Limit, Key: []byte("k"), At: at, Reserved: 10, Actual: 4}})
	patience.Until(t, "what was reserved too much is given back", func() bool { return used(t, other, c, "k") == 6 })
}
