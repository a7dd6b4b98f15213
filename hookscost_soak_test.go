//go:build soak && unix && !race

package weir_test

import (
	"slices"
	"syscall"
	"testing"

	"github.com/weir-rl/weir"
)

// TestCostOfHooks: hooks that watch decisions cost a part of a decision, not a multiple of it.
// BenchmarkHooks measures the figures (docs/operating/capacity.md); the bound here has room for
// other processors, and fails where a hook does work on the deciding path that belongs beside it:
// remembering each refusal once cost three times the decision. It compares processor time, of runs
// that take turns in one process, and by the median: a machine with other work makes all of them
// slower, and some of them much. As it may do so for a while, the bound holds if it holds in one of
// many attempts.
func TestCostOfHooks(t *testing.T) {
	const (
		attempts = 40
		pairs    = 15
		n        = 20_000
	)
	for _, c := range decisions {
		t.Run(c.name, func(t *testing.T) {
			without := decider(t, c.allow, c.keys, weir.Hooks{})
			with := decider(t, c.allow, c.keys, hooksOf[len(hooksOf)-1].make(t))
			without(n)
			with(n)
			const bound = 1.5
			best := 0.0
			for range attempts {
				var ratios []float64
				for range pairs {
					a, b := cpuOf(t, func() { without(n) }), cpuOf(t, func() { with(n) })
					ratios = append(ratios, b/a)
				}
				slices.Sort(ratios)
				if m := ratios[pairs/2]; best == 0 || m < best {
					best = m
				}
				if best <= bound {
					break
				}
			}
			t.Logf("%.3f times a decision without hooks", best)
			if best > bound {
				t.Errorf(
					"with all hooks a decision costs %.3f times what it does without, in the best of %d attempts; want %.2f", best, attempts, bound)
			}
		})
	}
}

// cpuOf returns the processor time of f, in µs, with other work of this process.
func cpuOf(t *testing.T, f func()) float64 {
	t.Helper()
	used := func() int64 {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			t.Fatal(err)
		}
		return u.Utime.Nano() + u.Stime.Nano()
	}
	before := used()
	f()
	return float64(used()-before) / 1e3
}
