//go:build unix

package leasecheck_test

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/weir-rl/weir/internal/effort"
)

// The number and the first seed of the runs of a kind; those of the next runs follow it.
const (
	runsVariable = "WEIR_LEASE_RUNS"
	seedVariable = "WEIR_LEASE_SEED"
)

// runs makes some runs, as many at once as go test -parallel says.
func runs(t *testing.T, m mode, f faults, each func(t *testing.T, f *findings)) {
	t.Parallel()
	few := uint64(2)
	if f&(failovers|sleep) != 0 {
		few = 1 // they take longer
	}
	seed, n := number(seedVariable, rand.Uint64()>>16), number(runsVariable, few)
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
			found := run(t, p)
			t.Logf("%s over %v, seed %d: %v", m, p.Length, p.Seed, found)
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
		if f.Admitted[exact] == 0 || f.Admitted[leased]+f.Admitted[local] > 0 {
			t.Errorf("Redis alone decides here: %v", f)
		}
	})
}

// TestControlOfOblivion: the same where Redis forgets; it may admit as much again then.
func TestControlOfOblivion(t *testing.T) {
	runs(t, overRedis, processes|restarts, none)
}

// TestControlOfFailover: the same where it forgets what its replica has not heard of.
func TestControlOfFailover(t *testing.T) {
	effort.Long(t, "waits for a real failover")
	runs(t, overRedis, processes|failovers, none)
}

// TestControlOfFallback: what is decided without Redis is beside the limit, but what Redis decides
// is within it, save for what it is asked to take back again (findings.Excused).
func TestControlOfFallback(t *testing.T) {
	runs(t, overFallback, processes|network|orders, none)
}

// TestLent: what Redis lends to the simplest holders, and what it decides beside, is never too
// much.
func TestLent(t *testing.T) { runs(t, simple, processes|network|orders, none) }

// TestNotices: stores that admit too much are found out, most of them in the first run.
func TestNotices(t *testing.T) {
	t.Parallel()
	const most = 20
	for _, m := range []mode{broken, hasty, greedy} {
		t.Run(string(m), func(t *testing.T) {
			t.Parallel()
			seed := number(seedVariable, rand.Uint64()>>16)
			for i := range uint64(most) {
				p := drawPlan(seed+i, m, processes|network)
				found := run(t, p)
				t.Logf("%s over %v, seed %d: %v", m, p.Length, p.Seed, found)
				if len(found.Violations) > 0 {
					return
				}
			}
			t.Errorf("no violation was found in %d runs", most)
		})
	}
}
