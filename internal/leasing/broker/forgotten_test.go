package broker

import (
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
)

// TestForgottenGivesBack: nothing that a bucket was assigned is missing once Envoy has
// forgotten it, though its limit has a long window.
func TestForgottenGivesBack(t *testing.T) {
	for name, limit := range map[string]algo.Config{
		"fixed window":   {Algorithm: algo.FixedWindow, N: 3000, Window: time.Hour, Lease: 10, LeaseFor: 11 * time.Second},
		"sliding window": {Algorithm: algo.SlidingWindow, Buckets: 1, N: 3000, Window: time.Hour, Lease: 10, LeaseFor: 11 * time.Second},
	} {
		for _, perSecond := range []int{1, 3, 20} {
			w := newWorld(t, 1, limit)
			w.slow = func() int64 { return secondNs / 100 }
			for range 20 * 20 {
				for range perSecond {
					_ = w.request(0, "a")
				}
				w.advance(t, secondNs/20*int64(1), func() { w.invariant(t) })
			}
			asked := w.now
			for w.streams[0].holder.Len() > 0 {
				w.advance(t, secondNs/10, func() { w.invariant(t) })
			}
			took := time.Duration(w.now - asked)
			w.advance(t, 30*secondNs, func() {}) // in which all that is out ends
			c := &w.limits[0]
			results := make([]algo.Result, 1)
			if _, err := w.store.Take(t.Context(), []store.Charge{{Counter: c.Counter, Limit: c.Limit, Key: []byte(c.Key)}}, results); err != nil {
				t.Fatal(err)
			}
			if used := limit.N - results[0].Remaining; used != w.used[0] {
				t.Errorf("%s, %d requests a second: %d units count as used, and %d are", name, 20*perSecond, used,
					w.used[0])
			}
			if most := time.Duration(idleReports+2) * Interval; took > most {
				t.Errorf("%s, %d requests a second: it was forgotten after %v, and not %v", name, 20*perSecond, took,
					most)
			}
		}
	}
}
