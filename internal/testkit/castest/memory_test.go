package castest_test

import (
	"testing"

	"github.com/weir-rl/weir/internal/testkit/castest"
	"github.com/weir-rl/weir/store/cas"
	"github.com/weir-rl/weir/store/storetest"
)

// The engine in memory keeps the contract, so that tests on it say something.
func TestEngine(t *testing.T) {
	for _, apart := range []bool{false, true} {
		name := "spans"
		if apart {
			name = "apart"
		}
		t.Run(name, func(t *testing.T) {
			storetest.Engine(t, func(*testing.T) cas.Engine {
				m := castest.New()
				m.Apart = apart
				return m
			})
		})
	}
}
