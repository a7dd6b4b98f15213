package memory

import (
	"bytes"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// few is up to how many charges of takeSimple have their working memory on the stack, where it is
// cleared at each call.
const few = 8

// mostAbsent is up to how many charges of takeSimple may be without a record, since each of these
// is compared with those before.
const mostAbsent = 64

// simpleWorks is the working memory of takeSimple.
type simpleWorks struct {
	works  []simpleWork // by charge
	locked shardSet
	absent int // charges without a record
}

// simpleWork is one charge and its state.
type simpleWork struct {
	hash uint64
	sh   *shard
	at   int        // place in the table, or where to begin to look; below 0: not there
	st   algo.State // Ext is the stored slice itself
	made bool       // the charge is made, and st as it was before
}

// takeSimple is takeAll for charges each of which is on a state of its own without a record beside
// it, that is in the table or for which there is room. It returns false for others, and has charged
// nothing then.
func (s *Store) takeSimple(charges []store.Charge, results []algo.Result) (now int64, ok bool) {
	var w simpleWorks
	if n := len(charges); n <= few {
		var works [few]simpleWork
		w.works = works[:n]
		return s.takeWith(&w, charges, results)
	}
	if len(charges) > keepScratch {
		return 0, false
	}
	sc := s.scratch.Get().(*scratch)
	defer s.putScratch(sc)
	w.works = sc.simpleWorks(len(charges))
	return s.takeWith(&w, charges, results)
}

// simpleWorks returns working memory for n charges, all zero; see putScratch.
func (sc *scratch) simpleWorks(n int) []simpleWork {
	if cap(sc.simple) < n {
		sc.simple = make([]simpleWork, 2*n)
	}
	sc.simple = sc.simple[:n]
	return sc.simple
}

// takeWith is takeSimple with its working memory.
func (s *Store) takeWith(w *simpleWorks, charges []store.Charge, results []algo.Result) (now int64, ok bool) {
	if !w.collect(s, charges) {
		return 0, false
	}
	now = s.now()
	w.locked.lock(s)
	defer w.locked.unlock(s)
	if now, ok = w.find(s, charges, now); !ok {
		return 0, false
	}
	denied, all := w.judge(charges, results, now)
	if all && !denied {
		return now, true
	}
	grown := w.charge(charges, results, denied, now)
	if w.absent > 0 {
		w.insert(s, charges, now)
	}
	if grown != 0 {
		s.grown(w.works[0].sh, grown, now)
	}
	return now, true
}

// collect hashes the keys. It reports whether takeSimple can decide the charges, as far as that
// shows without their states.
func (w *simpleWorks) collect(s *Store, charges []store.Charge) bool {
	for i := range charges {
		c, f := &charges[i], &w.works[i]
		if c.Counter == nil || c.Limit == nil || c.Limit.HasSlots() || twofold(c) {
			return false
		}
		if i > 0 && bytes.Equal(c.Key, charges[i-1].Key) {
			f.hash, f.sh = w.works[i-1].hash, w.works[i-1].sh
		} else {
			f.hash = s.hash(c.Key)
			f.sh = &s.shards[f.hash>>s.shift].shard
			w.locked.add(f.hash >> s.shift)
		}
	}
	return true
}

// find finds the records, and reserves room for those that there are not; the shards are locked. ok
// is false if takeSimple cannot decide the charges. now is a reading of the clock from before; find
// returns the instant of the decision.
func (w *simpleWorks) find(s *Store, charges []store.Charge, now int64) (_ int64, ok bool) {
	last := now
	for i := range charges {
		f := &w.works[i]
		last = max(last, f.sh.last)
		f.at = f.sh.near(tagOf(f.hash, charges[i].Counter.ID))
	}
	if last > now {
		now = s.overtaken(last)
	}
	limits := s.limits.load()
	grow, n := 0, 0
	for n < len(charges) && w.findOne(limits, charges, n, &grow) {
		w.works[n].sh.last, w.works[n].sh.dirty = now, true
		n++
	}
	for i := range w.works[:n] {
		if f := &w.works[i]; f.at >= 0 {
			f.sh.slots[f.at].meta &^= slotNamed
		}
	}
	if n < len(charges) {
		return now, false
	}
	if w.absent > 0 && (s.keys.Add(int64(w.absent)) > s.maxKeys ||
		grow > 0 && s.bytes.Load()+int64(grow) > s.maxBytes) {
		s.keys.Add(int64(-w.absent))
		return now, false
	}
	return now, true
}

// findOne finds the record of charge i, and marks it; or it adds the size of a new one to grow. It
// returns false if takeSimple cannot decide the charge, or if another one names the same state.
func (w *simpleWorks) findOne(limits []limitEntry, charges []store.Charge, i int, grow *int) bool {
	c, f := &charges[i], &w.works[i]
	id := c.Counter.ID
	f.at = f.sh.findFrom(f.at, limits, tagOf(f.hash, id), id, c.Key)
	if f.at >= 0 {
		sl := &f.sh.slots[f.at]
		if e := &limits[sl.limit()]; e.limit != c.Limit || e.counter != c.Counter || sl.meta&slotNamed != 0 {
			return false
		}
		sl.meta |= slotNamed
		return true
	}
	if len(c.Counter.Previous) > 0 || len(f.sh.overflow) > 0 || w.absent == mostAbsent {
		return false
	}
	for k := range i {
		if o := &w.works[k]; o.at < 0 && o.hash == f.hash && charges[k].Counter.ID == id {
			return false
		}
	}
	w.absent++
	*grow += f.sh.growth(len(c.Key))
	return true
}

// judge asks every limit. It reports whether the call as a whole is denied, and whether all charges
// are made already. As most are made, it makes at once those that can be taken back: all but those
// on a variable part.
func (w *simpleWorks) judge(charges []store.Charge, results []algo.Result, now int64) (denied, all bool) {
	var verdict store.Verdict
	all = true
	for i := range charges {
		c, f, r := &charges[i], &w.works[i], &results[i]
		if f.at >= 0 {
			f.made = f.make(c, r, now)
		} else {
			*r = c.Limit.Check(&f.st, now, c.Ask)
		}
		all = all && f.made
		verdict.Add(c.Mode, r)
	}
	return verdict.Denied(), all
}

// make makes a charge on a record, if that does not touch a variable part; f.st is then as it was
// before. Else it only checks.
func (f *simpleWork) make(c *store.Charge, r *algo.Result, now int64) bool {
	sl := &f.sh.slots[f.at]
	if sl.ext() == 0 {
		st := algo.State{A: sl.a, B: sl.b, C: sl.c}
		f.st.A, f.st.B, f.st.C = st.A, st.B, st.C
		c.Limit.TakeInto(r, &st, now, &c.Ask)
		if st.Ext == nil {
			sl.a, sl.b, sl.c = st.A, st.B, st.C
			sl.meta |= slotChanged
			return true
		}
	} else {
		f.sh.load(f.at, &f.st)
	}
	*r = c.Limit.Check(&f.st, now, c.Ask)
	return false
}

// charge makes the charges that the call as a whole lets be made, and takes back the others. It
// returns by how many bytes the shards grew.
func (w *simpleWorks) charge(charges []store.Charge, results []algo.Result, denied bool, now int64) (grown int) {
	for i := range charges {
		c, f, r := &charges[i], &w.works[i], &results[i]
		switch {
		case !denied || c.Mode == rule.Shadow || c.Limit.CountDenied():
			if f.made {
				continue
			}
			*r = c.Limit.Take(&f.st, now, c.Ask)
		case f.at < 0:
			continue
		default:
			if f.made && r.Allowed {
				*r = c.Limit.Check(&f.st, now, c.Ask)
			}
			c.Limit.Mend(&f.st, now)
		}
		if f.at >= 0 {
			grown += f.sh.store(f.at, &f.st)
		}
	}
	return grown
}

// insert makes records for the states that have none, if anything is left to remember.
func (w *simpleWorks) insert(s *Store, charges []store.Charge, now int64) {
	for i := range charges {
		c, f := &charges[i], &w.works[i]
		if f.at >= 0 {
			continue
		}
		if c.Limit.Fresh(&f.st, now) {
			s.unreserve()
			continue
		}
		s.insert(f.sh, tagOf(f.hash, c.Counter.ID), c.Key, s.intern(c.Counter, c.Limit), &f.st, now)
	}
}
