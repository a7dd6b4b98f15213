package lint

import (
	"fmt"

	"github.com/weir-rl/weir/rule"
)

// Proof is file.Proof, field by field.
type Proof struct {
	Rule  *rule.Rule
	Unmet bool
	Why   string
}

// useless is warn of a rule that is without use as a whole.
func (l *linter) useless(name string, r *rule.Rule, pos rule.Position, hint, format string, args ...any) {
	if l.warnOf(name, r.Name, r, pos, hint, format, args...) {
		l.without = append(l.without, Proof{r, name == warnNeverMet, fmt.Sprintf(format, args...)})
	}
}

// Useless returns the rules of s that are proven to be without use. It leaves out those whose
// warning a comment silences.
func Useless(s *rule.Set) []Proof {
	l := newLinter(s, Options{})
	for _, d := range l.order {
		rules := l.domains[d]
		for _, r := range rules {
			l.conditions(r)
		}
		l.firsts(rules)
		l.exempt(rules)
		l.replaced(rules)
		l.beaten(rules)
	}
	return l.without
}
