//go:build soak

package regions

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// TestRunsOnRedis makes recorded runs over real Redis servers. WEIR_REGIONS_RUNS is how many,
// WEIR_REGIONS_AT_ONCE how many at a time, and WEIR_REGIONS_SEED the seed of the first; the next
// ones have the seeds after it. Clocks that differ need a C compiler.
func TestRunsOnRedis(t *testing.T) {
	runs, lanes := number("WEIR_REGIONS_RUNS", 20), number("WEIR_REGIONS_AT_ONCE", 2)
	seed := number("WEIR_REGIONS_SEED", rand.Uint64N(1<<32))
	sum := &summary{of: runs, cells: map[cell]*row{}}
	t.Cleanup(func() { t.Logf("\n%v", sum) }) // after all lanes
	for lane := range lanes {
		t.Run(fmt.Sprint("lane ", lane), func(t *testing.T) {
			t.Parallel()
			for i := lane; i < runs; i += lanes {
				t.Run(fmt.Sprint("seed ", seed+i), func(t *testing.T) {
					r := run(t, drawPlan(seed+i, false), nil)
					if t.Logf("%d of %d: %v", sum.add(r), runs, r); r.found != "" {
						t.Error(r.found)
					}
				})
			}
		})
	}
}

// TestRollsOnRedis changes tables and limits over real Redis servers. WEIR_REGIONS_ROLLS is how
// many changes are made, and WEIR_REGIONS_SEED the seed of the first.
func TestRollsOnRedis(t *testing.T) {
	seed := number("WEIR_REGIONS_SEED", rand.Uint64N(1<<32))
	for i := range number("WEIR_REGIONS_ROLLS", 10) {
		if found := drawRoll(seed+i).run(t, false); found != "" {
			t.Error(found)
		}
	}
}

// TestHealsOften: TestHeals with cuts of some seconds more. WEIR_REGIONS_HEALS is how many of each
// kind there are.
func TestHealsOften(t *testing.T) {
	heals(t, int(number("WEIR_REGIONS_HEALS", 10)), 4*time.Second)
}
