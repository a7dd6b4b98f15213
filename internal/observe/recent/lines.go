package recent

import (
	"fmt"
	"strings"

	"github.com/weir-rl/weir"
)

// This file serves packages that use the form of decisions without a Buffer: the decision log
// writes them as lines.

// Outcome is a set of outcomes. The zero value has none.
type Outcome uint8

// ParseOutcome returns the set of some names from Outcomes, all but allowed.
func ParseOutcome(names []string) (set Outcome, err error) {
next:
	for _, name := range names {
		for _, m := range markNames {
			if m.name == name {
				set |= Outcome(m.mark)
				continue next
			}
		}
		var known []string
		for _, m := range markNames {
			known = append(known, m.name)
		}
		return 0, fmt.Errorf("%q is none of %s", name, strings.Join(known, ", "))
	}
	return set, nil
}

// Of reports whether d has one of the outcomes.
func (o Outcome) Of(d *weir.Decision) bool { return o != 0 && Outcome(marksOf(d))&o != 0 }

// Special reports whether d is no plain admission: it was refused, would have been, or came close
// to it.
func Special(d *weir.Decision) bool { return marksOf(d) != 0 }

// Ordinary reports whether r asked to pass, in a domain with rules, from which it is not exempt.
func Ordinary(r *weir.Request, d *weir.Decision) bool {
	return d.Known && !d.Exempt && (r.Cost() > 0 || len(r.Descriptors) > 0)
}

// Append appends d in the form that a Buffer keeps, for Decode. It gives d an id.
func (b *Buffer) Append(dst []byte, r *weir.Request, d *weir.Decision) []byte {
	e := b.pool.Get().(*encoder)
	e.encode(b, r, d, marksOf(d))
	dst = append(dst, e.buf...)
	b.pool.Put(e)
	return dst
}

// Decode is the inverse of Append; ok is false if data is no decision.
func Decode(data []byte) (e Entry, ok bool) { return decode(data) }
