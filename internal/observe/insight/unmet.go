package insight

import (
	"fmt"
	"strings"
	"time"

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
		return fmt.Sprintf(" Of %s looked at, %s kept out %s.", human.Count(u.Looked, "request"), u.Condition, human.Number(u.Kept))
	}
	return fmt.Sprintf(" Of %s looked at, %s came nearest: %s kept out %s of these.", human.Count(u.Looked, "request"), human.Number(u.Nearest), u.Condition, human.Number(u.Kept))
}

// nearest is a sentence for a proposal: it quotes what a client sent.
func (u *Unmet) nearest() string {
	if u.Why == "" {
		return ""
	}
	return fmt.Sprintf("Most often so: %s. ", u.Why)
}

// mendOrDelete is the advice for a rule that is never met.
const mendOrDelete = "Mend its conditions, or delete it."

// Masked returns a verdict for roles that may not see what clients sent: without the patch, since
// rule files may name clients, and without the quoted request.
func (v Verdict) Masked() Verdict {
	switch {
	case v.Proposal == nil:
	case v.Verdict == NeverMet:
		v.Proposal = &Proposal{Sentence: mendOrDelete}
	case v.Verdict == TooEarly:
		v.Proposal = nil
	default:
		v.Proposal = &Proposal{Sentence: v.Proposal.Sentence}
	}
	return v
}

const (
	// lookedAt bounds the recorded requests that are looked at to say why none meets a rule.
	// explainedReasons bounds the reasons for all rules: with many rules fewer requests are looked
	// at.
	lookedAt         = 200
	explainedReasons = 20_000
	// explainedRules is the number of rules up to which explaining takes no noticeable time.
	explainedRules = 1000
	// explainedFor is how long an explanation stays in use.
	explainedFor = time.Minute
)

// explained says why the recorded requests did not meet the rules that nobody met.
// Collector.reasons guards it.
type explained struct {
	of    *rule.Set
	at    time.Time
	unmet map[[2]string]Unmet // by domain and name
	// also are further rules to explain, because somebody asked for them: they were met, but not
	// lately.
	also map[[2]string]bool
}

// unmet says what keeps the recorded requests from a rule.
func (c *Collector) unmet(domain, name string) Unmet {
	set := c.tables.Load().now.set
	if c.o.Recorded == nil || set == nil || len(set.Rules()) > explainedRules {
		return Unmet{}
	}
	c.reasons.Lock()
	defer c.reasons.Unlock()
	e := &c.reasons.explained
	if e.of != set {
		*e = explained{of: set, also: map[[2]string]bool{}}
	}
	if now := c.now(); now.Sub(e.at) >= explainedFor {
		e.at, e.unmet = now, c.explain(set, e.also)
	}
	u, found := e.unmet[[2]string{domain, name}]
	if !found {
		e.also[[2]string{domain, name}] = true // a minute later
	}
	return u
}

// explain says what keeps the recorded requests from the rules that nobody met, and from others.
func (c *Collector) explain(set *rule.Set, also map[[2]string]bool) map[[2]string]Unmet {
	wanted := map[*rule.Rule][]rule.Reason{}
	c.mu.Lock()
	for _, r := range c.rules {
		if name := [2]string{r.domain, r.name}; r.rule != nil && (r.series == nil || also[name]) && !c.readsHidden(r.rule) {
			wanted[r.rule] = nil
		}
	}
	c.mu.Unlock()
	if len(wanted) == 0 {
		return nil
	}
	for _, q := range c.o.Recorded(min(lookedAt, explainedReasons/max(len(set.Rules()), 1))) {
		for _, reason := range set.Explain(&q) {
			if reasons, ok := wanted[reason.Rule]; ok && reason.Why != "" {
				reason.Hits = nil
				wanted[reason.Rule] = append(reasons, reason)
			}
		}
	}
	unmet := make(map[[2]string]Unmet, len(wanted))
	for r, reasons := range wanted {
		unmet[[2]string{r.Domain, r.Name}] = UnmetOf(reasons)
	}
	return unmet
}

// readsHidden reports whether a rule looks at a value that is recorded as a hash only. Then nobody
// can say whether a request meets it.
func (c *Collector) readsHidden(r *rule.Rule) bool {
	for _, w := range r.When {
		if c.veil.hides(w.Attribute) {
			return true
		}
	}
	if r.If == "" || r.Exprs == nil || r.Exprs.If == nil {
		return false
	}
	names, all := r.Exprs.If.Reads()
	for _, name := range names {
		all = all || c.veil.hides(name)
	}
	return all
}
