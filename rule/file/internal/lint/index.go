package lint

import (
	"fmt"
	"time"

	"github.com/weir-rl/weir/rule"
)

// unindexed warns of the limits of a domain that requests are tried on one by one, because no
// literal selects them, if together they cost more than a single expression.
func (l *linter) unindexed(s *rule.Set, domain string) {
	list := s.Unindexed(domain)
	var total time.Duration
	for _, u := range list {
		total += u.Time
	}
	for _, u := range list {
		pos := u.Rule.Pos
		what := "an expression"
		hint := `let && join it with a comparison, as in path.startsWith("/x/") && … or int(attr.n) > 5 && …, or with a condition in when`
		if u.Pattern != nil {
			pos = u.Pattern.Pos
			what = "a pattern"
			hint = "give the pattern a text that every match holds, best behind ^, or add a condition that has one"
		}
		l.warn(warnUnindexed, u.Rule, pos, hint, "no text tells it apart, so that each request is tried on %s, "+
			"for about %s; the %d such limits of domain %q take about %s of each request",
			what, microseconds(u.Time), len(list), domain, microseconds(total))
	}
}

// microseconds spells a short time.
func microseconds(d time.Duration) string {
	switch µs := float64(d) / float64(time.Microsecond); {
	case µs < 10:
		return fmt.Sprintf("%.1f µs", µs)
	case µs < 1000:
		return fmt.Sprintf("%.0f µs", µs)
	default:
		return fmt.Sprintf("%.1f ms", µs/1000)
	}
}
