package memory

import (
	"encoding/binary"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// A limit in a snapshot is a form, and then
//
//	0: its numbers
//	1: the name of the time zone of its schedule; the form and numbers of the limit that holds
//	   otherwise; the number of phases, and for each the days, from, until, and the form and
//	   numbers of its limit
//	2: nothing: no limit
const formNumbers, formSchedule, formNone = 0, 1, 2

// readLimit reads a definition; ok is false if there can be no such limit (here).
func (s *Store) readLimit(r *snapshotReader) (l loaded, ok bool) {
	l.counter = &rule.Counter{ID: r.id(), Domain: r.string(), Rule: r.string(), Window: r.string()}
	beside := r.id()
	switch form := r.uvarint(); form {
	case formNumbers:
		l.limit, ok = r.numbers()
	case formSchedule:
		l.limit, ok = r.schedule()
	default:
		r.fail(damaged("a limit of the form %d", form))
	}
	if r.err != nil || !ok {
		return loaded{counter: l.counter}, false
	}
	l.counter.Limit = l.limit
	second := &rule.Counter{ID: beside, Domain: l.counter.Domain, Rule: l.counter.Rule, Window: l.counter.Window}
	switch {
	case beside == 0:
	case l.limit.Margin() != nil:
		second.Limit = l.limit.Margin()
		l.counter.Margin = second
	case l.limit.Lease() != nil:
		second.Limit = l.limit.Lease()
		l.counter.Lease = second
	}
	return l, true
}

// numbers reads a limit without a schedule.
func (r *snapshotReader) numbers() (l *algo.Limit, ok bool) {
	flags := r.uvarint()
	c := algo.Config{
		Algorithm: algo.Algorithm(min(r.uvarint(), 255)),
		N:         r.varint(),
		Window:    time.Duration(r.varint()),
		Burst:     r.varint(),
		Buckets:   int(r.varint()),
		Soft:      int(r.varint()),
		Calendar:  algo.Calendar(min(r.uvarint(), 255)),
		Timeout:   time.Duration(r.varint()),

		FirstRequest:   flags&1 != 0,
		RefillInterval: flags&2 != 0,
		CountDenied:    flags&4 != 0,
	}
	zone := r.string()
	c.SoftFor = time.Duration(r.varint())
	c.Lease, c.LeaseFor = int(r.varint()), time.Duration(r.varint())
	if r.err != nil {
		return nil, false
	}
	if zone != "" {
		loc, err := time.LoadLocation(zone)
		if err != nil {
			return nil, false
		}
		c.Location = loc
	}
	l, err := algo.New(c)
	return l, err == nil
}

// schedule reads a limit with a schedule.
func (r *snapshotReader) schedule() (l *algo.Limit, ok bool) {
	loc, err := time.LoadLocation(r.string())
	if err != nil {
		// until the rules are met again all that counts is when a state is fresh, whatever the hour
		loc = time.UTC
	}
	ok = true
	part := func() *algo.Limit {
		switch form := r.uvarint(); form {
		case formNone:
			return nil
		case formNumbers:
			l, known := r.numbers()
			ok = ok && known
			return l
		default:
			r.fail(damaged("a limit of the form %d in a schedule", form))
			return nil
		}
	}
	otherwise := part()
	n := r.uvarint()
	if n > algo.MaxPhases {
		r.fail(damaged("a schedule of %d phases", n))
	}
	var phases []algo.Phase
	for range n {
		if r.err != nil {
			return nil, false
		}
		p := algo.Phase{Days: algo.Days(min(r.uvarint(), 255)), From: time.Duration(r.varint()),
			Until: time.Duration(r.varint())}
		p.Limit = part()
		phases = append(phases, p)
	}
	if r.err != nil || !ok {
		return nil, false
	}
	l, err = algo.Scheduled(otherwise, phases, loc)
	return l, err == nil
}

func appendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

func appendLimit(b []byte, e *limitEntry) []byte {
	b = append(b, kindLimit)
	b = binary.LittleEndian.AppendUint64(b, e.id)
	for _, s := range [...]string{e.counter.Domain, e.counter.Rule, e.counter.Window} {
		b = appendText(b, s)
	}
	beside := uint64(0)
	if of, _ := besideOf(e.counter, e.limit); of != nil {
		beside = of.ID
	}
	b = binary.LittleEndian.AppendUint64(b, beside)
	if !e.limit.Scheduled() {
		return appendForm(b, e.limit)
	}
	otherwise, phases, loc := e.limit.Schedule()
	b = append(b, formSchedule)
	b = appendText(b, loc.String())
	b = appendForm(b, otherwise)
	b = binary.AppendUvarint(b, uint64(len(phases)))
	for _, p := range phases {
		b = binary.AppendUvarint(b, uint64(p.Days))
		b = binary.AppendVarint(b, int64(p.From))
		b = binary.AppendVarint(b, int64(p.Until))
		b = appendForm(b, p.Limit)
	}
	return b
}

// appendForm appends the form and the numbers of a limit without a schedule; nil means no limit.
func appendForm(b []byte, l *algo.Limit) []byte {
	if l == nil {
		return append(b, formNone)
	}
	b = append(b, formNumbers)
	c := l.Config()
	var flags uint64
	for i, set := range [...]bool{c.FirstRequest, c.RefillInterval, c.CountDenied} {
		if set {
			flags |= 1 << i
		}
	}
	if c.Burst == 0 && c.Algorithm.HasBurst() {
		c.Burst = algo.NoBurst
	}
	b = binary.AppendUvarint(b, flags)
	b = binary.AppendUvarint(b, uint64(c.Algorithm))
	for _, v := range [...]int64{c.N, int64(c.Window), c.Burst, int64(c.Buckets), int64(c.Soft)} {
		b = binary.AppendVarint(b, v)
	}
	b = binary.AppendUvarint(b, uint64(c.Calendar))
	b = binary.AppendVarint(b, int64(c.Timeout))
	zone := ""
	if c.Location != nil {
		zone = c.Location.String()
	}
	b = appendText(b, zone)
	for _, v := range [...]int64{int64(c.SoftFor), int64(c.Lease), int64(c.LeaseFor)} {
		b = binary.AppendVarint(b, v)
	}
	return b
}
