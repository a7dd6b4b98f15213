//go:build !race

package weir_test

import (
	"math"
	"testing"
)

// TestHooksAllocateNothing: what watches decisions allocates nothing, on refusals and admissions.
// TestCostOfHooks, a soak, says what time it takes.
func TestHooksAllocateNothing(t *testing.T) {
	for _, c := range decisions {
		decide := decider(t, c.allow, c.keys, hooksOf[len(hooksOf)-1].make(t))
		// Until what is remembered has its memory, and the keys are sampled.
		for range 5 {
			decide(2 * c.keys)
		}
		// The goroutine that gathers allocates, and remembered slots are filled for the
		// first time, now and then: on a busy machine all of that in one attempt.
		const attempts = 40
		best := math.Inf(1)
		for range attempts {
			if best = min(best, testing.AllocsPerRun(20, func() { decide(1000) })); best <= 30 {
				break
			}
		}
		if best > 30 {
			t.Errorf("%s: %v allocations in 1,000 decisions, in the best of %d attempts", c.name, best, attempts)
		}
	}
}
