package fallback

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/weir-rl/weir/rule"
)

// fate is the outcome of a unit that was admitted on this node's share.
type fate uint8

const (
	open     fate = iota // it is to be charged yet, or an answer is still to come
	settled              // the primary has charged it
	excess               // the primary has not, since its limit was exhausted
	lost                 // the answer will never come, or it could not be remembered
	lapsed               // it stopped to count before it was charged: its window is over
	returned             // it was refunded before it was charged
	fates
)

// books account for the units that were admitted on shares. Each unit has exactly one fate at any
// time, so the fates always add up to the number of admitted units. Safe for concurrent use.
type books struct {
	mu     sync.Mutex
	units  [fates]uint64
	rules  map[ruleName]*Excess // since New
	fresh  map[ruleName]*Excess // not reported yet
	report func(since time.Time, rules []Excess)
	known  *known

	reportLock sync.Mutex // held while report is called; taken before mu
	reporting  bool
	timer      *time.Timer
	closed     bool
	last       time.Time // of the last report
}

// ruleName names a rule.
type ruleName struct{ domain, rule string }

// Excess is the number of units that shares have admitted beyond a rule's limit, except for charges
// in shadow mode.
type Excess struct {
	Domain, Rule string
	Units        uint64
	Since        time.Time // of the first of them
}

const (
	maxRules    = 10_000 // counted by name; all others share one without a name
	firstReport = time.Second
	nextReport  = time.Minute
)

func newBooks(known *known, report func(time.Time, []Excess)) *books {
	return &books{known: known, report: report, rules: map[ruleName]*Excess{}, fresh: map[ruleName]*Excess{}}
}

// admit notes that units were admitted: they are open.
func (b *books) admit(units int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.units[open] += uint64(units)
}

// move gives a fate to open units of a key.
func (b *books) move(c *rule.Counter, key []byte, to fate, units int64) {
	b.moveOf(c, key, to, units, false)
}

// moveOf is move for units that may have been taken in shadow mode. A rule in shadow limits
// nothing, so its units beyond the limit are not reported.
func (b *books) moveOf(c *rule.Counter, key []byte, to fate, units int64, shadow bool) {
	if units <= 0 {
		return
	}
	b.known.free(c, key, units)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.units[open] -= uint64(units)
	b.units[to] += uint64(units)
	if to != excess || shadow {
		return
	}
	b.add(b.rules, c, units)
	if b.report == nil || b.closed {
		return
	}
	b.add(b.fresh, c, units)
	if !b.reporting {
		b.reporting = true
		wait := max(firstReport, time.Until(b.last.Add(nextReport)))
		b.timer = time.AfterFunc(wait, b.reportNew)
	}
}

func (b *books) add(to map[ruleName]*Excess, c *rule.Counter, units int64) {
	name := ruleName{c.Domain, c.Rule}
	if to[name] == nil && len(to) >= maxRules {
		name = ruleName{}
	}
	e := to[name]
	if e == nil {
		e = &Excess{Domain: name.domain, Rule: name.rule, Since: time.Now()}
		to[name] = e
	}
	e.Units += uint64(units)
}

// reportNew reports the excess since the last report.
func (b *books) reportNew() {
	b.reportLock.Lock()
	defer b.reportLock.Unlock()
	b.mu.Lock()
	list := listed(b.fresh)
	b.fresh, b.reporting, b.last = map[ruleName]*Excess{}, false, time.Now()
	b.mu.Unlock()
	if len(list) == 0 {
		return
	}
	since := list[0].Since
	for i := range list {
		if list[i].Since.Before(since) {
			since = list[i].Since
		}
	}
	b.report(since, list)
}

// close makes the last report.
func (b *books) close() {
	b.mu.Lock()
	b.closed = true
	if b.timer != nil {
		b.timer.Stop()
	}
	b.mu.Unlock()
	b.reportNew()
}

// listed returns all of m, the largest first.
func listed(m map[ruleName]*Excess) []Excess {
	list := make([]Excess, 0, len(m))
	for _, e := range m {
		list = append(list, *e)
	}
	slices.SortFunc(list, func(x, y Excess) int {
		return cmp.Or(-cmp.Compare(x.Units, y.Units), cmp.Compare(x.Domain, y.Domain), cmp.Compare(x.Rule, y.Rule))
	})
	return list
}

// reading returns the units by fate, all of one instant.
func (b *books) reading() [fates]uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.units
}

// Excess returns the units admitted beyond the limit of each rule since New, the largest number
// first.
func (s *Store) Excess() []Excess {
	s.books.mu.Lock()
	defer s.books.mu.Unlock()
	return listed(s.books.rules)
}
