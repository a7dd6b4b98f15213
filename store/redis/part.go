package redis

import (
	"encoding/binary"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// part is a state that takes part in a call: that of a charge, or that of its soft margin, which follows it.
type part struct {
	twin    *twin         // of the limit in force
	reign   *reign        // of a limit with a schedule: in which twin is; else nil
	counter *rule.Counter // whose state
	charge  int           // index
	margin  bool          // the state of a soft margin
	tight   bool          // what the limit's soft margin would have to admit is for the node to decide
	joined  uint16        // 1 + index of the part in whose value it lies; 0 for a value of its own
	older   uint8         // how many keys of older identities follow its own; and olderWithin, if one may lie in the same value
}

const olderWithin = 0x80

// The flags of a charge, see shape in weir.lua.
const (
	flagCounts = 1
	flagTimed  = 2
	flagTight  = 4
)

// append appends what a shape says of a charge; about is roughly the instant of the decision.
func (pt *part) append(dst []byte, c *weir.Charge, about int64) []byte {
	t, mode, cost, flags := pt.twin, c.Mode, cost(c), byte(0)
	if t.kind == kindOff || t.kind == kindMargin {
		cost = 0
	}
	switch t.kind {
	case kindMargin:
		mode = rule.Shadow
	case kindOff: // as if it had not been met: it admits, and is no quota that is left
		mode = rule.Enforce
	}
	if t.countDenied {
		flags |= flagCounts
	}
	if pt.reign != nil {
		flags |= flagTimed
	}
	if pt.tight {
		flags |= flagTight
	}
	dst = append(dst, byte(t.kind), byte(mode), flags)
	dst = binary.LittleEndian.AppendUint16(dst, pt.joined)
	dst = append(dst, pt.older)
	dst = binary.LittleEndian.AppendUint32(dst, tagOf(pt.counter))
	maxDelay, lastEnds := int64(-1), int64(0)
	if c.Limit.Algorithm() == algo.LeakyBucket {
		maxDelay = c.Ask.MaxDelay
		if c.Ask.Cost < 0 {
			lastEnds = c.Ask.LastEnds
		}
	}
	dst = appendFloat(dst, float64(cost))
	dst = appendFloat(dst, float64(maxDelay))
	dst = appendFloat(dst, float64(lastEnds))
	numbers := t.numbers
	if t.kind == kindCalendar {
		start, end, next := t.limit.Span(about)
		numbers[4], numbers[5], numbers[6] = float64(start), float64(end), float64(next)
	}
	for _, n := range numbers {
		dst = appendFloat(dst, n)
	}
	if r := pt.reign; r != nil {
		for _, n := range [...]float64{float64(r.from), float64(r.till), r.slow, r.extra} {
			dst = appendFloat(dst, n)
		}
	}
	if pt.tight {
		for _, n := range t.tight {
			dst = appendFloat(dst, n)
		}
	}
	return dst
}
