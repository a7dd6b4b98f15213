package doortest

import (
	"context"
	"sync/atomic"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// FailingStore is a store that can be reached no more.
type FailingStore struct{ Err error }

func (f FailingStore) Take(context.Context, []store.Charge, []algo.Result) (int64, error) {
	return 0, f.Err
}

func (f FailingStore) Release(context.Context, *rule.Counter, []byte, uint64) (bool, error) {
	return false, f.Err
}

func (f FailingStore) Close() error { return nil }

// WaitingStore is a Store, which never waits, as it would be behind a network with a memory of its
// own: what Waits says has to wait for Gate, and all else is decided at once.
type WaitingStore struct {
	store.Store
	Waits  func(charges []store.Charge) bool // nil: every call has to wait
	Gate   <-chan struct{}                   // closed when Take may go on; nil if it may at once
	Far    bool                              // it is a store.Remote
	Begun  atomic.Int64                      // calls of Take
	AtOnce atomic.Int64                      // calls that were decided at once
}

// TakeNow implements store.Prompt.
func (w *WaitingStore) TakeNow(charges []store.Charge, results []algo.Result) (now int64, ok bool) {
	if w.Waits == nil || w.Waits(charges) {
		return 0, false
	}
	now, err := w.Store.Take(context.Background(), charges, results)
	if err == nil {
		w.AtOnce.Add(1)
	}
	return now, err == nil
}

// Take implements store.Store.
func (w *WaitingStore) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	w.Begun.Add(1)
	if w.Gate != nil {
		select {
		case <-w.Gate:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	return w.Store.Take(ctx, charges, results)
}

// Remote implements store.Remote.
func (w *WaitingStore) Remote() bool { return w.Far }

// Unwrap returns the store that is behind the network.
func (w *WaitingStore) Unwrap() store.Store { return w.Store }
