package algo

import (
	"testing"

	"pgregory.net/rapid"
)

// TestLeap: the clock was far ahead, keys were used up, and it comes back. No key stays locked out
// for longer than its time ahead is clamped to and what it takes to come free from there.
func TestLeap(t *testing.T) {
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				c := drawConfig(t, k.c)
				c.N = min(max(c.N, 1), 1000)
				if c.Burst > 1000 {
					c.Burst = 7
				}
				l := compile(t, c)
				if l.cap == 0 {
					return
				}
				now := base + rapid.Int64Range(0, 400*day).Draw(t, "now")
				w := span0(l)
				fill := w // how long a full one takes to come free
				if c.Algorithm == TokenBucket || c.Algorithm == LeakyBucket {
					fill = (l.cap+l.n-1)/l.n*w + 2*l.unit
				}
				switch {
				case c.Algorithm == SlidingWindow: // the newest sub-window is cut for one more
					fill = w + l.sub
				case c.Calendar != NoCalendar:
					fill = w * 11 / 10
				}
				var s State
				then := now + rapid.SampledFrom([]int64{1, w / 2, w, w + 1, 2 * w, 5 * w, 1000 * w}).Draw(t, "ahead")
				for i := range rapid.IntRange(1, 4).Draw(t, "takes") {
					l.Take(&s, then, Ask{Cost: max(1, l.cap/2), MaxDelay: -1, Slot: uint64(i + 1)})
					then += w / 7
				}
				for i := 0; ; i++ {
					if r := l.Take(&s, then, Ask{Cost: max(1, l.Check(&s, then, Ask{}).Remaining), MaxDelay: -1, Slot: uint64(i + 9)}); !r.Allowed {
						break
					}
				}

				mended := cloneState(s)
				changed := l.Mend(&mended, now)
				if changed != !same(mended, s) {
					t.Fatalf("changed: %v, %+v to %+v", changed, s, mended)
				}
				if again := cloneState(mended); l.Mend(&again, now) || !same(again, mended) {
					t.Fatalf("%+v mended again is %+v", mended, again)
				}
				if changed && then <= now+w && c.Algorithm != TokenBucket && c.Algorithm != LeakyBucket &&
					c.Calendar == NoCalendar {
					t.Fatalf("a state %d ahead is no impossible one", then-now)
				}
				for _, cost := range []int64{1, l.cap, 0, -1} {
					a := Ask{Cost: cost, MaxDelay: -1, Slot: 99}
					before := cloneState(s)
					got, want := l.Check(&s, now, a), l.Check(&mended, now, a)
					if !same(before, s) {
						t.Fatalf("Check wrote to the state")
					}
					if got != want {
						t.Fatalf("%v: a cost of %d gives %+v, mended %+v", l, cost, got, want)
					}
					taken := cloneState(s)
					if r := l.Take(&taken, now, a); cost >= 0 && !r.Allowed && !l.countDenied &&
						(!same(taken, mended) || r != want) {
						t.Fatalf("%v: denied, a cost of %d leaves %+v, mended it is %+v", l, cost, taken, mended)
					}
					if cost > 0 && (want.RetryAfter == Never || want.RetryAfter > 2*fill) {
						t.Fatalf("%v: locked out for %d by a leap of %d", l, want.RetryAfter, then-now)
					}
					if want.ResetAfter > 3*fill {
						t.Fatalf("%v: not fresh for %d after a leap of %d", l, want.ResetAfter, then-now)
					}
					if cost >= 0 {
						probe(t, l.String(), l, mended, now, a, want)
					}
				}
			})
		})
	}
}
