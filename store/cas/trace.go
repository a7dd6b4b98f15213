package cas

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"sync/atomic"

	"github.com/weir-rl/weir/algo"
)

// A value records which nodes have changed it lately, so that one whose answer was lost finds out
// whether its own change was among them, even if others have written on top of it. That is a record
// of its own, the trace, with an id that no counter has: nodes that do not know it keep it as they
// keep the states of counters that they do not know.
//
// The trace holds the last version that each other node has written, and the instant of that, the
// latest first. A version identifies its writer: two versions of one node differ in their low bits
// only. A node removes entries older than traceFor, and its own. So a value that one node alone
// changes has no trace, and neither has one that is changed seldom.
const (
	traceID    = 0x7765_6972_2074_7263
	traceAlgo  = algo.Algorithm(0xff)
	traceEntry = 8 + 8
	maxTrace   = 32 // entries; with more nodes at one value, the oldest go

	// traceFor is how long a version stays in a trace, in µs. It is longer than anybody asks
	// whether a change was made.
	traceFor = 10_000_000
)

// The parts of a version: a mark, by which it is known to be made here rather than by a node that
// knows no trace, then whose it is, and a number.
const (
	versionMark   = 0x2d
	markShift     = 58
	authorShift   = 30
	numberBits    = 1<<authorShift - 1
	authorBits    = 1<<(markShift-authorShift) - 1
	authorAndMark = ^uint64(numberBits)
)

// versions draws versions that no node has drawn before.
type versions struct {
	author uint64 // mark and author, in their places
	number atomic.Uint64
}

func (v *versions) init() {
	v.author = versionMark<<markShift | rand.Uint64()&authorBits<<authorShift
	v.number.Store(rand.Uint64())
}

func (v *versions) draw() uint64 { return v.author | v.number.Add(1)&numberBits }

// isOwn reports whether a version is of this node.
func (v *versions) isOwn(version uint64) bool { return version&authorAndMark == v.author }

// marked reports whether a version is of a node that keeps traces.
func marked(version uint64) bool { return version>>markShift == versionMark }

// trace is the content of a trace: a view of the bytes of a value.
type trace []byte

// traceOf returns the trace among records that openValue has checked.
func traceOf(records []byte) trace {
	r, ok := findRecord(records, traceID)
	if !ok {
		return nil
	}
	return r.trace()
}

// trace returns the content of a record with traceID. It is kept as the Ext of an algo.State, since
// all readers of records know their form.
func (r *record) trace() trace {
	if body, ok := bytes.CutPrefix(r.state, []byte{0, 0, 0}); ok && len(body)%traceEntry == 0 {
		return body
	}
	return nil
}

func (t trace) len() int { return len(t) / traceEntry }

func (t trace) at(i int) (version uint64, at int64) {
	e := t[i*traceEntry:]
	return binary.LittleEndian.Uint64(e), int64(binary.LittleEndian.Uint64(e[8:]))
}

// has reports whether a version is in the trace.
func (t trace) has(version uint64) bool {
	for i := range t.len() {
		if v, _ := t.at(i); v == version {
			return true
		}
	}
	return false
}

// whole reports whether the trace has all nodes that have written of late.
func (t trace) whole() bool {
	for i := range t.len() {
		if v, _ := t.at(i); !marked(v) {
			return false
		}
	}
	return t.len() < maxTrace
}

// appendTrace appends the record of the trace of a value that this node changes at now. was is the
// version it replaces, and at the instant of the value's last change. until is when the trace can
// be forgotten; 0 if there is none.
func (v *versions) appendTrace(dst []byte, t trace, was uint64, at, now int64) (next []byte, until int64) {
	// Most values have none, and need none.
	recent := was != 0 && !v.isOwn(was) && at > now-traceFor
	if !recent && len(t) == 0 {
		return dst, 0
	}
	var room [maxTrace * traceEntry]byte
	entries := room[:0]
	add := func(version uint64, at int64) {
		if len(entries) < cap(entries) && at > now-traceFor && !v.isOwn(version) {
			entries = binary.LittleEndian.AppendUint64(entries, version)
			entries = binary.LittleEndian.AppendUint64(entries, uint64(at))
			until = max(until, at+traceFor)
		}
	}
	if recent {
		add(was, at)
	}
	for i := range t.len() {
		version, at := t.at(i)
		// Of each node, the last one says enough.
		if !recent || !marked(was) || version&authorAndMark != was&authorAndMark {
			add(version, at)
		}
	}
	if len(entries) == 0 {
		return dst, 0
	}
	return appendRecord(dst, traceID, traceAlgo, until, &algo.State{Ext: entries}), until
}
