//go:build unix

package leasecheck_test

import "testing"

// TestLeases: the admissions of nodes with store/lease, together with Redis', are never too many.
func TestLeases(t *testing.T) { runs(t, overLease, processes|network|orders, none) }

// TestLeasesRefunded: the same where clients give units back, save for as many more as these are.
func TestLeasesRefunded(t *testing.T) {
	long(t, "TestLeases runs in its place")
	runs(t, overLease, processes|network|orders|refunds, none)
}

// TestLeasesCostAfter: the same where requests cost more or less in the end than was charged.
func TestLeasesCostAfter(t *testing.T) {
	long(t, "TestLeases runs in its place")
	runs(t, overLease, processes|network|orders|costsAfter, none)
}

// TestLeasesOfCalendar: the same while a day ends.
func TestLeasesOfCalendar(t *testing.T) {
	long(t, "TestLeases runs in its place")
	runs(t, overLease, processes|network|orders|calendars, none)
}

// TestLeasesScheduled: the same where numbers change twice a second.
func TestLeasesScheduled(t *testing.T) {
	long(t, "TestLeases runs in its place")
	runs(t, overLease, processes|network|orders|schedules, none)
}

// TestLeasesOfOblivion: where Redis forgets, as much more may be admitted once as is lent at most.
func TestLeasesOfOblivion(t *testing.T) {
	long(t, "TestLeases runs in its place")
	runs(t, overLease, processes|restarts, none)
}

// TestLeasesUnderFallback: the same with store/fallback above, which decides some calls without
// Redis, beside the limit.
func TestLeasesUnderFallback(t *testing.T) {
	long(t, "TestLeases runs in its place")
	runs(t, overBoth, processes|network|orders, none)
}
