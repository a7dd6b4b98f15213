package lease

import (
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/leasing/lessee"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// here decides a call on this node, if that is possible; else it changes nothing.
func (s *Store) here(charges []store.Charge, results []algo.Result) (now int64, ok bool) {
	if len(charges) == 1 {
		return s.hereOne(&charges[0], &results[0])
	}
	return s.hereAll(charges, results)
}

// locate returns the slot of a charge, under the terms of its limit; nil if there is none, or if
// its units were lent under other numbers. sh.mu is held.
func (s *Store) locate(sh *shard, h uint64, c *store.Charge) *slot {
	sl := sh.find(h, c.Counter.ID, c.Key)
	if sl == nil || sl.terms.Limit == c.Limit && sl.terms.counter == c.Counter {
		return sl
	}
	t := s.terms.of(c)
	if t == nil || !sl.terms.Same(&t.Terms) {
		return nil
	}
	sl.terms = t
	return sl
}

// hereOne is here for one charge.
func (s *Store) hereOne(c *store.Charge, r *algo.Result) (now int64, ok bool) {
	cost := c.Ask.Cost
	if cost <= 0 {
		return 0, false
	}
	h := s.hash(c)
	sh := s.shard(h)
	lane := s.laneOf(c.Counter, c.Key)
	at := s.at()
	sh.mu.Lock()
	if at < sh.heard {
		at = s.at() // units may have been lent meanwhile
	}
	sl := s.locate(sh, h, c)
	if sl == nil {
		sh.mu.Unlock()
		return 0, false
	}
	t := sl.terms
	now = lane.now(at)
	if !sl.Use(at, cost) {
		refuses, out := sl.Refuses(at, cost)
		if !refuses || c.Mode != rule.Enforce {
			sh.mu.Unlock()
			return 0, false
		}
		sl.Note(&t.Terms, at, cost)
		sl.Refused(&t.Terms, at, now, r)
		sh.mu.Unlock()
		t.counts.refused(out)
		return now, true
	}
	sl.Note(&t.Terms, at, cost)
	sl.Admitted(&t.Terms, at, now, cost, r)
	short := sl.Short(&t.Terms, at)
	if short {
		sl.Queue()
	}
	sh.mu.Unlock()
	t.counts.local.Add(1)
	if short {
		lane.want(h, c)
	}
	if s.decided != nil {
		s.decided(c, r, at)
	}
	return now, true
}

// took are the units taken for a charge.
type took struct {
	lessee.Taken
	hash uint64
	ok   bool
}

// onStack is the number of charges up to which the units taken are kept on the stack.
const onStack = 8

// hereAll is here for several charges. It takes the units of one after the other: all of them are
// set aside while the rest is looked for, and put back if something is missing.
func (s *Store) hereAll(charges []store.Charge, results []algo.Result) (now int64, ok bool) {
	for i := range charges {
		if !lends(&charges[i]) || charges[i].Ask.Cost <= 0 {
			return 0, false
		}
	}
	var few [onStack]took
	taken := few[:0]
	if len(charges) > onStack {
		taken = make([]took, 0, len(charges))
	}
	taken = taken[:len(charges)]
	s.inFlight.Add(1)
	defer s.inFlight.Add(-1)
	if s.drained.Load() { // as in ask
		return 0, false
	}
	at := s.at()
	missing := false
	for i := range charges {
		var again bool
		if taken[i], again = s.take(&charges[i], at); again {
			s.back(charges, taken)
			return 0, false // the units just lent are for the next one
		}
		missing = missing || !taken[i].ok
	}
	if missing {
		s.back(charges, taken)
		return s.refuseAll(charges, results, taken, at)
	}
	now = s.admit(charges, results, taken, at)
	return now, true
}

// take takes the units of a charge out of the books. again reports that something was lent since
// at.
func (s *Store) take(c *store.Charge, at int64) (t took, again bool) {
	t.hash = s.hash(c)
	sh := s.shard(t.hash)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if at < sh.heard {
		return t, true
	}
	if sl := s.locate(sh, t.hash, c); sl != nil {
		t.Taken, t.ok = sl.Take(at, c.Ask.Cost)
	}
	return t, false
}

// back puts back the units taken.
func (s *Store) back(charges []store.Charge, taken []took) {
	for i := range taken {
		if taken[i].ok {
			s.backOne(&charges[i], &taken[i])
		}
	}
}

func (s *Store) backOne(c *store.Charge, t *took) {
	t.ok = false
	sh := s.shard(t.hash)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sl := sh.find(t.hash, c.Counter.ID, c.Key); sl != nil {
		sl.terms.counts.lapsed.Add(uint64(sl.Back(t.Taken)))
	} else { // it was forgotten meanwhile, with a lease that is over
		var e lessee.Entry
		s.terms.of(c).counts.lapsed.Add(uint64(e.Back(t.Taken)))
	}
}

// admit notes that the units taken are used, and fills in the results. It returns the instant of
// the decision, by the clock of the primary.
func (s *Store) admit(charges []store.Charge, results []algo.Result, taken []took, at int64) (now int64) {
	for i := range charges {
		var n *counts
		now, n = s.admitOne(&charges[i], &results[i], &taken[i], at)
		n.local.Add(1)
	}
	return now
}

// admitOne is admit for one charge; n are the counts of its limit.
func (s *Store) admitOne(c *store.Charge, r *algo.Result, t *took, at int64) (now int64, n *counts) {
	lane := s.laneOf(c.Counter, c.Key)
	now = lane.now(at)
	sh := s.shard(t.hash)
	sh.mu.Lock()
	sl := sh.find(t.hash, c.Counter.ID, c.Key)
	if sl == nil { // it was forgotten meanwhile, with a lease that is over
		sh.mu.Unlock()
		var e lessee.Entry
		ts := s.terms.of(c)
		e.Standing(&ts.Terms, at, now, r)
		ts.counts.lapsed.Add(uint64(e.Commit(t.Taken)))
		return now, ts.counts
	}
	ts := sl.terms
	lapsed := sl.Commit(t.Taken)
	sl.Note(&ts.Terms, at, c.Ask.Cost)
	sl.Admitted(&ts.Terms, at, now, c.Ask.Cost, r)
	short := sl.Short(&ts.Terms, at)
	if short {
		sl.Queue()
	}
	sh.mu.Unlock()
	ts.counts.lapsed.Add(uint64(lapsed))
	if short {
		lane.want(t.hash, c)
	}
	if s.decided != nil {
		s.decided(c, r, at)
	}
	return now, ts.counts
}

// refuseAll refuses a call of several charges if one of them is refused for now, and all others are
// known as well.
func (s *Store) refuseAll(charges []store.Charge, results []algo.Result, taken []took, at int64) (now int64, ok bool) {
	var refused *counts
	whileOut := false
	for i := range charges {
		c := &charges[i]
		if c.Mode == rule.Shadow {
			return 0, false // it is charged even if the call is denied
		}
		sh := s.shard(taken[i].hash)
		sh.mu.Lock()
		sl := s.locate(sh, taken[i].hash, c)
		if sl == nil {
			sh.mu.Unlock()
			return 0, false
		}
		t := sl.terms
		now = s.laneOf(c.Counter, c.Key).now(at)
		refuses, out := sl.Refuses(at, c.Ask.Cost)
		enough := sl.Left(at) >= c.Ask.Cost
		switch {
		case !enough && refuses && c.Mode == rule.Enforce:
			sl.Note(&t.Terms, at, c.Ask.Cost)
			sl.Refused(&t.Terms, at, now, &results[i])
			refused, whileOut = t.counts, whileOut || out
		case enough && !c.Limit.CountDenied():
			sl.Standing(&t.Terms, at, now, &results[i])
		default:
			sh.mu.Unlock()
			return 0, false
		}
		sh.mu.Unlock()
	}
	if refused == nil {
		return 0, false
	}
	refused.refused(whileOut)
	return now, true
}
