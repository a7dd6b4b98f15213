package lease

import (
	"hash/maphash"
	"math"
	"math/bits"
	"sync"

	"github.com/weir-rl/weir/internal/leasing/lessee"
	"github.com/weir-rl/weir/store"
)

const (
	shardBits = 6
	chunkSize = 36  // slots are allocated so many at a time, which fills 4 KiB, and never move
	doorSize  = 512 // keys of a shard that were asked for once, and are remembered
)

// slot is a key that leases, with its entry.
type slot struct {
	lessee.Entry
	terms *terms // nil: the slot is free
	key   string
}

// chunk is slots, and the paces at which they are visited; 0 for a slot that is free. Who looks for
// those whose time has come reads no other memory.
type chunk struct {
	pace  [chunkSize]pace
	slots [chunkSize]slot
}

// shard is a part of the keys. index is a hash table by open addressing: 0, or the number of a slot
// plus 1. A chain of full places ends at an empty one.
type shard struct {
	mu     sync.Mutex
	heard  int64 // when something was last lent, by this node's clock: no decision with it is earlier
	index  []uint32
	chunks []*chunk
	made   int // slots of chunks that were ever in use
	free   []uint32
	keys   int
	// when entries were visited last, and are next, by this node's clock, and which paces they have
	visited, due int64
	paces        uint64
	// the doorkeeper, made with the first key: who was asked for when
	door *[doorSize]seen
	key  []byte // working memory, see keyOf
	hand int    // the slot at which room is looked for next
	_    [24]byte
}

// seen is a key that was asked for: a part of its hash, and when, in ticks of about 4 ms.
type seen struct{ tag, tick uint16 }

func (s *Store) hash(c *store.Charge) uint64 {
	return maphash.Bytes(s.seed, c.Key) ^ c.Counter.ID*0x9E3779B97F4A7C15
}

// shard chooses by the upper bits; the index goes by the lower ones.
func (s *Store) shard(h uint64) *shard { return &s.shards[h>>(64-shardBits)] }

func (sh *shard) slot(n uint32) *slot { return &sh.chunks[n/chunkSize].slots[n%chunkSize] }

// setPace sets how often a slot is visited. mu is held.
func (sh *shard) setPace(n uint32, p pace) {
	sh.chunks[n/chunkSize].pace[n%chunkSize] = p
	sh.paces |= 1 << p
}

// keyOf returns the key of a slot, valid until the next one. mu is held.
func (sh *shard) keyOf(sl *slot) []byte {
	sh.key = append(sh.key[:0], sl.key...)
	return sh.key
}

// find returns the slot of a key; nil if it has none. mu is held.
func (sh *shard) find(h uint64, id uint64, key []byte) *slot {
	if sh.keys == 0 {
		return nil
	}
	mask := uint64(len(sh.index) - 1)
	for i := h & mask; sh.index[i] != 0; i = (i + 1) & mask {
		if sl := sh.slot(sh.index[i] - 1); sl.terms.counter.ID == id && sl.key == string(key) {
			return sl
		}
	}
	return nil
}

// add makes a slot for a key that has none. mu is held.
func (sh *shard) add(s *Store, h uint64, t *terms, key []byte, at int64) *slot {
	if 4*(sh.keys+1) > 3*len(sh.index) {
		sh.grow(s)
	}
	var n uint32
	if k := len(sh.free); k > 0 {
		n, sh.free = sh.free[k-1], sh.free[:k-1]
	} else {
		if n = uint32(sh.made); sh.made%chunkSize == 0 {
			sh.chunks = append(sh.chunks, new(chunk))
		}
		sh.made++
	}
	sl := sh.slot(n)
	*sl = slot{Entry: lessee.Begin(&t.Terms, at), terms: t, key: string(key)}
	sh.put(h, n)
	if sh.keys++; sh.keys == 1 {
		sh.paces, sh.visited, sh.due = 0, at, math.MaxInt64
	}
	p := paceOf(&t.Terms)
	sh.setPace(n, p)
	sh.due = min(sh.due, p.next(at))
	return sl
}

func (sh *shard) put(h uint64, n uint32) {
	mask := uint64(len(sh.index) - 1)
	i := h & mask
	for sh.index[i] != 0 {
		i = (i + 1) & mask
	}
	sh.index[i] = n + 1
}

// grow doubles the index.
func (sh *shard) grow(s *Store) {
	old := sh.index
	sh.index = make([]uint32, max(16, 2*len(old)))
	for _, n := range old {
		if n != 0 {
			sh.put(s.hashOf(sh.slot(n-1)), n-1)
		}
	}
}

func (s *Store) hashOf(sl *slot) uint64 {
	return maphash.String(s.seed, sl.key) ^ sl.terms.counter.ID*0x9E3779B97F4A7C15
}

// remove frees the slot of a key. mu is held.
func (sh *shard) remove(s *Store, n uint32) {
	sl := sh.slot(n)
	mask := uint64(len(sh.index) - 1)
	i := s.hashOf(sl) & mask
	for sh.index[i] != n+1 {
		i = (i + 1) & mask
	}
	// What stands behind it moves up, so that no chain is cut.
	for j := (i + 1) & mask; sh.index[j] != 0; j = (j + 1) & mask {
		home := s.hashOf(sh.slot(sh.index[j]-1)) & mask
		if (j-home)&mask >= (j-i)&mask {
			sh.index[i] = sh.index[j]
			i = j
		}
	}
	sh.index[i] = 0
	*sl = slot{}
	sh.chunks[n/chunkSize].pace[n%chunkSize] = 0
	sh.free = append(sh.free, n)
	sh.keys--
}

// looked is how many slots are looked at to make room.
const looked = 8

// makeRoom removes the key that was not asked for the longest, of the next few that hold nothing: a
// flood of keys that come twice must not keep those out that come often. It reports whether there
// was one. What holds units stays until they end. mu is held.
func (sh *shard) makeRoom(s *Store, at int64) bool {
	victim, longest := -1, int64(-1)
	for range min(looked, sh.made) {
		if sh.hand++; sh.hand >= sh.made {
			sh.hand = 0
		}
		if sl := sh.slot(uint32(sh.hand)); sl.terms != nil {
			if idle, unused := sl.Unused(at); unused && idle > longest {
				victim, longest = sh.hand, idle
			}
		}
	}
	if victim < 0 {
		return false
	}
	sh.remove(s, uint32(victim))
	return true
}

// doorTick is such that all ticks are longer than any E.
const doorTick = 22

// knock reports whether a key was asked for within E before, and notes that it is now. mu is held.
func (sh *shard) knock(h uint64, e, at int64) bool {
	if sh.door == nil {
		sh.door = new([doorSize]seen)
	}
	d := &sh.door[h>>(64-shardBits-9)%doorSize]
	was := *d
	*d = seen{tag: uint16(h) | 1, tick: uint16(at >> doorTick)}
	return was.tag == d.tag && int64(d.tick-was.tick)<<doorTick <= e
}

// each calls f for each slot in use. mu is held; f may remove the slot.
func (sh *shard) each(f func(n uint32, sl *slot)) {
	for n := range sh.made {
		if sl := sh.slot(uint32(n)); sl.terms != nil {
			f(uint32(n), sl)
		}
	}
}

// eachDue calls f for each slot whose time to be visited has come, and notes when the next one's
// will. f sets the pace of the slot anew, or removes it. mu is held.
func (sh *shard) eachDue(at int64, f func(n uint32, sl *slot)) {
	due := uint64(0)
	for left := sh.paces; left != 0; left &= left - 1 {
		if p := pace(bits.TrailingZeros64(left)); at >= p.next(sh.visited) {
			due |= 1 << p
		}
	}
	sh.visited = at
	sh.paces &^= due
	for i, c := range sh.chunks {
		for j, p := range &c.pace {
			if due>>p&1 != 0 {
				f(uint32(i*chunkSize+j), &c.slots[j])
			}
		}
	}
	sh.due = math.MaxInt64
	for left := sh.paces; left != 0; left &= left - 1 {
		sh.due = min(sh.due, pace(bits.TrailingZeros64(left)).next(at))
	}
}

// hurry has all slots visited next time. mu is held.
func (sh *shard) hurry() { sh.visited, sh.due = math.MinInt64, 0 }
