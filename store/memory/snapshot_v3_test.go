package memory

import (
	"encoding/binary"
	"hash/crc64"
	"io"

	"github.com/weir-rl/weir/algo"
)

// dumpVersion3 is what programs before version 4 of the file wrote.
func (s *Store) dumpVersion3(out io.Writer) error {
	sum := crc64.New(crcTable())
	w := io.MultiWriter(out, sum)
	b := append([]byte(nil), snapshotMagic...)
	b = binary.LittleEndian.AppendUint32(b, 3)
	now := s.now()
	b = binary.LittleEndian.AppendUint64(b, uint64(now))
	numbers := map[limitKey]uint64{}
	records := uint64(0)
	// read before the records: a reservation made later may belong to a charge that is not in the
	// file
	held, _ := s.reservations.changed()
	add := func(sh *shard, p int) {
		var st algo.State
		limits := s.limits.load()
		e := &limits[sh.load(p, &st)]
		if !lasts(e.limit) || e.limit.Fresh(&st, now) && !owes(e, s.besideAt(sh, limits, e, p), now) {
			return
		}
		n, ok := numbers[limitKey{e.limit, e.counter}]
		if !ok {
			n = uint64(len(numbers))
			numbers[limitKey{e.limit, e.counter}] = n
			b = appendLimit(b, e)
		}
		key := sh.keyOf(p)
		b = append(b, kindRecord)
		b = binary.AppendUvarint(b, n)
		b = binary.AppendUvarint(b, uint64(len(key)))
		b = append(b, key...)
		b = binary.AppendVarint(b, st.A)
		b = binary.AppendUvarint(b, st.B)
		b = binary.AppendUvarint(b, uint64(st.C))
		b = binary.AppendUvarint(b, uint64(len(st.Ext)))
		b = append(b, st.Ext...)
		records++
	}
	for i := range s.shards {
		sh := &s.shards[i].shard
		for cursor := uint64(0); cursor < 1<<32; {
			cursor = sh.visitFrom(uint32(cursor), visitBatch, add)
			if len(b) >= 1<<16 || i == len(s.shards)-1 {
				if _, err := w.Write(b); err != nil {
					return err
				}
				b = b[:0]
			}
		}
	}
	reservations := uint64(0)
	for _, h := range held {
		left, ok := s.reservations.left(h, now)
		if !ok {
			continue // settled: its charge may not be in the file
		}
		b = append(b, kindReservation)
		b = binary.AppendUvarint(b, uint64(len(h.id)))
		b = append(b, h.id...)
		b = binary.AppendUvarint(b, uint64(len(h.note)))
		b = append(b, h.note...)
		b = binary.AppendVarint(b, left)
		if reservations++; len(b) >= 1<<16 {
			if _, err := w.Write(b); err != nil {
				return err
			}
			b = b[:0]
		}
	}
	b = append(b, kindEnd)
	b = binary.AppendUvarint(b, uint64(len(numbers)))
	b = binary.AppendUvarint(b, records)
	b = binary.AppendUvarint(b, reservations)
	if _, err := w.Write(b); err != nil {
		return err
	}
	_, err := out.Write(binary.LittleEndian.AppendUint64(nil, sum.Sum64()))
	return err
}
