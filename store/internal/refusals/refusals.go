// Package refusals is a node's memory of a store's refusals, so that an attack costs the store one
// call a second for each key.
package refusals

import (
	"bytes"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Memory holds refusals. A refusal is valid until the instant from which the store would admit,
// counted from when the call was sent, so that nobody is refused for longer than by the store
// itself; and for a second or so at most, because a node may not hear of a refund or a reset on
// another one. Make one with New. Safe for concurrent use.
type Memory struct {
	longest  int64 // ns
	answered atomic.Uint64
	n        atomic.Int64 // refusals held; while there are none, nothing is looked up
	shards   [shards]shard
}

const (
	shards = 64
	most   = 1 << 17 / shards // of one shard
	// shortly is for how long a refusal is repeated whose limit lends to other regions: such a
	// limit may admit sooner than it says.
	shortly = int64(100 * time.Millisecond)
)

type shard struct {
	mu sync.Mutex
	m  map[uint64]*refusal // by hash of counter and key
	// when a refusal of this shard was last invalidated, by store.Monotonic
	invalidatedAt int64
}

// refusal is an answer that is remembered.
type refusal struct {
	id         uint64 // of the counter
	key        []byte
	limit      *algo.Limit
	ask        algo.Ask
	sentAt     int64 // by store.Monotonic, in ns
	answeredAt int64 // when the answer came
	until      int64
	now        int64 // instant of the decision
	result     algo.Result
	others     []companion
}

// companion is another limit that the refused request met, as it was then.
type companion struct {
	id     uint64
	limit  *algo.Limit
	ask    algo.Ask
	key    uint64 // hash
	result algo.Result
}

// New returns a Memory that holds a refusal for as long as longest.
func New(longest time.Duration) *Memory {
	r := &Memory{longest: int64(longest)}
	for i := range r.shards {
		r.shards[i].m = map[uint64]*refusal{}
	}
	return r
}

func hash(id uint64, key []byte) uint64 { return xxhash.Sum64(key) ^ id*0x9E3779B97F4A7C15 }

// shardOf chooses by the upper bits of the hash: a map uses the lower ones.
func (r *Memory) shardOf(h uint64) *shard { return &r.shards[h>>58] }

// Answered returns how many calls were answered from memory.
func (r *Memory) Answered() uint64 { return r.answered.Load() }

// answerable reports whether a call that the charge at index refused denies may be answered from
// memory: the call must change nothing in the store, except that limit's own count.
func answerable(charges []store.Charge, refused int) bool {
	for i := range charges {
		c := &charges[i]
		if c.Mode == rule.Shadow || i != refused && c.Limit.CountDenied() {
			return false
		}
	}
	return true
}

// Answer refuses a call if a refusal by one of its limits is remembered.
func (r *Memory) Answer(charges []store.Charge, results []algo.Result) (now int64, ok bool) {
	if r.n.Load() == 0 {
		return 0, false
	}
	at := store.Monotonic()
	for i := range charges {
		c := &charges[i]
		if c.Mode != rule.Enforce || c.Ask.Cost <= 0 {
			continue
		}
		h := hash(c.Counter.ID, c.Key)
		sh := r.shardOf(h)
		sh.mu.Lock()
		f := sh.m[h]
		sh.mu.Unlock()
		if f == nil || f.limit != c.Limit || f.id != c.Counter.ID || f.ask != c.Ask || !bytes.Equal(f.key, c.Key) {
			continue
		}
		if f.until <= at {
			r.forget(sh, h, f)
			continue
		}
		if !answerable(charges, i) {
			continue
		}
		elapsed := (at - f.answeredAt) / 1000
		for j := range charges {
			o := &charges[j]
			o.Ask.Slot = 0
			if j == i {
				results[j] = since(f.result, elapsed)
			} else {
				results[j] = f.companion(o, elapsed)
			}
		}
		r.answered.Add(1)
		return f.now + elapsed, true
	}
	return 0, false
}

// since returns a result as it would be some µs later.
func since(r algo.Result, elapsed int64) algo.Result {
	if r.RetryAfter > 0 {
		r.RetryAfter = max(1, r.RetryAfter-elapsed)
	}
	if r.ResetAfter > 0 {
		r.ResetAfter = max(0, r.ResetAfter-elapsed)
	}
	return r
}

// companion returns the result of another limit of the call, as it was when the refusal came, or a
// fresh state's if it is not known.
func (f *refusal) companion(c *store.Charge, elapsed int64) algo.Result {
	h := xxhash.Sum64(c.Key)
	for i := range f.others {
		if o := &f.others[i]; o.id == c.Counter.ID && o.limit == c.Limit && o.ask == c.Ask && o.key == h {
			return since(o.result, elapsed)
		}
	}
	return c.Limit.Check(&algo.State{}, f.now+elapsed, algo.Ask{})
}

// Remember keeps the refusals of a call that was sent at the instant asked of store.Monotonic.
func (r *Memory) Remember(charges []store.Charge, results []algo.Result, now, asked int64) {
	for i := range charges {
		c, res := &charges[i], &results[i]
		if res.Allowed || c.Mode != rule.Enforce || c.Ask.Cost <= 0 || !answerable(charges, i) {
			continue
		}
		// A slot may be given back at any time. A limit that counts denied requests must see them,
		// except in a fixed window, whose end they do not move.
		if l := c.Limit; l.HasSlots() || l.CountDenied() && !l.ResetsAtOnce() {
			continue
		}
		longest := r.longest
		if c.Counter.Lease != nil && c.Limit.Lease() != nil {
			if !c.Counter.Lent {
				continue // units that are out to nodes may come back at any time
			}
			longest = min(longest, shortly) // and what other regions lend or return, too
		}
		f := &refusal{
			id: c.Counter.ID, key: bytes.Clone(c.Key), limit: c.Limit, ask: c.Ask, sentAt: asked, answeredAt: store.Monotonic(), until: asked + longest, now: now, result: *res,
		}
		if res.RetryAfter != algo.Never {
			f.until = min(f.until, asked+res.RetryAfter*1000)
		}
		for j := range charges {
			if o := &charges[j]; j != i {
				f.others = append(f.others, companion{o.Counter.ID, o.Limit, o.Ask, xxhash.Sum64(o.Key), results[j]})
			}
		}
		r.keep(f)
	}
}

func (r *Memory) keep(f *refusal) {
	at := store.Monotonic()
	if f.until <= at {
		return
	}
	h := hash(f.id, f.key)
	sh := r.shardOf(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.invalidatedAt >= f.sentAt {
		return // perhaps for this key, and after the call was sent
	}
	if _, known := sh.m[h]; !known {
		// Make room: drop the expired ones among a few, and one at least if the shard is full.
		looked := 0
		for k, old := range sh.m {
			if looked++; old.until <= at || len(sh.m) >= most {
				delete(sh.m, k)
				r.n.Add(-1)
			}
			if looked >= 4 {
				break
			}
		}
		r.n.Add(1)
	}
	sh.m[h] = f
}

func (r *Memory) forget(sh *shard, h uint64, f *refusal) {
	sh.mu.Lock()
	if sh.m[h] == f {
		delete(sh.m, h)
		r.n.Add(-1)
	}
	sh.mu.Unlock()
}

// Forget forgets the refusal of a key, which may be admitted earlier than was said.
func (r *Memory) Forget(id uint64, key []byte) {
	h := hash(id, key)
	sh := r.shardOf(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.invalidatedAt = store.Monotonic()
	if _, ok := sh.m[h]; ok {
		delete(sh.m, h)
		r.n.Add(-1)
	}
}

// ForgetAll forgets everything.
func (r *Memory) ForgetAll() {
	for i := range r.shards {
		sh := &r.shards[i]
		sh.mu.Lock()
		sh.invalidatedAt = store.Monotonic()
		r.n.Add(-int64(len(sh.m)))
		clear(sh.m)
		sh.mu.Unlock()
	}
}
