package rule

import (
	"errors"

	"github.com/weir-rl/weir/algo"
)

// Failure is an expression that failed on a request.
type Failure struct {
	Rule *Rule
	Key  string // "if" or "cost"
	Err  error  // it may hold what the request says
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

var errNegativeCost = errors.New("it is below 0, and counts as 0")

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

// evalCost returns what the request costs: the most that it costs in any spelling.
func (m *Matches) evalCost(r *matchRule, a Amount) int64 {
	n, err := a.Amount(m.variables())
	if all := m.spellingsOfCost(r); all != 0 {
		m.respell(all, func() bool {
			if more, failed := a.Amount(m.variables()); failed == nil && (err != nil || more > n) {
				n, err = more, nil
			}
			return false
		})
	}
	switch {
	case err != nil:
		m.failed(r, "cost", err)
		return 1
	case n < 0:
		m.failed(r, "cost", errNegativeCost)
		return 0
	}
	return min(n, algo.MaxCost)
}
