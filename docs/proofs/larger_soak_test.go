//go:build soak

package proofs

import (
	"slices"
	"strings"
	"testing"
)

// TestLarger checks the models with larger bounds than TestLease and TestRegions, and each mutant
// with all the algorithms that show it.
func TestLarger(t *testing.T) {
	needSpin(t)
	for _, c := range []checked{
		{"leases, fixed_window", "lease.pml", []string{"ALGORITHM=FIXED"}, 170_000},
		{"leases, sliding_log", "lease.pml", []string{"ALGORITHM=LOG"}, 530_000},
		{"leases, token_bucket", "lease.pml", []string{"ALGORITHM=BUCKET", "N=2", "B=3"}, 600_000},
		{"regions, fixed_window, three", "regions.pml", []string{"ALGORITHM=FIXED", "R=3"}, 690_000},
	} {
		t.Run(c.name, c.holds)
	}
	for _, m := range slices.Concat(leaseMutants, regionsMutants) {
		for algorithm := range strings.FieldsSeq(m.algorithms) {
			t.Run(m.name+" "+algorithm, func(t *testing.T) { m.isCaught(t, algorithm) })
		}
	}
}
