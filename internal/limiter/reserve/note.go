package reserve

import (
	"encoding/binary"
	"errors"

	"github.com/weir-rl/weir/algo"
)

// noteVersion is the version of the form of a note.
//
// A note is the record that a store keeps of a reservation, so that any node can settle it. It
// holds the version, the instant of the decision, and for each charge the counter's ID, the units
// reserved, the units of a hit, and the key. The key is left out if it equals the key of the charge
// before, as for the windows of one rule. IDs are 8 bytes, big endian; all other numbers are
// uvarints.
const noteVersion = 1

var errNote = errors.New("weir: a reservation cannot be read; it is of another version, and its estimate stays charged")

// Charge is one charge of a reservation.
type Charge struct {
	Counter  uint64 // rule.Counter.ID
	Reserved int64  // units, 0 to algo.MaxCost
	Each     int64  // units of a hit, 0 to algo.MaxCost
	Key      []byte
}

// AppendNote appends a charge to the note of a decision that was made at an instant, in µs. The
// first charge begins the note, which is nil then; last is the key of the charge before.
func AppendNote(note []byte, at int64, c *Charge, last []byte) []byte {
	first := note == nil
	if first {
		note = append(make([]byte, 0, 64), noteVersion)
		note = binary.AppendUvarint(note, uint64(at))
	}
	note = binary.BigEndian.AppendUint64(note, c.Counter)
	note = binary.AppendUvarint(note, uint64(c.Reserved))
	note = binary.AppendUvarint(note, uint64(c.Each))
	if !first && string(c.Key) == string(last) {
		return append(note, 0)
	}
	note = binary.AppendUvarint(note, uint64(len(c.Key))+1)
	return append(note, c.Key...)
}

// Instant returns when the decision of a note was made, in µs; ok is false if note is none of this
// version.
func Instant(note []byte) (at int64, ok bool) {
	if len(note) == 0 || note[0] != noteVersion {
		return 0, false
	}
	v, n := binary.Uvarint(note[1:])
	return int64(v), n > 0 && v < 1<<53
}

// readNote calls each for every charge of a note, in order, with the instant of the decision. The
// key is part of note.
func readNote(note []byte, each func(at int64, c *Charge)) error {
	if len(note) == 0 || note[0] != noteVersion {
		return errNote
	}
	note = note[1:]
	ok := true
	number := func(most uint64) int64 {
		v, n := binary.Uvarint(note)
		if n <= 0 || v > most {
			ok, note = false, nil
			return 0
		}
		note = note[n:]
		return int64(v)
	}
	at := number(1<<53 - 1)
	first, c := true, Charge{}
	for ok && len(note) > 0 {
		if len(note) < 8 {
			return errNote
		}
		c.Counter, note = binary.BigEndian.Uint64(note), note[8:]
		c.Reserved, c.Each = number(algo.MaxCost), number(algo.MaxCost)
		if size := number(uint64(len(note)) + 1); size > 0 {
			if size--; int(size) > len(note) {
				return errNote
			}
			c.Key, note = note[:size:size], note[size:]
		} else if first {
			return errNote
		}
		if !ok {
			break
		}
		first = false
		each(at, &c)
	}
	if !ok || first {
		return errNote
	}
	return nil
}

// idLength is how many characters an id has, as many as rand.Text returns.
const idLength = 26

// validID reports whether id may be the id of a reservation, so that the store is not asked for
// arbitrary ids that a client made up.
func validID(id string) bool {
	if len(id) != idLength {
		return false
	}
	for i := range len(id) {
		if c := id[i]; !(c >= 'A' && c <= 'Z' || c >= '2' && c <= '7') {
			return false
		}
	}
	return true
}
