package fallback

import (
	"errors"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// The missed charges go to the primary in steps of at most settleBatch keys, one step each
// settleEvery.
const (
	settleBatch = 50
	settleEvery = 10 * time.Millisecond
	giveBacks   = 10 // attempts to give a slot back; it lapses anyway
	roomTries   = 10 // attempts to charge as much as there is room for
)

// trip opens the breaker of a part, unless somebody else has.
func (s *Store) trip(p *part, cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := p.breaker.Load()
	if b.state != Closed {
		return
	}
	next := b.trip(time.Now(), cause)
	p.breaker.Store(&next)
	s.stats.trips.Add(1)
	select {
	case p.tripped <- struct{}{}:
	default:
	}
	s.startTending(p)
}

// tendIfClosed starts the background for entries that came into a part's ledger after it had
// stopped.
func (s *Store) tendIfClosed(p *part) {
	if p.breaker.Load().state != Closed {
		return // the background that waits for the part settles too
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startTending(p)
}

// startTending starts the background of a part unless it runs. mu must be held.
func (s *Store) startTending(p *part) {
	if !p.tending && !s.mu.closed {
		p.tending = true
		s.wg.Go(func() { s.tend(p) })
	}
}

// tend is the background of a part: it runs from a trip until the part is back and its ledger is
// empty.
func (s *Store) tend(p *part) {
	for s.ctx.Err() == nil {
		if p.breaker.Load().state != Closed {
			select {
			case <-p.tripped:
			default:
			}
			s.announce()
			s.awaitReturn(p)
		}
		s.settle(p)
		if s.rest(p) {
			return
		}
	}
}

// rest ends tending if nothing is left to do.
func (s *Store) rest(p *part) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.breaker.Load().state != Closed || !p.missed.empty() {
		return false
	}
	p.tending = false
	return true
}

// awaitReturn probes a part until its breaker closes.
func (s *Store) awaitReturn(p *part) {
	for p.breaker.Load().state != Closed {
		wait := p.breaker.Load().wait()
		if !s.pause(p, wait-time.Duration(s.o.Random(int64(wait/4)))) { // so that nodes do not probe in step
			return
		}
		err := s.probe(s.ctx, p)
		if s.ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		b := p.breaker.Load()
		next := b.probed(time.Now(), err)
		if next.state == Closed {
			p.run.succeeded(nil)
			s.mended()
		}
		p.breaker.Store(&next)
		s.mu.Unlock()
		if next.state != b.state {
			s.announce()
		}
	}
}

// announce reports a change of the state of the primary as a whole, if there is one.
func (s *Store) announce() {
	s.announced.Lock()
	defer s.announced.Unlock()
	b := s.overall()
	from, to := s.announced.state, b.state
	if from == to {
		return
	}
	s.announced.state = to
	s.stats.entered[to].Add(1)
	if s.o.Transition != nil {
		s.o.Transition(from, to, b.cause)
	}
}

// pause waits for d, or until the breaker of the part opens. It returns false if the store is
// closed first.
func (s *Store) pause(p *part, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-p.tripped:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// settle makes the missed charges in a part of the primary, until the ledger is empty, the part
// goes away again (the rest is kept), or the store is closed.
//
// Of the units admitted locally, only those that Local still counts are charged. Units of a window
// that has passed, units that have been refilled, and units in a soft margin are not. If the limit
// lacks room for all units, as many are charged as it has room for. A charge without an answer is
// not repeated; giving back a slot is.
func (s *Store) settle(p *part) {
	for p.breaker.Load().state == Closed {
		entries, slots, late := p.missed.take(settleBatch)
		if len(entries) == 0 && len(slots) == 0 && len(late) == 0 {
			return
		}
		wait := settleEvery
		if s.charge(p, entries) != nil {
			// by then the breaker is open, if the part is away, and no further charges get lost
			wait = lastWait
		}
		s.giveBack(p, slots)
		s.settleThere(s.ctx, p, late)
		if !s.pause(p, wait) {
			return
		}
	}
}

// giveBack gives slots back to a part while its breaker is closed.
func (s *Store) giveBack(p *part, slots []slot) {
	for _, o := range slots {
		if p.breaker.Load().state == Closed {
			if _, err := s.askRelease(s.ctx, p, o.counter, o.key, o.id); err == nil {
				continue
			}
			if o.tries++; o.tries == giveBacks {
				continue
			}
		}
		p.missed.putBack(o)
	}
}

// charge charges entries to a part. The error is the primary's. Entries that were certainly not
// charged are kept.
func (s *Store) charge(p *part, entries []*entry) error {
	entries, charges := s.owed(entries)
	for try := 1; len(charges) > 0; try++ {
		results := make([]algo.Result, len(charges))
		began := p.run.begin()
		_, patience, err := s.ask(s.ctx, charges, results)
		s.heard(s.ctx, p, patience, began, err)
		if err != nil {
			s.uncertain(p, entries, charges, err)
			return err
		}
		n := 0 // that are to be asked again
		for i := range charges {
			if room := s.credit(entries[i], &charges[i], &results[i], try == roomTries); room > 0 {
				charges[i].Ask.Cost = room
				entries[n], charges[n] = entries[i], charges[i]
				n++
			}
		}
		entries, charges = entries[:n], charges[:n]
	}
	return nil
}

// credit records the primary's answer to a debt. It returns how many units to ask for again: as
// many as there was room for, though others may take some of it first. last says that no further
// attempt is made.
func (s *Store) credit(e *entry, c *store.Charge, r *algo.Result, last bool) (room int64) {
	switch {
	case c.Ask.Cost < 0:
		return 0
	case r.Allowed:
		s.books.move(e.counter, e.key, settled, c.Ask.Cost)
		return 0
	case c.Limit.CountDenied(): // they are charged, beyond the limit
	case !last:
		room = min(max(r.Remaining, 0), c.Ask.Cost)
	}
	s.books.moveOf(e.counter, e.key, excess, c.Ask.Cost-room, e.shadow)
	return room
}

// uncertain handles debts whose payment the primary has not answered.
func (s *Store) uncertain(p *part, entries []*entry, charges []store.Charge, err error) {
	undone := func(e *entry, units int64) {
		e.owed, e.back = max(0, units), max(0, -units)
		p.missed.restore(e)
	}
	if errors.Is(err, store.ErrNotCharged) {
		for i, e := range entries {
			undone(e, charges[i].Ask.Cost)
		}
		return
	}
	outcome := func(outcomes []store.Outcome) {
		for i, e := range entries {
			units := charges[i].Ask.Cost
			switch o := outcomeOf(outcomes, i); {
			case !o.Known:
				s.books.move(e.counter, e.key, lost, units)
			case o.Made:
				s.books.moveOf(e.counter, e.key, charged(&o), units, e.shadow)
			default:
				undone(e, units)
			}
		}
		s.tendIfClosed(p)
	}
	if pending, ok := errors.AsType[store.Pending](err); ok {
		pending.Outcome(outcome)
		return
	}
	outcome(nil)
}

// outcomeOf returns the i-th outcome, or an unknown one if there is none.
func outcomeOf(outcomes []store.Outcome, i int) store.Outcome {
	if i < len(outcomes) {
		return outcomes[i]
	}
	return store.Outcome{}
}

// owed returns the entries that still count, and a charge for each. The charges are in shadow mode,
// so that each is made by its own verdict.
func (s *Store) owed(entries []*entry) ([]*entry, []store.Charge) {
	charges := make([]store.Charge, len(entries))
	for i, e := range entries {
		charges[i] = store.Charge{Counter: e.counter, Limit: e.share, Key: e.key, Mode: rule.Shadow}
	}
	results := make([]algo.Result, len(entries))
	now, err := s.o.Local.Take(s.ctx, charges, results)
	n := 0
	for i, e := range entries {
		if err != nil {
			s.books.move(e.counter, e.key, lost, e.owed)
			continue
		}
		units := min(e.owed, max(0, results[i].Limit-results[i].Remaining))
		if e.until <= now {
			units, e.back = 0, 0
		}
		s.books.move(e.counter, e.key, lapsed, e.owed-units)
		e.owed = units
		if units == 0 {
			units = -min(e.back, algo.MaxCost)
		}
		if units == 0 {
			continue
		}
		c := charges[i]
		c.Limit, c.Ask = e.limit, algo.Ask{Cost: units, MaxDelay: -1}
		entries[n], charges[n] = e, c
		n++
	}
	return entries[:n], charges[:n]
}
