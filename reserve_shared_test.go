package weir_test

import (
	"testing"
	"time"
)

// One token bucket that many requests share gives hardly anything back at a commit, since it
// refills while they are answered: that is why docs/guides/costs.md and lint name other algorithms.
func TestSharedBucketOnAzureTrace(t *testing.T) {
	trace := azureTrace(t)
	how := holders{users: 1, bound: generatedAt(trace, 1), commit: true, timeout: time.Hour}
	spent := func(limit string) float64 {
		r := replayReservations(t, limit, trace, how)
		share := float64(r.tokens()) / (500_000 * float64(r.span) / float64(minute))
		t.Logf("%s: %.1f %% of the budget was spent, %d of %d were refused", limit, 100*share, r.refused, len(trace))
		return share
	}
	bucket := spent("algorithm: token_bucket, allow: {rate: 500000/min, burst: 50000}")
	window := spent("algorithm: sliding_window, buckets: 60, allow: 500000/min")
	how.commit = false
	blind := spent("algorithm: token_bucket, allow: {rate: 500000/min, burst: 50000}")
	if bucket > 0.6*window || bucket > 1.1*blind {
		t.Errorf(
			"a shared bucket spends %.3f of the budget, %.3f without commits, a window %.3f: the docs say otherwise", bucket, blind, window)
	}
}
