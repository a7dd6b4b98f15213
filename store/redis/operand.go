package redis

import (
	"encoding/binary"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// operand is one state that takes part in a call: that of a charge, or that of the charge's soft
// margin, which follows it.
type operand struct {
	codec   *codec        // of the limit in force
	phase   *phase        // of the limit's schedule, which says what is in force; nil without one
	counter *rule.Counter // whose state it is
	charge  int           // index
	margin  bool          // the state of a soft margin
	// the limit's soft margin closes: what that would have to admit, Lua leaves undecided
	marginCloses bool
	joinedTo     uint16 // 1 + index of the operand in whose value it lies too; 0: it has its own
	// number of keys of older identities of the counter that follow its own key; plus
	// olderInSameValue if a state of an older identity may lie in the same value
	older uint8
}

const olderInSameValue = 0x80

// The format of an operand, as append writes it and shape in weir.lua reads it; the fields are told
// there. The fields of a schedule and of a margin follow if the flags say so.
const (
	operandFormat  = "<BBBI2Bc4ddddddddddddd"
	scheduleFormat = "<dddd"
	marginFormat   = "<dddd"
)

// The flags of an operand.
const (
	flagCounts       = 1 // denied requests are counted
	flagTimed        = 2 // it has the fields of a schedule
	flagMarginCloses = 4 // it has the fields of a margin
)

// append appends the operand to a shape. now is roughly the instant of the decision.
func (op *operand) append(dst []byte, c *store.Charge, now int64) []byte {
	t, mode, cost, flags := op.codec, c.Mode, cost(c), byte(0)
	if t.kind == kindOff || t.kind == kindMargin {
		cost = 0
	}
	switch t.kind {
	case kindMargin:
		mode = rule.Shadow
	case kindOff: // it admits, and does not count as a quota
		mode = rule.Enforce
	}
	if t.countDenied {
		flags |= flagCounts
	}
	if op.phase != nil {
		flags |= flagTimed
	}
	if op.marginCloses {
		flags |= flagMarginCloses
	}
	dst = append(dst, byte(t.kind), byte(mode), flags)
	dst = binary.LittleEndian.AppendUint16(dst, op.joinedTo)
	dst = append(dst, op.older)
	dst = binary.LittleEndian.AppendUint32(dst, tagOf(op.counter))
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
		start, end, next := t.limit.Span(now)
		numbers[4], numbers[5], numbers[6] = float64(start), float64(end), float64(next)
	}
	for _, n := range numbers {
		dst = appendFloat(dst, n)
	}
	if r := op.phase; r != nil {
		for _, n := range [...]float64{float64(r.from), float64(r.till), r.slow, r.extra} {
			dst = appendFloat(dst, n)
		}
	}
	if op.marginCloses {
		for _, n := range t.marginNumbers {
			dst = appendFloat(dst, n)
		}
	}
	return dst
}
