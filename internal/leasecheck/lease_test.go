//go:build unix

package leasecheck_test

import "testing"

// TestLeases: what nodes with store/lease admit, together with what Redis does, is never too much.
func TestLeases(t *testing.T) { runs(t, overLease, processes|network|orders, none) }

// TestLeasesOfOblivion: where Redis forgets, as much more may be admitted once as is lent at most.
func TestLeasesOfOblivion(t *testing.T) { runs(t, overLease, processes|restarts, none) }

// TestLeasesOfFailover: the same where a replica takes over.
func TestLeasesOfFailover(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: waits for a real failover")
	}
	runs(t, overLease, processes|failovers, none)
}

// TestLeasesUnderFallback: the same with store/fallback above, which decides some calls without
// Redis, beside the limit.
func TestLeasesUnderFallback(t *testing.T) { runs(t, overBoth, processes|network|orders, none) }

// TestLeasesAsleep: the same while a node is stopped for 2 to 30 s, beside what else happens.
func TestLeasesAsleep(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: takes as long as a node sleeps")
	}
	runs(t, overLease, processes|network|orders|sleep, none)
}
