//go:build unix

package leasecheck_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// The number and the first seed of the runs of a kind; those of the next runs follow it.
const (
	runsVariable = "WEIR_LEASE_RUNS"
	seedVariable = "WEIR_LEASE_SEED"
)

// The seed of the runs of the gate: plans with leases in them.
const gateSeed = 1

// inGate reports whether this is no soak.
func inGate() bool { return os.Getenv(runsVariable) == "" }

// long is effort.Long, where this is no soak.
func long(t *testing.T, why string) {
	t.Helper()
	if inGate() {
		effort.Long(t, why)
	}
}

// runs makes some runs, as many at once as go test -parallel says. Without WEIR_LEASE_RUNS it makes
// one, of always the same plan and short; how it goes is another matter.
func runs(t *testing.T, m mode, f faults, each func(t *testing.T, f *findings)) {
	t.Parallel()
	seed, n := number(seedVariable, gateSeed), number(runsVariable, 1)
	if !inGate() {
		seed = number(seedVariable, rand.Uint64()>>16)
	}
	var lent atomic.Int64
	if m.lends() && n >= 20 { // in a few there may be no limit that lends, or none that is asked often enough
		t.Cleanup(func() {
			if lent.Load() == 0 {
				t.Error("nothing was admitted with leases")
			}
		})
	}
	for i := range n {
		t.Run(fmt.Sprintf("seed %d", seed+i), func(t *testing.T) {
			t.Parallel()
			p := drawPlan(seed+i, m, f)
			if p.Length -= p.Longest; inGate() {
				p.Length = 800 * time.Millisecond
				if f&(restarts|failovers) != 0 {
					p.Length = 1500 * time.Millisecond
				}
			}
			p.Length += p.Longest
			var found *findings
			patience.Until(t, "a run admits something", func() bool { // a machine may stand still
				found = run(t, p)
				t.Logf("%s over %v, seed %d: %v", m, p.Length, p.Seed, found)
				if found.StoodStill && len(found.Violations) > 0 {
					return false
				}
				return found.Void || found.Admitted[exact]+found.Admitted[leased]+found.Admitted[local] > 0
			})
			if found.Void {
				t.Log("nothing is known of this run: the machine's clock was set")
				return
			}
			lent.Add(int64(found.Admitted[leased]))
			each(t, found)
		})
	}
}

func none(t *testing.T, f *findings) {
	for _, v := range f.Violations {
		t.Error(v)
	}
}

// TestControl: what Redis alone decides is never too much, whatever happens to nodes and networks.
func TestControl(t *testing.T) {
	runs(t, overRedis, processes|network|orders, func(t *testing.T, f *findings) {
		none(t, f)
		if f.Admitted[leased]+f.Admitted[local] > 0 {
			t.Errorf("Redis alone decides here: %v", f)
		}
	})
}

// TestControlOfOblivion: the same where Redis forgets; it may admit as much again then.
func TestControlOfOblivion(t *testing.T) {
	long(t, "TestControl runs in its place")
	runs(t, overRedis, processes|restarts, none)
}

// TestControlOfFallback: decisions without Redis are beside the limit, but Redis' decisions are
// within it, except for units that it is asked to take back again (findings.Excused).
func TestControlOfFallback(t *testing.T) {
	long(t, "TestControl runs in its place")
	runs(t, overFallback, processes|network|orders, none)
}

// TestLent: what Redis lends to the simplest holders, and what it decides beside, is never too
// much.
func TestLent(t *testing.T) {
	long(t, "TestLeases runs in its place")
	runs(t, simple, processes|network|orders, none)
}

// TestNotices: stores that admit too much are found out, most of them in the first run.
func TestNotices(t *testing.T) {
	t.Parallel()
	for _, m := range []mode{broken, hasty, greedy} {
		t.Run(string(m), func(t *testing.T) {
			if m != broken {
				effort.Long(t, "one store that admits too much is enough")
			}
			t.Parallel()
			seed := number(seedVariable, gateSeed)
			patience.Until(t, "a violation is found", func() bool {
				p := drawPlan(seed, m, processes|network)
				p.Length = min(p.Length, 2*time.Second)
				found := run(t, p)
				t.Logf("%s over %v, seed %d: %v", m, p.Length, p.Seed, found)
				seed++
				return len(found.Violations) > 0
			})
		})
	}
}
