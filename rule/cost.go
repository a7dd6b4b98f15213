package rule

import (
	"math"
	"time"
)

// Costs of looking at a value of some 20 bytes, in units of the cost of looking at an exact
// condition. BenchmarkRules measures them. Each look costs more with many rules than with few,
// since many rules fall out of the caches.
const (
	lookTime   = 25 * time.Nanosecond
	globCost   = 4
	regexpCost = 12
	celCost    = 100
	// of a rule that is met: its key, and the charge in an embedded store
	chargeCost = 8
)

// nowCost is how much a match may take, in units of lookTime, on a goroutine that others wait for:
// a tenth of a millisecond.
const nowCost = int(100 * time.Microsecond / lookTime)

// maxRespelled is up to how often an expression is asked on a request that spells its path and its
// method in ways that are folded.
const maxRespelled = 6

// MatchNow is Match for a goroutine that others wait for. If done is false, q would be tried on so
// many rules one by one, because no literal selects among them, or meets so many, that it takes
// longer than about 100 µs to match and to charge. Then the contents of m are of no use, and Match
// comes next, on another goroutine.
func (s *Set) MatchNow(q *Query, m *Matches) (done bool) {
	m.hasty = true
	s.Match(q, m)
	m.hasty = false
	return !m.slow
}

// addUp estimates what looking at the rules of d takes.
func (d *domain) addUp() {
	for i := range d.exempt {
		d.always += d.exempt[i].costly()
	}
	d.work = d.always
	for _, r := range d.rules {
		r.cost = int32(min(r.costly()+chargeCost, math.MaxInt32))
		d.work += int(r.cost)
	}
	if d.index == nil {
		d.always = d.work
		return
	}
	for _, id := range d.index.always {
		d.always += int(d.rules[id].cost)
	}
}

// slowWith reports whether looking at the rules with ids takes longer than others may wait, and
// notes it.
func (m *Matches) slowWith(ids []int32) bool {
	d, most := m.domain, nowCost
	if m.odd != 0 {
		most /= maxRespelled // which expressions may be asked in each spelling
	}
	if d.work <= most {
		return false
	}
	n := d.always
	for _, id := range ids {
		if n += int(d.rules[id].cost); n > most {
			m.slow = true
			return true
		}
	}
	return false
}

// costly is the cost of looking at r beyond the cost of a rule with an exact condition, in units of
// lookTime.
func (r *matchRule) costly() int {
	n := 0
	for i := range r.rule.When {
		n += r.rule.When[i].costly()
	}
	if r.rule.predicate() != nil {
		n += celCost
	}
	return n
}

// Unindexed is a limit that every request of its domain is tried on, since no literal selects it.
type Unindexed struct {
	Rule    *Rule
	Pattern *Pattern      // the pattern that is tried; nil for an expression
	Time    time.Duration // what trying it takes, about
}

// Unindexed returns the limits of a domain that every request is tried on one by one, in rule
// order, if together they take longer than a single expression; else nil.
func (s *Set) Unindexed(domain string) []Unindexed {
	d := s.domain(domain)
	if d == nil || d.index == nil {
		return nil
	}
	total := 0
	for _, id := range d.index.loose {
		total += d.rules[id].costly()
	}
	if total <= celCost {
		return nil
	}
	var list []Unindexed
	for _, id := range d.index.loose {
		m := d.rules[id]
		u := Unindexed{Rule: m.rule, Time: time.Duration(m.costly()) * lookTime}
		if m.rule.predicate() == nil {
			u.Pattern = m.costlyPattern()
		}
		list = append(list, u)
	}
	return list
}

// costlyPattern is the first pattern of the rule that is not compared at once.
func (r *matchRule) costlyPattern() *Pattern {
	for i := range r.rule.When {
		patterns := r.rule.When[i].Patterns
		for k := range patterns {
			if p := &patterns[k]; p.costly() > 0 {
				return p
			}
		}
	}
	return nil
}

// costly is the cost of comparing a value with p beyond the cost of an exact pattern.
func (p *Pattern) costly() int {
	switch {
	case p.kind == RegexpPattern:
		return regexpCost
	case p.kind == GlobPattern && p.glob.kind == globNFA:
		return globCost
	}
	return 0
}
