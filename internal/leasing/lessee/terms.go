package lessee

import (
	"math/bits"
	"time"

	"github.com/weir-rl/weir/algo"
)

// Terms are the numbers of a limit that a holder needs, compiled. Immutable; safe for concurrent
// use. Make them with TermsOf.
type Terms struct {
	Limit *algo.Limit
	// E is the length of a generation, in ns. It is the unit in which a holder thinks: units lent
	// end E to 2E later, and demand is measured over E.
	E int64
	// Pause is for how long a key that was refused is refused again, and for how long one that was
	// lent little is not asked for in the background, in ns: the least of E/2 and of half of the
	// lease's share of the window.
	Pause int64

	plain  numbers                  // of a limit without a schedule
	phases map[*algo.Limit]*numbers // of one with a schedule
	most   int64                    // units that may be out, in the phase that lends most
}

// numbers are the terms of a limit without a schedule.
type numbers struct {
	limit, soft int64   // as in algo.Result
	most        int64   // units that may be out
	refills     bool    // as algo.Algorithm.Refills says
	perUnit     float64 // if it refills: µs in which a unit comes back
	sub         int64   // if it slides: length of a sub-window, in µs; 1 in a log; else 0
	span        int64   // if it slides: how long a unit may count, from the start of its sub-window, in µs
}

// TermsOf compiles the terms of a limit; nil if it lends nothing.
func TermsOf(l *algo.Limit) *Terms {
	record := l.Lease()
	if record == nil {
		return nil
	}
	t := &Terms{Limit: l, E: int64(record.Config().Timeout)}
	longest := time.Duration(0)
	add := func(in *algo.Limit) *numbers {
		n := numbersOf(in)
		t.most = max(t.most, n.most)
		c := in.Config()
		longest = max(longest, c.Window*time.Duration(c.Lease)/200)
		return n
	}
	if l.Scheduled() {
		t.phases = map[*algo.Limit]*numbers{}
		otherwise, phases, _ := l.Schedule()
		if otherwise != nil {
			t.phases[otherwise] = add(otherwise)
		}
		for i := range phases {
			if in := phases[i].Limit; in != nil {
				t.phases[in] = add(in)
			}
		}
	} else {
		t.plain = *add(l)
	}
	if t.most < 2 {
		return nil // a holder gets no single unit
	}
	t.Pause = min(t.E/2, int64(longest))
	return t
}

func numbersOf(l *algo.Limit) *numbers {
	c := l.Config()
	r := l.Check(&algo.State{}, 0, algo.Ask{})
	n := &numbers{limit: r.Limit, soft: r.SoftLimit}
	hi, lo := bits.Mul64(uint64(r.Limit), uint64(c.Lease))
	q, _ := bits.Div64(hi, lo, 100)
	n.most = int64(q)
	switch w := c.Window.Microseconds(); {
	case c.Algorithm.Refills():
		if n.refills = true; c.N > 0 {
			n.perUnit = float64(w) / float64(c.N)
		}
	case c.Algorithm.HasLog():
		n.sub, n.span = 1, w
	case c.Algorithm.Slides():
		k := int64(max(1, c.Buckets))
		n.sub = w / k
		n.span = (k + 1) * n.sub
	}
	return n
}

// in returns the numbers in force at now, by the store's clock; nil while there is no limit.
func (t *Terms) in(now int64) *numbers {
	if t.phases == nil {
		return &t.plain
	}
	in, _ := t.Limit.At(now)
	return t.phases[in]
}

// Same reports whether other is the same limit, so that units lent under the one can be used under
// the other: a reload compiles each limit anew.
func (t *Terms) Same(other *Terms) bool {
	return !t.Limit.Scheduled() && !other.Limit.Scheduled() && t.Limit.Config() == other.Limit.Config()
}
