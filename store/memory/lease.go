package memory

import (
	"context"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// The units lent under a key have a record of their own in the table, under Counter.Lease: it is
// the second state of a charge, like the state of a soft margin. Nothing is lent where the state or
// the record is not certain to be kept: on overflow cells, and without room for the record. A
// record is not evicted, nor is its state while units are out.

var _ store.Lender = (*Store)(nil)

// TakeAhead implements store.Lender. Like Take, it waits for nothing. It fails only if the call
// cannot be understood, and then has taken nothing down.
func (s *Store) TakeAhead(
	_ context.Context, _, _ time.Duration, charges []store.Charge, ahead []algo.Ahead, results []algo.Result,
) (now, asked int64, err error) {
	for i := range ahead {
		ahead[i].Got, ahead[i].Until, ahead[i].Out = 0, 0, 0
	}
	if len(charges) != len(results) || len(charges) != len(ahead) {
		return 0, 0, errLengths
	}
	asked = store.Monotonic()
	now, err = s.takeAll(charges, ahead, results)
	return now, asked, err
}

// lends reports whether a work, which may be nil, is a record of units lent.
func (w *work) lends() bool { return w != nil && w.limit.Algorithm() == algo.Lease }

// learn ends the generations of a charge's record that are over, and takes down the report. It
// writes its changes at once: later in this call, a search for room reads the states.
func (s *Store) learn(sc *scratch, i int, c *store.Charge, ahead []algo.Ahead, now int64) {
	m := sc.beside(i)
	if !m.lends() {
		return
	}
	var none algo.Ahead
	h := &none
	if ahead != nil {
		h = &ahead[i]
	}
	w := &sc.works[sc.ofs[i]]
	n := m.limit.Lent(&m.st)
	if n.Out() > 0 && (now >= n.End || h.Told != none.Told) && w.at < 0 && w.cell == nil && !w.reserved {
		if s.room(w, now); w.cell != nil {
			sc.share(sc.ofs[i])
		}
	}
	w = sc.work(i)
	was := m.st
	if c.Limit.Learn(&w.st, &m.st, now, h); was.A == m.st.A && was.B == m.st.B && was.C == m.st.C {
		return
	}
	w.charged, m.charged = true, true
	if w.cell == nil {
		sc.grown += s.put(w)
	}
	sc.grown += s.put(m)
}

// lent returns the place of the record of a key, below 0 if there is none.
func (s *Store) lent(sh *shard, c *rule.Counter, key []byte, h uint64) int {
	if c.Lease == nil {
		return -1
	}
	return sh.find(s.limits.load(), tagOf(h, c.Lease.ID), c.Lease.ID, key)
}

// rollBeside charges to st the ended generations of the record beside it, before st is carried to
// another definition: they count by the numbers of the old one.
func (s *Store) rollBeside(sh *shard, c *rule.Counter, old *algo.Limit, key []byte, h uint64, st *algo.State,
	now int64) {
	if p := s.lent(sh, c, key, h); p >= 0 {
		var lease algo.State
		kept := s.limits.load()[sh.load(p, &lease)].limit
		if old.Lending(kept).Roll(st, &lease, now) {
			sh.store(p, &lease)
		}
	}
}

// makeRecordRoom reserves missing records for charges that want units. It makes no room for a
// charge that would be refused by itself.
func (s *Store) makeRecordRoom(sc *scratch, charges []store.Charge, ahead []algo.Ahead, now int64) {
	for i := range sc.besides {
		w, m, c := sc.work(i), sc.beside(i), &charges[i]
		if ahead[i].Want <= 0 || !m.lends() || m.at >= 0 || m.reserved || !w.keeps() {
			continue
		}
		// Units that an earlier charge of the call gives back may let this one in.
		if r := c.Limit.CheckWith(&w.st, &m.st, now, c.Ask); r.Allowed && !r.Off || w.uses > 1 {
			m.reserved = s.reserve(m.sh, len(c.Key), now)
		}
	}
}

// keeps reports whether the state belongs to its key alone: it has a record, or one reserved, or it
// is fresh, and needs none.
func (w *work) keeps() bool {
	return w.cell == nil && (w.at >= 0 || w.reserved || w.st.B == 0)
}

// lend lends to the charges of a call that was admitted, after all of them were made.
func (sc *scratch) lend(charges []store.Charge, ahead []algo.Ahead, results []algo.Result, now int64) {
	for i := range sc.besides {
		w, m, r := sc.work(i), sc.beside(i), &results[i]
		if !m.lends() || !r.Allowed || r.Off {
			continue
		}
		h := &ahead[i]
		want, was := h.Want, m.st
		if m.at < 0 && !m.reserved || !w.keeps() {
			h.Want = 0
		}
		charges[i].Limit.Lend(&w.st, &m.st, now, h)
		if h.Want = want; was.A == m.st.A && was.B == m.st.B && was.C == m.st.C {
			continue
		}
		m.charged = true
		// Its record may have been given to another key to make room for this one.
		w.charged = w.charged || w.at >= 0
	}
}

// settleLent makes a settlement of a limit that lends.
func (s *Store) settleLent(e *store.Settlement) {
	charges := []store.Charge{{Counter: e.Counter, Limit: e.Limit, Key: e.Key}}
	sc := s.scratch.Get().(*scratch)
	defer s.putScratch(sc)
	now := s.now()
	if sc.collect(s, charges) != nil {
		return // never: one charge fits itself
	}
	sc.locked.lock(s)
	defer sc.locked.unlock(s)
	now = s.read(sc, charges, nil, now)
	w := &sc.works[sc.ofs[0]]
	if own := w.at >= 0 || w.reserved; own || e.Actual > e.Reserved {
		if !own && w.cell == nil {
			s.room(w, now)
		}
		w.charged = true
		e.Limit.Settle(&w.st, &sc.beside(0).st, now, e.At, e.Reserved, e.Actual)
	}
	s.commit(sc, now)
}

// resetLent is Reset for a counter that lends; the lock is held. Units that are out stay in its
// record.
//
// Like a charge, it first carries over the states under an older identity. Otherwise the units out
// would be charged by the numbers of that one, if they end before somebody asks.
func (s *Store) resetLent(sh *shard, c *rule.Counter, key []byte, h uint64, now int64) (ok bool) {
	if l := c.Limit; l != nil {
		if p := sh.find(s.limits.load(), tagOf(h, c.ID), c.ID, key); p < 0 {
			s.previous(sh, c, l, key, h, now)
		}
		if lease := l.Lease(); lease != nil && s.lent(sh, c, key, h) < 0 {
			s.previous(sh, c.Lease, lease, key, h, now)
		}
	}
	for _, of := range append([]*rule.Counter{c}, c.Previous...) {
		limits := s.limits.load()
		var st, lease algo.State
		l := of.Limit
		p, at := sh.find(limits, tagOf(h, of.ID), of.ID, key), s.lent(sh, of, key, h)
		if p >= 0 {
			l = limits[sh.load(p, &st)].limit
		}
		if l == nil {
			continue
		}
		if at >= 0 {
			l = l.Lending(limits[sh.load(at, &lease)].limit)
		}
		l.Roll(&st, &lease, now)
		ok = ok || !l.Fresh(&st, now)
		l.Reset(&st, &lease, now)
		if at >= 0 {
			sh.store(at, &lease)
		}
		switch {
		case p < 0:
		case st.B == 0:
			s.remove(sh, p)
		default:
			s.bytes.Add(int64(sh.store(p, &st)))
		}
		sh.dirty = true
	}
	return ok
}
