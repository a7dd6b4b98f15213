package memory

import (
	"bytes"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// How many places of a shard one insertion examines, to forget states that equal fresh ones and to
// find a victim at the bound.
const (
	// sweepLook places at least, and as many again for each that could be forgotten, up to
	// sweepMost.
	sweepLook = 3
	sweepMost = 12
	evictLook = 12
	// evictShards is how many other shards are looked at if a whole look finds no victim.
	evictShards = 4
	// evictMost is how many victims one insertion may take to stay below MaxBytes.
	evictMost = 32
	// relieveMost is how many victims one decision may take that made its variable part larger.
	relieveMost = 8
)

// overflowBits is the binary logarithm of the number of overflow cells of one counter. Keys for
// which there was no room share these cells. The upper bits of a key's hash choose its cell, so
// each cell belongs to one shard.
const overflowBits = 10

type overflowKey struct {
	id   uint64
	cell uint32
}

// overflowCell is a state that many keys share. It lies outside the bound.
type overflowCell struct {
	counter *rule.Counter
	limit   *algo.Limit
	st      algo.State
	work    int32 // during a call that charges it, under the lock: the work that does, + 1
}

// reserve makes room for one more record in a shard whose lock is held; call insert or unreserve
// next. At the bound it forgets other keys. It returns false if none may be forgotten.
func (s *Store) reserve(sh *shard, keyLen int, now int64) bool {
	if s.keys.Add(1) > s.maxKeys && !s.evict(sh, now) && s.keys.Load() > s.maxKeys {
		s.keys.Add(-1)
		return false
	}
	for tries := 0; ; tries++ {
		grow := int64(sh.growth(keyLen))
		if grow <= 0 || s.bytes.Load()+grow <= s.maxBytes {
			return true
		}
		if tries == evictMost || int64(keyLen) > s.maxBytes || !s.evict(sh, now) {
			s.keys.Add(-1)
			return false
		}
	}
}

func (s *Store) unreserve() { s.keys.Add(-1) }

// insert adds a record for which room was reserved, and looks for some that may be forgotten.
func (s *Store) insert(sh *shard, tag uint32, key []byte, limit uint32, st *algo.State, now int64) {
	s.sweep(sh, now)
	_, grown := sh.insert(tag, key, limit, st)
	sh.dirty = true
	s.grown(sh, grown, now)
}

// remove forgets the key at a place.
func (s *Store) remove(sh *shard, p int) {
	sh.slots[p].meta |= slotChanged
	s.expire(sh, p)
}

// expire forgets the key at a place, whose state equals a fresh one. If the snapshot file has that
// very state, its reader finds that out, too.
func (s *Store) expire(sh *shard, p int) {
	if shrunk := sh.delete(p, s.limits.load()[sh.slots[p].limit()].id); shrunk != 0 {
		s.bytes.Add(int64(-shrunk))
	}
	s.keys.Add(-1)
}

// sweep looks at a few places of the table, and forgets the states that equal fresh ones.
func (s *Store) sweep(sh *shard, now int64) {
	limits := s.limits.load()
	p, forgotten := sh.sweepHand, 0
	for looks := sweepLook; looks > 0; looks-- {
		if p >= len(sh.slots) {
			p = 0
			if grown := sh.shrink(); grown != 0 {
				s.bytes.Add(int64(grown))
			}
			if len(sh.slots) == 0 {
				break
			}
		}
		if sh.slots[p].tag != emptyTag {
			var st algo.State
			if e := &limits[sh.load(p, &st)]; e.limit.Fresh(&st, now) && !owes(e, s.besideAt(sh, limits, e, p), now) {
				s.expire(sh, p)
				if forgotten++; forgotten*sweepLook < sweepMost {
					looks += sweepLook
				}
				continue // a later record may have moved here
			}
		}
		p++
	}
	sh.sweepHand = p
}

// evict forgets one key, either of sh, whose lock is held, or of another shard whose lock is free.
func (s *Store) evict(sh *shard, now int64) bool {
	if s.evictFrom(sh, now) {
		return true
	}
	for range min(evictShards, len(s.shards)-1) {
		other := &s.shards[int(s.victim.Add(1))%len(s.shards)].shard
		if other == sh || !other.mu.TryLock() {
			continue
		}
		ok := other.pending == nil && s.evictFrom(other, now)
		other.mu.Unlock()
		if ok {
			return true
		}
	}
	return false
}

// evictFrom examines some keys of a shard. It forgets the first one whose state equals a fresh one,
// or else the one furthest from its limit; it never forgets a key that is being refused, nor one
// that has units out.
func (s *Store) evictFrom(sh *shard, now int64) bool {
	limits := s.limits.load()
	best, bestShare := -1, -1.0
	p := sh.evictHand
	for looked, passed := 0, 0; looked < evictLook && passed < len(sh.slots); passed, p = passed+1, p+1 {
		if p >= len(sh.slots) {
			p = 0
		}
		if sh.slots[p].tag == emptyTag {
			continue
		}
		looked++
		var st algo.State
		e := &limits[sh.load(p, &st)]
		l, beside := e.limit, s.besideAt(sh, limits, e, p)
		if l.Fresh(&st, now) && !owes(e, beside, now) {
			s.expire(sh, p)
			sh.evictHand = p
			return true
		}
		if l.Algorithm() == algo.Margin || l.Algorithm() == algo.Lease {
			continue // without it a key that is refused now might not be; it goes when it is fresh
		}
		if l.LentAt(beside, now).Out() > 0 {
			continue // holders go on using these, and earlier use must count beside them
		}
		r := l.CheckWith(&st, beside, now, algo.Ask{Cost: 1, MaxDelay: -1, Slot: 1})
		if r.Allowed {
			if share := float64(r.Remaining) / float64(max(1, r.Limit)); share > bestShare {
				best, bestShare = p, share
			}
		}
	}
	sh.evictHand = p
	if best < 0 {
		return false
	}
	e := &limits[sh.slots[best].limit()]
	if of, _ := besideOf(e.counter, e.limit); of != nil && of == e.counter.Lease {
		// The units out have ended, and would count for that key alone.
		key := bytes.Clone(sh.keyOf(best))
		if at := sh.find(limits, tagOf(s.hash(key), of.ID), of.ID, key); at >= 0 {
			s.remove(sh, at)
			best = sh.find(limits, tagOf(s.hash(key), e.id), e.id, key)
		}
	}
	s.remove(sh, best)
	s.evictions.Add(1)
	return true
}

// besideAt returns the record beside the state at p: a zero State if there is none, nil if its
// limit has no second state.
func (s *Store) besideAt(sh *shard, limits []limitEntry, e *limitEntry, p int) *algo.State {
	of, _ := besideOf(e.counter, e.limit)
	if of == nil {
		return nil
	}
	m, key := new(algo.State), sh.keyOf(p)
	if at := sh.find(limits, tagOf(s.hash(key), of.ID), of.ID, key); at >= 0 {
		sh.load(at, m)
	}
	return m
}

// owes reports whether units of a record are still to be charged to a state that is kept under e,
// as of an instant before now. Such a state is not forgotten even if it is fresh now: in a bucket,
// the units come on top of its level at that instant.
func owes(e *limitEntry, beside *algo.State, now int64) bool {
	lease := e.limit.Lease()
	return lease != nil && beside != nil && beside.B != 0 && now >= beside.A && lease.Lent(beside).Out() > 0 &&
		!lease.Fresh(beside, now)
}

// relieve forgets keys of a shard when the variable parts have outgrown the bound on bytes, and
// gives back the room that they leave.
func (s *Store) relieve(sh *shard, now int64) {
	for range relieveMost {
		if s.bytes.Load() <= s.maxBytes || !s.evict(sh, now) {
			break
		}
	}
	if s.bytes.Load() > s.maxBytes {
		s.bytes.Add(int64(sh.trim()))
	}
}

func (s *Store) overflowKey(id, hash uint64) overflowKey {
	return overflowKey{id, uint32(hash >> (64 - overflowBits))}
}

// cell returns the overflow cell of a key, nil if it is fresh.
func (s *Store) cell(sh *shard, c *rule.Counter, l *algo.Limit, hash uint64, now int64) *overflowCell {
	if len(sh.overflow) == 0 {
		return nil
	}
	k := s.overflowKey(c.ID, hash)
	cell := sh.overflow[k]
	if cell == nil {
		return nil
	}
	if cell.limit != l {
		if carries(cell.limit, l) {
			l.Carry(cell.limit, &cell.st, now)
		}
		cell.limit, cell.counter = l, c
	}
	if cell.work == 0 && l.Fresh(&cell.st, now) {
		delete(sh.overflow, k)
		return nil
	}
	return cell
}

// makeCell returns the overflow cell of a key, a new one if need be.
func (s *Store) makeCell(sh *shard, c *rule.Counter, l *algo.Limit, hash uint64, now int64) *overflowCell {
	if cell := s.cell(sh, c, l, hash, now); cell != nil {
		return cell
	}
	looked := 0
	for k, cell := range sh.overflow { // in random order
		if cell.work == 0 && cell.limit.Fresh(&cell.st, now) {
			delete(sh.overflow, k)
		}
		if looked++; looked == sweepLook {
			break
		}
	}
	if sh.overflow == nil {
		sh.overflow = map[overflowKey]*overflowCell{}
	}
	cell := &overflowCell{counter: c, limit: l}
	sh.overflow[s.overflowKey(c.ID, hash)] = cell
	return cell
}
