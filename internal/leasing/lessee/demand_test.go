package lessee

import (
	"testing"

	"github.com/weir-rl/weir/algo"
)

// TestDemandOfLargeCosts: a request that no lease can serve asks for no units.
func TestDemandOfLargeCosts(t *testing.T) {
	terms := terms(t) // lends 100
	e := Begin(terms, 0)
	var h algo.Ahead
	for range 5 {
		e.Note(terms, 0, algo.MaxCost)
		e.Note(terms, 0, 101)
		if e.Ask(terms, 0, t0, true, true, &h); h.Want != 0 {
			t.Fatalf("wants %d units for requests that cost more than may be out", h.Want)
		}
	}
	e.Note(terms, 0, 3)
	if e.Ask(terms, 0, t0, true, true, &h); h.Want == 0 || h.Want > 6 {
		t.Errorf("wants %d units for a request that costs 3", h.Want)
	}
}
