// Package deciding decides calls on states in hand, as store.Store.Take says, for stores that read
// states, decide by package algo, and write them back.
package deciding

import (
	"errors"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// State is a state that a call names.
type State struct {
	St    algo.State // in force
	Tried algo.State // St with the earlier charges of a call tried on it; its Ext is its own
}

func (s *State) try() {
	ext := s.Tried.Ext
	s.Tried = s.St
	s.Tried.Ext = append(ext[:0], s.St.Ext...)
}

// In returns the state in force; nil of no State.
func (s *State) In() *algo.State {
	if s == nil {
		return nil
	}
	return &s.St
}

func (s *State) tried() *algo.State {
	if s == nil {
		return nil
	}
	return &s.Tried
}

// Take decides the charges of a call, all or nothing, and reports whether it is denied. For each
// charge there are a slot, its state, and the record beside that: the state of a soft margin, or
// the record of the units lent; nil if there is neither. A state may come several times.
func Take(
	charges []store.Charge, results []algo.Result, slots []uint64, states, besides []*State, now int64,
) (denied bool) {
	if len(charges) == 1 {
		take(&charges[0], &results[0], slots[0], states[0], besides[0], now)
		return store.VerdictOf(charges, results).Denied()
	}
	for i, s := range states {
		if s.try(); besides[i] != nil {
			besides[i].try()
		}
	}
	var verdict store.Verdict
	for i := range charges {
		c := &charges[i]
		c.Ask.Slot = slots[i]
		results[i] = c.Limit.TakeWith(&states[i].Tried, besides[i].tried(), now, c.Ask)
		verdict.Add(c.Mode, &results[i])
	}
	denied = verdict.Denied()
	for i := range charges {
		c, r := &charges[i], &results[i]
		if !denied || c.Mode == rule.Shadow {
			take(c, r, slots[i], states[i], besides[i], now)
			continue
		}
		st, beside, was := &states[i].St, besides[i].In(), *r
		if c.Limit.CountDenied() {
			*r = c.Limit.TakeWith(st, beside, now, c.Ask)
		} else {
			*r = c.Limit.CheckWith(st, beside, now, c.Ask)
			c.Limit.Mend(st, now)
			c.Limit.MendMargin(beside, now)
		}
		r.Allowed, r.RetryAfter, r.Delay, r.Soft = was.Allowed, was.RetryAfter, was.Delay, r.Soft && was.Allowed
		c.Ask.Slot = 0
	}
	return denied
}

// take makes one charge, and says in it which slot it has.
func take(c *store.Charge, r *algo.Result, slot uint64, s, beside *State, now int64) {
	c.Ask.Slot = slot
	*r = c.Limit.TakeWith(&s.St, beside.In(), now, c.Ask)
	if !r.Allowed || r.Off || c.Ask.Cost <= 0 {
		c.Ask.Slot = 0
	}
}

// Outcomes returns the outcome of each charge of a call that ended with results, or with an error.
// undone says that nothing was decided.
func Outcomes(
	charges []store.Charge, results []algo.Result, now int64, err error, undone bool,
) []store.Outcome {
	list := make([]store.Outcome, len(charges))
	for i := range list {
		list[i].Known = err == nil || errors.Is(err, store.ErrNotCharged)
	}
	if err != nil || undone {
		return list
	}
	denied := store.VerdictOf(charges, results).Denied()
	for i := range charges {
		c, r, o := &charges[i], &results[i], &list[i]
		o.Now, o.Result = now, *r
		admitted := r.Allowed && (!denied || c.Mode == rule.Shadow)
		o.Made = !r.Off && c.Ask.Cost != 0 && (admitted || c.Limit.CountDenied())
		o.Slot = c.Ask.Slot
	}
	return list
}

// FreshAt returns an instant at which a state is fresh, not always the first.
func FreshAt(l *algo.Limit, st *algo.State, now int64) int64 {
	for at := now; at < now+algo.MaxWindow.Microseconds(); {
		r := l.Check(st, at, algo.Ask{})
		switch {
		case !r.Off && r.ResetAfter == algo.Never:
			return now + algo.MaxWindow.Microseconds()
		case !r.Off:
			return at + r.ResetAfter
		}
		_, at = l.At(at)
	}
	return now + algo.MaxWindow.Microseconds()
}

// MarginOf returns the counter and the definition under which the soft margin of a counter is kept
// whose limit is l: the counter's own, if it has one for all numbers that its limit may have, else
// the limit's own. They are nil if the margin does not close.
func MarginOf(c *rule.Counter, l *algo.Limit) (*rule.Counter, *algo.Limit) {
	of := l.Margin()
	if c.Margin == nil {
		return nil, nil
	}
	if own := c.Margin.Limit; of != nil && own != nil && own.Algorithm() == algo.Margin {
		of = own
	}
	if of == nil {
		return nil, nil
	}
	return c.Margin, of
}
