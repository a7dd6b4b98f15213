package orders

import (
	"bytes"
	"hash/maphash"
	"sync"
	"sync/atomic"

	"github.com/weir-rl/weir/internal/util/pq"
)

// table holds values of keys, each until an instant. A key is one of a rule: its group
// (rule.Counter.Keys) and the bytes that matching made. A lookup allocates nothing, and takes no
// lock while its shard is empty. Safe for concurrent use.
type table[T any] struct {
	n       atomic.Int64 // entries held, with those that are over and not yet removed
	evicted atomic.Uint64
	max     int64
	seed    maphash.Seed
	room    sync.Mutex // serialises the making of room
	// count is called with 1 before a value is in the table, and with -1 when it has left it. It
	// must not ask the table. nil for no calls.
	count  func(group uint64, key []byte, value T, n int)
	shards [tableShards]tableShard[T]
}

const tableShards = 64

type tableShard[T any] struct {
	n     atomic.Int32
	first atomic.Int64 // the end of the entry that ends first, if there are any
	mu    sync.RWMutex
	m     map[uint64]*tableEntry[T] // by hash
	ends  pq.Heap[*tableEntry[T]]   // by until
	_     [64]byte                  // neighbours share no cache line
}

// tableEntry is one key. Only value, at and next change, under the lock of the shard.
type tableEntry[T any] struct {
	group uint64
	hash  uint64
	key   []byte
	until int64
	value T
	at    int // in the heap
	next  *tableEntry[T]
}

// len returns the number of entries, with those that are over and not yet removed.
func (t *table[T]) len() int64 { return t.n.Load() }

func (t *table[T]) init(most int) {
	t.max, t.seed = int64(most), maphash.MakeSeed()
}

func (t *table[T]) hash(group uint64, key []byte) uint64 {
	return maphash.Bytes(t.seed, key) ^ group*0x9E3779B97F4A7C15
}

// shard is by the upper bits: a map uses the lower ones.
func (t *table[T]) shard(h uint64) *tableShard[T] { return &t.shards[h>>58] }

// find returns the value of a key at an instant, and when it ends.
func (t *table[T]) find(group uint64, key []byte, now int64) (value T, until int64, ok bool) {
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

// set gives a key a value until an instant, in place of the one before. If the table is full, the
// entry that ends first goes.
func (t *table[T]) set(group uint64, key []byte, until int64, value T) {
	h := t.hash(group, key)
	sh := t.shard(h)
	if t.count != nil {
		t.count(group, key, value, 1)
	}
	sh.mu.Lock()
	if old := sh.find(h, group, key); old != nil {
		t.remove(sh, old)
	}
	if sh.m == nil {
		sh.m = map[uint64]*tableEntry[T]{}
		sh.ends = pq.New(
			func(a, b *tableEntry[T]) bool { return a.until < b.until },
			func(e *tableEntry[T], at int) { e.at = at },
		)
	}
	e := &tableEntry[T]{group: group, hash: h, key: bytes.Clone(key), until: until, value: value, next: sh.m[h]}
	sh.m[h] = e
	sh.ends.Push(e)
	sh.changed()
	t.n.Add(1)
	sh.mu.Unlock()
	if t.n.Load() > t.max {
		t.makeRoom()
	}
}

// makeRoom removes the entries that end first, until the table is within its bound.
func (t *table[T]) makeRoom() {
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
		if soonest.ends.Len() > 0 {
			t.remove(soonest, soonest.ends.Min())
			t.evicted.Add(1)
		}
		soonest.mu.Unlock()
	}
}

// drop removes a key, and returns the value that it had at an instant.
func (t *table[T]) drop(group uint64, key []byte, now int64) (value T, ok bool) {
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

// expire removes entries of a shard that are over.
func (t *table[T]) expire(sh *tableShard[T], now int64) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for sh.ends.Len() > 0 && sh.ends.Min().until <= now {
		t.remove(sh, sh.ends.Min())
	}
}

// each calls f for all entries that hold at an instant, and removes those that are over. f must not
// change the table.
func (t *table[T]) each(now int64, f func(group uint64, key []byte, until int64, value T)) {
	for i := range t.shards {
		sh := &t.shards[i]
		if sh.n.Load() == 0 {
			continue
		}
		t.expire(sh, now)
		sh.mu.RLock()
		for _, e := range sh.ends.Items() {
			if e.until > now {
				f(e.group, e.key, e.until, e.value)
			}
		}
		sh.mu.RUnlock()
	}
}

// replace gives a key another value, if it still has the one before.
func replace[T comparable](t *table[T], group uint64, key []byte, before, after T) {
	h := t.hash(group, key)
	sh := t.shard(h)
	sh.mu.Lock()
	if e := sh.find(h, group, key); e != nil && e.value == before {
		e.value = after
	}
	sh.mu.Unlock()
}

// remove removes e. The lock must be held.
func (t *table[T]) remove(sh *tableShard[T], e *tableEntry[T]) {
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
	sh.ends.Remove(e.at)
	sh.changed()
	t.n.Add(-1)
	if t.count != nil {
		t.count(e.group, e.key, e.value, -1)
	}
}

// changed publishes the fields that are read without the lock. The lock must be held.
func (sh *tableShard[T]) changed() {
	if sh.ends.Len() > 0 {
		sh.first.Store(sh.ends.Min().until)
	}
	sh.n.Store(int32(sh.ends.Len()))
}
