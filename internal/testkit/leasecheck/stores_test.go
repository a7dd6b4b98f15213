//go:build unix

package leasecheck_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/store"
)

// Stores for workers: two that admit too much, and the simplest that holds what a Lender lends.

// twice admits one call in twenty that nobody is asked for.
type twice struct {
	store.Store
	n atomic.Int64
}

func (s *twice) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	if s.n.Add(1)%20 == 0 {
		for i := range results {
			results[i] = algo.Result{Allowed: true}
		}
		return 0, nil
	}
	return s.Store.Take(ctx, charges, results)
}

// early takes units ahead as many limiters do: they are charged when they are lent, and used at any
// time after that.
type early struct {
	store.Store
	mu   sync.Mutex
	held map[string]int64
}

func (s *early) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	if len(charges) != 1 {
		return s.Store.Take(ctx, charges, results)
	}
	c := charges[0]
	name := fmt.Sprint(c.Counter.ID, string(c.Key))
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[name] >= c.Ask.Cost {
		s.held[name] -= c.Ask.Cost
		results[0] = algo.Result{Allowed: true}
		return 0, nil
	}
	const ahead = 20
	c.Ask.Cost += ahead
	if now, err := s.Store.Take(ctx, []store.Charge{c}, results); err != nil || results[0].Allowed {
		s.held[name] += ahead
		return now, err
	}
	return s.Store.Take(ctx, charges, results)
}

// holder asks for as much again with each call as it got before, uses its units until their end,
// and reports on them with the next call.
type holder struct {
	store.Store
	lender store.Lender
	keeps  bool // it uses what it has returned, and must be found out
	mu     sync.Mutex
	books  map[string]*book
}

// book is what a holder has of a state.
type book struct {
	of    store.Charge
	units []units
	want  int64
}

// units are the units of one generation.
type units struct {
	end        int64 // by the store
	deadline   int64 // by store.Monotonic
	left, used int64
}

func (s *holder) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	if s.takeHeld(charges, results) {
		return 0, nil
	}
	ahead := make([]algo.Ahead, len(charges))
	s.mu.Lock()
	for i := range charges {
		b := s.book(&charges[i])
		ahead[i] = algo.Ahead{Told: b.told(s.keeps), Want: b.want, First: true}
	}
	s.mu.Unlock()
	now, asked, err := s.lender.TakeAhead(ctx, 0, 0, charges, ahead, results)
	if err != nil {
		return 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range charges {
		b := s.book(&charges[i])
		if got := ahead[i].Got; got > 0 {
			left := (ahead[i].Until - now) * 1000
			deadline := asked + left - left/1000 - time.Millisecond.Nanoseconds()
			b.units = append(b.units, units{end: ahead[i].Until, deadline: deadline, left: got})
			b.want = min(2*b.want, 200)
		} else {
			b.want = 4
		}
	}
	return now, nil
}

// told are the reports due, as many as a call can take. Each is made once, even if the call fails.
func (b *book) told(keeps bool) (list [2]algo.Told) {
	n := min(len(list), len(b.units))
	var kept []units
	for i, u := range b.units[:n] {
		list[i] = algo.Told{End: u.end, Used: u.used, Returned: u.left}
		if u.used = 0; keeps && u.left > 0 && store.Monotonic() < u.deadline {
			kept = append(kept, u)
		}
	}
	b.units = append(b.units[n:], kept...)
	return list
}

// Drain returns all that is held.
func (s *holder) Drain(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.books {
		for len(b.units) > 0 {
			ahead := []algo.Ahead{{Told: b.told(false)}}
			if _, _, err := s.lender.TakeAhead(ctx, 0, 0, []store.Charge{b.of}, ahead, make([]algo.Result, 1)); err != nil {
				return err
			}
		}
	}
	return nil
}

// takeHeld takes the units of all charges, or none.
func (s *holder) takeHeld(charges []store.Charge, results []algo.Result) bool {
	now := store.Monotonic() // the instant of the decision
	s.mu.Lock()
	defer s.mu.Unlock()
	from := make([]*units, len(charges))
	for i := range charges {
		b := s.book(&charges[i])
		for j := range b.units {
			if u := &b.units[j]; now < u.deadline && u.left >= charges[i].Ask.Cost {
				from[i] = u
			}
		}
		if from[i] == nil {
			return false
		}
	}
	for i, u := range from {
		u.left -= charges[i].Ask.Cost
		u.used += charges[i].Ask.Cost
		results[i] = algo.Result{Allowed: true}
	}
	return true
}

func (s *holder) book(c *store.Charge) *book {
	if s.books == nil {
		s.books = map[string]*book{}
	}
	name := fmt.Sprint(c.Counter.ID, string(c.Key))
	b := s.books[name]
	if b == nil {
		b = &book{want: 4, of: store.Charge{Counter: c.Counter, Limit: c.Limit, Key: slices.Clone(c.Key)}}
		s.books[name] = b
	}
	return b
}
