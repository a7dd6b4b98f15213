package fallback

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/weir-rl/weir/internal/limiter/reserve"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

var _ store.ReserverWrapper = (*Store)(nil)

// settlePatience is how long settlements may take, unless Options.Deadline is longer. No decision
// waits for them.
const settlePatience = time.Second

// reservers returns the stores that hold reservations. The error is store.ErrNoReservations if the
// primary does not.
func (s *Store) reservers() (primary, local store.Reserver, err error) {
	primary, ok := store.As[store.Reserver](s.primary)
	if !ok {
		return nil, nil, store.ErrNoReservations
	}
	local, _ = s.o.Local.(store.Reserver)
	return primary, local, nil
}

// Reserves implements store.ReserverWrapper.
func (s *Store) Reserves() bool {
	_, _, err := s.reservers()
	return err == nil
}

// Hold implements store.Reserver. While the primary is away, Local holds the note: it is then this
// node's, and lost with it. So it is if the decision was made without the primary, which may be
// back: another node would give back units to the primary that it never charged. A primary that
// does not say in time whether it holds a note is taken to do so, since two stores would hand it
// out twice.
func (s *Store) Hold(ctx context.Context, id string, note []byte, timeout time.Duration) error {
	primary, local, err := s.reservers()
	if err != nil {
		return err
	}
	p := s.partOfID(id)
	why := p.breaker.Load().refusal
	if why == nil && (local == nil || !s.decidedHere(note)) {
		err := s.askWithin(ctx, p, s.o.MaxDeadline,
			func(ctx context.Context) error { return primary.Hold(ctx, id, note, timeout) })
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case !errors.Is(err, store.ErrNotCharged):
			return nil
		}
		why = err
	}
	if local == nil {
		return why
	}
	return local.Hold(ctx, id, note, timeout)
}

// decidedHere reports whether a note is of a decision that was made without the primary just now.
func (s *Store) decidedHere(note []byte) bool {
	at, ok := reserve.Instant(note)
	for i := range s.parts {
		if ok && s.parts[i].outages.madeAt(at) {
			return true
		}
	}
	return false
}

// Claim implements store.Reserver. It fails for a note of the primary's while that is away.
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
	p := s.partOfID(id)
	if why := p.breaker.Load().refusal; why != nil {
		return nil, false, why
	}
	err = s.askWithin(ctx, p, s.o.MaxDeadline, func(ctx context.Context) (err error) {
		note, ok, err = primary.Claim(ctx, id)
		return err
	})
	return note, ok, err
}

// Expired implements store.Reserver.
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
	if state, _, _ := s.State(); len(s.parts) == 1 && state != Closed || len(notes) >= n {
		return notes, nil
	}
	err = s.askWithin(ctx, nil, settlePatience, func(ctx context.Context) error {
		more, err := primary.Expired(ctx, n-len(notes))
		notes = append(notes, more...)
		return err
	})
	if len(notes) > 0 {
		return notes, nil // they have been handed out
	}
	return nil, err
}

// Settle implements store.Reserver. If a request cost more than was reserved, the difference is
// charged to the primary: at once, or when it is back, and until then to Local. If it cost less,
// the difference is given back where it was charged: to Local if the primary has not been charged
// yet, and otherwise to the primary. If the place is uncertain, or an answer is lost, the units
// stay charged.
func (s *Store) Settle(ctx context.Context, settlements []store.Settlement) error {
	_, local, err := s.reservers()
	if err != nil {
		return err
	}
	shares := s.sharesNow()
	var here, there []store.Settlement
	for _, e := range settlements {
		if e.Counter == nil || e.Limit == nil {
			return errors.New("fallback: a settlement needs a Counter and a Limit")
		}
		p := s.partOf(e.Counter, e.Key)
		away := p.breaker.Load().state != Closed
		own := e // as Local is to settle it
		own.Limit = shares.of(e.Limit)
		switch more := e.Actual - e.Reserved; {
		case more > 0 && away && local != nil:
			here = append(here, own)
		case more < 0 && p.outages.has(e.At):
			if local == nil {
				continue
			}
			if own.Reserved = p.missed.spare(e.Counter, e.Key, -more); own.Reserved > 0 {
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
	late := make(map[*part][]lateSettlement)
	for i := range there {
		p := s.partOf(there[i].Counter, there[i].Key)
		late[p] = append(late[p], lateSettlement{Settlement: there[i]})
	}
	for p, list := range late {
		s.settleThere(ctx, p, list)
	}
	return nil
}

// settleThere makes settlements at a part of the primary, or keeps them for later. A settlement
// without an answer is treated as made.
func (s *Store) settleThere(ctx context.Context, p *part, late []lateSettlement) {
	if len(late) == 0 {
		return
	}
	if p.breaker.Load().state == Closed {
		list := make([]store.Settlement, len(late))
		for i := range late {
			list[i] = late[i].Settlement
		}
		primary, _, err := s.reservers()
		if err != nil {
			return
		}
		begun := s.known.clock()
		err = s.askWithin(ctx, p, max(settlePatience, s.o.Deadline),
			func(ctx context.Context) error { return primary.Settle(ctx, list) })
		if err == nil || !errors.Is(err, store.ErrNotCharged) {
			for i := range late {
				if !late[i].noted {
					s.known.settle(&list[i], begun, err == nil)
				}
			}
			return
		}
		for i := range late {
			late[i].tries++
		}
	}
	for i := range late {
		if e := &late[i]; !e.noted && e.Actual > e.Reserved {
			s.known.settle(&e.Settlement, 0, false)
			e.noted = true
		}
	}
	p.missed.addSettlements(late)
	s.tendIfClosed(p)
}

// askWithin calls a part of the primary for anything but a decision, and reports the outcome to its
// breaker. A nil part means all parts; then no breaker is informed.
func (s *Store) askWithin(ctx context.Context, p *part, within time.Duration, f func(ctx context.Context) error) error {
	began := uint32(0)
	if p != nil {
		began = p.run.begin()
	}
	if end, ok := ctx.Deadline(); ok {
		within = min(within, max(time.Until(end)*3/4, 1))
	}
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	err := f(limited)
	if p != nil {
		s.heard(ctx, p, within, began, err)
	}
	return err
}

// lateSettlement is one that the primary has not made yet.
type lateSettlement struct {
	store.Settlement
	tries int  // so far
	noted bool // known counts its charge already
}

// addSettlements keeps settlements for later, as far as there is room. The others are never made:
// their requests stay charged as reserved.
func (l *ledger) addSettlements(late []lateSettlement) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range late {
		if len(l.late) >= l.room || e.tries >= giveBacks {
			continue
		}
		e.Key = bytes.Clone(e.Key)
		l.late = append(l.late, e)
	}
}

// spare cancels up to units of a state's debt to the primary, and returns how many.
func (l *ledger) spare(c *rule.Counter, key []byte, units int64) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.entries[account{c.ID, string(key)}]
	if e == nil {
		return 0
	}
	units = min(units, e.owed)
	e.owed -= units
	l.books.move(c, key, returned, units)
	return units
}

// outages remembers when decisions were made without the primary, by Local's clock.
type outages struct {
	mu    sync.Mutex
	spans []span // in order; the last maxSpans
	since int64  // up to here, spans have been dropped

	last [lastInstants]int64 // the instants themselves, of the last decisions; a ring
	next int                 // in last
}

// lastInstants is how many decisions may be made between one that is reserved for and its Hold,
// which follows at once.
const lastInstants = 256

// span is a closed interval of instants, in µs.
type span struct{ from, to int64 }

const (
	maxSpans = 1000
	// decisions that are no further apart share a span
	spanGap = int64(time.Second / time.Microsecond)
)

// note remembers that a decision was made at an instant.
func (o *outages) note(at int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if at != o.last[(o.next+lastInstants-1)%lastInstants] { // a decision has several charges
		o.last[o.next] = at
		o.next = (o.next + 1) % lastInstants
	}
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

// madeAt reports whether one of the last decisions was made at an instant. It is exact, as has is
// not: a decision of the primary's beside it is anybody's to settle.
func (o *outages) madeAt(at int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return at != 0 && slices.Contains(o.last[:], at)
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
