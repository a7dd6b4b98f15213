package proofs

import (
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/effort"
)

// checked is a model with bounds, and how many states there are at least: far fewer would mean that
// something can happen no more.
type checked struct {
	name, model string
	defines     []string
	states      int
}

// leaseLimits are the limits that lease.pml is checked with; TestLarger has larger bounds.
var leaseLimits = []checked{
	{"fixed_window", "lease.pml", []string{"ALGORITHM=FIXED", "N=2"}, 94_000},
	{"sliding_log", "lease.pml", []string{"ALGORITHM=LOG", "N=2"}, 112_000},
	{"token_bucket", "lease.pml", []string{"ALGORITHM=BUCKET", "N=2", "B=3", "W=2"}, 155_000},
	{"sliding_window", "lease.pml", []string{"ALGORITHM=SLIDING", "N=2", "W=2"}, 220_000},
}

// mutant breaks one rule, with some algorithms. In the gate one of them is enough, the first.
type mutant struct{ name, model, algorithms string }

// leaseMutants break one rule of the protocol each, with some algorithms. The rules of nodes and of
// messages are the same for all of them, so one is enough there. A fixed window bears the first
// mutant and the last one, since leases end with the window.
var leaseMutants = []mutant{
	{"CHARGE_AT_GRANT", "lease.pml", "LOG BUCKET SLIDING"},
	{"FORGET_AT_END", "lease.pml", "FIXED LOG BUCKET SLIDING"},
	{"TELL_TWICE", "lease.pml", "LOG"},
	{"USE_AFTER_RETURN", "lease.pml", "LOG"},
	{"LATE", "lease.pml", "FIXED LOG BUCKET"},
	{"FROM_ARRIVAL", "lease.pml", "LOG"},
	{"NO_FENCE", "lease.pml", "LOG"},
	{"OUT_IGNORED", "lease.pml", "FIXED LOG BUCKET"},
	{"LEND_BEYOND", "lease.pml", "LOG"},
	{"TOLD_IS_RETURNED", "lease.pml", "FIXED LOG BUCKET"},
	{"HEAR_TWICE", "lease.pml", "LOG"},
	{"STAMP_EARLY", "lease.pml", "LOG BUCKET SLIDING"},
}

// TestLease lets Spin walk through all states of lease.pml, and then find what is wrong with each
// mutant of it.
func TestLease(t *testing.T) {
	needSpin(t)
	effort.Long(t, "compiles some twenty checkers, and runs each of them")
	for _, l := range leaseLimits {
		t.Run(l.name, l.holds)
	}
	for _, m := range leaseMutants {
		algorithm, _, _ := strings.Cut(m.algorithms, " ")
		t.Run(m.name+" "+algorithm, func(t *testing.T) { m.isCaught(t, algorithm) })
	}
}

// holds walks through all states.
func (c checked) holds(t *testing.T) {
	t.Parallel()
	optimize := "-O0" // compiles in a quarter of the time, and runs for twice as long
	if c.states > 100_000 {
		optimize = "-O1"
	}
	v := verify(t, c.model, optimize, c.defines...)
	if v.errors > 0 {
		t.Fatalf("it does not hold (README.md says how to see the steps):\n%s", v.output)
	}
	if v.states < c.states {
		t.Errorf("%d states were reached, at least %d are there", v.states, c.states)
	}
	t.Logf("%d states, %s", v.states, v.memory)
}

// isCaught walks through the states up to the first that is wrong.
func (m mutant) isCaught(t *testing.T, algorithm string) {
	t.Parallel()
	v := verify(t, m.model, "-O0", "ALGORITHM="+algorithm, "MUTANT="+m.name)
	if v.errors == 0 || !strings.Contains(v.output, "assertion violated") {
		t.Errorf("nothing is found in %d states", v.states)
	}
}
