package proofs

import (
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/effort"
)

// regionsModels are what the models of regions are checked with; TestLarger has larger bounds. The
// first one is checked in a quick run, too.
var regionsModels = []checked{
	{"fixed_window, short", "regions.pml", []string{"ALGORITHM=FIXED", "C0=2", "C1=2", "W=2"}, 13_000},
	{"fixed_window", "regions.pml", []string{"ALGORITHM=FIXED"}, 43_000},
	{
		"fixed_window, three regions", "regions.pml",
		[]string{"ALGORITHM=FIXED", "R=3", "C0=2", "C1=1", "W=2"}, 100_000,
	},
	{"sliding_log", "regions.pml", []string{"ALGORITHM=LOG"}, 100_000},
	{
		"sliding_log, three regions", "regions.pml",
		[]string{"ALGORITHM=LOG", "R=3", "C0=2", "C1=1", "W=2"}, 48_000,
	},
	{"hearing", "hearing.pml", nil, 1_000_000},
}

// regionsMutants break one rule each. A fixed window bears three of them, since what is lent ends
// with the window; in a log there are no windows that could be mistaken.
var regionsMutants = []mutant{
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
	models, mutants := regionsModels, regionsMutants
	if !effort.All() {
		models, mutants = models[:1], mutants[:1]
	}
	for _, m := range models {
		t.Run(m.name, m.holds)
	}
	for _, m := range mutants {
		algorithm, _, _ := strings.Cut(m.algorithms, " ")
		t.Run(m.name+" "+algorithm, func(t *testing.T) { m.isCaught(t, algorithm) })
	}
}
