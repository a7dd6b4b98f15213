package judge

import (
	"testing"

	"github.com/weir-rl/weir/internal/observe/insight"
)

// A request from before a refusal, that is noted after it, is no early return.
func TestReturnsOutOfOrder(t *testing.T) {
	const second = 1_000_000
	for _, wait := range []int64{1, 60 * second, 59 * 60 * second, 86_400 * second} {
		var e Returns
		const refused = 1_000_000 * second
		e.Note(refused, true, refused+wait)
		e.Note(refused-1, false, 0)
		e.Note(refused-30*second, false, 0)
		if e.Episodes != (insight.Episodes{}) || !e.Open() {
			t.Errorf("refused for %d µs: %+v", wait, e.Episodes)
		}
		e.Note(refused+wait, false, 0)
		if e.Episodes != (insight.Episodes{Obeyed: 1}) || e.Open() {
			t.Errorf("refused for %d µs, and back in time: %+v", wait, e.Episodes)
		}
	}
	var e Returns
	e.Note(100*second, true, 200*second)
	e.Note(100*second+1, false, 0)
	if e.Episodes != (insight.Episodes{Early: 1}) {
		t.Errorf("%+v", e.Episodes)
	}
}
