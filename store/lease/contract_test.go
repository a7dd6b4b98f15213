package lease_test

import (
	"context"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/lease"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/storetest"
)

// virtualLender is a memory store that says when it was asked by the clock of the test.
type virtualLender struct {
	*memory.Store
	at func() int64
}

func (l virtualLender) TakeAhead(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, ahead []algo.Ahead,
	results []algo.Result,
) (now, asked int64, err error) {
	asked = l.at()
	now, _, err = l.Store.TakeAhead(ctx, minWait, maxWait, charges, ahead, results)
	return now, asked, err
}

func newStore(t *testing.T, clock func() int64) store.Store {
	t.Helper()
	m, err := memory.New(memory.Options{Clock: clock})
	if err != nil {
		t.Fatal(err)
	}
	var primary store.Lender = m
	o := lease.Options{}
	if clock != nil {
		o.Clock = func() int64 { return clock() * 1000 }
		primary = virtualLender{m, o.Clock}
	}
	s, err := lease.New(primary, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestContract(t *testing.T) {
	storetest.Run(t, newStore)
}

func TestMatrix(t *testing.T) { storetest.Matrix(t, newStore(t, nil)) }
