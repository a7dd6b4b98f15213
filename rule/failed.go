package rule

import (
	"errors"

	"github.com/weir-rl/weir/algo"
)

// failure is an expression that failed on a request.
type failure struct {
	rule  *Rule
	alike []*Rule // others that failed likewise
	key   string
	err   error
}

var errNegativeCost = errors.New("it is below 0, and counts as 0")

// failed notes an expression that failed.
func (m *Matches) failed(r *matchRule, key string, err error) {
	if m.CELErrors == 0 {
		m.failures = m.failures[:0]
	}
	f := failure{rule: r.rule, key: key, err: err}
	if r.alike != nil && key == "if" {
		f.alike = r.alike.others(m)
	}
	m.failures = append(m.failures, f)
	m.CELErrors += 1 + len(f.alike)
}

// Failures calls f for each expression that failed on this request, with the rule and its key ("if"
// or "cost"). An error may hold what the request says.
func (m *Matches) Failures(f func(r *Rule, key string, err error)) {
	if m.CELErrors == 0 {
		return
	}
	for _, x := range m.failures {
		f(x.rule, x.key, x.err)
		for _, o := range x.alike {
			f(o, x.key, x.err)
		}
	}
}

func (m *Matches) evalCost(r *matchRule, a Amount) int64 {
	n, err := a.Amount(m.variables())
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
