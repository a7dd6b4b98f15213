package redis

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// How states are stored in Redis, and how a limit is described to weir.lua. The constants of this
// file and of operand.go are written into weir.lua by library.go.

// kind is the way in which an algorithm keeps its state. weir.lua has functions for each.
type kind uint8

const (
	kindFixed kind = 1 + iota
	kindFirst
	kindCalendar
	kindWindow
	kindBucket
	kindInterval
	kindWindows
	kindLog
	kindSlots
	kindOff    // no limit is in force: there is no state
	kindMargin // the state of a soft margin that closes
	kindRecord // units lent
)

// The stored forms of states: bytes, and what these are, as formats of Lua's struct.pack. The first
// three are compact: a whole state has that size. Of the others it is the head.
const (
	countSize   = 14 // fixed windows and soft margins: an instant, and a count or an instant
	countFormat = "<I7I7"

	windowSize   = 15 // start of the sub-window, its count, the count of the one before it
	windowFormat = "<I7I4I4"

	bucketSize   = 18 // unit of time (µs for refill at intervals), level (missing tokens), scale
	bucketFormat = "<I7I7I4"
	// intervalScale is the scale of a bucket that is refilled at intervals: algo.Params.Tag of it.
	intervalScale = math.MaxUint32

	// The units lent: the end of the older generation, the units out in it and in the newer one,
	// the units wanted in this generation and in the one before, and the length of a generation,
	// under which the record was written.
	recordSize   = 23
	recordFormat = "<I7I4I4I2I2I4"
	mostLent     = algo.MaxN * algo.MaxLease / 100 // no limit lends more

	// Start of the sub-window, sum of all counters, the current and the oldest counter, K; then the
	// K older counters of 4 bytes each, newest first.
	windowsHead       = 23
	windowsHeadFormat = "<I7I7I4I4B"

	// Newest time, place of the oldest unit, number of units, size of the ring; then the ring.
	logHead       = 19
	logHeadFormat = "<I7I4I4I4"

	// Newest time, slots held, holders at the front that have timed out, holders in all; then the
	// holders.
	slotsHead       = 20
	slotsHeadFormat = "<I7I5I4I4"
	holderSize      = 7 + 8 + 4 // time, id, slots
)

// A tally is the reply's summary of a log, or of slots, in place of the state.
const (
	tallySize   = 28
	tallyFormat = "<I7I7I7I7"
)

// compactSize is the size of the states of a kind, if it is fixed and small.
var compactSize = [...]int{
	kindFixed: countSize, kindFirst: countSize, kindCalendar: countSize, kindMargin: countSize,
	kindWindow: windowSize, kindBucket: bucketSize, kindInterval: bucketSize, kindRecord: recordSize,
}

// codec describes a Limit to weir.lua, and converts between its states in algo and in Redis. The
// codec of a limit with a schedule only converts; the codec of the limit in force describes it (see
// phaseAt).
type codec struct {
	limit       *algo.Limit
	kind        kind
	size        int // of a compact state; else 0
	countDenied bool
	k           int         // kindWindows: number of buckets
	w           int64       // window (time-out, length of a generation) in µs
	entry       int         // kindLog: bytes of a unit
	idle        algo.Result // of a peek at a fresh state
	numbers     [10]float64 // cap, n, window, unit, and six of the kind: see shape in weir.lua
	margin      *algo.Limit // of the state of the soft margin; nil if it does not close
	// limit, limitLevel, marginOpen, marginAhead: see shape in weir.lua
	marginNumbers [4]float64
	lease         *algo.Limit // of the record of the units lent; nil if it lends nothing
	lendNumbers   [3]float64  // hard, lendable, leaseFor: see shape in weir.lua
	schedule      *schedule   // nil for none
}

// offCodec stands for a limit that its schedule puts out of force.
var offCodec = &codec{kind: kindOff}

func newCodec(l *algo.Limit) *codec {
	of := l
	t := &codec{limit: l, countDenied: l.CountDenied(), margin: l.Margin(), lease: l.Lease()}
	if l.Scheduled() {
		t.schedule = newSchedule(l)
		of = t.schedule.limits[0]
	}
	c, p := of.Config(), of.Params()
	t.w, t.idle = c.Window.Microseconds(), of.Check(&algo.State{}, 0, algo.Ask{})
	if m := of.Margin(); m != nil {
		t.marginNumbers = [...]float64{float64(p.Admit), float64(p.Admit) * float64(p.Token),
			float64(c.SoftFor.Microseconds()), float64(m.Config().Timeout.Microseconds())}
	}
	if t.lease != nil {
		t.lendNumbers = [...]float64{float64(t.idle.Limit), float64(p.Lendable), float64(p.LeaseFor)}
	}
	own := t.numbers[4:]
	switch c.Algorithm {
	case algo.FixedWindow:
		switch {
		case c.Calendar != algo.NoCalendar:
			t.kind = kindCalendar
		case c.FirstRequest:
			t.kind = kindFirst
		default:
			t.kind = kindFixed
		}
	case algo.SlidingWindow:
		t.kind, t.k = kindWindow, c.Buckets
		if t.k > 1 {
			t.kind = kindWindows
		}
		own[0], own[1], own[2] = float64(p.Sub), float64(p.SubU), float64(t.k)
	case algo.TokenBucket, algo.LeakyBucket:
		t.kind = kindBucket
		if c.RefillInterval {
			t.kind = kindInterval
		}
		for i, n := range []int64{p.Rate, p.Token, p.CapLevel, p.Full, p.Ahead, int64(p.Tag)} {
			own[i] = float64(n)
		}
	case algo.SlidingLog:
		t.kind, t.entry = kindLog, int(p.Entry)
		own[0] = float64(p.Entry)
	case algo.Concurrency:
		t.kind, t.w = kindSlots, c.Timeout.Microseconds()
	case algo.Margin:
		t.kind = kindMargin
	case algo.Lease:
		t.kind, t.w = kindRecord, c.Timeout.Microseconds()
	}
	t.size = compactSize[t.kind]
	copy(t.numbers[:4], []float64{float64(p.Cap), float64(c.N), float64(t.w), float64(p.Unit)})
	return t
}

// besideOf returns the counter and the definition of the record beside the states of c under a
// limit: the state of its soft margin, or the record of the units it lends. They are nil if there
// is neither.
func besideOf(c *rule.Counter, l *algo.Limit) (*rule.Counter, *algo.Limit) {
	if m := marginOf(c, l.Margin()); m != nil {
		return c.Margin, m
	}
	if n := leaseOf(c, l.Lease()); n != nil {
		return c.Lease, n
	}
	return nil, nil
}

// leaseOf returns the definition under which the record of a counter is kept: the counter's own, if
// that keeps it for longer than of, the one of the limit itself. It is nil if nothing is lent.
func leaseOf(c *rule.Counter, of *algo.Limit) *algo.Limit {
	if c.Lease == nil || of == nil {
		return nil
	}
	if all := c.Lease.Limit; all != nil && all.Algorithm() == algo.Lease {
		if a, o := all.Config(), of.Config(); a.Timeout == o.Timeout && a.Window > o.Window {
			return all
		}
	}
	return of
}

// marginOf returns the definition under which a counter's soft margin is kept: the counter's own,
// if it has one for all numbers that its limit may have, else of, the one of the limit itself. It
// is nil if the margin does not close.
func marginOf(c *rule.Counter, of *algo.Limit) *algo.Limit {
	if c.Margin != nil && of != nil && c.Margin.Limit != nil && c.Margin.Limit.Algorithm() == algo.Margin {
		return c.Margin.Limit
	}
	if c.Margin == nil {
		return nil
	}
	return of
}

// The compact states of a group of counters lie in one value for each key, each as a record of a
// tag, its length, and the state. A state that is not compact has a value of its own, without a
// tag.

const recordHead = 4 + 1

// maxRecords bounds the records in a value of states that a call does not name: of windows that a
// rule no longer has, or has not for this request, and of their margins.
const maxRecords = 128

func tagOf(c *rule.Counter) uint32 { return uint32(c.ID) }

// valueID returns the identity in the key of a counter's value: the group's, if the value holds the
// states of a group.
func (t *codec) valueID(c *rule.Counter) uint64 {
	if t.size > 0 && c.Group != 0 {
		return c.Group
	}
	return c.ID
}

// cutRecord takes the first record off a value.
func cutRecord(v string) (tag uint32, state, rest string, ok bool) {
	if len(v) < recordHead || len(v) < recordHead+int(v[4]) {
		return 0, "", "", false
	}
	end := recordHead + int(v[4])
	return binary.LittleEndian.Uint32([]byte(v[:4])), v[recordHead:end], v[end:], true
}

// state finds a counter's state in a value.
func (t *codec) state(v string, c *rule.Counter) (state string, ok bool) {
	tag, state, rest, ok := cutRecord(v)
	if t.size == 0 {
		if t.changes(c) && ok && tag == tagOf(c) && rest == "" {
			return state, true
		}
		return v, v != ""
	}
	whole := v
	for ok && tag != tagOf(c) {
		tag, state, rest, ok = cutRecord(rest)
	}
	if !ok && t.changes(c) {
		return whole, whole != ""
	}
	return state, ok
}

func (t *codec) hasSlots() bool { return t.kind == kindSlots }
func (t *codec) hasLog() bool   { return t.kind == kindLog }

// changes reports whether the counter may have kept its state under another number of buckets, and
// so as a record or not. A counter of a rule then has another identity; only counters without a
// group keep theirs.
func (t *codec) changes(c *rule.Counter) bool {
	return c.Group == 0 && (t.kind == kindWindow || t.kind == kindWindows)
}

func appendRecord(dst []byte, c *rule.Counter, state []byte) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, tagOf(c))
	return append(append(dst, byte(len(state))), state...)
}

// cost returns the cost of a charge within the bounds that algo keeps.
func cost(c *store.Charge) int64 { return min(max(c.Ask.Cost, -algo.MaxCost), algo.MaxCost) }

// needs returns the units for which a charge must find room: its cost, or 1 of a peek that asks for
// room.
func needs(c *store.Charge) int64 {
	if c.Ask.Room && c.Ask.Cost == 0 {
		return 1
	}
	return cost(c)
}

func appendFloat(dst []byte, n float64) []byte {
	return binary.LittleEndian.AppendUint64(dst, math.Float64bits(n))
}

func get56(b []byte) int64 {
	return int64(binary.LittleEndian.Uint32(b)) | int64(b[4])<<32 | int64(b[5])<<40 | int64(b[6])<<48
}

func append56(dst []byte, n int64) []byte {
	return append(dst, byte(n), byte(n>>8), byte(n>>16), byte(n>>24), byte(n>>32), byte(n>>40), byte(n>>48))
}

var errForm = errors.New("redis store: a state in Redis has a form that is not known")

// decode reads a state into st, and may reuse st.Ext. "" and a compact state of zeros are fresh. Of
// a state with several buckets b may be the head alone, which suffices for decisions that admit:
// the counters between the newest and the oldest one are then summed up in one of them.
func (t *codec) decode(b []byte, st *algo.State) error {
	ext := st.Ext[:0]
	*st = algo.State{}
	if len(b) == 0 {
		return nil
	}
	switch t.kind {
	case kindFixed, kindFirst, kindCalendar, kindMargin:
		if len(b) != countSize {
			return errForm
		}
		st.A, st.B = get56(b), uint64(get56(b[7:]))
	case kindWindow, kindWindows:
		if len(b) != windowSize {
			return t.decodeWindows(b, st, ext)
		}
		st.A = get56(b)
		st.B = uint64(binary.LittleEndian.Uint32(b[7:]))<<32 | uint64(binary.LittleEndian.Uint32(b[11:]))
	case kindRecord:
		r, err := decodeRecord(b)
		if err != nil {
			return err
		}
		*st = r.Record(r.wants)
	case kindBucket, kindInterval:
		if len(b) != bucketSize {
			return errForm
		}
		st.A, st.B, st.C = get56(b), uint64(get56(b[7:])), binary.LittleEndian.Uint32(b[14:])
	case kindLog:
		if len(b) < logHead {
			return errForm
		}
		tail, n, size := binary.LittleEndian.Uint32(b[7:]), binary.LittleEndian.Uint32(b[11:]),
			binary.LittleEndian.Uint32(b[15:])
		if int64(len(b)) != logHead+int64(size)*int64(t.entry) || n == 0 || n > size || tail >= size {
			return errForm
		}
		st.A, st.B, st.Ext = get56(b), uint64(n)<<32|uint64(tail), append(ext, b[logHead:]...)
	case kindSlots:
		if len(b) < slotsHead || (len(b)-slotsHead)%holderSize != 0 {
			return errForm
		}
		st.A = get56(b)
		st.B = uint64(binary.LittleEndian.Uint32(b[7:])) | uint64(b[11])<<32
		st.C = binary.LittleEndian.Uint32(b[12:])
		held := uint64(0)
		for i, e := 0, b[slotsHead:]; len(e) > 0; i, e = i+1, e[holderSize:] {
			if i >= int(st.C) {
				held += uint64(binary.LittleEndian.Uint32(e[15:]))
			}
			ext = binary.LittleEndian.AppendUint64(ext, uint64(get56(e)))
			ext = append(ext, e[7:15]...)
			ext = binary.LittleEndian.AppendUint64(ext, uint64(binary.LittleEndian.Uint32(e[15:])))
		}
		st.Ext = ext
		if held == 0 || held != st.B || int(binary.LittleEndian.Uint32(b[16:])) != len(ext)/24 {
			return errForm
		}
	}
	return nil
}

// decodeWindows is decode for a state with several buckets. It makes the ring of algo.State, with
// the newest counter last.
func (t *codec) decodeWindows(b []byte, st *algo.State, ext []byte) error {
	if len(b) < windowsHead {
		return errForm
	}
	k := int(b[22])
	head := len(b) == windowsHead
	if k < 2 || !head && len(b) != windowsHead+4*k {
		return errForm
	}
	sum, cur, cut := uint64(get56(b[7:])), binary.LittleEndian.Uint32(b[14:]), binary.LittleEndian.Uint32(b[18:])
	size := 4 * (k + 1)
	if cap(ext) < size {
		ext = make([]byte, size)
	}
	ext = ext[:size]
	clear(ext)
	older := func(j int) []byte { return ext[4*(k-j):] }
	total := uint64(cur)
	binary.LittleEndian.PutUint32(older(0), cur)
	if head {
		if sum < uint64(cur)+uint64(cut) {
			return errForm
		}
		total = sum
		binary.LittleEndian.PutUint32(older(1), uint32(sum-uint64(cur)-uint64(cut)))
		binary.LittleEndian.PutUint32(older(k), cut)
	} else {
		for j := 1; j <= k; j++ {
			copy(older(j)[:4], b[windowsHead+4*(j-1):])
			total += uint64(binary.LittleEndian.Uint32(older(j)))
		}
	}
	if total != sum {
		return errForm
	}
	if sum > 0 {
		st.A, st.B, st.C, st.Ext = get56(b), sum, uint32(k), ext
	}
	return nil
}

// encode is the inverse of decode. A fresh state is "".
func (t *codec) encode(st *algo.State) []byte {
	if st.B == 0 {
		return nil
	}
	b := append56(make([]byte, 0, 32), st.A)
	switch t.kind {
	case kindFixed, kindFirst, kindCalendar, kindMargin:
		b = append56(b, int64(st.B))
	case kindWindow:
		b = binary.LittleEndian.AppendUint32(b, uint32(st.B>>32))
		b = binary.LittleEndian.AppendUint32(b, uint32(st.B))
	case kindRecord:
		n := t.limit.Lent(st)
		b = binary.LittleEndian.AppendUint32(b, uint32(n.Older))
		b = binary.LittleEndian.AppendUint32(b, uint32(n.Newer))
		b = binary.LittleEndian.AppendUint16(b, uint16(st.C))
		b = binary.LittleEndian.AppendUint16(b, uint16(st.C>>16))
		b = binary.LittleEndian.AppendUint32(b, uint32(t.w))
	case kindBucket, kindInterval:
		b = append56(b, int64(st.B))
		b = binary.LittleEndian.AppendUint32(b, st.C)
	case kindWindows:
		k := len(st.Ext)/4 - 1
		older := func(j int) []byte { return st.Ext[4*((int(st.C)-j+k+1)%(k+1)):][:4] }
		b = append56(b, int64(st.B))
		b = append(b, older(0)...)
		b = append(b, older(k)...)
		b = append(b, byte(k))
		for j := 1; j <= k; j++ {
			b = append(b, older(j)...)
		}
	case kindLog:
		b = binary.LittleEndian.AppendUint32(b, uint32(st.B))
		b = binary.LittleEndian.AppendUint32(b, uint32(st.B>>32))
		b = binary.LittleEndian.AppendUint32(b, uint32(len(st.Ext)/t.entry))
		b = append(b, st.Ext...)
	case kindSlots:
		b = append(b, byte(st.B), byte(st.B>>8), byte(st.B>>16), byte(st.B>>24), byte(st.B>>32))
		b = binary.LittleEndian.AppendUint32(b, st.C)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(st.Ext)/24))
		for e := st.Ext; len(e) > 0; e = e[24:] {
			b = append(b, e[:7]...)
			b = append(b, e[8:16]...)
			b = append(b, e[16:20]...)
		}
	}
	return b
}

// record is a record of units lent.
type record struct {
	algo.Lent
	wants uint32
	each  int64 // length of a generation, in µs
}

func decodeRecord[T string | []byte](v T) (r record, err error) {
	b := []byte(v)
	if len(b) != recordSize {
		return r, errForm
	}
	r.End = get56(b)
	r.Older, r.Newer = int64(binary.LittleEndian.Uint32(b[7:])), int64(binary.LittleEndian.Uint32(b[11:]))
	r.wants = uint32(binary.LittleEndian.Uint16(b[15:])) | uint32(binary.LittleEndian.Uint16(b[17:]))<<16
	r.each = int64(binary.LittleEndian.Uint32(b[19:]))
	r.Last = r.End + r.each
	if r.Out() > mostLent || r.End < 1 && (r.Out() > 0 || r.wants > 0) {
		return r, errForm
	}
	return r, nil
}

// tally summarizes a log, or slots, before and after a call charged them.
type tally struct {
	before, after int64 // units used
	newest        int64 // time of the newest entry
	// time of the entry whose end would let the first denied request pass; 0 if none was denied
	pivot int64
}

func decodeTally(b []byte) (t tally, err error) {
	if len(b) != tallySize {
		return t, errForm
	}
	return tally{get56(b), get56(b[7:]), get56(b[14:]), get56(b[21:])}, nil
}
