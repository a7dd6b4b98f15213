package proofs

import (
	"strings"
	"testing"
)

// leaseLimits are the limits that lease.pml is checked with, and how many states there are at
// least: far fewer would mean that something can happen no more.
var leaseLimits = map[string]struct {
	defines []string
	states  int
}{
	"fixed_window":   {[]string{"ALGORITHM=FIXED"}, 170_000},
	"sliding_log":    {[]string{"ALGORITHM=LOG"}, 530_000},
	"token_bucket":   {[]string{"ALGORITHM=BUCKET", "N=2", "B=3"}, 600_000},
	"sliding_window": {[]string{"ALGORITHM=SLIDING", "N=2", "W=2"}, 220_000},
}

// leaseMutants break one rule of the protocol each, with some algorithms. The rules of nodes and of
// messages are the same for all of them, so one is enough there. A fixed window bears the first
// mutant and the last one, since leases end with the window.
var leaseMutants = []struct {
	name       string
	algorithms string
}{
	{"CHARGE_AT_GRANT", "LOG BUCKET SLIDING"},
	{"FORGET_AT_END", "FIXED LOG BUCKET SLIDING"},
	{"TELL_TWICE", "LOG"},
	{"USE_AFTER_RETURN", "LOG"},
	{"LATE", "FIXED LOG BUCKET"},
	{"FROM_ARRIVAL", "LOG"},
	{"NO_FENCE", "LOG"},
	{"OUT_IGNORED", "FIXED LOG BUCKET"},
	{"LEND_BEYOND", "LOG"},
	{"TOLD_IS_RETURNED", "FIXED LOG BUCKET"},
	{"HEAR_TWICE", "LOG"},
	{"STAMP_EARLY", "LOG BUCKET SLIDING"},
}

// TestLease lets Spin walk through all states of lease.pml, and then find what is wrong with each
// mutant of it.
func TestLease(t *testing.T) {
	needSpin(t)
	for name, l := range leaseLimits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			v := verify(t, "lease.pml", "-O2", l.defines...)
			if v.errors > 0 {
				t.Fatalf("it does not hold (README.md says how to see the steps):\n%s", v.output)
			}
			if v.states < l.states {
				t.Errorf("%d states were reached, at least %d are there", v.states, l.states)
			}
			t.Logf("%d states, %s", v.states, v.memory)
		})
	}
	for _, m := range leaseMutants {
		for algorithm := range strings.FieldsSeq(m.algorithms) {
			t.Run(m.name+" "+algorithm, func(t *testing.T) {
				t.Parallel()
				// It ends soon, and compiles five times as fast.
				v := verify(t, "lease.pml", "-O0", "ALGORITHM="+algorithm, "MUTANT="+m.name)
				if v.errors == 0 || !strings.Contains(v.output, "assertion violated") {
					t.Errorf("nothing is found in %d states", v.states)
				}
			})
		}
	}
}
