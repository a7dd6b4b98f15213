package memory

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/util/atomicfile"
)

// The snapshot file, version 4: a header and blocks. The first block has all records; each further
// one what changed since the one before it. Numbers are little endian where they have a fixed size,
// else varints as in encoding/binary; strings are preceded by their length.
//
//	header: "WEIRSNAP", version uint32, the four words uint64 that keys are hashed with (see
//	  hashSeed), CRC-32 (Castagnoli) of all that
//	block: length of the body behind its head uint64, of that the length of the parts uint64, time
//	  int64 (µs since the Unix epoch), CRC-32 of the body, CRC-32 of the head before it
//	then its parts. The upper bits of a key's hash are the number of its part. Each has any number of
//	  4 forgotten: counter id uint64, key
//	  2 record: number of its definition in this block, key, A, B, C, Ext
//	then
//	  number of definitions, and each: 1, counter id uint64, domain, rule, window, counter id uint64
//	    of the record beside the states (0: there is none), and the limit (see definition.go)
//	  0: the reservations are as in the block before; or 1: their number, and each: id, note, time
//	    left in µs
//	  number of parts, a power of two, and for each its length and its number of records
//
// The meaning of A, B, C and Ext is the algorithm's: a change of it there is a new version here.
//
// The head of a block is written last. Whatever breaks while a block is written, the blocks before
// it are whole and stand: the file is read up to the first block that does not have its checksum.
// The first block is written into a file of its own, which then replaces the old one. It is written
// again when the further ones have become as long as it, so that no more than twice the changes are
// written.
const (
	snapshotMagic   = "WEIRSNAP"
	snapshotVersion = 4
	fileHead        = len(snapshotMagic) + 4 + 4*8 + 4
	blockHead       = 3*8 + 2*4

	kindLimit, kindRecord, kindForgotten = 1, 2, 4

	// leastLog is the length up to which blocks are appended to a first one that is short.
	leastLog = 1 << 16
)

// castagnoli has instructions on most processors.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

// snapshots is a store's knowledge of its file.
type snapshots struct {
	path string
	mu   sync.Mutex // one writer at a time
	stop chan struct{}
	// The file as this store left it: it appends to no other one. nil means that the next snapshot
	// is a whole one.
	file  fs.FileInfo
	first int64 // length of the file with its first block alone
}

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

// changed reports whether any record changed since it was last written.
func (s *Store) changed() bool {
	for i := range s.shards {
		sh := &s.shards[i].shard
		sh.mu.Lock()
		dirty := sh.dirty
		sh.mu.Unlock()
		if dirty {
			return true
		}
	}
	return s.reservations.changes()
}

// writeSnapshot appends what changed to the file, if anything did, or writes a new one.
func (s *Store) writeSnapshot() error {
	s.snapshot.mu.Lock()
	defer s.snapshot.mu.Unlock()
	var err error
	switch f := s.snapshot.open(); {
	case f == nil:
		err = s.writeWhole()
	case !s.changed():
		return f.Close()
	default:
		err = s.writeChanges(f)
	}
	if err != nil {
		s.snapshot.file = nil // records marked as written may not be
	}
	return err
}

// open opens the file if the next snapshot is appended to it, and else returns nil: if somebody
// else wrote or replaced it, or if it would become too long.
func (s *snapshots) open() *os.File {
	if s.file == nil || s.file.Size()-s.first >= max(s.first, leastLog) {
		return nil
	}
	f, err := os.OpenFile(s.path, os.O_RDWR, 0)
	if err != nil {
		return nil // writing a new one reports the fault
	}
	// the file that is open, and not the one that has its name by now
	if now, err := f.Stat(); err != nil || !os.SameFile(now, s.file) || now.Size() != s.file.Size() {
		f.Close()
		return nil
	}
	return f
}

// writeChanges appends a block to the file, and closes it. If that fails the file has no block
// more.
func (s *Store) writeChanges(f *os.File) error {
	at := s.snapshot.file.Size()
	info, err := s.writeBlock(f, at, false)
	if err == nil {
		err = f.Sync()
	}
	if err != nil {
		// else a reader does it, if this fails too
		return errors.Join(err, f.Truncate(at), f.Close())
	}
	s.snapshot.file = info
	return f.Close()
}

// writeWhole puts a new file in the place of the old one.
func (s *Store) writeWhole() error {
	var info fs.FileInfo
	err := atomicfile.Write(s.snapshot.path, func(f *os.File) (err error) {
		if _, err := f.Write(s.appendFileHead(nil)); err != nil {
			return err
		}
		info, err = s.writeBlock(f, int64(fileHead), true)
		return err
	})
	if err != nil {
		return err
	}
	s.snapshot.file, s.snapshot.first = info, info.Size()
	return nil
}

// writeBlock writes a block at the end of a file, which it does not sync, and returns the file's
// new state.
func (s *Store) writeBlock(f *os.File, at int64, whole bool) (fs.FileInfo, error) {
	var none [blockHead]byte
	if _, err := f.WriteAt(none[:], at); err != nil {
		return nil, err
	}
	if _, err := f.Seek(at+blockHead, io.SeekStart); err != nil {
		return nil, err
	}
	head, err := s.dump(f, whole)
	if err != nil {
		return nil, err
	}
	if _, err := f.WriteAt(head, at); err != nil {
		return nil, err
	}
	return f.Stat()
}

func (s *Store) appendFileHead(b []byte) []byte {
	start := len(b)
	b = append(b, snapshotMagic...)
	b = binary.LittleEndian.AppendUint32(b, snapshotVersion)
	for _, word := range s.seed {
		b = binary.LittleEndian.AppendUint64(b, word)
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b[start:], castagnoli()))
}

// lasts reports whether the states of a limit are kept in snapshots. Slots are not, nor states of a
// limit that never admits anything.
func lasts(l *algo.Limit) bool {
	switch l.Algorithm() {
	case algo.Margin, algo.Lease:
		return true
	}
	if l.HasSlots() {
		return false
	}
	return l.Scheduled() || l.Config().N != 0
}

// dumper writes one block.
type dumper struct {
	s       *Store
	out     io.Writer
	whole   bool
	now     int64
	b       []byte // not written yet
	sum     uint32
	n       uint64 // bytes written
	numbers map[limitKey]uint64
	limits  []byte
	records uint64 // of this part
}

// dump writes what follows the head of a block, and returns the head: of all records, or of those
// that changed. It takes no lock for longer than a batch of records takes.
func (s *Store) dump(out io.Writer, whole bool) (head []byte, err error) {
	d := &dumper{s: s, out: out, whole: whole, now: s.now(), numbers: map[limitKey]uint64{}}
	// read before the records: a reservation made later may belong to a charge that is not in the
	// file
	held, told := s.reservations.changed()
	var parts []byte
	parts = binary.AppendUvarint(parts, uint64(len(s.shards)))
	for i := range s.shards {
		before := d.n + uint64(len(d.b))
		d.records = 0
		if err := d.shard(&s.shards[i].shard); err != nil {
			return nil, err
		}
		parts = binary.AppendUvarint(parts, d.n+uint64(len(d.b))-before)
		parts = binary.AppendUvarint(parts, d.records)
	}
	length := d.n + uint64(len(d.b))
	d.b = binary.AppendUvarint(d.b, uint64(len(d.numbers)))
	d.b = append(d.b, d.limits...)
	// one that was settled since may be so in the records already
	if err := d.reservations(held, told || whole || s.reservations.changes()); err != nil {
		return nil, err
	}
	d.b = append(d.b, parts...)
	if err := d.flush(0); err != nil {
		return nil, err
	}
	return appendBlockHead(nil, d.n, length, d.now, d.sum), nil
}

func appendBlockHead(head []byte, length, parts uint64, now int64, sum uint32) []byte {
	head = binary.LittleEndian.AppendUint64(head, length)
	head = binary.LittleEndian.AppendUint64(head, parts)
	head = binary.LittleEndian.AppendUint64(head, uint64(now))
	head = binary.LittleEndian.AppendUint32(head, sum)
	return binary.LittleEndian.AppendUint32(head, crc32.Checksum(head, castagnoli()))
}

// flush writes out the buffer if it is more than most.
func (d *dumper) flush(most int) error {
	if len(d.b) <= most {
		return nil
	}
	d.sum = crc32.Update(d.sum, castagnoli(), d.b)
	d.n += uint64(len(d.b))
	_, err := d.out.Write(d.b)
	d.b = d.b[:0]
	return err
}

// shard writes a part.
func (d *dumper) shard(sh *shard) error {
	sh.lock()
	if d.whole {
		sh.forgotten = nil
	}
	dirty := sh.dirty
	d.b = append(d.b, sh.forgotten...)
	sh.dirty, sh.forgotten = false, nil
	sh.mu.Unlock()
	if !d.whole && !dirty {
		return nil
	}
	for cursor := uint64(0); cursor < 1<<32; {
		cursor = sh.visitFrom(uint32(cursor), visitBatch, d.add)
		if err := d.flush(1 << 16); err != nil {
			return err
		}
	}
	d.s.keepForgotten(sh)
	return nil
}

// keepForgotten removes from sh.forgotten, which the next part is to forget, the keys that came
// back while this part was written, and that it has: a part forgets before it has records.
func (s *Store) keepForgotten(sh *shard) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	limits := s.limits.load()
	var kept []byte
	for c := (cutter{sh.forgotten}); len(c.b) > 0; {
		c.uvarint() // the kind
		id, key := c.fixed(), c.bytes()
		if p := sh.find(limits, tagOf(s.hash(key), id), id, key); p < 0 || sh.slots[p].meta&slotFiled == 0 {
			kept = appendForgotten(kept, id, key)
		}
	}
	sh.forgotten = kept
}

// add writes the record at a place of a shard whose lock is held, if it is to be written.
func (d *dumper) add(sh *shard, p int) {
	s, sl := d.s, &sh.slots[p]
	if !d.whole && sl.meta&slotChanged == 0 {
		return
	}
	var st algo.State
	limits := s.limits.load()
	e := &limits[sh.load(p, &st)]
	filed := sl.meta&slotFiled != 0
	if !lasts(e.limit) || e.limit.Fresh(&st, d.now) && !owes(e, s.besideAt(sh, limits, e, p), d.now) {
		if filed && !d.whole {
			d.b = appendForgotten(d.b, e.id, sh.keyOf(p))
		}
		// still changed: a clock that is set back finds it as it was
		sl.meta = sl.meta&^slotFiled | slotChanged
		return
	}
	sl.meta = sl.meta&^slotChanged | slotFiled
	n, ok := d.numbers[limitKey{e.limit, e.counter}]
	if !ok {
		n = uint64(len(d.numbers))
		d.numbers[limitKey{e.limit, e.counter}] = n
		d.limits = appendLimit(d.limits, e)
	}
	key := sh.keyOf(p)
	b := append(d.b, kindRecord)
	b = binary.AppendUvarint(b, n)
	b = binary.AppendUvarint(b, uint64(len(key)))
	b = append(b, key...)
	b = binary.AppendVarint(b, st.A)
	b = binary.AppendUvarint(b, st.B)
	b = binary.AppendUvarint(b, uint64(st.C))
	b = binary.AppendUvarint(b, uint64(len(st.Ext)))
	d.b = append(b, st.Ext...)
	d.records++
}

func appendForgotten(b []byte, id uint64, key []byte) []byte {
	b = append(b, kindForgotten)
	b = binary.LittleEndian.AppendUint64(b, id)
	b = binary.AppendUvarint(b, uint64(len(key)))
	return append(b, key...)
}

// reservations writes the reservations, or that they are as in the block before if told is false.
func (d *dumper) reservations(held []*reservation, told bool) error {
	if !told {
		d.b = append(d.b, 0)
		return nil
	}
	n, list := uint64(0), []byte(nil)
	for _, h := range held {
		left, ok := d.s.reservations.left(h, d.now)
		if !ok {
			continue // settled: its charge may not be in the file
		}
		n++
		list = appendText(list, h.id)
		list = appendText(list, string(h.note))
		list = binary.AppendVarint(list, left)
	}
	d.b = append(d.b, 1)
	d.b = binary.AppendUvarint(d.b, n)
	d.b = append(d.b, list...)
	return d.flush(1 << 16)
}
