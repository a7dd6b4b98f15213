package gather

import (
	"time"

	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/rule"
)

const (
	// mostLookedAt bounds the recorded requests that are looked at to say why none meets a rule.
	// explainedReasons bounds the reasons for all rules: with many rules fewer requests are looked
	// at.
	mostLookedAt     = 200
	explainedReasons = 20_000
	// explainedRules is the number of rules up to which explaining takes no noticeable time.
	explainedRules = 1000
	// provenRules is the number of rules up to which proving takes a fraction of a second.
	provenRules = 20_000
	// explainedFor is how long an explanation stays in use.
	explainedFor = time.Minute
)

// explanations says why the recorded requests did not meet the rules that nobody met.
// Collector.reasons guards it.
type explanations struct {
	of    *rule.Set
	at    time.Time
	unmet map[[2]string]judge.Unmet // by domain and name
	// also are further rules to explain, because somebody asked for them: they were met, but not
	// lately.
	also map[[2]string]bool

	provenOf *rule.Set
	proofs   map[[2]string]judge.Proof
}

// proven returns what the rules in force alone prove of a rule.
func (c *Collector) proven(domain, name string) judge.Proof {
	_, proofs := c.allProven()
	return proofs[[2]string{domain, name}]
}

// allProven returns the rules in force, and what they prove of some of them, by domain and name.
func (c *Collector) allProven() (set *rule.Set, proofs map[[2]string]judge.Proof) {
	set = c.tables.Load().now.set
	if c.o.Proven == nil || set == nil || len(set.Rules()) > provenRules {
		return set, nil
	}
	c.reasons.Lock()
	defer c.reasons.Unlock()
	if c.reasons.provenOf != set {
		c.reasons.provenOf, c.reasons.proofs = set, c.o.Proven(set)
	}
	return set, c.reasons.proofs
}

// unmet says what keeps the recorded requests from a rule.
func (c *Collector) unmet(domain, name string) judge.Unmet {
	set := c.tables.Load().now.set
	if c.o.Recorded == nil || set == nil || len(set.Rules()) > explainedRules {
		return judge.Unmet{}
	}
	c.reasons.Lock()
	defer c.reasons.Unlock()
	e := &c.reasons.explanations
	if e.of != set {
		*e = explanations{of: set, also: map[[2]string]bool{}, provenOf: e.provenOf, proofs: e.proofs}
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
func (c *Collector) explain(set *rule.Set, also map[[2]string]bool) map[[2]string]judge.Unmet {
	wanted := map[*rule.Rule][]rule.Reason{}
	c.mu.Lock()
	for _, r := range c.rules {
		if name := [2]string{r.domain, r.name}; r.rule != nil && (r.series == nil || also[name]) &&
			!c.readsHidden(r.rule) {
			wanted[r.rule] = nil
		}
	}
	c.mu.Unlock()
	if len(wanted) == 0 {
		return nil
	}
	for _, q := range c.o.Recorded(min(mostLookedAt, explainedReasons/max(len(set.Rules()), 1))) {
		for _, reason := range set.Explain(&q) {
			if reasons, ok := wanted[reason.Rule]; ok && reason.Why != "" {
				reason.Hits = nil
				wanted[reason.Rule] = append(reasons, reason)
			}
		}
	}
	unmet := make(map[[2]string]judge.Unmet, len(wanted))
	for r, reasons := range wanted {
		unmet[[2]string{r.Domain, r.Name}] = judge.UnmetOf(reasons)
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
