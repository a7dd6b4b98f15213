package memory

import (
	"bytes"
	"errors"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// scratch is the working memory of takeAll; kept in a pool.
type scratch struct {
	works []work
	ofs   []int32 // by charge: its work
	// index of the second state's work by charge, up to the last charge that has one; below 0: none
	besides []int32
	hashes  []uint64 // by charge
	slots   []uint64 // by charge: the id for a Concurrency limit
	table   []int32  // finds works by hash: their number + 1
	locked  shardSet
	grown   int          // by how many bytes the shards have grown before commit
	simple  []simpleWork // for takeSimple
}

// work is one state that a call names, once or more.
type work struct {
	st      algo.State    // Ext is the stored slice itself
	tried   algo.State    // st with the earlier charges of the call tried on it; Ext is its own
	charge  *store.Charge // one that names it
	counter *rule.Counter // of the state
	limit   *algo.Limit   // the definition under which it is kept
	hash    uint64
	sh      *shard
	cell    *overflowCell // nil: a record
	// the index + 1 of the work that stands for this one, since both use one overflow cell; 0:
	// itself
	owner    int32
	at       int    // place in the table; below 0: not there
	moves    uint32 // of the shard when at was found
	uses     int32
	trying   bool // tried is set
	beside   bool // it is the second state of the charge
	reserved bool // room for a record
	charged  bool
}

// keepScratch is the number of charges above which the working memory is not kept.
const keepScratch = 1024

var errTwoWindows = errors.New(
	"memory store: two charges of one call name the same state under limits with different windows, or that lend for different times")

// takeAll is Take for any number of charges, and TakeAhead if there is ahead. Its time grows
// linearly with their number.
func (s *Store) takeAll(charges []store.Charge, ahead []algo.Ahead, results []algo.Result) (int64, error) {
	for i := range charges {
		if charges[i].Counter == nil || charges[i].Limit == nil {
			return 0, errIncomplete(i)
		}
	}
	sc := s.scratch.Get().(*scratch)
	defer s.putScratch(sc)
	now := s.now()
	if err := sc.collect(s, charges); err != nil {
		return 0, err
	}
	sc.locked.lock(s)
	defer sc.locked.unlock(s)
	now = s.read(sc, charges, ahead, now)
	for i := range charges {
		w := &sc.works[sc.ofs[i]]
		if w.at < 0 && w.cell == nil && !w.reserved && charges[i].Ask.Cost > 0 {
			s.makeRoom(w, sc.beside(i), &charges[i], sc.slots[i], now)
			if w.cell != nil {
				sc.share(sc.ofs[i])
			}
		}
	}
	if ahead != nil {
		s.makeRecordRoom(sc, charges, ahead, now)
	}
	denied := sc.judge(charges, results, now)
	for i := range charges {
		sc.charge(i, &charges[i], &results[i], denied, now)
	}
	if ahead != nil && !denied {
		sc.lend(charges, ahead, results, now)
	}
	s.commit(sc, now)
	return now, nil
}

// read reads the states that the charges name; their shards are locked. It takes down the reports
// on units that were lent. now is a reading of the clock from before; read returns the instant of
// the decision.
func (s *Store) read(sc *scratch, charges []store.Charge, ahead []algo.Ahead, now int64) int64 {
	last := now
	for i := range sc.works {
		last = max(last, sc.works[i].sh.last)
	}
	if last > now {
		now = s.overtaken(last)
	}
	for i := range sc.works {
		w := &sc.works[i]
		w.sh.last = now
		s.loadWork(w, now)
		if w.cell != nil {
			sc.share(int32(i))
		}
	}
	for i := range sc.besides {
		s.learn(sc, i, &charges[i], ahead, now)
	}
	return now
}

// tableFrom is the number of charges from which on works are looked up in the table.
const tableFrom = 9

// collect finds the distinct states that the charges name.
func (sc *scratch) collect(s *Store, charges []store.Charge) error {
	n := len(charges)
	if n >= tableFrom {
		size := 32
		for size < 4*n {
			size *= 2
		}
		if cap(sc.table) < size {
			sc.table = make([]int32, size)
		}
		sc.table = sc.table[:size]
		clear(sc.table)
	}
	sc.works, sc.ofs, sc.besides, sc.hashes, sc.slots = sc.works[:0], sc.ofs[:0], sc.besides[:0], sc.hashes[:0],
		sc.slots[:0]
	for i := range charges {
		c := &charges[i]
		h := s.hash(c.Key)
		of := sc.state(s, c, false, h, n)
		if of >= 0 && (c.Counter.Margin != nil || c.Counter.Lease != nil) && twofold(c) {
			second := sc.state(s, c, true, h, n)
			if second < 0 {
				of = -1
			} else {
				for len(sc.besides) < i {
					sc.besides = append(sc.besides, -1)
				}
				sc.besides = append(sc.besides, second)
			}
		}
		if of < 0 {
			sc.locked = shardSet{}
			return errTwoWindows
		}
		sc.ofs = append(sc.ofs, of)
		slot := uint64(0)
		if c.Limit.HasSlots() {
			slot = newSlot()
		}
		sc.slots = append(sc.slots, slot)
	}
	return nil
}

// state returns the index of the work for the state of a charge, one of n. It returns -1 if another
// charge names the same state under a limit that does not fit this one.
func (sc *scratch) state(s *Store, c *store.Charge, beside bool, h uint64, n int) int32 {
	is, l := c.Counter, c.Limit
	if beside {
		is, l = besideOf(is, l)
	}
	id := is.ID
	// The same key under another counter lies in the same shard, but is another state.
	k := h ^ id*0x9E3779B97F4A7C15
	of := -1
	if n < tableFrom {
		for j := range sc.works {
			if sc.hashes[j] == k && sc.works[j].names(id, c.Key) {
				of = j
				break
			}
		}
	} else {
		mask := uint64(len(sc.table) - 1)
		p := k & mask
		for ; sc.table[p] != 0; p = (p + 1) & mask {
			if j := int(sc.table[p] - 1); sc.hashes[j] == k && sc.works[j].names(id, c.Key) {
				of = j
				break
			}
		}
		if of < 0 {
			sc.table[p] = int32(len(sc.works) + 1)
		}
	}
	if of < 0 {
		of = len(sc.works)
		sc.hashes = append(sc.hashes, k)
		shard := h >> s.shift
		sc.locked.add(shard)
		if of < cap(sc.works) {
			sc.works = sc.works[:of+1] // zero, see putScratch
		} else {
			sc.works = append(sc.works, work{})
		}
		w := &sc.works[of]
		w.charge, w.counter, w.limit, w.hash, w.sh, w.beside, w.uses = c, is, l, h, &s.shards[shard].shard, beside, 1
		return int32(of)
	}
	w := &sc.works[of]
	w.uses++
	if w.limit != l && (w.limit.Algorithm() != l.Algorithm() || carries(w.limit, l)) {
		return -1
	}
	return int32(of)
}

// share makes the first work on an overflow cell stand for all works on that cell.
func (sc *scratch) share(of int32) {
	w := &sc.works[of]
	if w.cell.work == 0 {
		w.cell.work = of + 1
		return
	}
	w.owner = w.cell.work
	sc.works[w.owner-1].uses += w.uses
}

// work returns the work that stands for a charge.
func (sc *scratch) work(i int) *work {
	w := &sc.works[sc.ofs[i]]
	if w.owner != 0 {
		w = &sc.works[w.owner-1]
	}
	return w
}

// beside returns the work of a charge's second state, nil if it has none.
func (sc *scratch) beside(i int) *work {
	if i >= len(sc.besides) || sc.besides[i] < 0 {
		return nil
	}
	return &sc.works[sc.besides[i]]
}

// state returns the state of a work that there may be.
func (w *work) state() *algo.State {
	if w == nil {
		return nil
	}
	return &w.st
}

// try returns a copy of the state, on which charges are tried.
func (w *work) try() *algo.State {
	if w == nil {
		return nil
	}
	if !w.trying {
		w.tried, w.trying = clone(&w.st), true
	}
	return &w.tried
}

func (w *work) names(id uint64, key []byte) bool {
	return w.counter.ID == id && bytes.Equal(w.charge.Key, key)
}

func (s *Store) putScratch(sc *scratch) {
	if cap(sc.works) > keepScratch {
		return
	}
	// They point to charges and states; and the next call expects zeros.
	clear(sc.works)
	clear(sc.simple)
	sc.works, sc.simple = sc.works[:0], sc.simple[:0]
	s.scratch.Put(sc)
}

// loadWork reads the state that a work names.
func (s *Store) loadWork(w *work, now int64) {
	c, l, key := w.counter, w.limit, w.charge.Key
	limits := s.limits.load()
	w.at = w.sh.find(limits, tagOf(w.hash, c.ID), c.ID, key)
	if w.at < 0 {
		w.at = s.previous(w.sh, c, l, key, w.hash, now)
	} else if e := &limits[w.sh.slots[w.at].limit()]; e.limit != l || e.counter != c {
		s.relimit(w.sh, w.at, e.limit, c, l, now)
	}
	w.moves = w.sh.moves
	if w.at >= 0 {
		w.sh.load(w.at, &w.st)
		return
	}
	if cell := s.cell(w.sh, c, l, w.hash, now); cell != nil {
		if l.HasSlots() {
			w.cell, w.st = cell, cell.st
		} else {
			w.st = clone(&cell.st)
		}
	}
}

// makeRoom ensures that a charge can be remembered: in a record, or else in an overflow cell. It
// makes no room for second states: see keepMargin, and makeRecordRoom.
func (s *Store) makeRoom(w, beside *work, c *store.Charge, slot uint64, now int64) {
	ask := c.Ask
	ask.Slot = slot
	if r := c.Limit.CheckWith(&w.st, beside.state(), now, ask); r.Off || !r.Allowed && !c.Limit.CountDenied() {
		return
	}
	s.room(w, now)
}

// room reserves a record for a work that has none, or else takes the overflow cell of its key;
// share it then.
func (s *Store) room(w *work, now int64) {
	if w.reserved = s.reserve(w.sh, len(w.charge.Key), now); !w.reserved {
		w.cell = s.makeCell(w.sh, w.counter, w.limit, w.hash, now)
		w.st = w.cell.st
	}
}

// judge asks every limit, and reports whether the call as a whole is denied.
func (sc *scratch) judge(charges []store.Charge, results []algo.Result, now int64) (denied bool) {
	var verdict store.Verdict
	for i := range charges {
		c, w, m, r := &charges[i], sc.work(i), sc.beside(i), &results[i]
		ask := c.Ask
		ask.Slot = sc.slots[i]
		if w.uses == 1 {
			*r = c.Limit.CheckWith(&w.st, m.state(), now, ask)
		} else {
			*r = c.Limit.TakeWith(w.try(), m.try(), now, ask)
		}
		verdict.Add(c.Mode, r)
	}
	return verdict.Denied()
}

// charge makes one charge if the call as a whole lets it be made, and completes its result.
func (sc *scratch) charge(i int, c *store.Charge, r *algo.Result, denied bool, now int64) {
	w, m := sc.work(i), sc.beside(i)
	ask := c.Ask
	ask.Slot = sc.slots[i]
	c.Ask.Slot = 0
	if denied && c.Mode != rule.Shadow && !c.Limit.CountDenied() {
		if w.uses > 1 {
			// The verdict counted the earlier charges of this call as made; the other fields
			// describe the state as it stays.
			is := c.Limit.CheckWith(&w.st, m.state(), now, ask)
			r.Remaining, r.ResetAfter, r.Soft = is.Remaining, is.ResetAfter, is.Soft && r.Allowed
		}
		if w.at >= 0 && c.Limit.Mend(&w.st, now) {
			w.charged = true
		}
		if m != nil && m.at >= 0 && c.Limit.MendMargin(&m.st, now) {
			m.charged = true
		}
		return
	}
	was := *r
	if m == nil {
		*r = c.Limit.Take(&w.st, now, ask)
	} else {
		before := m.st
		*r = c.Limit.TakeWith(&w.st, &m.st, now, ask)
		m.charged = m.charged || m.st.A != before.A || m.st.B != before.B
	}
	w.charged = true
	if denied && c.Mode != rule.Shadow {
		if w.uses == 1 {
			return
		}
		r.Allowed, r.RetryAfter, r.Delay, r.Soft = was.Allowed, was.RetryAfter, was.Delay, r.Soft && was.Allowed
	} else {
		c.Ask.Slot = slotOf(ask, r)
	}
}

// commit writes the states back. First all that have a record: until then the variable part of a
// record, which is charged in place, may be ahead of the rest of it, and nothing else may read it.
func (s *Store) commit(sc *scratch, now int64) {
	grown := sc.grown
	sc.grown = 0
	for i := range sc.works {
		w := &sc.works[i]
		switch {
		case !w.charged:
		case w.cell != nil:
			w.cell.st = w.st
			s.overflows.Add(uint64(w.uses))
			w.charged = false
		default:
			grown += s.put(w)
		}
		if w.cell != nil {
			w.cell.work = 0
		}
	}
	if grown != 0 {
		s.bytes.Add(int64(grown))
	}
	for _, i := range sc.besides {
		// Before the state that it belongs to, which is then not forgotten any more.
		if i >= 0 && sc.works[i].charged {
			s.create(&sc.works[i], now)
			sc.works[i].charged = false
		}
	}
	for i := range sc.works {
		w := &sc.works[i]
		if w.charged {
			s.create(w, now)
		}
		if w.reserved {
			s.unreserve()
		}
	}
	if grown > 0 && s.bytes.Load() > s.maxBytes {
		s.relieve(sc.works[0].sh, now)
	}
}

// put writes a state into its record. It leaves w charged if there is none. It returns by how many
// bytes the shard grew.
func (s *Store) put(w *work) (grown int) {
	p := w.at
	if w.moves != w.sh.moves {
		id := w.counter.ID
		p = w.sh.find(s.limits.load(), tagOf(w.hash, id), id, w.charge.Key)
	}
	if p >= 0 {
		grown = w.sh.store(p, &w.st)
		w.sh.dirty = true
		w.charged = false
	}
	return grown
}

// create makes a record for a state that has none, if anything is left to remember.
func (s *Store) create(w *work, now int64) {
	c, l := w.counter, w.limit
	if l.Fresh(&w.st, now) {
		return
	}
	if !w.reserved {
		switch {
		case w.at >= 0:
		case w.beside:
			s.keepMargin(w, now) // for a lease's record room was made before
			return
		default:
			return // a refund to a key that has only its overflow cell
		}
		s.keys.Add(1) // the key was forgotten to make room for another state of this call
	}
	w.reserved = false
	s.insert(w.sh, tagOf(w.hash, c.ID), w.charge.Key, s.intern(c, l), &w.st, now)
}

// keepMargin makes a record for a soft-margin state that has none; few keys ever use their margin.
// Without room, the keys of an overflow cell share one margin state, which loadWork has read: it
// closes when the first of the keys has used it for long enough.
func (s *Store) keepMargin(w *work, now int64) {
	c, l, key := w.counter, w.limit, w.charge.Key
	if s.reserve(w.sh, len(key), now) {
		s.insert(w.sh, tagOf(w.hash, c.ID), key, s.intern(c, l), &w.st, now)
		return
	}
	s.overflows.Add(1)
	s.makeCell(w.sh, c, l, w.hash, now).st = w.st
}
