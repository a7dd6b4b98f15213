package regions

import (
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// TestAdmitsAlone: a region that hears of nobody admits its ceiling, or the limit where the ceiling
// is above that.
func TestAdmitsAlone(t *testing.T) {
	two := []Region{{Name: "ap", Weight: 1}, {Name: "eu", Weight: 1}}
	for over, want := range map[int]int{0: 6, 50: 9, 100: 12, 200: 12, 1000: 12} {
		for _, a := range []algo.Algorithm{algo.FixedWindow, algo.TokenBucket, algo.SlidingLog} {
			c := counterOf(limit(t, algo.Config{Algorithm: a, N: 12, Window: time.Hour}), rule.Regions{Over: over})
			s, admitted := newTest(t, two, "ap", func() int64 { return start }), 0
			for range 100 {
				if take(t, s, charge(c, "k", 1))[0].Allowed {
					admitted++
				}
			}
			if admitted != want {
				t.Errorf("%v, %d %% over: %d were admitted, want %d", a, over, admitted, want)
			}
		}
	}
}
