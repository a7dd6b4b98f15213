package memory

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/util/atomicfile"
)

// loadAtOnce is up to how many records of a snapshot are loaded before New returns. With more, they
// are loaded meanwhile, a shard at a time, and a shard that is asked before its turn is loaded
// then.
const loadAtOnce = 1 << 16

// loading is a snapshot file whose records are not all in their shards yet. It is read under a
// shard's lock, and so a decision never finds a shard without the file's records of its keys.
type loading struct {
	s       *Store
	f       io.ReaderAt
	size    int64
	end     func() error // closes f
	path    string
	now     int64
	shards  []loadingShard
	blocks  []loadingBlock
	left    atomic.Int64 // shards
	dropped atomic.Int64 // records that found no room
	buffers sync.Pool    // *[]byte

	mu  sync.Mutex
	err error // the first fault in a part
}

type loadingBlock struct {
	limits []loaded
	parts  []loadingPart
}

// loadingPart is where a part lies in the file, and how many records it has.
type loadingPart struct {
	at, length, records int64
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
	info, err := f.Stat()
	if err != nil {
		return errors.Join(fmt.Errorf("memory store: the snapshot cannot be read: %w", err), f.Close())
	}
	if !info.Mode().IsRegular() {
		return errors.Join(fmt.Errorf("memory store: the snapshot %s is no regular file", path), f.Close())
	}
	l, err := s.readFile(f, info.Size(), path)
	if err == nil {
		l.end = f.Close
		l.begin(loadAtOnce)
		return nil
	}
	_ = f.Close()
	if !errors.Is(err, errDamaged) {
		return fmt.Errorf("memory store: the snapshot %s cannot be read: %w", path, err)
	}
	aside := atomicfile.Aside(path)
	if moved := os.Rename(path, aside); moved != nil {
		return fmt.Errorf("memory store: %s: %w; and it cannot be set aside: %w", path, err, moved)
	}
	s.log.Warn(fmt.Sprintf("memory store: %s: %v; set aside as %s, beginning with empty counters", path, err, aside))
	return nil
}

func (s *Store) tellDropped(n int64, path string) {
	if n > 0 {
		s.log.Warn(fmt.Sprintf("memory store: %d keys of the snapshot %s found no room", n, path))
	}
}

// readFile checks a file, and reads the tables that loading its parts needs.
func (s *Store) readFile(f io.ReaderAt, size int64, path string) (*loading, error) {
	if size < int64(fileHead) {
		return nil, damaged("only %d bytes long", size)
	}
	head := make([]byte, fileHead)
	if _, err := f.ReadAt(head, 0); err != nil {
		return nil, err
	}
	if string(head[:8]) != snapshotMagic {
		return nil, damaged("not a snapshot of Weir")
	}
	if version := binary.LittleEndian.Uint32(head[8:]); version != snapshotVersion {
		return nil, damaged("its version is %d, and this program reads version %d alone", version, snapshotVersion)
	}
	sum := fileHead - 4
	if binary.LittleEndian.Uint32(head[sum:]) != crc32.Checksum(head[:sum], castagnoli()) {
		return nil, damaged("the checksum of its header does not fit")
	}
	var seed hashSeed
	for i := range seed {
		seed[i] = binary.LittleEndian.Uint64(head[12+8*i:])
	}
	l := &loading{s: s, f: f, size: size, path: path, now: s.now()}
	at := int64(fileHead)
	var held blockReader
	for at < size {
		r, err := readBlock(f, at, size)
		if errors.Is(err, errDamaged) && len(l.blocks) > 0 {
			s.log.Warn(
				fmt.Sprintf(
					"memory store: the last %d bytes of the snapshot %s are left out, which were being written when the machine or the program broke down: %v", size-at, path, err))
			break
		}
		if err != nil {
			return nil, err
		}
		if err := s.readEnd(l, r); err != nil {
			return nil, err
		}
		if r.told {
			held = *r
		}
		at += blockHead + r.length
	}
	if len(l.blocks) == 0 {
		return nil, damaged("it ends too soon")
	}
	s.seed = seed
	for _, h := range held.held {
		if err := s.reservations.restore(h.id, h.note, h.end, l.now-held.written, l.now); err != nil {
			s.log.Warn(
				fmt.Sprintf(
					"memory store: a reservation of the snapshot is left out, what it reserved stays charged: %v", err))
		}
	}
	return l, nil
}

// blockReader is a block whose checksum fits.
type blockReader struct {
	f             io.ReaderAt
	at            int64 // where the head ends
	length, parts int64
	written       int64
	told          bool
	held          []reservation // their end is the time left
}

// readBlock reads the head of a block and checks the rest of it.
func readBlock(f io.ReaderAt, at, size int64) (*blockReader, error) {
	if size-at < blockHead {
		return nil, damaged("it ends too soon")
	}
	var head [blockHead]byte
	if _, err := f.ReadAt(head[:], at); err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	r := &blockReader{f: f, at: at + blockHead, length: int64(le.Uint64(head[:])), parts: int64(le.Uint64(head[8:])),
		written: int64(le.Uint64(head[16:]))}
	if le.Uint32(head[blockHead-4:]) != crc32.Checksum(head[:blockHead-4], castagnoli()) {
		return nil, damaged("the checksum of a head does not fit")
	}
	if r.length < 0 || r.length > size-r.at || r.parts < 0 || r.parts >= r.length {
		return nil, damaged("it ends too soon")
	}
	sum := crc32.New(castagnoli())
	if _, err := io.CopyBuffer(struct{ io.Writer }{sum}, io.NewSectionReader(f, r.at, r.length), make([]byte, min(1<<18, r.length+1))); err != nil {
		return nil, err
	}
	if le.Uint32(head[blockHead-8:]) != sum.Sum32() {
		return nil, damaged("the checksum of a block does not fit")
	}
	return r, nil
}

// readEnd reads what follows the parts of a block.
func (s *Store) readEnd(l *loading, b *blockReader) error {
	data := make([]byte, b.length-b.parts)
	if _, err := b.f.ReadAt(data, b.at+b.parts); err != nil {
		return err
	}
	r := &snapshotReader{b: data}
	var block loadingBlock
	for n := r.uvarint(); r.err == nil && uint64(len(block.limits)) < n; {
		if kind := r.uvarint(); r.err == nil && kind != kindLimit {
			return damaged("an item of kind %d among the definitions", kind)
		}
		d, ok := s.readLimit(r)
		if r.err == nil && !ok {
			s.log.Warn(
				fmt.Sprintf(
					"memory store: the snapshot's counters of %s in domain %s are left out: this program does not know such a limit", d.counter.Window, d.counter.Domain))
		}
		block.limits = append(block.limits, d)
	}
	switch told := r.uvarint(); {
	case r.err == nil && told > 1:
		return damaged("%d where it says whether there are reservations", told)
	case told == 1:
		b.told = true
		for n := r.uvarint(); r.err == nil && n > 0; n-- {
			b.held = append(b.held, reservation{id: r.string(), note: r.bytes(), end: r.varint()})
		}
	}
	parts := r.uvarint()
	if r.err == nil && (parts == 0 || parts > maxShards || parts&(parts-1) != 0) {
		return damaged("%d parts", parts)
	}
	at := b.at
	for range parts {
		part := loadingPart{at: at, length: int64(r.uvarint()), records: int64(r.uvarint())}
		if r.err == nil && (part.length < 0 || part.length > b.at+b.parts-at || part.records < 0 ||
			part.records > part.length/leastRecord) {
			return damaged("a part of %d bytes and %d records", part.length, part.records)
		}
		at += part.length
		block.parts = append(block.parts, part)
	}
	if r.err == nil && (len(r.b) > 0 || at != b.at+b.parts) {
		return damaged("bytes that belong to no part")
	}
	l.blocks = append(l.blocks, block)
	return r.err
}

// leastRecord is the length of the shortest record.
const leastRecord = 7

// loadingShard is a shard that is still to be loaded.
type loadingShard struct {
	*loading
	index int
}

// begin has the shards loaded: at once if there are at most so many records, else meanwhile.
func (l *loading) begin(atOnce int64) {
	s := l.s
	records := int64(0)
	for _, b := range l.blocks {
		for _, p := range b.parts {
			records += p.records
		}
	}
	l.shards = make([]loadingShard, len(s.shards))
	l.left.Store(int64(len(s.shards)))
	for i := range s.shards {
		l.shards[i] = loadingShard{l, i}
		s.shards[i].pending = &l.shards[i]
	}
	var next atomic.Int64
	work := func() {
		for i := next.Add(1) - 1; i < int64(len(s.shards)); i = next.Add(1) - 1 {
			sh := &s.shards[i].shard
			sh.lock()
			sh.mu.Unlock()
		}
	}
	if records <= atOnce {
		work()
		return
	}
	for range runtime.GOMAXPROCS(0) {
		s.background(work)
	}
}

// load loads the shard, whose lock is held.
func (l *loadingShard) load(sh *shard) {
	s := l.s
	sh.pending = nil
	for i := range l.blocks {
		b := &l.blocks[i]
		// one part has the keys of several shards, or the other way round
		first := l.index * len(b.parts) / len(s.shards)
		last := max(first+1, (l.index+1)*len(b.parts)/len(s.shards))
		for k := first; k < last; k++ {
			p := &b.parts[k]
			if i == 0 {
				s.presize(sh, p.records*int64(last-first)*int64(len(b.parts))/int64(max(len(b.parts), len(s.shards))))
			}
			if err := l.part(sh, b, p); err != nil {
				l.mu.Lock()
				if l.err == nil {
					l.err = err
				}
				l.mu.Unlock()
			}
		}
	}
	if grown := sh.trim(); grown != 0 {
		s.bytes.Add(int64(grown))
	}
	if l.left.Add(-1) == 0 {
		l.finish()
	}
}

// presize makes room in an empty shard for so many records, as far as the bound lets it.
func (s *Store) presize(sh *shard, records int64) {
	homes := uint64(records)*16/13 + minHomes
	if sh.n > 0 || homes <= sh.homes || s.bytes.Load()+int64(tableLen(homes)*slotSize) > s.maxBytes {
		return
	}
	s.bytes.Add(int64(sh.resize(homes)))
}

// part loads a part's records of a shard.
func (l *loadingShard) part(sh *shard, b *loadingBlock, p *loadingPart) error {
	if p.length == 0 {
		return nil
	}
	buffer, _ := l.buffers.Get().(*[]byte)
	if buffer == nil {
		buffer = new([]byte)
	}
	defer l.buffers.Put(buffer)
	if int64(cap(*buffer)) < p.length {
		*buffer = make([]byte, p.length+p.length/8)
	}
	data := (*buffer)[:p.length]
	if _, err := l.f.ReadAt(data, p.at); err != nil {
		return err
	}
	for c := (cutter{data}); len(c.b) > 0; {
		switch kind := c.uvarint(); kind {
		case kindForgotten:
			id, key := c.fixed(), c.bytes()
			if c.b == nil {
				return damaged("a part ends too soon")
			}
			l.forget(sh, id, key)
		case kindRecord:
			n, key := c.uvarint(), c.bytes()
			st := algo.State{A: c.varint(), B: c.uvarint()}
			third := c.uvarint()
			ext := c.bytes()
			switch {
			case c.b == nil:
				return damaged("a part ends too soon")
			case n >= uint64(len(b.limits)):
				return damaged("a record of definition %d, of %d", n, len(b.limits))
			case third > 1<<32-1:
				return damaged("a record with %d for C", third)
			}
			st.C = uint32(third)
			if len(ext) > 0 {
				st.Ext = bytes.Clone(ext)
			}
			if b.limits[n].limit == nil {
				continue
			}
			if err := l.record(sh, &b.limits[n], key, &st); err != nil {
				return err
			}
		default:
			return damaged("an item of kind %d", kind)
		}
	}
	return nil
}

// forget forgets a key that an older block has.
func (l *loadingShard) forget(sh *shard, id uint64, key []byte) {
	s := l.s
	h := s.hash(key)
	if h>>s.shift != uint64(l.index) {
		return
	}
	if p := sh.find(s.limits.load(), tagOf(h, id), id, key); p >= 0 {
		s.expire(sh, p)
	}
}

// record adds a record, in place of an older block's.
func (l *loadingShard) record(sh *shard, d *loaded, key []byte, st *algo.State) error {
	s := l.s
	h := s.hash(key)
	if h>>s.shift != uint64(l.index) {
		return nil // of a shard beside this one, of fewer parts than shards
	}
	lasting, err := d.lasting(st, l.now)
	if err != nil {
		return err
	}
	p := sh.find(s.limits.load(), tagOf(h, d.counter.ID), d.counter.ID, key)
	switch {
	case p >= 0 && lasting:
		sh.slots[p].setLimit(s.intern(d.counter, d.limit))
		s.bytes.Add(int64(sh.store(p, st)))
	case p >= 0:
		s.expire(sh, p)
	case lasting && !s.insertLoaded(sh, d, h, key, st, l.now):
		l.dropped.Add(1)
	}
	return nil
}

// finish closes the file when all shards are loaded. A file with a fault that its checksums do not
// show is kept.
func (l *loading) finish() {
	s := l.s
	s.tellDropped(l.dropped.Load(), l.path)
	if l.err != nil {
		aside := atomicfile.Aside(l.path)
		if err := l.copy(aside); err != nil {
			aside = fmt.Sprintf("nowhere (%v)", err)
		}
		s.log.Warn(fmt.Sprintf("memory store: %s: %v; some counters begin empty; a copy is kept as %s", l.path, l.err,
			aside))
	}
	if err := l.end(); err != nil {
		s.log.Warn(fmt.Sprintf("memory store: %s: %v", l.path, err))
	}
	l.blocks, l.f = nil, nil
}

func (l *loading) copy(path string) error {
	to, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(to, io.NewSectionReader(l.f, 0, l.size))
	return errors.Join(err, to.Close())
}

// cutter cuts values off the front of bytes. b is nil after the first that is not there.
type cutter struct{ b []byte }

func (c *cutter) uvarint() uint64 {
	v, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.b = nil
		return 0
	}
	c.b = c.b[n:]
	return v
}

func (c *cutter) varint() int64 {
	u := c.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

func (c *cutter) fixed() uint64 {
	if len(c.b) < 8 {
		c.b = nil
		return 0
	}
	v := binary.LittleEndian.Uint64(c.b)
	c.b = c.b[8:]
	return v
}

func (c *cutter) bytes() []byte {
	n := c.uvarint()
	if c.b == nil || n > uint64(len(c.b)) {
		c.b = nil
		return nil
	}
	v := c.b[:n]
	c.b = c.b[n:]
	return v
}
