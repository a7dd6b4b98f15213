//go:build !race

package grpclimit_test

import (
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/grpclimit"
)

// Under the race detector a sync.Pool drops what it holds at random.

// Hearing of answers allocates nothing.
func TestAnsweredAllocations(t *testing.T) {
	heard := 0
	hook := weir.WithHooks(weir.Hooks{Answered: func(*weir.Request, *weir.Decision, weir.Answer) { heard++ }})
	const rules = "limits: [{name: a, allow: 1000000/min}]"
	allocations := func(options ...weir.Option) float64 {
		unary := newGate(t, limiter(t, rules, options...), grpclimit.Options{NoHeaders: true}).Unary
		nothing := func() {}
		return testing.AllocsPerRun(200, func() {
			if err := call(t.Context(), unary, nothing); err != nil {
				t.Fatal(err)
			}
		})
	}
	if with, without := allocations(hook), allocations(); with > without+0.5 || heard < 200 {
		t.Errorf("%v allocations with the hook, %v without; heard %d", with, without, heard)
	}
}
