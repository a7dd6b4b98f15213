package memory

import (
	"bytes"
	"encoding/binary"
	"slices"
	"sync"

	"github.com/weir-rl/weir/algo"
)

// A shard holds a part of the keys. The upper bits of a key's hash choose the shard, so all limits
// of one key live in one shard.
//
// Its table is open-addressed with linear probing in Robin Hood order (Pedro Celis, "Robin Hood
// Hashing", 1986): a slot's home is a monotone function of its tag, 32 bits of the hash, and the
// slots are kept sorted by tag. So a search ends at the first larger tag, and an interrupted walk
// over the table can resume by tag, even after insertions, deletions and moves. A slot holds the
// key itself, up to an ordinary length, next to its state, so that a search is one access to
// memory, not two.
//
// Only exts holds pointers, so the garbage collector has nothing else to scan.
type shard struct {
	mu   sync.Mutex
	last int64 // the latest instant of a decision
	// the table is longer than this by a tail for slots pushed past the last home; its last slot
	// stays empty
	homes uint64
	slots []slot
	// not nil: the keys of this shard are still in a snapshot, and lock loads them
	pending *loadingShard
	dirty   bool // changed since the last snapshot

	// counts insertions and deletions: a place in the table is valid while the count stays the same
	moves   uint32
	n       int    // slots in use
	arena   []byte // keys that are not in their slots
	used    int    // bytes of the arena ever handed out
	freed   int    // of these, given back
	free    [freeClasses]uint32
	exts    [][]byte // variable parts, by number − 1
	extFree []uint32

	// keys that the snapshot file has and that are gone in a way that it cannot know; see slotFiled
	forgotten []byte

	sweepHand int
	evictHand int
	overflow  map[overflowKey]*overflowCell
}

// slot is one state with its key.
type slot struct {
	a   int64
	b   uint64
	c   uint32
	tag uint32 // emptyTag: the slot is empty
	// the key's length, or longKey, in the lowest 5 bits; slotChanged, slotFiled and slotNamed;
	// from bit 8 on, the number of the definition
	meta uint32
	// longKey: place in the arena, length, number of the variable part (0 for none), 4 bytes each
	key [shortKey]byte
}

const (
	slotSize = 48
	shortKey = 20 // longest key held in its slot, if the state has no variable part
	longKey  = 31 // all bits of keyLength
	emptyTag = ^uint32(0)

	keyLength   = 0x1f
	slotChanged = 0x20 // changed since it was last written to the snapshot file, if ever
	slotFiled   = 0x40 // the snapshot file has a state of this key
	slotNamed   = 0x80 // a charge before in the same call names it; see simpleWorks.find

	minHomes = 8
	minArena = 256
	// free lists for keys of up to 8 × freeClasses − 8 bytes in the arena; longer ones wait for
	// a compaction
	freeClasses = 40
	visitBatch  = 512
)

// lock locks the shard, and loads its keys if they are still in a snapshot.
func (sh *shard) lock() {
	if !sh.mu.TryLock() {
		sh.wait()
	}
	if sh.pending != nil {
		sh.pending.load(sh)
	}
}

// spins is how often wait looks whether a lock is free before it parks, for some 200 ns. A
// decision holds a lock for less than 50. With 8 it parks too often, and with 200 two callers take
// turns, which costs more than to let one go on.
const spins = 64

// wait is mu.Lock when another goroutine holds the lock. The mutex itself looks seldom, with some
// 500 ns of pauses between, in which the other one takes the lock again and again; so two that ask
// for one key all the time were no faster than one.
//
//go:noinline
func (sh *shard) wait() {
	for range spins {
		if sh.mu.TryLock() {
			return
		}
	}
	sh.mu.Lock()
}

// keySize is the room that a key takes in the arena.
func keySize(n int) int { return max(8, (n+7)&^7) }

// tagOf returns the tag of a key's slot under one counter.
func tagOf(hash, id uint64) uint32 {
	return min(uint32(hash)^uint32(id*0x9E3779B97F4A7C15>>32), emptyTag-1)
}

func (s *slot) limit() uint32 { return s.meta >> 8 }

func (s *slot) setLimit(n uint32) { s.meta = n<<8 | s.meta&0xff }

func (s *slot) long() bool { return s.meta&keyLength == longKey }

func (s *slot) word(i int) uint32 { return binary.LittleEndian.Uint32(s.key[4*i:]) }

func (s *slot) setWord(i int, v uint32) { binary.LittleEndian.PutUint32(s.key[4*i:], v) }

// ext returns the number of the variable part, 0 if there is none.
func (s *slot) ext() uint32 {
	if !s.long() {
		return 0
	}
	return s.word(2)
}

func (sh *shard) home(tag uint32) int { return int(uint64(tag) * sh.homes >> 32) }

// find returns the place of a key, below 0 if there is none.
func (sh *shard) find(limits []limitEntry, tag uint32, id uint64, key []byte) int {
	return sh.findFrom(sh.near(tag), limits, tag, id, key)
}

// near returns a place from which on a tag is found, and which is seldom far from it; below 0 if
// there are no slots. It has no branch that depends on the contents of the table. So the slots that
// it looks at are fetched from memory side by side, while a loop would wait for each; and so are
// the slots of several tags, if it is called for all of them first.
func (sh *shard) near(tag uint32) int {
	slots := sh.slots
	if len(slots) == 0 {
		return -1
	}
	p := sh.home(tag)
	if near := slots[p:]; len(near) >= 4 {
		p += less(near[0].tag, tag) + less(near[1].tag, tag) + less(near[2].tag, tag) + less(near[3].tag, tag)
	}
	return p
}

// findFrom is find, beginning at the place that near returned.
func (sh *shard) findFrom(p int, limits []limitEntry, tag uint32, id uint64, key []byte) int {
	if p < 0 {
		return -1
	}
	slots := sh.slots
	for slots[p].tag < tag {
		p++
	}
	for ; slots[p].tag == tag; p++ {
		if s := &slots[p]; limits[s.limit()].id == id && sh.hasKey(s, key) {
			return p
		}
	}
	return -1
}

// less is 1 if a < b, else 0.
func less(a, b uint32) int { return int((uint64(a) - uint64(b)) >> 63) }

func (sh *shard) hasKey(s *slot, key []byte) bool {
	n := int(s.meta & keyLength)
	switch {
	case n == longKey:
		return bytes.Equal(sh.longKey(s), key)
	case n != len(key):
		return false
	case n >= 8 && n <= shortKey:
		end := n - 8
		return binary.LittleEndian.Uint64(s.key[:]) == binary.LittleEndian.Uint64(key) &&
			binary.LittleEndian.Uint64(s.key[end:]) == binary.LittleEndian.Uint64(key[end:]) &&
			(n <= 16 || binary.LittleEndian.Uint64(s.key[8:]) == binary.LittleEndian.Uint64(key[8:]))
	}
	return string(s.key[:n]) == string(key)
}

func (sh *shard) longKey(s *slot) []byte {
	at := int(s.word(0)) << 3
	return sh.arena[at : at+int(s.word(1))]
}

// keyOf returns the key of a slot; valid as long as the lock is held.
func (sh *shard) keyOf(p int) []byte {
	s := &sh.slots[p]
	if s.long() {
		return sh.longKey(s)
	}
	return s.key[:s.meta&keyLength]
}

// load reads a state; st.Ext is the stored slice itself. It returns the number of the definition.
func (sh *shard) load(p int, st *algo.State) (limit uint32) {
	s := &sh.slots[p]
	st.A, st.B, st.C, st.Ext = s.a, s.b, s.c, nil
	if ext := s.ext(); ext != 0 {
		st.Ext = sh.exts[ext-1]
	}
	return s.limit()
}

// store writes a state. It returns by how many bytes the shard grew.
func (sh *shard) store(p int, st *algo.State) (grown int) {
	s := &sh.slots[p]
	s.a, s.b, s.c = st.A, st.B, st.C
	s.meta |= slotChanged
	if cap(st.Ext) == 0 && !s.long() {
		return 0
	}
	return sh.storeExt(s, st.Ext)
}

func (sh *shard) storeExt(s *slot, b []byte) (grown int) {
	ext := s.ext()
	if ext == 0 {
		if cap(b) == 0 {
			return 0
		}
		if !s.long() {
			grown = sh.lengthen(s, s.key[:s.meta&keyLength])
		}
		if last := len(sh.extFree) - 1; last >= 0 {
			ext = sh.extFree[last]
			sh.extFree = sh.extFree[:last]
		} else {
			before := cap(sh.exts)
			sh.exts = append(sh.exts, nil)
			ext = uint32(len(sh.exts))
			grown += (cap(sh.exts) - before) * 24
		}
		s.setWord(2, ext)
	}
	grown += cap(b) - cap(sh.exts[ext-1])
	sh.exts[ext-1] = b
	return grown
}

// lengthen puts a slot's key into the arena.
func (sh *shard) lengthen(s *slot, key []byte) (grown int) {
	n := len(key)
	at, grown := sh.newKey(key)
	s.meta |= longKey
	s.key = [shortKey]byte{}
	s.setWord(0, at)
	s.setWord(1, uint32(n))
	return grown
}

// insert adds a key that is not there yet. It returns its place, and by how many bytes the shard
// grew.
func (sh *shard) insert(tag uint32, key []byte, limit uint32, st *algo.State) (p, grown int) {
	s := slot{tag: tag, meta: limit << 8}
	if len(key) <= shortKey {
		s.meta |= uint32(len(key))
		copy(s.key[:], key)
	} else {
		grown = sh.lengthen(&s, key)
	}
	if n := sh.homesFor(); n != sh.homes {
		grown += sh.resize(n)
	}
	for p = sh.place(&s); p < 0; p = sh.place(&s) {
		grown += sh.resize(sh.homes + sh.homes*3/16 + 1)
	}
	sh.n++
	sh.moves++
	return p, grown + sh.store(p, st)
}

// place puts a slot where it belongs. It returns the place, below 0 if the tail is full.
func (sh *shard) place(s *slot) int {
	p := sh.home(s.tag)
	for sh.slots[p].tag <= s.tag {
		p++
	}
	end := p
	for sh.slots[end].tag != emptyTag {
		end++
	}
	if end == len(sh.slots)-1 {
		return -1
	}
	copy(sh.slots[p+1:end+1], sh.slots[p:end])
	sh.slots[p] = *s
	return p
}

// delete removes the key at a place, whose counter has this id. It returns by how many bytes the
// variable part shrank.
func (sh *shard) delete(p int, id uint64) (shrunk int) {
	s := &sh.slots[p]
	if s.meta&(slotFiled|slotChanged) == slotFiled|slotChanged {
		sh.forgotten = appendForgotten(sh.forgotten, id, sh.keyOf(p))
	}
	if s.long() {
		if ext := s.word(2); ext != 0 {
			shrunk = cap(sh.exts[ext-1])
			sh.exts[ext-1] = nil
			sh.extFree = append(sh.extFree, ext)
		}
		at, size := s.word(0), keySize(int(s.word(1)))
		if class := size >> 3; class < freeClasses {
			binary.LittleEndian.PutUint32(sh.arena[int(at)<<3:], sh.free[class])
			sh.free[class] = at + 1
		}
		sh.freed += size
	}
	end := p + 1
	for sh.slots[end].tag != emptyTag && sh.home(sh.slots[end].tag) < end {
		end++
	}
	copy(sh.slots[p:], sh.slots[p+1:end])
	sh.slots[end-1] = slot{tag: emptyTag}
	sh.n--
	sh.moves++
	sh.dirty = true
	return shrunk
}

// homesFor returns how many homes the table needs for one more key: at most 13 of 16 are taken.
func (sh *shard) homesFor() uint64 {
	if uint64(sh.n+1)*16 <= sh.homes*13 {
		return sh.homes
	}
	return max(minHomes, sh.homes+sh.homes*3/16+1)
}

// tableLen returns the number of slots for a number of homes.
func tableLen(homes uint64) int { return int(homes + min(64, homes/32+12)) }

// resize gives the table another number of homes, or more if that does not do.
func (sh *shard) resize(homes uint64) (grown int) {
	before := len(sh.slots)
again:
	slots := make([]slot, tableLen(homes))
	next := 0
	for p := range sh.slots {
		s := &sh.slots[p]
		if s.tag == emptyTag {
			continue
		}
		for home := int(uint64(s.tag) * homes >> 32); next < home; next++ {
			slots[next].tag = emptyTag
		}
		if next == len(slots)-1 {
			homes += homes/8 + 1
			goto again
		}
		slots[next] = *s
		next++
	}
	for ; next < len(slots); next++ {
		slots[next].tag = emptyTag
	}
	if before > 0 {
		sh.sweepHand = sh.sweepHand * len(slots) / before
		sh.evictHand = sh.evictHand * len(slots) / before
	}
	sh.slots, sh.homes = slots, homes
	sh.moves++
	return (len(slots) - before) * slotSize
}

// newKey puts a long key into the arena.
func (sh *shard) newKey(key []byte) (at uint32, grown int) {
	size := keySize(len(key))
	if class := size >> 3; class < freeClasses && sh.free[class] != 0 {
		at = sh.free[class] - 1
		sh.free[class] = binary.LittleEndian.Uint32(sh.arena[int(at)<<3:])
		sh.freed -= size
	} else {
		if sh.used+size > len(sh.arena) {
			grown = sh.moveArena(sh.arenaFor(size))
		}
		at = uint32(sh.used >> 3)
		sh.used += size
	}
	copy(sh.arena[int(at)<<3:], key)
	return at, grown
}

// arenaFor returns the size of the arena that a new key asks for: the same, if enough can be won by
// compaction.
func (sh *shard) arenaFor(size int) int {
	if sh.freed >= size && sh.freed >= len(sh.arena)/8 {
		return len(sh.arena)
	}
	return max(minArena, len(sh.arena)+len(sh.arena)/4, sh.used-sh.freed+size)
}

// moveArena copies the keys into a new arena. It returns by how many bytes the arena grew.
func (sh *shard) moveArena(size int) (grown int) {
	old := sh.arena
	arena := slices.Grow([]byte(nil), size)
	arena = arena[:cap(arena)&^7]
	if sh.freed == 0 {
		copy(arena, old[:sh.used])
	} else {
		used := 0
		for p := range sh.slots {
			s := &sh.slots[p]
			if s.tag == emptyTag || !s.long() {
				continue
			}
			key := sh.longKey(s)
			copy(arena[used:], key)
			s.setWord(0, uint32(used>>3))
			used += keySize(len(key))
		}
		sh.used, sh.freed = used, 0
		sh.free = [freeClasses]uint32{}
	}
	sh.arena = arena
	return len(arena) - len(old)
}

// growth returns by how many bytes the shard would grow with one more key of this length.
func (sh *shard) growth(keyLen int) (bytes int) {
	if keyLen > shortKey {
		size := keySize(keyLen)
		class := size >> 3
		if (class >= freeClasses || sh.free[class] == 0) && sh.used+size > len(sh.arena) {
			bytes = sh.arenaFor(size) - len(sh.arena)
		}
	}
	if n := sh.homesFor(); n != sh.homes {
		bytes += (tableLen(n) - len(sh.slots)) * slotSize
	}
	return bytes
}

// shrink gives memory back when most keys are gone. It returns by how many bytes the shard grew,
// below 0.
func (sh *shard) shrink() (grown int) {
	if live := sh.used - sh.freed; len(sh.arena) > 4*minArena && live < len(sh.arena)/4 {
		grown += sh.moveArena(live + live/4 + minArena)
	}
	if sh.homes > 8*minHomes && uint64(sh.n) < sh.homes/4 {
		grown += sh.resize(uint64(sh.n) + uint64(sh.n)/2 + minHomes)
	}
	if len(sh.exts) > 64 && len(sh.extFree) == len(sh.exts) {
		grown -= cap(sh.exts) * 24
		sh.exts, sh.extFree = nil, nil
	}
	return grown
}

// trim gives memory back where it is worth the copying. It returns by how many bytes the shard
// grew, below 0.
func (sh *shard) trim() (grown int) {
	if sh.homes > minHomes && uint64(sh.n)*16 < sh.homes*10 {
		grown += sh.resize(max(minHomes, uint64(sh.n)*16/12))
	}
	if sh.freed > 0 && sh.freed >= len(sh.arena)/4 {
		grown += sh.moveArena(sh.used - sh.freed)
	}
	return grown
}

// visit calls f for the place of every key, in order of tags. It holds the lock for about batch
// keys at a time; f must not insert or delete. A key inserted during the visit may be missed.
func (sh *shard) visit(batch int, f func(sh *shard, p int)) {
	for cursor := uint64(0); cursor < 1<<32; {
		cursor = sh.visitFrom(uint32(cursor), batch, f)
	}
}

// visitFrom is one batch of visit: from the keys of a tag on, to the end of a tag. It returns the
// next tag.
func (sh *shard) visitFrom(from uint32, batch int, f func(sh *shard, p int)) (next uint64) {
	sh.lock()
	defer sh.mu.Unlock()
	if sh.n == 0 {
		return 1 << 32
	}
	done, tag := 0, uint32(0)
	for p := sh.home(from); p < len(sh.slots); p++ {
		t := sh.slots[p].tag
		if t == emptyTag || t < from {
			continue
		}
		if done >= batch && t != tag {
			return uint64(t)
		}
		tag = t
		f(sh, p)
		done++
	}
	return 1 << 32
}
