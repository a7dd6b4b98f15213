package memory

import (
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
)

// TestSnapshotOfLargeCounts: a snapshot holds counts as large as they can be, also of keys that are
// overdrawn.
func TestSnapshotOfLargeCounts(t *testing.T) {
	s := newTest(t, Options{})
	c := counter(t, algo.Config{Algorithm: algo.FixedWindow, N: algo.MaxFixedN, Window: 366 * 24 * time.Hour,
		CountDenied: true})
	for key, used := range map[string]int64{"some": 5_000_000_000, "all": algo.MaxFixedN, "more": algo.MaxCost} {
		take(t, s, c, key, used)
	}
	again := newTest(t, Options{})
	if err := read(again, image(t, s)); err != nil {
		t.Fatal(err)
	}
	for key, used := range map[string]int64{"some": 5_000_000_000, "all": algo.MaxFixedN, "more": algo.MaxFixedN + 1} {
		info, ok := peek(again, c, []byte(key))
		if want := max(0, algo.MaxFixedN-used); !ok || info.Result.Remaining != want ||
			info.Result.Limit != algo.MaxFixedN {
			t.Errorf("%s: %+v, %v, want %d left", key, info, ok, want)
		}
	}
}
