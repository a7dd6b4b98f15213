package lessee

import (
	"testing"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"pgregory.net/rapid"
)

// answered is a call that was decided, and not heard yet.
type answered struct {
	Answer
	cost  int64
	r     algo.Result
	h     algo.Ahead
	truth int64 // what remains of the limit after it
}

// TestOrder: answers are heard in any order, those to one call of the store (they have one instant)
// and those to several. What the holder says remains is never more than there was at the newest
// answer that it heard, nor raised while a refusal is remembered. Once all are heard, it is exact
// unless a refusal was remembered, and the holder refuses if the last request was refused.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) { inAnyOrder(t, rt) })
}

// TestOrderFixed does the same with fixed examples, some of which end with a refusal, and some with
// an admission.
func TestOrderFixed(t *testing.T) {
	refused, admitted := 0, 0
	effort.Fixed(t, func() {
		rapid.Check(t, func(rt *rapid.T) {
			r, a := inAnyOrder(t, rt)
			refused, admitted = refused+r, admitted+a
		})
	})
	if refused == 0 || admitted == 0 {
		t.Errorf("%d ended with a refusal, %d with an admission", refused, admitted)
	}
}

// inAnyOrder is one example of TestOrder. It returns how many rounds ended with a refusal and how
// many with an admission.
func inAnyOrder(t *testing.T, rt *rapid.T) (refused, admitted int) {
	terms := terms(t)
	const limit = 1000
	var state, book algo.State
	now, at := t0, int64(0)
	e := Begin(terms, at)
	e.Note(terms, at, 10)
	cost := rapid.Int64Range(1, 3).Draw(rt, "cost")
	charged := rapid.SampledFrom([]int64{0, 900, 985, 992, 998}).Draw(rt, "charged")
	terms.Limit.TakeWith(&state, &book, now, algo.Ask{Cost: charged})
	for range rapid.IntRange(1, 3).Draw(rt, "rounds") {
		var calls []answered
		for range rapid.IntRange(1, 3).Draw(rt, "calls") {
			now, at = now+1, at+1000
			asked := at
			if charged > 20 && rapid.Bool().Draw(rt, "refund") {
				charged -= 5
				terms.Limit.TakeWith(&state, &book, now, algo.Ask{Cost: -5})
			}
			for range rapid.IntRange(1, 4).Draw(rt, "of a call") {
				c := answered{Answer: Answer{Asked: asked, Now: now},
					cost: rapid.SampledFrom([]int64{0, cost, cost}).Draw(rt, "charge")}
				e.Ask(terms, at, now, false, rapid.Bool().Draw(rt, "wants"), &c.h)
				c.r = terms.Limit.TakeAhead(&state, &book, now, algo.Ask{Cost: c.cost}, &c.h)
				if c.r.Allowed {
					charged += c.cost
				}
				c.truth = limit - charged
				calls = append(calls, c)
			}
		}
		newest, last := int64(0), &calls[len(calls)-1]
		truth, exact := int64(limit), e.refused == 0
		for _, i := range rapid.Permutation(indices(len(calls))).Draw(rt, "order") {
			c := &calls[i]
			at += 100
			c.At = at
			r, held, was := c.r, e.refused != 0, e.remaining
			e.Hear(terms, c.Answer, c.cost, &r, &c.h)
			if held && e.remaining > was {
				rt.Fatalf("after %+v the store has %d, had %d when it refused", c, e.remaining, was)
			}
			exact = exact && e.refused == 0
			switch {
			case e.refused != 0:
				truth = limit // what is heard meanwhile is not remembered
			case c.Now > newest:
				newest, truth = c.Now, c.truth
			case c.Now == newest:
				truth = min(truth, c.truth)
			}
			var said algo.Result
			if e.Standing(terms, at, now, &said); said.Remaining > truth || r.Remaining > truth {
				rt.Fatalf("after %+v: %d remain, and %d are told; it is %d", c, said.Remaining, r.Remaining, truth)
			}
		}
		var said algo.Result
		if e.Standing(terms, at, now, &said); said.Remaining > last.truth || said.Remaining < last.truth && exact {
			rt.Fatalf("%d remain, it is %d: %+v", said.Remaining, last.truth, calls)
		}
		if refuses, _ := e.Refuses(at, cost); last.cost > 0 && refuses == last.r.Allowed {
			rt.Fatalf("refuses: %v, after %+v", refuses, calls)
		}
		if last.r.Allowed {
			admitted++
		} else {
			refused++
		}
		exact = said.Remaining == last.truth
		for range rapid.IntRange(0, 3).Draw(rt, "here") {
			if e.Use(at, 1) {
				e.Admitted(terms, at, now, 1, &said)
				if charged++; said.Remaining > limit-charged || exact && said.Remaining < limit-charged {
					rt.Fatalf("%d remain after an admission here, it is %d", said.Remaining, limit-charged)
				}
			}
		}
	}
	return refused, admitted
}

func indices(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}
