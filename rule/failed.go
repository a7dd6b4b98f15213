package rule

import (
	"errors"

	"github.com/weir-rl/weir/algo"
)

// Failure is an expression that failed on a request.
type Failure struct {
	Rule *Rule
	Key  string // "if" or "cost"
	Err  error  // it may hold text of the request
	// Alike are the rules whose expressions failed likewise, Rule among them; nil if it is the only
	// one.
	Alike *Alike
}

// Alike are native rules of one Set, two at least, whose expressions fail together and for the same
// reason: those that compare an attribute with different constants fail where it is absent, or is
// no number. It is immutable. Rules may be of several, one for each such reason.
type Alike struct {
	Rules []*Rule // in rule order
}

// Alike returns what Failure.Alike may be, in order of their first rules.
func (s *Set) Alike() (all []*Alike) {
	for _, d := range s.domains {
		for _, r := range d.rules {
			if r.alike == nil {
				continue
			}
			for _, a := range []*Alike{r.alike.ifAbsent, r.alike.ifNoNumber} {
				if a != nil {
					all = append(all, a)
				}
			}
		}
	}
	return all
}

var errNegativeCost = errors.New("it is below 0, and counts as cost_min")

// failed notes an expression that failed.
func (m *Matches) failed(r *matchRule, key string, err error) {
	if m.CELErrors == 0 {
		m.failures = m.failures[:0]
	}
	f, n := Failure{Rule: r.rule, Key: key, Err: err}, 1
	if r.alike != nil && key == "if" {
		if f.Alike = r.alike.on(m); f.Alike != nil {
			n = len(f.Alike.Rules)
		}
	}
	m.failures = append(m.failures, f)
	m.CELErrors += n
}

// Failures returns the expressions that failed on this request, of rules that are alike one for all
// of them. It is valid until the Matches is used again.
func (m *Matches) Failures() []Failure {
	if m.CELErrors == 0 {
		return nil
	}
	return m.failures
}

// overspent notes that r's expression was stopped. Only the first that is stopped on a request is a
// failure. If r would be enforced, it refuses the request: it may have been made to get past r.
func (m *Matches) overspent(r *matchRule, expression string, key []byte, mode Mode) {
	shadow := 0
	if mode == Shadow {
		shadow = 1
	}
	if !m.stopped[shadow] {
		m.stopped[shadow] = true
		if m.CELErrors++; m.CELErrors == 1 {
			m.failures = m.failures[:0]
		}
		m.failures = append(m.failures, Failure{Rule: r.rule, Key: expression, Err: ErrTooCostly})
	}
	if mode != Shadow && m.TooCostly == nil && r.rule.firstLimited() != nil {
		m.TooCostly, m.costly = r.rule, append(m.costly[:0], key...)
	}
}

// firstLimited is the first of r's windows that has a limit; nil if none has.
func (r *Rule) firstLimited() *Window {
	for _, w := range r.Windows {
		if w.Limit != nil && !r.Unlimited {
			return w
		}
	}
	return nil
}

// onlyCostly leaves no Hit but one of TooCostly.
func (m *Matches) onlyCostly() {
	w := m.TooCostly.firstLimited()
	m.Hits = append(m.Hits[:0], Hit{Window: w, Limit: w.Limit, Key: m.costly, Cost: 1, Mode: Enforce, Descriptor: -1})
	for i := range m.Descriptors {
		m.Descriptors[i].Hit = -1
	}
}

// evalCost returns the cost of the request: the highest cost in any spelling.
func (m *Matches) evalCost(r *matchRule, a Amount, key []byte, mode Mode) int64 {
	n, err := a.Amount(m.variables(mode))
	least := r.rule.CostMin
	if all := m.spellingsOfCost(r); all != 0 && !errors.Is(err, ErrTooCostly) {
		if m.respell(all, func() (bool, error) {
			more, failed := a.Amount(m.variables(mode))
			if failed == nil && (err != nil || more > n) {
				n, err = more, nil
			}
			return false, failed
		}) {
			err = ErrTooCostly
		}
	}
	switch {
	case err != nil && errors.Is(err, ErrTooCostly):
		m.overspent(r, "cost", key, mode)
		return max(1, least)
	case err != nil:
		m.failed(r, "cost", err)
		return max(1, least)
	case n < 0:
		m.failed(r, "cost", errNegativeCost)
	}
	return min(max(n, least), algo.MaxCost)
}
