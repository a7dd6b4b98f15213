package redis

import (
	"bytes"
	"context"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/redis/rueidis"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// refusals remembers what Redis has refused, so that an attack costs it one question a second for each key. A refusal is
// good until the instant from which Redis would admit, counted from when the question was sent, so that nobody is
// refused for longer than Redis would; and no longer than a second or so, since the message that tells of a refund or
// a reset on another node may be lost.
type refusals struct {
	store    *Store
	longest  int64 // ns
	answered atomic.Uint64
	n        atomic.Int64 // refusals held; while there are none, nothing is looked up
	shards   [refusalShards]refusalShard
	tell     chan string // keys that may admit earlier than was said
}

const (
	refusalShards = 64
	maxRefusals   = 1 << 17 / refusalShards // of one shard
)

type refusalShard struct {
	mu     sync.Mutex
	m      map[uint64]*refusal // by hash of counter and key
	opened int64               // when one of its keys was last told to admit earlier, by the monotonic clock
}

// refusal is what was answered.
type refusal struct {
	id     uint64 // of the counter
	key    []byte
	limit  *algo.Limit
	ask    algo.Ask
	asked  int64 // by the monotonic clock, in ns
	told   int64 // when the answer came
	until  int64
	now    int64 // instant of the decision
	result algo.Result
	others []companion
}

// companion is another limit that the refused request met, as it was then.
type companion struct {
	id     uint64
	limit  *algo.Limit
	ask    algo.Ask
	key    uint64 // hash
	result algo.Result
}

func newRefusals(s *Store, longest time.Duration) *refusals {
	r := &refusals{store: s, longest: int64(longest), tell: make(chan string, 1024)}
	for i := range r.shards {
		r.shards[i].m = map[uint64]*refusal{}
	}
	return r
}

func refusalHash(id uint64, key []byte) uint64 { return xxhash.Sum64(key) ^ id*0x9E3779B97F4A7C15 }

// shard is by the upper bits: a map uses the lower ones.
func (r *refusals) shard(h uint64) *refusalShard { return &r.shards[h>>58] }

// suits reports whether a call may be answered from memory where the limit number refused refuses: if nothing would change
// in Redis but what that limit itself counts.
func suits(charges []weir.Charge, refused int) bool {
	for i := range charges {
		c := &charges[i]
		if c.Mode == rule.Shadow || i != refused && c.Limit.CountDenied() {
			return false
		}
	}
	return true
}

// answer refuses a call if one of its limits is known to.
func (r *refusals) answer(charges []weir.Charge, results []algo.Result) (now int64, ok bool) {
	if r.n.Load() == 0 {
		return 0, false
	}
	at := r.store.monotonic()
	for i := range charges {
		c := &charges[i]
		if c.Mode != rule.Enforce || c.Ask.Cost <= 0 {
			continue
		}
		h := refusalHash(c.Counter.ID, c.Key)
		sh := r.shard(h)
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
		if !suits(charges, i) {
			continue
		}
		elapsed := (at - f.told) / 1000
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

// since is a result as it would be some µs later.
func since(r algo.Result, elapsed int64) algo.Result {
	if r.RetryAfter > 0 {
		r.RetryAfter = max(1, r.RetryAfter-elapsed)
	}
	if r.ResetAfter > 0 {
		r.ResetAfter = max(0, r.ResetAfter-elapsed)
	}
	return r
}

// companion is how another limit stood when the refusal came; as if fresh where that is not known.
func (f *refusal) companion(c *weir.Charge, elapsed int64) algo.Result {
	h := xxhash.Sum64(c.Key)
	for i := range f.others {
		if o := &f.others[i]; o.id == c.Counter.ID && o.limit == c.Limit && o.ask == c.Ask && o.key == h {
			return since(o.result, elapsed)
		}
	}
	return c.Limit.Check(&algo.State{}, f.now+elapsed, algo.Ask{})
}

// remember keeps the refusals of a call that was asked at an instant of the monotonic clock.
func (r *refusals) remember(charges []weir.Charge, results []algo.Result, now, asked int64) {
	for i := range charges {
		c, res := &charges[i], &results[i]
		if res.Allowed || c.Mode != rule.Enforce || c.Ask.Cost <= 0 || !suits(charges, i) {
			continue
		}
		// A slot may be given back at any time; and what counts denied requests must hear of them, but for a window that
		// ends when it ends.
		if a := c.Limit.Algorithm(); a == algo.Concurrency || c.Limit.CountDenied() && a != algo.FixedWindow {
			continue
		}
		f := &refusal{
			id: c.Counter.ID, key: bytes.Clone(c.Key), limit: c.Limit, ask: c.Ask, asked: asked, told: r.store.monotonic(), until: asked + r.longest, now: now, result: *res,
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

func (r *refusals) keep(f *refusal) {
	at := r.store.monotonic()
	if f.until <= at {
		return
	}
	h := refusalHash(f.id, f.key)
	sh := r.shard(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.opened >= f.asked {
		return // perhaps of this key, and after it was asked
	}
	if _, known := sh.m[h]; !known {
		// Room for one more: what is over of the first few, or else the first.
		looked := 0
		for k, old := range sh.m {
			if looked++; old.until <= at || len(sh.m) >= maxRefusals {
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

func (r *refusals) forget(sh *refusalShard, h uint64, f *refusal) {
	sh.mu.Lock()
	if sh.m[h] == f {
		delete(sh.m, h)
		r.n.Add(-1)
	}
	sh.mu.Unlock()
}

// clear forgets the refusals of a key.
func (r *refusals) clear(id uint64, key []byte) {
	h := refusalHash(id, key)
	sh := r.shard(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.opened = r.store.monotonic()
	if _, ok := sh.m[h]; ok {
		delete(sh.m, h)
		r.n.Add(-1)
	}
}

// clearAll forgets everything.
func (r *refusals) clearAll() {
	for i := range r.shards {
		sh := &r.shards[i]
		sh.mu.Lock()
		sh.opened = r.store.monotonic()
		r.n.Add(-int64(len(sh.m)))
		clear(sh.m)
		sh.mu.Unlock()
	}
}

// open forgets the refusals of a key that may admit earlier than was said, here and on all nodes.
func (r *refusals) open(id uint64, key []byte) {
	r.clear(id, key)
	select {
	case r.tell <- string(binary.BigEndian.AppendUint64(nil, id)) + string(key):
	default: // the others remember it for a second at most
	}
}

func (s *Store) channel() string { return s.o.Prefix + formatVersion + "opened" }

// listen follows what other nodes tell, and tells them, until the store is closed.
func (r *refusals) listen(client rueidis.Client) {
	s := r.store
	s.background(func() {
		for {
			select {
			case <-s.ctx.Done():
				return
			case text := <-r.tell:
				ctx, cancel := context.WithTimeout(s.ctx, s.o.Timeout)
				_ = client.Do(ctx, client.B().Publish().Channel(s.channel()).Message(text).Build()).Error()
				cancel()
			}
		}
	})
	told := false
	for s.ctx.Err() == nil {
		err := client.Receive(s.ctx, client.B().Subscribe().Channel(s.channel()).Build(), func(m rueidis.PubSubMessage) {
			if len(m.Message) >= 8 {
				r.clear(binary.BigEndian.Uint64([]byte(m.Message[:8])), []byte(m.Message[8:]))
			}
		})
		r.clearAll() // a message may have been missed
		if e, refused := rueidis.IsRedisErr(err); refused && !told {
			told = true
			s.o.Logf("redis store: what other nodes give back is heard of only after %v: %v", time.Duration(r.longest), e)
		}
		select {
		case <-s.ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}
