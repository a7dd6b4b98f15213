package broker

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
)

// TestUsedUpIsShared: two Envoys that want more than a limit has share it, also if one of them
// always reports just before the other, at one node or at two; and no less is let through for that.
func TestUsedUpIsShared(t *testing.T) {
	for _, c := range []struct {
		name  string
		limit algo.Config
		loads [2]int  // requests in 10 s
		least float64 // share of the best possible requests
		fair  float64 // share of the one that has less, by its fair one
	}{
		{"a bucket", algo.Config{Algorithm: algo.TokenBucket, N: 300, Window: 30 * time.Second, Lease: 90, LeaseFor: 11 * time.Second}, [2]int{300, 300}, 0.9, 0.6},
		{"a slow bucket", algo.Config{Algorithm: algo.TokenBucket, N: 30, Window: time.Minute, Lease: 90, LeaseFor: 11 * time.Second}, [2]int{300, 300}, 0.9, 0.6},
		{"unequal", algo.Config{Algorithm: algo.TokenBucket, N: 300, Window: 30 * time.Second, Lease: 90, LeaseFor: 11 * time.Second}, [2]int{600, 20}, 0.9, 0.6},
		{"a window", algo.Config{Algorithm: algo.FixedWindow, N: 600, Window: time.Minute, Lease: 50, LeaseFor: 11 * time.Second}, [2]int{300, 300}, 0.9, 0.6},
		{"a long window", algo.Config{Algorithm: algo.SlidingWindow, Buckets: 10, N: 600, Window: time.Minute, Lease: 50, LeaseFor: 11 * time.Second}, [2]int{300, 300}, 0.9, 0.6},
	} {
		for _, nodes := range []int{1, 2} {
			for _, first := range []int64{secondNs / 10, secondNs * 2} { // how much earlier the first one reports
				t.Run(fmt.Sprintf("%s/%d nodes/%v", c.name, nodes, time.Duration(first)), func(t *testing.T) {
					w := newNodes(t, 2, nodes, c.limit)
					w.slow = func() int64 { return secondNs / 100 }
					w.envoys[1].tick += first
					const warm, all = 60, 360 // seconds
					var each [2]int
					for i := range all * 50 {
						for e, load := range c.loads {
							for range (i+1)*load/500 - i*load/500 {
								if w.request(e, "a") && i >= warm*50 {
									each[e]++
								}
							}
						}
						w.advance(t, secondNs/50, func() {})
					}
					best := float64(c.limit.N) / c.limit.Window.Seconds() * (all - warm)
					small := min(float64(c.loads[1])/10*(all-warm), best/2)
					t.Logf("%v of %.0f", each, best)
					if admitted := float64(each[0] + each[1]); admitted < c.least*best {
						t.Errorf("%v of %.0f were let through", admitted, best)
					}
					if least := float64(min(each[0], each[1])); least < c.fair*small {
						t.Errorf("%v are shared as %v; the fair share is %.0f", best, each, small)
					}
				})
			}
		}
	}
}

// TestBursts: requests that come all at once find what has come by since the last ones, as looks
// between the reports do not take it from them.
func TestBursts(t *testing.T) {
	for _, size := range []int{100, 150, 300, 1000} {
		for _, every := range []int64{5, 7} {
			w := newWorld(t, 1, algo.Config{Algorithm: algo.TokenBucket, N: 300, Window: 30 * time.Second, Lease: 90,
				LeaseFor: 11 * time.Second})
			w.slow = func() int64 { return secondNs / 100 }
			const warm, all = 60, 360 // seconds
			admitted, begun := 0, w.now
			for at := int64(0); at < all; at += every {
				for range size {
					if w.request(0, "a") && at >= warm {
						admitted++
					}
				}
				w.advance(t, begun+(at+every)*secondNs-w.now, func() {})
			}
			if best := 10 * (all - warm); admitted < best*9/10 {
				t.Errorf("bursts of %d every %d s: %d of %d were let through", size, every, admitted, best)
			}
		}
	}
}

// TestHeardSoon: a bucket that has used up its limit gets of it within a second of a reset, of
// which the Holder is not told, also where nothing comes by for a long time.
func TestHeardSoon(t *testing.T) {
	for _, c := range []algo.Config{
		{Algorithm: algo.TokenBucket, N: 300, Window: 24 * time.Hour, Lease: 90, LeaseFor: 11 * time.Second},
		{Algorithm: algo.FixedWindow, N: 300, Window: 24 * time.Hour, Lease: 90, LeaseFor: 11 * time.Second},
		{Algorithm: algo.TokenBucket, N: 300, Window: 24 * time.Hour, Lease: 90, LeaseFor: 2 * time.Second},
	} {
		for wait := range int64(20) { // wherever between two reports
			w := newWorld(t, 1, c)
			w.slow = func() int64 { return secondNs / 100 }
			run := func(d int64) (admitted int) {
				for end := w.now + d; w.now < end; {
					if w.request(0, "a") {
						admitted++
					}
					w.advance(t, secondNs/50, func() {})
				}
				return admitted
			}
			for run(12*secondNs) > 0 { // until all is used up
			}
			run(wait * secondNs / 4)
			if _, err := w.store.Reset(context.Background(), w.limits[0].Counter, []byte("k")); err != nil {
				t.Fatal(err)
			}
			if run(secondNs+secondNs/10) == 0 {
				t.Errorf("%v of %v, leased for %v: nothing was let through within a second of the reset", c.N,
					c.Algorithm, c.LeaseFor)
			}
		}
	}
}
