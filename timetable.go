package weir

import (
	"bytes"
	"hash/maphash"
	"sync"
	"sync/atomic"
)

// timetable holds what is to be true of some keys until an instant. A key is that of a rule: its group (rule.Counter.Keys)
// and the bytes that matching made. Looking up takes no lock while nothing is held in the key's part of the table, and allocates
// nothing. Safe for concurrent use.
type timetable[T any] struct {
	n       atomic.Int64 // entries held, those that are over and not yet forgotten included
	evicted atomic.Uint64
	max     int64
	seed    maphash.Seed
	room    sync.Mutex // serialises the making of room
	shards  [tableShards]tableShard[T]
}

const tableShards = 64

type tableShard[T any] struct {
	n     atomic.Int32
	first atomic.Int64 // when the entry ends that ends first, if there are any
	mu    sync.RWMutex
	m     map[uint64]*tableEntry[T] // by hash
	heap  []*tableEntry[T]          // that which ends first on top
	_     [64]byte                  // neighbours share no cache line
}

// tableEntry is one key. All but at, next and what is said to change are constant; value is replaced as a whole.
type tableEntry[T any] struct {
	group uint64
	hash  uint64
	key   []byte
	until int64
	value T
	at    int // in the heap
	next  *tableEntry[T]
}

func (t *timetable[T]) init(most int) {
	t.max, t.seed = int64(most), maphash.MakeSeed()
}

func (t *timetable[T]) hash(group uint64, key []byte) uint64 {
	return maphash.Bytes(t.seed, key) ^ group*0x9E3779B97F4A7C15
}

// shard is by the upper bits: a map uses the lower ones.
func (t *timetable[T]) shard(h uint64) *tableShard[T] { return &t.shards[h>>58] }

// find returns what is true of a key at an instant, and until when.
func (t *timetable[T]) find(group uint64, key []byte, now int64) (value T, until int64, ok bool) {
	h := t.hash(group, key)
	sh := t.shard(h)
	if sh.n.Load() == 0 {
		return value, 0, false
	}
	if sh.first.Load() <= now {
		t.expire(sh, now)
	}
	sh.mu.RLock()
	if e := sh.find(h, group, key); e != nil && e.until > now {
		value, until, ok = e.value, e.until, true
	}
	sh.mu.RUnlock()
	return value, until, ok
}

func (sh *tableShard[T]) find(h, group uint64, key []byte) *tableEntry[T] {
	e := sh.m[h]
	for e != nil && (e.group != group || !bytes.Equal(e.key, key)) {
		e = e.next
	}
	return e
}

// set makes value true of a key until an instant, in place of what was. There is always room: what ends first goes.
func (t *timetable[T]) set(group uint64, key []byte, until int64, value T) {
	h := t.hash(group, key)
	sh := t.shard(h)
	sh.mu.Lock()
	if old := sh.find(h, group, key); old != nil {
		t.remove(sh, old)
	}
	if sh.m == nil {
		sh.m = map[uint64]*tableEntry[T]{}
	}
	e := &tableEntry[T]{group: group, hash: h, key: bytes.Clone(key), until: until, value: value, at: len(sh.heap), next: sh.m[h]}
	sh.m[h] = e
	sh.heap = append(sh.heap, e)
	sh.up(e.at)
	sh.changed()
	t.n.Add(1)
	sh.mu.Unlock()
	if t.n.Load() > t.max {
		t.makeRoom()
	}
}

// makeRoom forgets what ends first, until the table is within its bound.
func (t *timetable[T]) makeRoom() {
	t.room.Lock()
	defer t.room.Unlock()
	for t.n.Load() > t.max {
		var soonest *tableShard[T]
		for i := range t.shards {
			if sh := &t.shards[i]; sh.n.Load() > 0 && (soonest == nil || sh.first.Load() < soonest.first.Load()) {
				soonest = sh
			}
		}
		if soonest == nil {
			return
		}
		soonest.mu.Lock()
		if len(soonest.heap) > 0 {
			t.remove(soonest, soonest.heap[0])
			t.evicted.Add(1)
		}
		soonest.mu.Unlock()
	}
}

// drop forgets a key, and returns what was true of it at an instant.
func (t *timetable[T]) drop(group uint64, key []byte, now int64) (value T, ok bool) {
	h := t.hash(group, key)
	sh := t.shard(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	e := sh.find(h, group, key)
	if e == nil {
		return value, false
	}
	t.remove(sh, e)
	return e.value, e.until > now
}

// expire forgets what is over in a shard.
func (t *timetable[T]) expire(sh *tableShard[T], now int64) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for len(sh.heap) > 0 && sh.heap[0].until <= now {
		t.remove(sh, sh.heap[0])
	}
}

// each calls f for all that is true at an instant, and forgets what is over. f must not change the table.
func (t *timetable[T]) each(now int64, f func(group uint64, key []byte, until int64, value T)) {
	for i := range t.shards {
		sh := &t.shards[i]
		if sh.n.Load() == 0 {
			continue
		}
		t.expire(sh, now)
		sh.mu.RLock()
		for _, e := range sh.heap {
			if e.until > now {
				f(e.group, e.key, e.until, e.value)
			}
		}
		sh.mu.RUnlock()
	}
}

// replace puts another value in place of that of a key, if it is still the same as before.
func replace[T comparable](t *timetable[T], group uint64, key []byte, before, after T) {
	h := t.hash(group, key)
	sh := t.shard(h)
	sh.mu.Lock()
	if e := sh.find(h, group, key); e != nil && e.value == before {
		e.value = after
	}
	sh.mu.Unlock()
}

// remove takes e out. The lock is held.
func (t *timetable[T]) remove(sh *tableShard[T], e *tableEntry[T]) {
	if head := sh.m[e.hash]; head == e {
		if e.next == nil {
			delete(sh.m, e.hash)
		} else {
			sh.m[e.hash] = e.next
		}
	} else {
		for head.next != e {
			head = head.next
		}
		head.next = e.next
	}
	last := len(sh.heap) - 1
	at := e.at
	sh.swap(at, last)
	sh.heap[last] = nil
	sh.heap = sh.heap[:last]
	if at < last {
		sh.up(at)
		sh.down(at)
	}
	sh.changed()
	t.n.Add(-1)
}

// changed publishes what is read without the lock. The lock is held.
func (sh *tableShard[T]) changed() {
	if len(sh.heap) > 0 {
		sh.first.Store(sh.heap[0].until)
	}
	sh.n.Store(int32(len(sh.heap)))
}

func (sh *tableShard[T]) swap(i, j int) {
	sh.heap[i], sh.heap[j] = sh.heap[j], sh.heap[i]
	sh.heap[i].at, sh.heap[j].at = i, j
}

func (sh *tableShard[T]) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if sh.heap[parent].until <= sh.heap[i].until {
			return
		}
		sh.swap(i, parent)
		i = parent
	}
}

func (sh *tableShard[T]) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(sh.heap) {
			return
		}
		if child+1 < len(sh.heap) && sh.heap[child+1].until < sh.heap[child].until {
			child++
		}
		if sh.heap[i].until <= sh.heap[child].until {
			return
		}
		sh.swap(i, child)
		i = child
	}
}
