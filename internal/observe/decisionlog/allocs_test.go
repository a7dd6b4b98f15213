//go:build !race

package decisionlog

import (
	"runtime/debug"
	"testing"

	"github.com/weir-rl/weir"
)

// TestNoAllocation: a decision that is handed over costs no allocation, once buffers have grown,
// and none that is not written.
func TestNoAllocation(t *testing.T) {
	l, err := Open(Options{Out: &buffer{}, PerSecond: 1_000_000, Outcomes: outcomes(t, "denied"), Entries: entries(t)})
	if err != nil {
		t.Fatal(err)
	}
	r, d := weir.Request{Domain: "shop"}, weir.Decision{Domain: "shop", Known: true, ID: 7, Time: 1}
	allowed := weir.Decision{Domain: "shop", Known: true, Allowed: true, Time: 1}
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // the collector empties a sync.Pool
	if n := testing.AllocsPerRun(100, func() {
		l.decided(&r, &d)
		l.decided(&r, &allowed)
		l.free.Put(<-l.waiting)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
