package lessee

import (
	"testing"

	"github.com/weir-rl/weir/algo"
)

// TestUnaskStopped: what a stopped holder told in a call that was not made is told again, and not
// used.
func TestUnaskStopped(t *testing.T) {
	terms := terms(t)
	until := t0 + 3_000_000
	e := lent(terms, 10, until)
	if !e.Use(40*ms, 4) || !e.Stop() {
		t.Fatal("nothing was used, or nothing held")
	}
	want := algo.Told{End: until, Used: 4, Returned: 6}
	for range 3 {
		var h algo.Ahead
		e.Ask(terms, 50*ms, t0, false, false, &h)
		if h.Told[0] != want && h.Told[1] != want {
			t.Fatalf("tells %+v, not %+v", h.Told, want)
		}
		if left, used := e.Holds(); left+used != 0 {
			t.Fatalf("%d units are left, and %d used, that were told", left, used)
		}
		if lapsed := e.Unask(terms, 60*ms, &h); lapsed != 0 {
			t.Errorf("%d units are lost", lapsed)
		}
		if left := e.Left(60 * ms); left != 0 {
			t.Errorf("%d units can be used after Stop", left)
		}
	}
	// Where there is no place for it any more, it lapses.
	var h algo.Ahead
	e.Ask(terms, 70*ms, t0, false, false, &h)
	for i := range int64(2) {
		later := algo.Ahead{Got: 5, Until: until + (i+1)*2_000_000}
		e.Hear(terms, Answer{Asked: 80 * ms, At: 80 * ms, Now: t0}, 0, &algo.Result{Allowed: true}, &later)
	}
	if lapsed := e.Unask(terms, 90*ms, &h); lapsed != 10 {
		t.Errorf("%d units lapsed of 10", lapsed)
	}
}
