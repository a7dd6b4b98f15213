package memory

import (
	"context"
	"fmt"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
)

// Settle implements store.Reserver. It fails only if a settlement lacks a Counter or a Limit, and
// then makes none.
func (s *Store) Settle(_ context.Context, settlements []store.Settlement) error {
	for i := range settlements {
		if settlements[i].Counter == nil || settlements[i].Limit == nil {
			return fmt.Errorf("memory store: settlement %d needs a Counter and a Limit", i)
		}
	}
	for i := range settlements {
		c := &settlements[i]
		if c.Counter.Lease != nil && c.Limit.Lease() != nil {
			s.settleLent(c)
			continue
		}
		s.settle(c)
	}
	return nil
}

// settle makes a settlement of a limit that lends nothing.
func (s *Store) settle(c *store.Settlement) {
	now := s.now()
	h := s.hash(c.Key)
	sh := &s.shards[h>>s.shift].shard
	sh.lock()
	defer sh.mu.Unlock()
	if now < sh.last {
		now = s.overtaken(sh.last)
	}
	sh.last = now
	limits := s.limits.load()
	tag := tagOf(h, c.Counter.ID)
	p := sh.find(limits, tag, c.Counter.ID, c.Key)
	if p < 0 {
		p = s.previous(sh, c.Counter, c.Limit, c.Key, h, now)
	} else if e := &limits[sh.slots[p].limit()]; e.limit != c.Limit || e.counter != c.Counter {
		s.relimit(sh, p, e.limit, c.Counter, c.Limit, now)
	}
	var st algo.State
	if p >= 0 {
		sh.load(p, &st)
		c.Limit.Settle(&st, nil, now, c.At, c.Reserved, c.Actual)
		s.grown(sh, sh.store(p, &st), now)
		sh.dirty = true
		return
	}
	if cell := s.cell(sh, c.Counter, c.Limit, h, now); cell != nil {
		// It is shared with other keys, and the charge may have been made on a record that was
		// forgotten: nothing goes back.
		if c.Actual > c.Reserved {
			s.overflows.Add(1)
			c.Limit.Settle(&cell.st, nil, now, c.At, c.Reserved, c.Actual)
		}
		return
	}
	// The key has no state. It may still owe units beyond its reservation.
	c.Limit.Settle(&st, nil, now, c.At, c.Reserved, c.Actual)
	switch {
	case c.Limit.Fresh(&st, now):
	case s.reserve(sh, len(c.Key), now):
		s.insert(sh, tag, c.Key, s.intern(c.Counter, c.Limit), &st, now)
	default:
		s.overflows.Add(1)
		s.makeCell(sh, c.Counter, c.Limit, h, now).st = st
	}
}
