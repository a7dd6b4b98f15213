package memory

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc64"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// The snapshot file, version 3. Numbers are little endian where they have a fixed size, else
// varints as in encoding/binary; strings are preceded by their length.
//
//	"WEIRSNAP", version uint32, time int64 (µs since the Unix epoch)
//	then any number of
//	  1 definition: counter id uint64, domain, rule, window, counter id uint64 of what is kept
//	    beside the states (0: nothing is), and the limit (see definition.go); numbered from 0 in
//	    order
//	  2 record: number of its definition, key, A, B, C, Ext
//	  3 reservation: id, note, time left in µs
//	then
//	  0 end: number of definitions, number of records, number of reservations
//	CRC-64 (ECMA) of all of this, uint64
//
// The meaning of A, B, C and Ext is the algorithm's: a change of it there is a new version here.
// Version 1 has no reservations, and its limits have neither a margin that closes nor a schedule.
// Versions 1 and 2 know nothing of leases, nor of what is kept beside the states of a definition.
const (
	snapshotMagic   = "WEIRSNAP"
	snapshotVersion = 3
	snapshotHeader  = len(snapshotMagic) + 4 + 8

	kindEnd, kindLimit, kindRecord, kindReservation = 0, 1, 2, 3
)

// crcTable is a function so that the table is made when a snapshot is first read or written, and
// not when a program starts.
func crcTable() *crc64.Table { return crc64.MakeTable(crc64.ECMA) }

// errDamaged is wrapped by the error for any fault in a snapshot's content.
var errDamaged = errors.New("damaged snapshot")

func damaged(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{errDamaged}, args...)...)
}

// startSnapshots loads the file, and starts writing it at intervals.
func (s *Store) startSnapshots(path string, every time.Duration) error {
	if every == 0 {
		every = DefaultSnapshotEvery
	}
	if info, err := os.Stat(filepath.Dir(path)); err != nil {
		return fmt.Errorf("memory store: the snapshot's folder: %w", err)
	} else if !info.IsDir() {
		return fmt.Errorf("memory store: the snapshot's folder %s is no folder", filepath.Dir(path))
	}
	if err := s.loadSnapshot(path); err != nil {
		return err
	}
	s.snapshot.path = path
	s.snapshot.stop = make(chan struct{})
	s.background(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		failed := false
		for {
			select {
			case <-s.snapshot.stop:
				return
			case <-tick.C:
				if !s.changed() && !failed {
					continue
				}
				err := s.writeSnapshot()
				if failed = err != nil; failed {
					s.log.Warn(fmt.Sprintf("memory store: snapshot not written, the last one stays: %v", err))
				}
			}
		}
	})
	return nil
}

// loadSnapshot reads the file into an empty store. A damaged file is set aside, and the store stays
// empty.
func (s *Store) loadSnapshot(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("memory store: the snapshot cannot be read: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("memory store: the snapshot cannot be read: %w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("memory store: the snapshot %s is no regular file", path)
	}
	dropped, err := s.readSnapshot(f, info.Size())
	if err == nil {
		if dropped > 0 {
			s.log.Warn(fmt.Sprintf("memory store: %d keys of the snapshot %s found no room", dropped, path))
		}
		return nil
	}
	if !errors.Is(err, errDamaged) {
		return fmt.Errorf("memory store: the snapshot %s cannot be read: %w", path, err)
	}
	aside := path + ".damaged-" + time.Now().UTC().Format("20060102T150405.000000000Z")
	if moved := os.Rename(path, aside); moved != nil {
		return fmt.Errorf("memory store: %s: %w; and it cannot be set aside: %w", path, err, moved)
	}
	s.log.Warn(fmt.Sprintf("memory store: %s: %v; set aside as %s, beginning with empty counters", path, err, aside))
	return nil
}

// readSnapshot reads size bytes into an empty store: once for the checksum, once for the content.
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
	if version < 1 || version > snapshotVersion {
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
	defer func() {
		if p := recover(); p != nil { // the algorithm trusts its states; a file earns no trust
			err = damaged("a state that %v cannot have", l.limit.Algorithm())
		}
	}()
	if l.limit.Fresh(st, now) && l.counter.Lease == nil { // else see owes
		return true, nil
	}
	l.limit.Check(st, now, algo.Ask{Cost: 1, MaxDelay: -1, Slot: 1})
	h := s.hash(key)
	tag := tagOf(h, l.counter.ID)
	sh := &s.shards[h>>s.shift].shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.find(s.limits.load(), tag, l.counter.ID, key) >= 0 {
		return false, damaged("two records of one key")
	}
	if s.keys.Load() >= s.maxKeys || s.bytes.Load()+int64(sh.growth(len(key))+cap(st.Ext)) > s.maxBytes {
		return false, nil
	}
	s.keys.Add(1)
	_, grown := sh.insert(tag, key, s.intern(l.counter, l.limit), st)
	s.bytes.Add(int64(grown))
	return true, nil
}

// changed reports whether any record changed since it was last asked.
func (s *Store) changed() bool {
	changed := false
	for i := range s.shards {
		sh := &s.shards[i].shard
		sh.mu.Lock()
		changed = changed || sh.dirty
		sh.dirty = false
		sh.mu.Unlock()
	}
	r := &s.reservations
	r.mu.Lock()
	defer r.mu.Unlock()
	changed = changed || r.dirty
	r.dirty = false
	return changed
}

// writeSnapshot writes a new file next to the old one, and then replaces the old one.
func (s *Store) writeSnapshot() (err error) {
	s.snapshot.mu.Lock()
	defer s.snapshot.mu.Unlock()
	path := s.snapshot.path
	temp := path + ".tmp"
	if err := os.Remove(temp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(temp)
		}
	}()
	if err := s.dump(f); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(temp, path); err != nil {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// syncFolder makes a rename last through a crash.
func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// lasts reports whether the states of a limit are kept in snapshots. Slots are not, nor states of a
// limit that never admits anything.
func lasts(l *algo.Limit) bool {
	switch l.Algorithm() {
	case algo.Margin, algo.Lease:
		return true
	case algo.Concurrency:
		return false
	}
	return l.Scheduled() || l.Config().N != 0
}

// dump writes a snapshot. It takes no lock for longer than a batch of records takes.
func (s *Store) dump(out io.Writer) error {
	sum := crc64.New(crcTable())
	w := io.MultiWriter(out, sum)
	b := append([]byte(nil), snapshotMagic...)
	b = binary.LittleEndian.AppendUint32(b, snapshotVersion)
	now := s.now()
	b = binary.LittleEndian.AppendUint64(b, uint64(now))
	numbers := map[limitKey]uint64{}
	records := uint64(0)
	// read before the records: a reservation made later may belong to a charge that is not in the
	// file
	held := s.reservations.all()
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
