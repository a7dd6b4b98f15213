package algo

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestGiveBack: GiveBack never leaves more room than if the charge had not been made; and with
// algorithms that count by instants it leaves exactly that, as long as the charge counts whole. A
// window, or an interval of refills, that began with the charge began nevertheless, and from its
// end on the two differ.
func TestGiveBack(t *testing.T) {
	for _, cfg := range []Config{
		{Algorithm: FixedWindow, N: 20, Window: 10 * time.Second},
		{Algorithm: FixedWindow, N: 20, Window: 10 * time.Second, FirstRequest: true},
		{Algorithm: SlidingLog, N: 20, Window: 10 * time.Second},
		{N: 20, Window: 10 * time.Second},
		{N: 20, Window: 10 * time.Second, Buckets: 5},
		{Algorithm: TokenBucket, N: 20, Window: 10 * time.Second, Burst: 7},
		{Algorithm: TokenBucket, N: 3, Window: 10 * time.Second, Burst: 7, RefillInterval: true},
	} {
		l := must(t, cfg)
		exact := cfg.Algorithm == SlidingLog || cfg.Algorithm == SlidingWindow ||
			cfg.Algorithm == FixedWindow && !cfg.FirstRequest
		rapid.Check(t, func(t *rapid.T) {
			var with, without State
			now := int64(1_000_000_000_000)
			step := func(n int) {
				for range n {
					now += rapid.Int64Range(0, 3_000_000).Draw(t, "µs")
					c := rapid.Int64Range(1, 3).Draw(t, "cost")
					// Only what both admit, so that the charge makes no other difference.
					if l.Check(&with, now, Ask{Cost: c}).Allowed && l.Check(&without, now, Ask{Cost: c}).Allowed {
						l.Take(&with, now, Ask{Cost: c})
						l.Take(&without, now, Ask{Cost: c})
					}
				}
			}
			step(rapid.IntRange(0, 5).Draw(t, "before"))
			at, cost := now, rapid.Int64Range(1, 4).Draw(t, "charge")
			if !l.Take(&with, now, Ask{Cost: cost}).Allowed {
				return
			}
			var fresh State
			began := (cfg.FirstRequest || cfg.RefillInterval) &&
				l.Check(&without, at, Ask{}).Remaining == l.Check(&fresh, at, Ask{}).Remaining
			step(rapid.IntRange(0, 6).Draw(t, "after"))
			l.GiveBack(&with, nil, now, at, cost)
			for range 3 {
				if began && now >= at+cfg.Window.Microseconds() {
					return
				}
				got, want := l.Check(&with, now, Ask{}), l.Check(&without, now, Ask{})
				if got.Remaining > want.Remaining {
					t.Fatalf("%v: %d remain, without the charge %d", l, got.Remaining, want.Remaining)
				}
				if exact && got != want {
					t.Fatalf("%v: %+v, without the charge %+v", l, got, want)
				}
				now += rapid.Int64Range(0, 4_000_000).Draw(t, "later")
			}
		})
	}
}
