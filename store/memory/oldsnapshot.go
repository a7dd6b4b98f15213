package memory

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"io"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// The snapshot file of versions 1 to 3, which older programs wrote. Numbers are little endian where
// they have a fixed size, else varints as in encoding/binary; strings are preceded by their length.
//
//	"WEIRSNAP", version uint32, time int64 (µs since the Unix epoch)
//	then any number of
//	  1 definition: counter id uint64, domain, rule, window, counter id uint64 of the record
//	    beside the states (0: there is none), and the limit (see definition.go); numbered from 0
//	    in order
//	  2 record: number of its definition, key, A, B, C, Ext
//	  3 reservation: id, note, time left in µs
//	then
//	  0 end: number of definitions, number of records, number of reservations
//	CRC-64 (ECMA) of all of this, uint64
//
// Version 1 has no reservations, and its limits have neither a margin that closes nor a schedule.
// Versions 1 and 2 know neither leases nor the record beside the states of a definition.
const (
	lastWhole      = 3
	snapshotHeader = len(snapshotMagic) + 4 + 8

	kindEnd, kindLimit, kindRecord, kindReservation = 0, 1, 2, 3
)

// crcTable is a function so that the table is made when such a file is read, and not when a program
// starts.
func crcTable() *crc64.Table { return crc64.MakeTable(crc64.ECMA) }

// readSnapshot reads size bytes of a version before 4 into an empty store: once for the checksum,
// once for the content.
// dropped is how many records the bounds left out. After an error the store is empty.
func (s *Store) readSnapshot(f io.ReaderAt, size int64) (dropped int, err error) {
	if size < int64(snapshotHeader+8) {
		return 0, damaged("only %d bytes long", size)
	}
	head := make([]byte, snapshotHeader)
	if _, err := f.ReadAt(head, 0); err != nil {
		return 0, err
	}
	if string(head[:8]) != snapshotMagic {
		return 0, damaged("not a snapshot of Weir")
	}
	version := binary.LittleEndian.Uint32(head[8:])
	if version < 1 || version > lastWhole {
		return 0, damaged("its version is %d, this program reads 1 to %d", version, snapshotVersion)
	}
	sum := crc64.New(crcTable())
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, size-8)); err != nil {
		return 0, err
	}
	var want [8]byte
	if _, err := f.ReadAt(want[:], size-8); err != nil {
		return 0, err
	}
	if binary.LittleEndian.Uint64(want[:]) != sum.Sum64() {
		return 0, damaged("the checksum does not fit")
	}
	r := &snapshotReader{
		r:    bufio.NewReaderSize(io.NewSectionReader(f, int64(snapshotHeader), size-8-int64(snapshotHeader)), 1<<16),
		left: size - 8 - int64(snapshotHeader), version: version, written: int64(binary.LittleEndian.Uint64(head[12:])),
	}
	dropped, err = s.readRecords(r)
	if err == nil && r.left != 0 {
		err = damaged("%d bytes after the end", r.left)
	}
	if err != nil {
		s.empty()
	}
	return dropped, err
}

// empty forgets everything; before the store is in use.
func (s *Store) empty() {
	s.shards = make([]shardCell, len(s.shards))
	s.limits.init()
	s.keys.Store(0)
	s.bytes.Store(0)
	s.reservations.empty()
}

// snapshotReader reads the format of the snapshot writer. left bounds every length, so a damaged
// length cannot allocate more memory than the file has bytes.
type snapshotReader struct {
	r       *bufio.Reader
	left    int64
	err     error
	version uint32
	written int64 // time of the snapshot, µs
}

func (r *snapshotReader) ReadByte() (byte, error) {
	b, err := r.r.ReadByte()
	if err == nil {
		r.left--
	}
	return b, err
}

func (r *snapshotReader) fail(err error) {
	if r.err == nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = damaged("it ends too soon")
		}
		r.err = err
	}
}

func (r *snapshotReader) uvarint() uint64 {
	if r.err != nil {
		return 0
	}
	v, err := binary.ReadUvarint(r)
	if err != nil {
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			err = damaged("%v", err)
		}
		r.fail(err)
		return 0
	}
	return v
}

func (r *snapshotReader) varint() int64 {
	u := r.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// bytes reads a string into dst.
func (r *snapshotReader) bytes(dst []byte) []byte {
	n := r.uvarint()
	if r.err != nil {
		return dst[:0]
	}
	if n > uint64(r.left) {
		r.fail(damaged("a length of %d where %d bytes are left", n, r.left))
		return dst[:0]
	}
	if uint64(cap(dst)) < n {
		dst = make([]byte, n)
	}
	dst = dst[:n]
	if _, err := io.ReadFull(r.r, dst); err != nil {
		r.fail(err)
		return dst[:0]
	}
	r.left -= int64(n)
	return dst
}

func (r *snapshotReader) string() string { return string(r.bytes(nil)) }

// loaded is a definition of a snapshot.
type loaded struct {
	counter *rule.Counter
	limit   *algo.Limit // nil: its records are left out
}

// readRecords reads all after the header.
func (s *Store) readRecords(r *snapshotReader) (dropped int, err error) {
	now := s.now()
	var limits []loaded
	var key []byte
	records, reservations := uint64(0), uint64(0)
	for {
		switch kind := r.uvarint(); {
		case r.err != nil:
			return 0, r.err
		case kind == kindLimit:
			l, ok := s.readLimit(r)
			if r.err != nil {
				return 0, r.err
			}
			if !ok {
				s.log.Warn(fmt.Sprintf("memory store: the snapshot's counters of %s in domain %s are left out: this program does not know such a limit", l.counter.Window, l.counter.Domain))
			}
			limits = append(limits, l)
		case kind == kindRecord:
			n := r.uvarint()
			key = r.bytes(key)
			st := algo.State{A: r.varint(), B: r.uvarint()}
			c := r.uvarint()
			if ext := r.bytes(nil); len(ext) > 0 {
				st.Ext = ext
			}
			switch {
			case r.err != nil:
				return 0, r.err
			case n >= uint64(len(limits)):
				return 0, damaged("a record of definition %d, of %d", n, len(limits))
			case c > 1<<32-1:
				return 0, damaged("a record with %d for C", c)
			}
			st.C = uint32(c)
			records++
			if limits[n].limit == nil {
				continue
			}
			kept, err := s.addLoaded(&limits[n], key, &st, now)
			if err != nil {
				return 0, err
			}
			if !kept {
				dropped++
			}
		case kind == kindReservation && r.version > 1:
			id, note, left := r.string(), r.bytes(nil), r.varint()
			if r.err != nil {
				return 0, r.err
			}
			reservations++
			if err := s.reservations.restore(id, note, left, now-r.written, now); err != nil {
				s.log.Warn(fmt.Sprintf("memory store: a reservation of the snapshot is left out, what it reserved stays charged: %v", err))
			}
		case kind == kindEnd:
			if n := r.uvarint(); r.err == nil && n != uint64(len(limits)) {
				return 0, damaged("%d definitions where it says %d", len(limits), n)
			}
			if n := r.uvarint(); r.err == nil && n != records {
				return 0, damaged("%d records where it says %d", records, n)
			}
			if r.version == 1 {
				return dropped, r.err
			}
			if n := r.uvarint(); r.err == nil && n != reservations {
				return 0, damaged("%d reservations where it says %d", reservations, n)
			}
			return dropped, r.err
		default:
			return 0, damaged("an item of kind %d", kind)
		}
	}
}

// addLoaded adds one record of a snapshot, unless it has become fresh. kept is false if there is no
// room.
func (s *Store) addLoaded(l *loaded, key []byte, st *algo.State, now int64) (kept bool, err error) {
	if lasting, err := l.lasting(st, now); err != nil || !lasting {
		return true, err
	}
	h := s.hash(key)
	sh := &s.shards[h>>s.shift].shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.find(s.limits.load(), tagOf(h, l.counter.ID), l.counter.ID, key) >= 0 {
		return false, damaged("two records of one key")
	}
	return s.insertLoaded(sh, l, h, key, st, now), nil
}

// insertLoaded adds a record of a snapshot to a shard that has none of this key. At the bound it
// forgets others, as for a key that is new. It returns false if there is no room.
func (s *Store) insertLoaded(sh *shard, l *loaded, h uint64, key []byte, st *algo.State, now int64) bool {
	if !s.reserve(sh, len(key), now) {
		return false
	}
	if s.bytes.Load()+int64(sh.growth(len(key))+cap(st.Ext)) > s.maxBytes {
		s.unreserve()
		return false
	}
	_, grown := sh.insert(tagOf(h, l.counter.ID), key, s.intern(l.counter, l.limit), st)
	s.bytes.Add(int64(grown))
	return true
}

// lasting reports whether a state is to be loaded: not if it has become fresh. The error is of a
// state that its limit cannot have.
func (l *loaded) lasting(st *algo.State, now int64) (lasting bool, err error) {
	defer func() {
		if p := recover(); p != nil { // the algorithm trusts its states; a file earns no trust
			err = damaged("a state that %v cannot have", l.limit.Algorithm())
		}
	}()
	if l.limit.Fresh(st, now) && l.counter.Lease == nil { // else see owes
		return false, nil
	}
	l.limit.Check(st, now, algo.Ask{Cost: 1, MaxDelay: -1, Slot: 1})
	return true, nil
}

// readerOf returns a reader of content in memory.
func readerOf(data []byte, version uint32, written int64) *snapshotReader {
	return &snapshotReader{r: bufio.NewReader(bytes.NewReader(data)), left: int64(len(data)), version: version, written: written}
}
