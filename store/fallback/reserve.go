package fallback

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

var _ weir.Reserver = (*Store)(nil)

// settlePatience is how long settlements may take, if Options.Deadline is not longer: nobody's decision waits for them.
const settlePatience = time.Second

// reservers returns the stores that hold reservations. The error is weir.ErrNoReservations if the primary does not.
func (s *Store) reservers() (primary, local weir.Reserver, err error) {
	primary, ok := s.primary.(weir.Reserver)
	if !ok {
		return nil, nil, weir.ErrNoReservations
	}
	local, _ = s.o.Local.(weir.Reserver)
	return primary, local, nil
}

// Hold implements weir.Reserver. While the primary is away, Local holds the note: it is then this node's, and lost with it. A
// primary that does not say in time whether it holds a note is taken to do so, since two stores would hand it out twice.
func (s *Store) Hold(ctx context.Context, id string, note []byte, timeout time.Duration) error {
	primary, local, err := s.reservers()
	if err != nil {
		return err
	}
	why := s.breaker.Load().refusal
	if why == nil {
		err := s.askWithin(ctx, s.o.Deadline, func(ctx context.Context) error { return primary.Hold(ctx, id, note, timeout) })
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case !errors.Is(err, weir.ErrNotCharged):
			return nil
		}
		why = err
	}
	if local == nil {
		return why
	}
	return local.Hold(ctx, id, note, timeout)
}

// Claim implements weir.Reserver. It fails for a note of the primary's while that is away.
func (s *Store) Claim(ctx context.Context, id string) (note []byte, ok bool, err error) {
	primary, local, err := s.reservers()
	if err != nil {
		return nil, false, err
	}
	if local != nil {
		if note, ok, err := local.Claim(ctx, id); ok || err != nil {
			return note, ok, err
		}
	}
	if why := s.breaker.Load().refusal; why != nil {
		return nil, false, why
	}
	err = s.askWithin(ctx, s.o.Deadline, func(ctx context.Context) (err error) {
		note, ok, err = primary.Claim(ctx, id)
		return err
	})
	return note, ok, err
}

// Expired implements weir.Reserver.
func (s *Store) Expired(ctx context.Context, n int) (notes [][]byte, err error) {
	primary, local, err := s.reservers()
	if err != nil {
		return nil, err
	}
	if local != nil {
		if notes, err = local.Expired(ctx, n); err != nil {
			return nil, err
		}
	}
	if s.breaker.Load().state != Closed || len(notes) >= n {
		return notes, nil
	}
	err = s.askWithin(ctx, settlePatience, func(ctx context.Context) error {
		more, err := primary.Expired(ctx, n-len(notes))
		notes = append(notes, more...)
		return err
	})
	if len(notes) > 0 {
		return notes, nil // they have been handed out
	}
	return nil, err
}

// Settle implements weir.Reserver. What a request cost more than was reserved is charged to the primary: at once, or when it is back,
// and until then to Local. What it cost less is given back where it was charged: to Local, if the primary does not know of the charge
// yet, or to the primary. Where that cannot be told for certain, and where an answer is lost, it stays charged.
func (s *Store) Settle(ctx context.Context, settlements []weir.Settlement) error {
	_, local, err := s.reservers()
	if err != nil {
		return err
	}
	shares := s.sharesNow()
	var here, there []weir.Settlement
	away := s.breaker.Load().state != Closed
	for _, e := range settlements {
		if e.Counter == nil || e.Limit == nil {
			return errors.New("fallback: a settlement needs a Counter and a Limit")
		}
		own := e // as Local is to settle it
		own.Limit = shares.of(e.Limit)
		switch more := e.Actual - e.Reserved; {
		case more > 0 && away && local != nil:
			here = append(here, own)
		case more < 0 && s.outages.has(e.At):
			if local == nil {
				continue
			}
			if own.Reserved = s.missed.spare(e.Counter, e.Key, -more); own.Reserved > 0 {
				own.Actual = 0
				here = append(here, own)
			}
			continue
		case more == 0:
			continue
		}
		there = append(there, e)
	}
	if len(here) > 0 {
		if err := local.Settle(ctx, here); err != nil {
			return err
		}
	}
	late := make([]lateSettlement, len(there))
	for i := range there {
		late[i].Settlement = there[i]
	}
	s.settleThere(ctx, late)
	return nil
}

// settleThere makes settlements at the primary, or remembers them. What has no answer is treated as made.
func (s *Store) settleThere(ctx context.Context, late []lateSettlement) {
	if len(late) == 0 {
		return
	}
	if s.breaker.Load().state == Closed {
		list := make([]weir.Settlement, len(late))
		for i := range late {
			list[i] = late[i].Settlement
		}
		primary, _, err := s.reservers()
		if err != nil {
			return
		}
		err = s.askWithin(ctx, max(settlePatience, s.o.Deadline), func(ctx context.Context) error { return primary.Settle(ctx, list) })
		if err == nil || !errors.Is(err, weir.ErrNotCharged) {
			return
		}
		for i := range late {
			late[i].tries++
		}
	}
	s.missed.addSettlements(late)
	s.tendIfClosed()
}

// askWithin asks the primary for something that is no decision, and tells the breaker how it went.
func (s *Store) askWithin(ctx context.Context, within time.Duration, f func(ctx context.Context) error) error {
	began := s.run.begin()
	if end, ok := ctx.Deadline(); ok {
		within = min(within, max(time.Until(end)*3/4, 1))
	}
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	err := f(limited)
	s.heard(ctx, within, began, err)
	return err
}

// lateSettlement is one that the primary has not made yet.
type lateSettlement struct {
	weir.Settlement
	tries int // so far
}

// addSettlements keeps settlements for later, as far as there is room: what is not made stays charged as it was.
func (l *ledger) addSettlements(late []lateSettlement) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range late {
		if len(l.late) >= maxMissed || e.tries >= giveBacks {
			continue
		}
		e.Key = bytes.Clone(e.Key)
		l.late = append(l.late, e)
	}
}

// spare takes up to units off what the primary is to be charged for a state, and returns how many.
func (l *ledger) spare(c *rule.Counter, key []byte, units int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[account{c.ID, string(key)}]
	if e == nil || e.units <= 0 {
		return 0
	}
	units = min(units, e.units)
	e.units -= units
	return units
}

// outages remembers when decisions were made without the primary, by Local's clock.
type outages struct {
	mu    sync.Mutex
	spans []span // in order; the last maxSpans
	since int64  // what was before is not known any more
}

// span holds the instants from and to, and what lies between, in µs.
type span struct{ from, to int64 }

const (
	maxSpans = 1000
	spanGap  = int64(time.Second / time.Microsecond) // decisions that are no further apart share a span
)

// note remembers that a decision was made at an instant.
func (o *outages) note(at int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.spans); n > 0 {
		if last := &o.spans[n-1]; at >= last.from-spanGap && at <= last.to+spanGap {
			last.from, last.to = min(last.from, at), max(last.to, at)
			return
		}
	}
	if len(o.spans) == maxSpans {
		o.since = max(o.since, o.spans[0].to)
		o.spans = append(o.spans[:0], o.spans[1:]...)
	}
	o.spans = append(o.spans, span{at, at})
}

// has reports whether a decision may have been made then.
func (o *outages) has(at int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.since > 0 && at <= o.since {
		return true
	}
	for i := len(o.spans) - 1; i >= 0; i-- {
		if s := &o.spans[i]; at >= s.from && at <= s.to {
			return true
		}
	}
	return false
}
