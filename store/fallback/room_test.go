package fallback

import (
	"testing"
	"testing/synctest"

	"github.com/weir-rl/weir/algo"
)

// While the primary is away, a peek that asks for room is admitted as long as a unit may be left,
// by the primary's last answer, and takes none.
func TestRoomWithoutPrimary(t *testing.T) {
	for name, config := range shapes {
		if config.Algorithm == algo.Concurrency || config.Algorithm == algo.LeakyBucket {
			continue // their costs are never known afterwards
		}
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, p := newTest(t, Options{})
				c := counter(t, config)
				ask := charge(c, "used up", 0)
				ask.Ask.Room = true
				for range 6 {
					take(t, s, charge(c, "used up", 1))
				}
				refused := take(t, s, ask)[0]
				if refused.Allowed || refused.RetryAfter <= 0 {
					t.Errorf("the primary says %+v", refused)
				}
				left := charge(c, "left", 0)
				left.Ask.Room = true
				for range 5 {
					take(t, s, charge(c, "left", 1))
				}
				cut(t, s, p, hangs)
				if r := take(t, s, ask)[0]; r.Allowed || r.RetryAfter <= 0 || r.RetryAfter > refused.RetryAfter {
					t.Errorf("without the primary %+v, where it said %+v", r, refused)
				}
				for range 3 {
					if r := take(t, s, left)[0]; !r.Allowed {
						t.Errorf("one is left, and the answer is %+v", r)
					}
				}
				if r := take(t, s, charge(c, "left", 1))[0]; !r.Allowed {
					t.Errorf("the one that is left was taken: %+v", r)
				}
				if r := take(t, s, left)[0]; r.Allowed {
					t.Error("nothing is left")
				}
			})
		})
	}
}
