package lessee

import (
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
)

// TestTurn: a refusal of a fixed window is not repeated in the next one, nor is nothing asked then.
func TestTurn(t *testing.T) {
	limit, err := algo.New(algo.Config{Algorithm: algo.FixedWindow, N: 1000, Window: time.Minute, Lease: 20,
		LeaseFor: 4 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	terms := TermsOf(limit)
	for _, c := range []struct{ left, quiet int64 }{ // of the window, in ms
		{500, 20 + 500}, {1999, 10 + 2000}, {30_000, 10 + 2000},
	} {
		e := Begin(terms, 0)
		e.Note(terms, 0, 100)
		var h algo.Ahead
		e.Ask(terms, 10*ms, t0, false, true, &h)
		r := algo.Result{Limit: 1000, RetryAfter: c.left * 1000, ResetAfter: c.left * 1000}
		e.Hear(terms, Answer{Asked: 10 * ms, At: 20 * ms, Now: t0}, 1, &r, &h)
		for _, at := range []int64{c.quiet*ms - 1, c.quiet * ms} {
			want := at < c.quiet*ms
			if refuses, _ := e.Refuses(at, 1); refuses != want {
				t.Errorf("%d ms before the window turns: at %v refused is %v", c.left, time.Duration(at), refuses)
			}
			e.Note(terms, at, 1)
			if short := e.Short(terms, at); short == want {
				t.Errorf("%d ms before the window turns: at %v short is %v", c.left, time.Duration(at), short)
			}
		}
	}
}
