package store_test

import (
	"testing"

	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/storetest"
)

// TestMapStore: the store of the example keeps the whole contract.
func TestMapStore(t *testing.T) {
	storetest.Run(t, func(_ *testing.T, clock func() int64) store.Store { return newMapStore(clock) })
}
