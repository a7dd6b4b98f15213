package memory

import (
	"bytes"
	"cmp"
	"container/heap"
	"slices"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// KeyInfo is one key with its state, as an operator sees it.
type KeyInfo struct {
	Key    []byte
	Result algo.Result // of a peek
}

// used returns the share of the limit that is used up.
func (k *KeyInfo) used() float64 {
	if k.Result.Limit <= 0 {
		return 1
	}
	return 1 - float64(k.Result.Remaining)/float64(k.Result.Limit)
}

// compareUse orders by use, most used first; then by how long it lasts; then by key.
func compareUse(a, b *KeyInfo) int {
	return cmp.Or(cmp.Compare(b.used(), a.used()), cmp.Compare(b.Result.ResetAfter, a.Result.ResetAfter), bytes.Compare(a.Key, b.Key))
}

// hotHeap has the least used key on top.
type hotHeap []KeyInfo

func (h hotHeap) Len() int           { return len(h) }
func (h hotHeap) Less(i, j int) bool { return compareUse(&h[i], &h[j]) > 0 }
func (h hotHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *hotHeap) Push(x any)        { *h = append(*h, x.(KeyInfo)) }
func (h *hotHeap) Pop() any          { last := len(*h) - 1; x := (*h)[last]; *h = (*h)[:last]; return x }

// Hottest returns up to n keys of the counter that have used most of their limit, most used first. Keys whose state equals
// a fresh one are left out. It looks at every key of the store, a few hundred at a time.
func (s *Store) Hottest(c *rule.Counter, n int) []KeyInfo {
	if c == nil || n <= 0 {
		return nil
	}
	now := s.now()
	var hot hotHeap
	for i := range s.shards {
		s.shards[i].visit(visitBatch, func(sh *shard, p int) {
			e := &s.limits.load()[sh.slots[p].limit()]
			if e.id != c.ID {
				return
			}
			var st algo.State
			sh.load(p, &st)
			if e.limit.Fresh(&st, now) {
				return
			}
			k := KeyInfo{Key: sh.keyOf(p), Result: s.peek(sh, c, e.limit, sh.keyOf(p), &st, now)}
			if len(hot) == n && compareUse(&k, &hot[0]) >= 0 {
				return
			}
			k.Key = bytes.Clone(k.Key)
			if len(hot) == n {
				hot[0] = k
				heap.Fix(&hot, 0)
			} else {
				heap.Push(&hot, k)
			}
		})
	}
	slices.SortFunc(hot, func(a, b KeyInfo) int { return compareUse(&a, &b) })
	return hot
}

// Peek returns the state of one key; ok is false if it is fresh.
func (s *Store) Peek(c *rule.Counter, key []byte) (info KeyInfo, ok bool) {
	if c == nil {
		return KeyInfo{}, false
	}
	now := s.now()
	h := s.hash(key)
	sh := &s.shards[h>>s.shift].shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	limits := s.limits.load()
	var st algo.State
	var l *algo.Limit
	if p := sh.find(limits, tagOf(h, c.ID), c.ID, key); p >= 0 {
		l = limits[sh.load(p, &st)].limit
	} else {
		for _, older := range c.Previous {
			p := sh.find(limits, tagOf(h, older.ID), older.ID, key)
			if p < 0 {
				continue
			}
			old := limits[sh.load(p, &st)].limit
			if l = c.Limit; l == nil || l.Algorithm() != old.Algorithm() {
				return KeyInfo{}, false
			}
			st = clone(&st)
			l.Carry(old, &st, now)
			break
		}
	}
	if l == nil || l.Fresh(&st, now) {
		return KeyInfo{}, false
	}
	return KeyInfo{Key: bytes.Clone(key), Result: s.peek(sh, c, l, key, &st, now)}, true
}

// peek answers a peek at a state, with that of its soft margin if that closes.
func (s *Store) peek(sh *shard, c *rule.Counter, l *algo.Limit, key []byte, st *algo.State, now int64) algo.Result {
	var margin algo.State
	if c.Margin != nil && l.Margin() != nil {
		h := s.hash(key)
		if p := sh.find(s.limits.load(), tagOf(h, c.Margin.ID), c.Margin.ID, key); p >= 0 {
			sh.load(p, &margin)
		}
	}
	return l.CheckWith(st, &margin, now, algo.Ask{MaxDelay: -1})
}

// Reset forgets one key, and that it used a soft margin; ok is false if there was nothing to forget.
func (s *Store) Reset(c *rule.Counter, key []byte) (ok bool) {
	if c == nil {
		return false
	}
	now := s.now()
	h := s.hash(key)
	sh := &s.shards[h>>s.shift].shard
	sh.mu.Lock()
	defer sh.mu.Unlock()
	limits := s.limits.load()
	forget := func(id uint64) {
		p := sh.find(limits, tagOf(h, id), id, key)
		if p < 0 {
			return
		}
		var st algo.State
		l := limits[sh.load(p, &st)].limit
		ok = ok || !l.Fresh(&st, now)
		s.remove(sh, p)
	}
	for _, c := range [...]*rule.Counter{c, c.Margin} {
		if c == nil {
			continue
		}
		forget(c.ID)
		for _, p := range c.Previous {
			forget(p.ID)
		}
	}
	return ok
}
