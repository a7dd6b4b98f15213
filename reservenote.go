package weir

import (
	"encoding/binary"
	"errors"

	"github.com/weir-rl/weir/algo"
)

// A note is what a store keeps of a reservation, so that any node can settle it: a version, the instant of the decision, and
// for each charge the counter's ID, the units reserved, the units of a hit, and the key (none if it is that of the charge before, as
// it is for the windows of one rule). Numbers are uvarints, but IDs, which are 8 bytes, big endian.

const noteVersion = 1

var errNote = errors.New("weir: a reservation cannot be read; it is of another version, and its estimate stays charged")

// noted is one charge of a reservation.
type noted struct {
	counter        uint64
	reserved, each int64
	key            []byte
}

// note returns what must be known to settle an admitted d; nil if nothing can be settled.
func (d *Decision) note(r *Request) []byte {
	var note, last []byte
	for i := range d.charges {
		c, h := &d.charges[i], &d.Matches.Hits[i]
		if c.Counter.Override || h.Descriptor >= 0 && r.Descriptors[h.Descriptor].HasHits || !d.changeable(i) {
			continue
		}
		first := note == nil
		if first {
			note = append(make([]byte, 0, 64), noteVersion)
			note = binary.AppendUvarint(note, uint64(d.Time))
		}
		note = binary.BigEndian.AppendUint64(note, c.Counter.ID)
		note = binary.AppendUvarint(note, uint64(c.Ask.Cost))
		note = binary.AppendUvarint(note, uint64(withinCost(max(h.Cost, 0))))
		if !first && string(c.Key) == string(last) {
			note = append(note, 0)
		} else {
			note = binary.AppendUvarint(note, uint64(len(c.Key))+1)
			note = append(note, c.Key...)
		}
		last = c.Key
	}
	return note
}

// readNote calls each for every charge of a note, in order, with the instant of the decision. The key is part of note.
func readNote(note []byte, each func(at int64, n *noted)) error {
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
	first, n := true, noted{}
	for ok && len(note) > 0 {
		if len(note) < 8 {
			return errNote
		}
		n.counter, note = binary.BigEndian.Uint64(note), note[8:]
		n.reserved, n.each = number(algo.MaxCost), number(algo.MaxCost)
		if size := number(uint64(len(note)) + 1); size > 0 {
			if size--; int(size) > len(note) {
				return errNote
			}
			n.key, note = note[:size:size], note[size:]
		} else if first {
			return errNote
		}
		if !ok {
			break
		}
		first = false
		each(at, &n)
	}
	if !ok || first {
		return errNote
	}
	return nil
}

// reservationLength is how many characters an id has: those of rand.Text.
const reservationLength = 26

// validReservation reports whether id may be one of a reservation, so that the store is not asked for what a client made up.
func validReservation(id string) bool {
	if len(id) != reservationLength {
		return false
	}
	for i := range len(id) {
		if c := id[i]; !(c >= 'A' && c <= 'Z' || c >= '2' && c <= '7') {
			return false
		}
	}
	return true
}
