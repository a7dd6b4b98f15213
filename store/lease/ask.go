package lease

import (
	"context"
	"errors"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/leasing/lessee"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// call is the working memory of a call to the primary; kept in a pool.
type call struct {
	charges []store.Charge
	results []algo.Result
	ahead   []algo.Ahead
	of      []int    // by charge to the primary: its index in the caller's charges
	known   []bool   // by charge to the primary: its key has a slot
	hashes  []uint64 // by charge to the primary
	across  bool     // the charges to the primary are in several of its parts
	taken   []took   // by the caller's charges
}

// keepCall is the number of charges above which the working memory is not kept.
const keepCall = 1024

func (s *Store) putCall(c *call) {
	if cap(c.charges) > keepCall {
		return
	}
	clear(c.charges) // they point to keys of the caller's
	s.calls.Put(c)
}

// ask decides a call with the primary: charges whose units are held here are taken from these, and
// the primary is asked for the rest in one call.
func (s *Store) ask(
	ctx context.Context, minWait, maxWait time.Duration, charges []store.Charge, results []algo.Result,
) (now int64, remembered bool, err error) {
	s.inFlight.Add(1)
	defer s.inFlight.Add(-1)
	if s.drained.Load() { // perhaps since it was last looked: Drain waits only for those it sees in flight
		return s.pass(ctx, minWait, maxWait, charges, results)
	}
	c := s.calls.Get().(*call)
	defer s.putCall(c)
	at := s.at()
	mixed := s.gather(c, charges, at)
	aheads := s.prepare(c, at)
	switch {
	case aheads:
		now, err = s.lend(ctx, minWait, maxWait, c)
	case mixed:
		now, remembered, err = s.pass(ctx, minWait, maxWait, c.charges, c.results)
	default:
		now, remembered, err = s.pass(ctx, minWait, maxWait, charges, results)
		if err == nil {
			s.countDecided(charges, false)
		}
		return now, remembered, err
	}
	if err != nil {
		s.back(charges, c.taken)
		if mixed && !errors.Is(err, store.ErrNotCharged) {
			err = &partly{error: err, of: append([]int(nil), c.of...), n: len(charges)}
		}
		return 0, false, err
	}
	denied := store.VerdictOf(c.charges, c.results).Denied()
	for i := range c.taken {
		if !c.taken[i].ok {
			continue
		}
		ch := &charges[i]
		if denied && ch.Mode != rule.Shadow && !ch.Limit.CountDenied() {
			s.backOne(ch, &c.taken[i])
			s.standing(ch, &results[i], c.taken[i].hash, at)
		} else {
			s.admitOne(ch, &results[i], &c.taken[i], at)
		}
	}
	for j, i := range c.of {
		results[i] = c.results[j]
		charges[i].Ask.Slot = c.charges[j].Ask.Slot
	}
	s.countDecided(charges, mixed)
	return now, remembered, nil
}

// gather takes the units of charges that are held here, and lists the others for the primary. mixed
// reports that there are both. Quotas have to be decided together: if one is to be asked for, or a
// unit of another charge is missing, the primary decides on all of them.
func (s *Store) gather(c *call, charges []store.Charge, at int64) (mixed bool) {
	c.taken = append(c.taken[:0], make([]took, len(charges))...)
	c.charges, c.results, c.ahead, c.of, c.known, c.hashes = c.charges[:0], c.results[:0], c.ahead[:0], c.of[:0],
		c.known[:0], c.hashes[:0]
	rest := 0
	quota := false
	for i := range charges {
		ch := &charges[i]
		if len(charges) > 1 && ch.Ask.Cost > 0 && lends(ch) {
			c.taken[i], _ = s.take(ch, at)
		}
		if !c.taken[i].ok {
			rest++
		} else if ch.Mode == rule.Quota {
			quota = true
		}
	}
	if rest == 0 || quota {
		// All that was missing has come meanwhile; or there are quotas.
		for i := range charges {
			if c.taken[i].ok && (rest == 0 || charges[i].Mode == rule.Quota) {
				s.backOne(&charges[i], &c.taken[i])
			}
		}
	}
	for i := range charges {
		if c.taken[i].ok {
			mixed = true
			continue
		}
		c.charges = append(c.charges, charges[i])
		c.of = append(c.of, i)
	}
	n := len(c.charges)
	c.results = append(c.results, make([]algo.Result, n)...)
	c.ahead = append(c.ahead, make([]algo.Ahead, n)...)
	c.known = append(c.known, make([]bool, n)...)
	c.hashes = append(c.hashes, make([]uint64, n)...)
	return mixed
}

// prepare fills in the reports and wishes of the call. It reports whether any of its keys has a
// slot.
func (s *Store) prepare(c *call, at int64) (any bool) {
	c.across = false
	for j := 1; j < len(c.charges) && len(s.lanes) > 1; j++ {
		c.across = c.across || s.laneOf(c.charges[j].Counter, c.charges[j].Key) != s.laneOf(c.charges[0].Counter,
			c.charges[0].Key)
	}
	for j := range c.charges {
		ch := &c.charges[j]
		if !lends(ch) {
			continue
		}
		c.hashes[j] = s.hash(ch)
		if s.prepareOne(ch, &c.ahead[j], c.hashes[j], at, !c.across) {
			c.known[j], any = true, true
		}
	}
	return any
}

func (s *Store) prepareOne(ch *store.Charge, h *algo.Ahead, hash uint64, at int64, wants bool) (known bool) {
	lane := s.laneOf(ch.Counter, ch.Key)
	sh := s.shard(hash)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sl := sh.find(hash, ch.Counter.ID, ch.Key)
	switch {
	case sl == nil:
		if sl = s.enter(sh, hash, ch, at); sl == nil {
			return false
		}
	case sl.terms.Limit != ch.Limit || sl.terms.counter != ch.Counter:
		t := s.terms.of(ch)
		if t == nil {
			return false
		}
		if sl.Adopt(&sl.terms.Terms, &t.Terms) {
			s.dropped[byRules].Add(1)
		}
		sl.terms = t
	}
	if ch.Ask.Cost > 0 {
		sl.Note(&sl.terms.Terms, at, ch.Ask.Cost)
	} else if ch.Ask.Cost < 0 {
		sl.Forget()
	}
	// Quotas are decided together, there: units held of them are of no use here.
	back := ch.Ask.Cost > 0 && (ch.Mode == rule.Quota || ch.Ask.Cost > sl.Left(at))
	sl.Ask(&sl.terms.Terms, at, lane.now(at), back, wants, h)
	sl.terms.counts.tell(h)
	return true
}

// enter makes a slot for a key that is asked for the second time within E, if there is room, or one
// that holds nothing can make room.
func (s *Store) enter(sh *shard, hash uint64, ch *store.Charge, at int64) *slot {
	if ch.Ask.Cost <= 0 || s.drained.Load() {
		return nil
	}
	t := s.terms.of(ch)
	if t == nil || !sh.knock(hash, t.E, at) {
		return nil
	}
	keys := s.keys.Add(1)
	if keys > s.maxKeys {
		s.keys.Add(-1)
		if !sh.makeRoom(s, at) {
			return nil
		}
	}
	sl := sh.add(s, hash, t, ch.Key, at)
	if keys == 1 || paceOf(&t.Terms).next(at) < s.next.Load() {
		select {
		case s.wake <- struct{}{}:
		default:
		}
	}
	return sl
}

// lend makes a call with its reports and wishes, and takes in the answer.
func (s *Store) lend(ctx context.Context, minWait, maxWait time.Duration, c *call) (now int64, err error) {
	returned := false
	defer func() {
		if !returned { // the primary has panicked
			s.lost(c, s.at(), false)
		}
	}()
	now, asked, err := s.primary.TakeAhead(ctx, minWait, maxWait, c.charges, c.ahead, c.results)
	returned = true
	at := s.at()
	if err != nil {
		s.lost(c, at, errors.Is(err, store.ErrNotCharged))
		return 0, err
	}
	a := lessee.Answer{Asked: asked, At: at, Now: now}
	s.hear(c, a)
	return now, nil
}

// hear takes in an answer.
func (s *Store) hear(c *call, a lessee.Answer) {
	if lane := s.laneOf(c.charges[0].Counter, c.charges[0].Key); !c.across && a.Asked >= s.gap.Load() &&
		!lane.heard(a) {
		s.dropAll(byStore, lane)
	}
	for j := range c.charges {
		ch := &c.charges[j]
		if !c.known[j] {
			continue
		}
		h, r := &c.ahead[j], &c.results[j]
		for i := range h.Told {
			if told := &h.Told[i]; told.Returned > 0 && a.Now >= told.End {
				late := uint64(told.Returned) // it came after the end, so these units count as used
				n := s.terms.of(ch).counts
				n.returned.Add(-late)
				n.lapsed.Add(late)
			}
		}
		if c.across {
			h.Until = 0 // the clocks of the parts differ
		}
		sh := s.shard(c.hashes[j])
		sh.mu.Lock()
		if a.Asked < s.gap.Load() { // looked at here, since dropAll may have been in this shard already
			h.Until = 0
		}
		sl := sh.find(c.hashes[j], ch.Counter.ID, ch.Key)
		if sl == nil || !s.under(sl, ch) {
			if sl != nil {
				sl.Lost(&sl.terms.Terms, a.At, h)
			}
			sh.mu.Unlock()
			if h.Got > 0 {
				t := s.terms.of(ch)
				t.counts.granted.Add(uint64(h.Got))
				t.counts.lapsed.Add(uint64(h.Got))
			}
			continue
		}
		sh.heard = max(sh.heard, a.At)
		counts := sl.terms.counts
		heard := sl.Hear(&sl.terms.Terms, a, ch.Ask.Cost, r, h)
		sh.mu.Unlock()
		counts.granted.Add(uint64(h.Got))
		counts.lapsed.Add(uint64(heard.Lapsed))
		counts.late.Add(uint64(heard.Late))
		if heard.WhileOut && ch.Mode == rule.Enforce {
			counts.refusedOut.Add(1)
		}
	}
}

// under reports whether an answer about a charge is about the limit of a slot: a reload compiles
// each limit anew.
func (s *Store) under(sl *slot, c *store.Charge) bool {
	if sl.terms.Limit == c.Limit {
		return true
	}
	t := s.terms.of(c)
	return t != nil && sl.terms.Same(&t.Terms)
}

// lost notes that a call failed. If it was certainly not made, its report is to be made again.
func (s *Store) lost(c *call, at int64, notMade bool) {
	for j := range c.charges {
		if !c.known[j] {
			continue
		}
		ch, h := &c.charges[j], &c.ahead[j]
		sh := s.shard(c.hashes[j])
		sh.mu.Lock()
		if sl := sh.find(c.hashes[j], ch.Counter.ID, ch.Key); sl != nil {
			counts := sl.terms.counts
			if notMade {
				counts.untell(h)
				counts.lapsed.Add(uint64(sl.Unask(&sl.terms.Terms, at, h)))
			} else {
				sl.Lost(&sl.terms.Terms, at, h)
			}
		}
		sh.mu.Unlock()
	}
}

// standing fills in the result of a charge that was not made, since another one was refused.
func (s *Store) standing(ch *store.Charge, r *algo.Result, hash uint64, at int64) {
	now := s.laneOf(ch.Counter, ch.Key).now(at)
	sh := s.shard(hash)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sl := sh.find(hash, ch.Counter.ID, ch.Key); sl != nil {
		sl.Standing(&sl.terms.Terms, at, now, r)
		return
	}
	var e lessee.Entry
	e.Standing(&s.terms.of(ch).Terms, at, now, r)
}

// partly is the error of a call that was to decide only some charges.
type partly struct {
	error
	of []int
	n  int
}

func (e *partly) Unwrap() error { return e.error }

// Outcome implements store.Pending. Units that were held here were put back: they were not charged.
func (e *partly) Outcome(f func(outcomes []store.Outcome)) {
	told := func(some []store.Outcome) {
		all := make([]store.Outcome, e.n)
		for i := range all {
			all[i].Known = true
		}
		for j, i := range e.of {
			if all[i] = (store.Outcome{}); j < len(some) {
				all[i] = some[j]
			}
		}
		f(all)
	}
	if pending, ok := errors.AsType[store.Pending](e.error); ok {
		pending.Outcome(told)
		return
	}
	told(nil)
}
