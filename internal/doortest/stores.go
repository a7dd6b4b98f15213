package doortest

import (
	"context"

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
