//go:build unix

package leasecheck_test

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
)

// The number and the first seed of the runs of a kind; those of the next runs follow it.
const (
	runsVariable = "WEIR_LEASE_RUNS"
	seedVariable = "WEIR_LEASE_SEED"
)

// runs makes some runs, one after the other or as many at once as go test -parallel says.
func runs(t *testing.T, m mode, f faults, each func(t *testing.T, f *findings)) {
	seed := number(seedVariable, rand.Uint64()>>16)
	for i := range number(runsVariable, 2) {
		t.Run(fmt.Sprintf("seed %d", seed+i), func(t *testing.T) {
			t.Parallel()
			p := drawPlan(seed+i, m, f)
			found := run(t, p)
			t.Logf("%s over %v, seed %d: %v", m, p.Length, p.Seed, found)
			if found.Void {
				t.Log("nothing is known of this run: the machine's clock was set")
				return
			}
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
	if testing.Short() {
		t.Skip("-short: waits for a real failover")
	}
	runs(t, overRedis, processes|failovers, none)
}

// TestControlOfFallback: what is decided without Redis is beside the limit, but what Redis decides
// is within it, save for what it is asked to take back again (findings.Excused).
func TestControlOfFallback(t *testing.T) {
	runs(t, overFallback, processes|network|orders, none)
}

// TestLent: what Redis lends to the simplest holders, and what it decides beside, is never too much.
func TestLent(t *testing.T) {
	var lent atomic.Int64
	runs(t, simple, processes|network|orders, func(t *testing.T, f *findings) {
		none(t, f)
		lent.Add(int64(f.Admitted[leased]))
	})
	t.Cleanup(func() {
		if lent.Load() == 0 {
			t.Error("nothing was lent")
		}
	})
}

// TestLentOfOblivion: where Redis forgets, as much more may be admitted once as is lent at most.
func TestLentOfOblivion(t *testing.T) { runs(t, simple, processes|restarts, none) }

// TestLentOfFailover: the same where a replica takes over.
func TestLentOfFailover(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: waits for a real failover")
	}
	runs(t, simple, processes|failovers, none)
}

// TestLentAsleep: the same while a node is stopped for 2 to 30 s, beside what else happens.
func TestLentAsleep(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: takes as long as a node sleeps")
	}
	runs(t, simple, processes|network|orders|sleep, none)
}

// TestNotices: stores that admit too much are found out, most of them in the first run.
func TestNotices(t *testing.T) {
	const most = 20
	for _, m := range []mode{broken, hasty, tardy} {
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
