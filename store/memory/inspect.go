package memory

import (
	"context"
	"fmt"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

var _ store.Inspector = (*Store)(nil)

// Inspect implements store.Inspector. It fails only with the error of ctx.
func (s *Store) Inspect(ctx context.Context, v *store.View, keys [][]byte, visit func(store.KeyState)) error {
	if v.Counter == nil {
		return nil
	}
	now := s.now()
	for _, key := range keys {
		if err := ctx.Err(); err != nil {
			return err
		}
		l := v.Limit(key)
		if l == nil {
			continue
		}
		if seen, ok := s.look(v.Counter, l, key, now); ok {
			seen.show(v, l, key, now, visit)
		}
	}
	return nil
}

// seen is a copy of a state.
type seen struct {
	st, beside algo.State
	under      *algo.Limit // that st was last charged by
	second     *algo.Limit // the same of beside; nil: there is none
	key        []byte
}

// lending is the limit by which the two states are to be read together.
func (e *seen) lending() *algo.Limit {
	if e.second == nil {
		return e.under
	}
	return e.under.Lending(e.second)
}

// show calls visit with a state as it is under l, unless it is fresh and nothing is out.
func (e *seen) show(v *store.View, l *algo.Limit, key []byte, now int64, visit func(store.KeyState)) {
	if e.under.Algorithm() != l.Algorithm() {
		return
	}
	if e.under != l && carries(e.under, l) {
		e.lending().Roll(&e.st, &e.beside, now)
		l.Carry(e.under, &e.st, now)
	}
	if _, second := besideOf(v.Counter, l); second == nil ||
		e.second != nil && e.second.Algorithm() != second.Algorithm() {
		e.beside = algo.State{}
	} else if e.second != nil && carries(e.second, second) {
		second.Carry(e.second, &e.beside, now)
	}
	l.Roll(&e.st, &e.beside, now)
	if !l.Fresh(&e.st, now) || l.LentAt(&e.beside, now).Out() > 0 {
		visit(v.State(key, l, &e.st, &e.beside, now))
	}
}

// look copies the state of a key as a charge would see it; ok is false if the key has none.
func (s *Store) look(c *rule.Counter, l *algo.Limit, key []byte, now int64) (e seen, ok bool) {
	h := s.hash(key)
	sh := &s.shards[h>>s.shift].shard
	sh.lock()
	defer sh.mu.Unlock()
	limits := s.limits.load()
	p := sh.find(limits, tagOf(h, c.ID), c.ID, key)
	carried := false
	for i := 0; p < 0 && i < len(c.Previous); i++ {
		older := c.Previous[i].ID
		if p = sh.find(limits, tagOf(h, older), older, key); p < 0 {
			if old := c.Previous[i].Limit; !carried && old != nil && old.Algorithm() == l.Algorithm() &&
				s.lent(sh, c.Previous[i], key, h) >= 0 {
				e.under, carried = old, true // ended generations count by its numbers
			}
			continue
		}
		if e.under = limits[sh.load(p, &e.st)].limit; e.under.Algorithm() != l.Algorithm() {
			p = -1
			continue
		}
		carried = true
	}
	switch {
	case p >= 0:
		e.under = limits[sh.load(p, &e.st)].limit
		e.st = clone(&e.st)
	case !carried:
		e.under = l
		if cell := s.cell(sh, c, l, h, now); cell != nil {
			e.st = clone(&cell.st)
		}
	}
	s.lookBeside(sh, c, key, h, &e)
	if carried {
		e.lending().Roll(&e.st, &e.beside, now)
		l.Carry(e.under, &e.st, now)
		e.under = l
	}
	return e, e.st.B != 0 || e.beside.B != 0
}

// lookBeside copies the record beside the state of a key, if there is any. The lock is held.
func (s *Store) lookBeside(sh *shard, c *rule.Counter, key []byte, h uint64, e *seen) {
	of := c.Margin
	if of == nil {
		of = c.Lease
	}
	if of == nil {
		return
	}
	limits := s.limits.load()
	p := sh.find(limits, tagOf(h, of.ID), of.ID, key)
	for i := 0; p < 0 && i < len(of.Previous); i++ {
		older := of.Previous[i].ID
		p = sh.find(limits, tagOf(h, older), older, key)
	}
	if p >= 0 {
		e.second = limits[sh.load(p, &e.beside)].limit
	}
}

// Scan implements store.Inspector. It fails only with the error of ctx.
func (s *Store) Scan(ctx context.Context, v *store.View, from string, most int,
	visit func(store.KeyState)) (store.Scanned, error) {
	out := store.Scanned{Of: int(s.keys.Load())}
	c := v.Counter
	if c == nil {
		return out, nil
	}
	var at int
	var tag uint64
	if _, err := fmt.Sscanf(from, "%d.%d", &at, &tag); err != nil || at < 0 || tag >= 1<<32 {
		at, tag = 0, 0
	}
	now := s.now()
	var batch []seen
	var buf []byte
	for ; at < len(s.shards); at, tag = at+1, 0 {
		for tag < 1<<32 {
			if out.Looked >= most && out.Looked > 0 {
				out.Next = fmt.Sprintf("%d.%d", at, tag)
				return out, nil
			}
			if err := ctx.Err(); err != nil {
				return out, err
			}
			batch, buf = batch[:0], buf[:0]
			tag = s.shards[at].visitFrom(uint32(tag), visitBatch, func(sh *shard, p int) {
				out.Looked++
				e := &s.limits.load()[sh.slots[p].limit()]
				if e.id != c.ID {
					return
				}
				copied := seen{under: e.limit}
				sh.load(p, &copied.st)
				copied.st = clone(&copied.st)
				begin := len(buf)
				buf = append(buf, sh.keyOf(p)...)
				copied.key = buf[begin:len(buf):len(buf)]
				if c.Margin != nil || c.Lease != nil {
					s.lookBeside(sh, c, copied.key, s.hash(copied.key), &copied)
				}
				batch = append(batch, copied)
			})
			for i := range batch { // without the lock
				e := &batch[i]
				if l := v.Limit(e.key); l != nil {
					e.show(v, l, e.key, now, visit)
				}
			}
		}
	}
	return out, nil
}

// Reset implements store.Inspector. It returns no error.
func (s *Store) Reset(_ context.Context, c *rule.Counter, key []byte) (ok bool, err error) {
	if c == nil {
		return false, nil
	}
	now := s.now()
	h := s.hash(key)
	sh := &s.shards[h>>s.shift].shard
	sh.lock()
	defer sh.mu.Unlock()
	if c.Lease != nil {
		return s.resetLent(sh, c, key, h, now), nil
	}
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
	return ok, nil
}
