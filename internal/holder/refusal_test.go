package holder

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
			e.Hear(terms, Answer{Asked: at, At: at, Now: t0}, 0, &algo.Result{Allowed: true, Limit: 1000, Remaining: 500}, &h)
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
