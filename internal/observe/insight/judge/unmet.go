package judge

import (
	"fmt"
	"strings"

	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/rule"
)

// Unmet says what keeps requests from a rule. It considers only the requests that came nearest,
// which fail the fewest of its conditions. The others tell what is different about them, not about
// the rule.
type Unmet struct {
	Looked  int // requests looked at
	Nearest int // of these, requests that came nearest
	// Condition kept out Kept of Nearest, more than any other condition: "when.path". Why says how
	// it did so most often, and quotes a client's value: "/b does not match /a".
	Condition string
	Kept      int
	Why       string
}

// UnmetOf sums up why some requests do not meet a rule. reasons has one reason for each, as from
// rule.Set.Explain. It returns zero for none.
func UnmetOf(reasons []rule.Reason) Unmet {
	u := Unmet{Looked: len(reasons)}
	fewest := 0
	for i := range reasons {
		if i == 0 || reasons[i].Fails < fewest {
			fewest = reasons[i].Fails
		}
	}
	byCondition, byWhy := map[string]int{}, map[[2]string]int{}
	for i := range reasons {
		if reasons[i].Fails == fewest {
			condition, why := conditionOf(reasons[i].Why)
			u.Nearest++
			byCondition[condition]++
			byWhy[[2]string{condition, why}]++
		}
	}
	for condition, n := range byCondition {
		if n > u.Kept || n == u.Kept && condition < u.Condition {
			u.Condition, u.Kept = condition, n
		}
	}
	most := 0
	for of, n := range byWhy {
		if of[0] == u.Condition && (n > most || n == most && of[1] < u.Why) {
			u.Why, most = of[1], n
		}
	}
	return u
}

// conditionOf splits a reason into its condition, which holds nothing that a client sent, and the
// rest.
func conditionOf(reason string) (condition, why string) {
	condition, why, found := strings.Cut(reason, ": ")
	if found && !strings.ContainsAny(condition, "= ") {
		return condition, why
	}
	if strings.HasPrefix(reason, "replaced by ") {
		return "replaces", reason
	}
	return "its descriptors", reason
}

// kept is a sentence for a verdict, which everybody may read.
func (u *Unmet) kept() string {
	switch {
	case u.Condition == "":
		return ""
	case u.Nearest == u.Looked:
		return fmt.Sprintf(" Of %s looked at, %s kept out %s.", human.Count(u.Looked, "request"), u.Condition,
			human.Number(u.Kept))
	}
	return fmt.Sprintf(" Of %s looked at, %s came nearest: %s kept out %s of these.", human.Count(u.Looked, "request"),
		human.Number(u.Nearest), u.Condition, human.Number(u.Kept))
}

// nearest is a sentence for a proposal: it quotes what a client sent.
func (u *Unmet) nearest() string {
	if u.Why == "" {
		return ""
	}
	return fmt.Sprintf("Most often so: %s. ", u.Why)
}
