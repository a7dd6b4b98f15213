package fallback

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// part is a part of the primary: its breaker, and the charges it has missed.
type part struct {
	number  int
	breaker atomic.Pointer[breaker] // changed with Store.mu held
	run     run
	missed  ledger
	outages outages
	answers func() uint64 // nil if every answer shows that the part is there
	tending bool          // the background runs; guarded by Store.mu
	// holds one value when the breaker has opened and the background has not seen it yet
	tripped chan struct{}
}

func (s *Store) initParts() {
	n := 1
	if s.parted != nil {
		n = max(1, s.parted.Parts())
	}
	s.parts = make([]part, n)
	for i := range s.parts {
		p := &s.parts[i]
		p.number = i
		p.breaker.Store(&breaker{since: time.Now()})
		p.missed.init(s.books, max(maxMissed/n, minMissed))
		p.tripped = make(chan struct{}, 1)
		if s.parted != nil {
			p.answers = func() uint64 { return s.parted.Answers(i) }
		}
	}
}

func (s *Store) partOf(c *rule.Counter, key []byte) *part {
	if len(s.parts) == 1 {
		return &s.parts[0]
	}
	return &s.parts[s.parted.PartOf(c, key)]
}

func (s *Store) partOfID(id string) *part {
	if len(s.parts) == 1 {
		return &s.parts[0]
	}
	return &s.parts[s.parted.PartOfID(id)]
}

// together returns the part in which all charges are; nil if they are in several.
func (s *Store) together(charges []store.Charge) *part {
	if len(s.parts) == 1 || len(charges) == 0 {
		return &s.parts[0]
	}
	p := s.partOf(charges[0].Counter, charges[0].Key)
	for i := 1; i < len(charges); i++ {
		if s.partOf(charges[i].Counter, charges[i].Key) != p {
			return nil
		}
	}
	return p
}

// Look probes all parts of the primary and opens the breakers of those that fail at once. If the
// primary is away when the program starts, the state shows it before the first decision.
func (s *Store) Look(ctx context.Context) {
	var all sync.WaitGroup
	for i := range s.parts {
		p := &s.parts[i]
		all.Go(func() {
			if err := s.probe(ctx, p); err != nil && !errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
				s.trip(p, err)
			}
		})
	}
	all.Wait()
}

// probe asks whether a part is there. An answer after the longest deadline counts as a failure.
func (s *Store) probe(ctx context.Context, p *part) error {
	ctx, cancel := context.WithTimeout(ctx, s.o.MaxDeadline)
	defer cancel()
	var err error
	switch {
	case s.o.Probe != nil:
		err = s.o.Probe(ctx)
	case s.parted != nil:
		err = s.parted.PingPart(ctx, p.number)
	default:
		_, err = s.primary.Take(ctx, nil, nil)
	}
	if err != nil {
		s.meet(err)
		return err
	}
	return ctx.Err()
}

// Away returns how many of the parts of the primary are away, and how many there are.
func (s *Store) Away() (away, parts int) {
	for i := range s.parts {
		if s.parts[i].breaker.Load().state != Closed {
			away++
		}
	}
	return away, len(s.parts)
}

// overall is the breaker that stands for the primary as a whole: the one that has been away
// longest, open before half open. If no part is away, it is the one that came back last.
func (s *Store) overall() *breaker {
	worst := s.parts[0].breaker.Load()
	rank := func(b *breaker) int { return [...]int{Closed: 0, HalfOpen: 1, Open: 2}[b.state] }
	for i := 1; i < len(s.parts); i++ {
		b := s.parts[i].breaker.Load()
		switch x, y := rank(b), rank(worst); {
		case x > y, x == y && x > 0 && b.since.Before(worst.since), x == 0 && y == 0 && b.since.After(worst.since):
			worst = b
		}
	}
	return worst
}
