package proofs

import (
	"strings"
	"testing"
)

// regionsModels are what the models of regions are checked with, and how many states there are at
// least: far fewer would mean that something can happen no more.
var regionsModels = []struct {
	name, model string
	defines     []string
	states      int
}{
	{"fixed_window", "regions.pml", []string{"ALGORITHM=FIXED"}, 43_000},
	{"fixed_window, three regions", "regions.pml", []string{"ALGORITHM=FIXED", "R=3"}, 690_000},
	{"sliding_log", "regions.pml", []string{"ALGORITHM=LOG"}, 100_000},
	{
		"sliding_log, three regions", "regions.pml",
		[]string{"ALGORITHM=LOG", "R=3", "C0=2", "C1=1", "W=2"}, 48_000,
	},
	{"hearing", "hearing.pml", nil, 1_000_000},
}

// regionsMutants break one rule each. A fixed window bears three of them, since what is lent ends
// with the window; in a log there are no windows that could be mistaken.
var regionsMutants = []struct{ name, model, algorithms string }{
	{"EARLY", "regions.pml", "FIXED LOG"},
	{"LATE", "regions.pml", "LOG"},
	{"FROM_ARRIVAL", "regions.pml", "LOG"},
	{"TWICE", "regions.pml", "FIXED LOG"},
	{"ANY_WINDOW", "regions.pml", "FIXED"},
	{"TOO_MUCH", "regions.pml", "FIXED LOG"},
	{"LEND_BEYOND", "regions.pml", "FIXED LOG"},
	{"OUT_IGNORED", "regions.pml", "FIXED LOG"},
	{"FORGET_AT_END", "regions.pml", "FIXED LOG"},
	{"CHARGE_AT_GRANT", "regions.pml", "LOG"},
	{"RETURNS", "regions.pml", "FIXED LOG"},
	{"NO_COMPARE", "hearing.pml", "FIXED"}, // it knows no algorithm
	{"CHARGE_FIRST", "hearing.pml", "FIXED"},
	{"MOVE_FIRST", "hearing.pml", "FIXED"},
	{"GAP_FIRST", "hearing.pml", "FIXED"},
	{"SPLIT_COPY", "hearing.pml", "FIXED"},
}

// TestRegions lets Spin walk through all states of regions.pml and hearing.pml, and then find what
// is wrong with each mutant of them.
func TestRegions(t *testing.T) {
	needSpin(t)
	for _, m := range regionsModels {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			v := verify(t, m.model, "-O2", m.defines...)
			if v.errors > 0 {
				t.Fatalf("it does not hold (README.md says how to see the steps):\n%s", v.output)
			}
			if v.states < m.states {
				t.Errorf("%d states were reached, at least %d are there", v.states, m.states)
			}
			t.Logf("%d states, %s", v.states, v.memory)
		})
	}
	for _, m := range regionsMutants {
		for algorithm := range strings.FieldsSeq(m.algorithms) {
			t.Run(m.name+" "+algorithm, func(t *testing.T) {
				t.Parallel()
				// It ends soon, and compiles five times as fast.
				v := verify(t, m.model, "-O0", "ALGORITHM="+algorithm, "MUTANT="+m.name)
				if v.errors == 0 || !strings.Contains(v.output, "assertion violated") {
					t.Errorf("nothing is found in %d states", v.states)
				}
			})
		}
	}
}
