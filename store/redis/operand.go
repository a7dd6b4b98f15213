package redis

import (
	"encoding/binary"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// operand is one state that takes part in a call: a charge's state, the state of the charge's soft
// margin, which follows it, or the record of the units lent, which comes before it.
type operand struct {
	codec   *codec        // of the limit in force
	phase   *phase        // of the limit's schedule, which chose codec; nil without one
	counter *rule.Counter // whose state it is
	charge  int           // index
	margin  bool          // the state of a soft margin
	// the limit's soft margin closes: requests that it would have to admit, Lua leaves undecided
	marginCloses bool
	isRecord     bool   // the units lent of the operand after it
	record       *codec // of the record of its units lent; nil if it lends nothing
	idle         bool   // the limit is not in force: only its record has a say
	joinedTo     uint16 // 1 + index of the operand in whose value it lies too; 0: it has its own
	// number of keys of older identities of the counter that follow its own key; plus
	// olderInSameValue if a state of an older identity may lie in the same value
	older uint8
}

const olderInSameValue = 0x80

// The format of an operand, as append writes it and shape in weir.lua reads it; shape describes the
// fields. The fields of a schedule and of a margin follow if the flags say so.
const (
	operandFormat  = "<BBBI2Bc4ddddddddddddd"
	scheduleFormat = "<dddd"
	marginFormat   = "<dddd"
	lendFormat     = "<dddd"
)

// The flags of an operand.
const (
	flagCounts       = 1 // denied requests are counted
	flagTimed        = 2 // it has the fields of a schedule
	flagMarginCloses = 4 // it has the fields of a margin
	flagLends        = 8 // it has the fields of a limit that lends
	flagIdle         = 16
	flagRoom         = 32 // its cost must find room, and is not charged
)

// append appends the operand to a shape. now is roughly the instant of the decision.
func (op *operand) append(dst []byte, c *store.Charge, now int64) []byte {
	t, mode, cost, flags := op.codec, c.Mode, cost(c), byte(0)
	switch {
	case t.kind == kindMargin || t.kind == kindRecord:
		cost, mode = 0, rule.Shadow
	case t.kind == kindOff || op.idle: // it admits, and does not count as a quota
		cost, mode = 0, rule.Enforce
	case c.Ask.Room && cost == 0:
		cost, flags = needs(c), flagRoom
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
	if op.record != nil {
		flags |= flagLends
	}
	if op.idle {
		flags |= flagIdle
	}
	dst = append(dst, byte(t.kind), byte(mode), flags)
	dst = binary.LittleEndian.AppendUint16(dst, op.joinedTo)
	dst = append(dst, op.older)
	dst = binary.LittleEndian.AppendUint32(dst, tagOf(op.counter))
	maxDelay, lastEnds := int64(-1), int64(0)
	if c.Limit.Delays() {
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
	if op.record != nil {
		for _, n := range t.lendNumbers {
			dst = appendFloat(dst, n)
		}
		dst = appendFloat(dst, float64(op.record.limit.Config().Window.Microseconds()))
	}
	return dst
}

// appendAhead appends the report and the wish for a limit that lends, as ahead in lease.lua reads
// them.
func appendAhead(dst []byte, h *algo.Ahead) []byte {
	const most = 1<<30 - 1 // more than can be out
	at := len(dst)
	dst = append(dst, 0)
	for _, t := range h.Told {
		used, back := min(max(t.Used, 0), most), min(max(t.Returned, 0), most)
		if t.End <= 0 || t.End >= 1<<53 || used+back == 0 {
			continue
		}
		dst[at]++
		dst = append56(dst, t.End)
		dst = binary.LittleEndian.AppendUint32(dst, uint32(used))
		dst = binary.LittleEndian.AppendUint32(dst, uint32(back))
	}
	want := uint32(min(max(h.Want, 0), most))
	if h.First {
		want |= 1 << 31
	}
	return binary.LittleEndian.AppendUint32(dst, want)
}

// tells reports whether a holder reports or wants something.
func tells(h *algo.Ahead) bool { return h.Want > 0 || h.Told != [2]algo.Told{} }
