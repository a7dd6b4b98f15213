package memory

import (
	"bytes"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// few is up to how many charges takeFew decides. Its working memory is on the stack and cleared at
// each call, whatever their number.
const few = 8

// fewWorks is the working memory of takeFew.
type fewWorks struct {
	works  [few]fewWork // by charge
	locked [few]uint8   // the shards, ascending, each once
	shards int          // how many they are
	absent int          // charges without a record
}

// fewWork is one charge and its state.
type fewWork struct {
	hash  uint64
	sh    *shard
	at    int        // place in the table; below 0: not there
	st    algo.State // Ext is the stored slice itself
	tried bool       // st is as the charge leaves it
}

// takeFew is takeAll for few charges, each on a state of its own with nothing beside it, that has
// a record or for which there is room. It returns false for others, and has charged nothing then.
func (s *Store) takeFew(charges []store.Charge, results []algo.Result) (now int64, ok bool) {
	var w fewWorks
	if len(charges) > few || !w.collect(s, charges) {
		return 0, false
	}
	now = s.now()
	w.lock(s)
	defer w.unlock(s)
	if now, ok = w.find(s, charges, now); !ok {
		return 0, false
	}
	denied := w.judge(charges, results, now)
	grown := w.charge(charges, results, denied, now)
	if w.absent > 0 {
		w.insert(s, charges, now)
	}
	if grown != 0 {
		s.grown(w.works[0].sh, grown, now)
	}
	return now, true
}

// collect hashes the keys. It reports whether the charges are such as takeFew can decide, as far as
// that can be told without their states.
func (w *fewWorks) collect(s *Store, charges []store.Charge) bool {
	for i := range charges {
		c, f := &charges[i], &w.works[i]
		if c.Counter == nil || c.Limit == nil || c.Limit.Algorithm() == algo.Concurrency || twofold(c) {
			return false
		}
		if i > 0 && bytes.Equal(c.Key, charges[i-1].Key) {
			f.hash, f.sh = w.works[i-1].hash, w.works[i-1].sh
		} else {
			f.hash = s.hash(c.Key)
			f.sh = &s.shards[f.hash>>s.shift].shard
			w.add(uint8(f.hash >> s.shift))
		}
		for k := range i {
			if w.works[k].hash == f.hash && charges[k].Counter.ID == c.Counter.ID {
				return false
			}
		}
	}
	return true
}

// add adds a shard to those to be locked.
func (w *fewWorks) add(shard uint8) {
	at := w.shards
	for at > 0 && w.locked[at-1] >= shard {
		if at--; w.locked[at] == shard {
			return
		}
	}
	copy(w.locked[at+1:], w.locked[at:w.shards])
	w.locked[at] = shard
	w.shards++
}

func (w *fewWorks) lock(s *Store) {
	for _, shard := range w.locked[:w.shards] {
		s.shards[shard].lock()
	}
}

func (w *fewWorks) unlock(s *Store) {
	for _, shard := range w.locked[:w.shards] {
		s.shards[shard].mu.Unlock()
	}
}

// find finds the records, and reserves room for those that there are not; the shards are locked. ok
// is false if takeFew cannot decide the charges. now is a reading of the clock from before; find
// returns the instant of the decision.
func (w *fewWorks) find(s *Store, charges []store.Charge, now int64) (_ int64, ok bool) {
	last := now
	for i := range charges {
		last = max(last, w.works[i].sh.last)
	}
	if last > now {
		now = s.overtaken(last)
	}
	limits := s.limits.load()
	grow := 0
	for i := range charges {
		c, f := &charges[i], &w.works[i]
		f.sh.last, f.sh.dirty = now, true
		f.at = f.sh.find(limits, tagOf(f.hash, c.Counter.ID), c.Counter.ID, c.Key)
		switch {
		case f.at >= 0:
			if e := &limits[f.sh.slots[f.at].limit()]; e.limit != c.Limit || e.counter != c.Counter {
				return now, false
			}
		case len(c.Counter.Previous) > 0 || len(f.sh.overflow) > 0:
			return now, false
		default:
			w.absent++
			grow += f.sh.growth(len(c.Key))
		}
	}
	if w.absent == 0 {
		return now, true
	}
	if s.keys.Add(int64(w.absent)) > s.maxKeys || grow > 0 && s.bytes.Load()+int64(grow) > s.maxBytes {
		s.keys.Add(int64(-w.absent))
		return now, false
	}
	return now, true
}

// judge asks every limit, and reports whether the call as a whole is denied. Where that cannot
// write to what is stored it tries the charge at once, as most are made.
func (w *fewWorks) judge(charges []store.Charge, results []algo.Result, now int64) (denied bool) {
	var verdict store.Verdict
	for i := range charges {
		c, f, r := &charges[i], &w.works[i], &results[i]
		if f.at >= 0 {
			f.sh.load(f.at, &f.st)
			f.tried = f.st.Ext == nil
		}
		if f.tried {
			c.Limit.TakeInto(r, &f.st, now, &c.Ask)
		} else {
			*r = c.Limit.Check(&f.st, now, c.Ask)
		}
		verdict.Add(c.Mode, r)
	}
	return verdict.Denied()
}

// charge makes the charges that the call as a whole lets be made, and writes the states back that
// have a record. It returns by how many bytes the shards grew.
func (w *fewWorks) charge(charges []store.Charge, results []algo.Result, denied bool, now int64) (grown int) {
	for i := range charges {
		c, f, r := &charges[i], &w.works[i], &results[i]
		switch {
		case !denied || c.Mode == rule.Shadow || c.Limit.CountDenied():
			if !f.tried {
				*r = c.Limit.Take(&f.st, now, c.Ask)
			}
		case f.at < 0:
			continue
		default:
			if f.tried && r.Allowed {
				f.sh.load(f.at, &f.st)
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
func (w *fewWorks) insert(s *Store, charges []store.Charge, now int64) {
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
