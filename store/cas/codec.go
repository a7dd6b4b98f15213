package cas

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"math"

	"github.com/cespare/xxhash/v2"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// A value holds states of one subject, each as a record. All numbers are little-endian.
//
//	version of the form            1 byte
//	instant of the last change     8 bytes, µs
//	records, each of
//	  id of the counter            8 bytes
//	  algorithm                    1 byte
//	  from when on it is fresh     8 bytes, µs
//	  length of the rest           uvarint
//	  algo.State: A, B and C as uvarints, and Ext
//	checksum of all before         4 bytes: the low ones of xxHash64
//
// The states of counters of a group that are small lie in one value, so that a call with several
// windows on one key changes one row. A state with an Ext has a value of its own, as it would make
// each change of the others expensive.
const (
	formVersion = 1
	valueHead   = 1 + 8
	recordHead  = 8 + 1 + 8
	valueTail   = 4
)

// maxRecords bounds the records in a value of states that a call does not name: of windows that a
// rule no longer has, or has not for this request.
const maxRecords = 64

// small reports whether the states of a limit have no Ext.
func small(l *algo.Limit) bool {
	switch c := l.Config(); c.Algorithm {
	case algo.SlidingLog, algo.Concurrency:
		return false
	case algo.SlidingWindow:
		return c.Buckets <= 1
	}
	return true
}

// valueID returns the identity in the name of a counter's value: the group's, if the value holds
// the states of a group.
func valueID(c *rule.Counter, l *algo.Limit) uint64 {
	if c.Group != 0 && small(l) {
		return c.Group
	}
	return c.ID
}

// maxKey is the length from which on the end of a key is replaced by a hash of the whole, in the
// name of a value. Such a name has MaxName bytes, and no other has.
const maxKey = MaxName - 8 - sha256.Size

// appendName appends the name of a value.
func appendName(dst []byte, id uint64, key []byte) []byte {
	dst = binary.BigEndian.AppendUint64(dst, id)
	if len(key) < maxKey {
		return append(dst, key...)
	}
	digest := sha256.Sum256(key)
	return append(append(dst, key[:maxKey]...), digest[:]...)
}

// keyOf returns the key in the name of a value; ok is false if the name does not hold it in full,
// or is of another counter or group than id.
func keyOf(name []byte, id uint64) (key []byte, ok bool) {
	if len(name) < 8 || len(name) == MaxName || binary.BigEndian.Uint64(name) != id {
		return nil, false
	}
	return name[8:], true
}

// placeOf returns the Key.Place of all limits of a subject.
func placeOf(c *rule.Counter, key []byte) uint64 {
	if len(key) == 0 { // a global limit
		return xxhash.Sum64String(c.Domain)
	}
	return xxhash.Sum64(key)
}

// record is one state in a value.
type record struct {
	id    uint64
	algo  algo.Algorithm
	until int64
	state []byte
	whole []byte // all bytes of the record
}

// openValue checks a value, and returns the instant of its last change and its records. ok is false
// if it is damaged, or of a form that is not known. No bytes are no records.
func openValue(data []byte) (at int64, records []byte, ok bool) {
	if len(data) == 0 {
		return 0, nil, true
	}
	end := len(data) - valueTail
	if end < valueHead || data[0] != formVersion ||
		binary.LittleEndian.Uint32(data[end:]) != uint32(xxhash.Sum64(data[:end])) {
		return 0, nil, false
	}
	if at = int64(binary.LittleEndian.Uint64(data[1:])); at < 0 || at > maxInstant {
		return 0, nil, false
	}
	for rest := data[valueHead:end]; len(rest) > 0; {
		var whole bool
		if _, rest, whole = cutRecord(rest); !whole {
			return 0, nil, false
		}
	}
	return at, data[valueHead:end], true
}

// cutRecord takes the first record off records.
func cutRecord(b []byte) (r record, rest []byte, ok bool) {
	if len(b) <= recordHead {
		return r, nil, false
	}
	n, size := binary.Uvarint(b[recordHead:])
	if size <= 0 || n > uint64(len(b)-recordHead-size) {
		return r, nil, false
	}
	end := recordHead + size + int(n)
	r.id, r.algo = binary.LittleEndian.Uint64(b), algo.Algorithm(b[8])
	r.until = int64(binary.LittleEndian.Uint64(b[9:]))
	r.state, r.whole = b[recordHead+size:end], b[:end]
	return r, b[end:], true
}

// findRecord returns the record of a counter among records that openValue has checked.
func findRecord(records []byte, id uint64) (r record, ok bool) {
	for len(records) > 0 {
		if r, records, ok = cutRecord(records); !ok || r.id == id {
			return r, ok
		}
	}
	return record{}, false
}

// beginValue appends the head of a value.
func beginValue(dst []byte, at int64) []byte {
	return binary.LittleEndian.AppendUint64(append(dst, formVersion), uint64(at))
}

// endValue appends the tail of the value that dst is.
func endValue(dst []byte) []byte {
	return binary.LittleEndian.AppendUint32(dst, uint32(xxhash.Sum64(dst)))
}

// appendRecord appends the record of a state that is not fresh.
func appendRecord(dst []byte, id uint64, a algo.Algorithm, until int64, st *algo.State) []byte {
	var head [3 * binary.MaxVarintLen64]byte
	b := binary.AppendUvarint(head[:0], uint64(st.A))
	b = binary.AppendUvarint(b, st.B)
	b = binary.AppendUvarint(b, uint64(st.C))
	dst = binary.LittleEndian.AppendUint64(dst, id)
	dst = append(dst, byte(a))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(until))
	dst = binary.AppendUvarint(dst, uint64(len(b)+len(st.Ext)))
	return append(append(dst, b...), st.Ext...)
}

var errForm = errors.New("cas store: a state has a form that is not known")

// decodeState reads the state of a record, as one of l. It reuses st.Ext.
func decodeState(b []byte, l *algo.Limit, st *algo.State) error {
	ext := st.Ext[:0]
	*st = algo.State{Ext: ext}
	var words [3]uint64
	for i := range words {
		n, size := binary.Uvarint(b)
		if size <= 0 {
			return errForm
		}
		words[i], b = n, b[size:]
	}
	if words[0] > maxInstant || words[2] > math.MaxUint32 {
		return errForm
	}
	st.A, st.B, st.C, st.Ext = int64(words[0]), words[1], uint32(words[2]), append(ext, b...)
	if !sound(l, st) {
		*st = algo.State{Ext: st.Ext[:0]}
		return errForm
	}
	return nil
}

// maxInstant is the last instant that algo counts with, in µs: the year 2255.
const maxInstant = 1<<53 - 1

// sound reports whether a state is one that algo may have left. algo must not read any other.
func sound(l *algo.Limit, st *algo.State) bool {
	n := len(st.Ext)
	if st.B == 0 {
		return false
	}
	switch l.Algorithm() {
	case algo.SlidingWindow:
		if n == 0 {
			return true
		}
		if n%4 != 0 || n < 4*3 || n > 4*(algo.MaxK+1) || int(st.C) >= n/4 {
			return false
		}
		sum := uint64(0)
		for e := st.Ext; len(e) > 0; e = e[4:] {
			sum += uint64(binary.LittleEndian.Uint32(e))
		}
		return sum == st.B
	case algo.SlidingLog:
		entry := logEntry(l)
		units, tail := int64(st.B>>32), int64(uint32(st.B))
		size := int64(n / entry)
		return n%entry == 0 && units <= size && tail < size
	case algo.Concurrency:
		if n%slotSize != 0 || int64(st.C) > int64(n/slotSize) {
			return false
		}
		held := uint64(0)
		for e := st.Ext[int(st.C)*slotSize:]; len(e) > 0; e = e[slotSize:] {
			since, units := binary.LittleEndian.Uint64(e), binary.LittleEndian.Uint64(e[16:])
			if since > maxInstant || units == 0 || units > algo.MaxCost {
				return false
			}
			held += units
		}
		return held == st.B
	}
	return n == 0 && st.B <= maxInstant
}

// slotSize is how many bytes of Ext a holder of slots takes.
const slotSize = 24

// logEntry returns how many bytes of Ext a unit of a sliding log takes.
func logEntry(l *algo.Limit) int {
	if l.Scheduled() {
		otherwise, phases, _ := l.Schedule()
		if otherwise != nil {
			return int(otherwise.Params().Entry)
		}
		for i := range phases {
			if of := phases[i].Limit; of != nil {
				return int(of.Params().Entry)
			}
		}
	}
	return int(l.Params().Entry)
}

// putUntil sets from when on the state of a record is fresh.
func putUntil(record []byte, until int64) {
	binary.LittleEndian.PutUint64(record[9:], uint64(until))
}
