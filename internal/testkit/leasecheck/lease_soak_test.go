//go:build soak && unix

package leasecheck_test

import "testing"

// TestControlOfFailover: what Redis alone decides is never too much, where a replica takes over
// that has not heard of all.
func TestControlOfFailover(t *testing.T) { runs(t, overRedis, processes|failovers, none) }

// TestLeasesOfFailover: the same with leases, as much of which may be admitted once more as is lent
// at most.
func TestLeasesOfFailover(t *testing.T) { runs(t, overLease, processes|failovers, none) }

// TestLeasesAsleep: leases, while a node is stopped for 2 to 30 s, beside what else happens.
func TestLeasesAsleep(t *testing.T) { runs(t, overLease, processes|network|orders|sleep, none) }
