package fallback

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// The primary is told what it missed in steps of at most settleBatch keys, one each settleEvery.
const (
	settleBatch = 50
	settleEvery = 10 * time.Millisecond
	giveBacks   = 10 // attempts to give a slot back; it lapses anyway
	roomTries   = 10 // attempts to charge as much as there is room for
)

// trip opens the breaker, unless somebody else has.
func (s *Store) trip(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.breaker.Load()
	if b.state != Closed {
		return
	}
	next := b.trip(time.Now(), cause)
	s.breaker.Store(&next)
	s.stats.trips.Add(1)
	select {
	case s.tripped <- struct{}{}:
	default:
	}
	s.startTending()
}

// tendIfClosed sees to what came into the ledger while nobody was at it any more.
func (s *Store) tendIfClosed() {
	if s.breaker.Load().state != Closed {
		return // whoever waits for the primary settles too
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.startTending()
}

// startTending starts the background unless it runs. mu must be held.
func (s *Store) startTending() {
	if !s.mu.tending && !s.mu.closed {
		s.mu.tending = true
		s.wg.Go(s.tend)
	}
}

// tend is the background: it runs from a trip until the primary is back and knows what it missed.
func (s *Store) tend() {
	for s.ctx.Err() == nil {
		if b := s.breaker.Load(); b.state != Closed {
			select {
			case <-s.tripped:
			default:
			}
			s.announce(Closed, Open, b.cause)
			s.awaitReturn()
		}
		s.settle()
		if s.rest() {
			return
		}
	}
}

// rest ends tending if nothing is left to do.
func (s *Store) rest() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.breaker.Load().state != Closed || !s.missed.empty() {
		return false
	}
	s.mu.tending = false
	return true
}

// awaitReturn probes the primary until the breaker closes.
func (s *Store) awaitReturn() {
	for s.breaker.Load().state != Closed {
		wait := s.breaker.Load().wait()
		if !s.pause(wait - rand.N(wait/4)) { // so that nodes do not probe in step
			return
		}
		err := s.probe()
		if s.ctx.Err() != nil {
			return
		}
		s.mu.Lock()
		b := s.breaker.Load()
		next := b.probed(time.Now(), err)
		if next.state == Closed {
			s.run.succeeded(nil)
		}
		s.breaker.Store(&next)
		s.mu.Unlock()
		if next.state != b.state {
			s.announce(b.state, next.state, next.cause)
		}
	}
}

// probe asks the primary for a sign of life. An answer after the deadline is none.
func (s *Store) probe() error {
	ctx, cancel := context.WithTimeout(s.ctx, s.o.Deadline)
	defer cancel()
	if err := s.o.Probe(ctx); err != nil {
		return err
	}
	return ctx.Err()
}

func (s *Store) announce(from, to State, cause error) {
	if s.o.Transition != nil {
		s.o.Transition(from, to, cause)
	}
}

// pause waits, unless the breaker opens; false if the store is closed meanwhile.
func (s *Store) pause(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-s.tripped:
		return true
	case <-s.ctx.Done():
		return false
	}
}

// settle tells the primary what it missed, until it knows all, goes away again (the rest is kept), or the store is closed.
//
// Of what was admitted locally, that is charged which Local still counts: not what was taken from a window that has passed
// or what has been refilled, nor what lies in a soft margin. Where the limit has no room for all of it, as much is
// charged as there is room for. Charges that get no answer are treated as made; a slot can be given back again.
func (s *Store) settle() {
	for s.breaker.Load().state == Closed {
		entries, slots, late := s.missed.take(settleBatch)
		if len(entries) == 0 && len(slots) == 0 && len(late) == 0 {
			return
		}
		wait := settleEvery
		if s.charge(entries) != nil {
			wait = lastWait // by then the breaker is open, if the primary is away: no more goes astray
		}
		s.giveBack(slots)
		s.settleThere(s.ctx, late)
		if !s.pause(wait) {
			return
		}
	}
}

// giveBack gives slots back to the primary, as long as it is there.
func (s *Store) giveBack(slots []slot) {
	for _, o := range slots {
		if s.breaker.Load().state == Closed {
			if _, err := s.askRelease(s.ctx, o.counter, o.key, o.id); err == nil {
				continue
			}
			if o.tries++; o.tries == giveBacks {
				continue
			}
		}
		s.missed.putBack(o)
	}
}

// charge charges entries to the primary. The error is the primary's; what it has certainly not charged is kept.
func (s *Store) charge(entries []*entry) error {
	entries, charges := s.owed(entries)
	for try := 1; len(charges) > 0; try++ {
		results := make([]algo.Result, len(charges))
		_, err := s.ask(s.ctx, charges, results)
		n := 0 // that are to be asked again
		for i := range charges {
			c, r := &charges[i], &results[i]
			switch {
			case errors.Is(err, weir.ErrNotCharged):
				entries[i].units = c.Ask.Cost
				s.missed.restore(entries[i])
				continue
			case err != nil || r.Allowed || c.Limit.CountDenied():
				s.stats.settled.Add(uint64(max(c.Ask.Cost, 0)))
				continue
			}
			room := max(r.Remaining, 0) // as it was: others may take some of it meanwhile
			if try == roomTries {
				room = 0
			}
			s.stats.excess.Add(uint64(c.Ask.Cost - room))
			if c.Ask.Cost = room; room > 0 {
				entries[n], charges[n] = entries[i], *c
				n++
			}
		}
		if err != nil {
			return err
		}
		entries, charges = entries[:n], charges[:n]
	}
	return nil
}

// owed returns the entries of which something still counts, and that as charges. They are in shadow, so that each goes by
// its own verdict.
func (s *Store) owed(entries []*entry) ([]*entry, []weir.Charge) {
	charges := make([]weir.Charge, len(entries))
	for i, e := range entries {
		charges[i] = weir.Charge{Counter: e.counter, Limit: e.share, Key: e.key, Mode: rule.Shadow}
	}
	results := make([]algo.Result, len(entries))
	now, err := s.o.Local.Take(s.ctx, charges, results)
	n := 0
	for i, e := range entries {
		units := max(e.units, -algo.MaxCost)
		if err != nil {
			s.stats.lost.Add(uint64(max(units, 0)))
			continue
		}
		if units > 0 {
			units = min(units, results[i].Limit-results[i].Remaining)
		}
		if units == 0 || e.until <= now {
			continue
		}
		c := charges[i]
		c.Limit, c.Ask = e.limit, algo.Ask{Cost: units, MaxDelay: -1}
		entries[n], charges[n] = e, c
		n++
	}
	return entries[:n], charges[:n]
}
