package memory

import (
	"testing"

	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/storetest"
)

func TestRegional(t *testing.T) {
	storetest.Regional(t,
		func(t *testing.T, clock func() int64) store.Store { return newTest(t, Options{Clock: clock}) })
}
