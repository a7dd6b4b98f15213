package lessee

import (
	"testing"

	"github.com/weir-rl/weir/algo"
)

// TestRefusalEnds: a refusal is repeated for Pause, and neither answers without units nor calls
// that fail make that longer.
func TestRefusalEnds(t *testing.T) {
	terms := terms(t)
	for name, then := range map[string]func(e *Entry, at int64){
		"peeks that are lent nothing": func(e *Entry, at int64) {
			var h algo.Ahead
			e.Ask(terms, at, t0, false, true, &h)
			e.Hear(terms, Answer{Asked: at, At: at, Now: t0}, 0,
				&algo.Result{Allowed: true, Limit: 1000, Remaining: 500}, &h)
		},
		"calls that are lost": func(e *Entry, at int64) {
			var h algo.Ahead
			e.Ask(terms, at, t0, false, true, &h)
			e.Lost(terms, at, &h)
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := Begin(terms, 0)
			e.Note(terms, 0, 10)
			var h algo.Ahead
			e.Ask(terms, 0, t0, true, true, &h)
			e.Hear(terms, Answer{Now: t0}, 1, &algo.Result{Limit: 1000, RetryAfter: 1_000_000}, &h)
			if refuses, _ := e.Refuses(terms.Pause-1, 1); !refuses {
				t.Fatal("the refusal is not repeated")
			}
			for at := terms.Pause / 2; at < 2*terms.Pause; at += terms.Pause / 2 {
				e.Note(terms, at, 10)
				then(&e, at)
			}
			for _, at := range []int64{terms.Pause, 2 * terms.Pause} {
				if refuses, _ := e.Refuses(at, 1); refuses {
					t.Errorf("refused again after %d ns; the pause is %d ns", at, terms.Pause)
				}
			}
		})
	}
}

// TestRefusalOutlivesUnits: what is admitted here with units that were out when the store refused
// does not end a refusal; units that were lent later do.
func TestRefusalOutlivesUnits(t *testing.T) {
	terms := terms(t)
	e := lent(terms, 3, t0+3_000_000)
	var h algo.Ahead
	refused := algo.Result{Limit: 1000, Remaining: 0, RetryAfter: 1_000_000}
	e.Ask(terms, 40*ms, t0, false, true, &h)
	e.Hear(terms, Answer{Asked: 40 * ms, At: 60 * ms, Now: t0 + 30_000}, 5, &refused, &h)
	for range 2 {
		if !e.Use(70*ms, 1) {
			t.Fatal("not used")
		}
		var r algo.Result
		if e.Admitted(terms, 70*ms, t0+40_000, 1, &r); !r.Allowed {
			t.Fatalf("%+v", r)
		}
		if refuses, _ := e.Refuses(70*ms, 5); !refuses {
			t.Fatal("the refusal is forgotten")
		}
	}
	if e.Refused(terms, 80*ms, t0+50_000, &refused); refused.RetryAfter != 980_000 {
		t.Errorf("retry after %d µs", refused.RetryAfter)
	}
	h = algo.Ahead{Got: 2, Until: t0 + 3_000_000}
	e.Hear(terms, Answer{Asked: 90 * ms, At: 110 * ms, Now: t0 + 80_000}, 0,
		&algo.Result{Allowed: true, Limit: 1000, Remaining: 20}, &h)
	if refuses, _ := e.Refuses(110*ms, 5); refuses {
		t.Error("it refuses although units were lent since")
	}
}
