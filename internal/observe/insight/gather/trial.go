package gather

import (
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/rule"
)

// trial is what a rule in shadow, or one that is enforced on a share of its keys, would have done.
type trial struct {
	snapshot.Trial
	// top has the keys that the rule would have refused most often, if it is enforced on a share of
	// its keys. The keys of a rule in shadow are in ruleState.long.
	top topList
}

// trialOf begins the trial of a rule; nil if the rule is enforced on all keys.
func trialOf(r *rule.Rule, now int64) *trial {
	shadow := modeOf(r) == insight.ModeShadow
	if len(r.Windows) == 0 || !shadow && r.EnforcePercent >= 100 {
		return nil
	}
	t := &trial{Trial: snapshot.Trial{Since: now}}
	if !shadow {
		t.Enforce = r.EnforcePercent
	}
	return t
}

// count adds what the gate counted.
func (t *trial) count(x *gateCounts) {
	for at := range role(roles) {
		n := x.of(at)
		t.WouldRefuse += uint64(n[outcomeWould])
		t.BothRefuse += uint64(n[outcomeWouldToo])
		t.EnforcedRefused += uint64(n[outcomeAlone]) + uint64(n[outcomeShared])
	}
	t.BothAdmit += uint64(x[counterUnenforced])
	t.WouldAdmit += uint64(x[counterUnenforcedStopped])
	t.EnforcedAdmitted += uint64(x[counterEnforced])
}

// Trials returns what the rules in shadow, and those that are enforced on a share of their keys,
// did on this node, in rule order and without figures of keys. It is for metrics.
func (c *Collector) Trials() (list []insight.Candidate) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count(c.now().Unix())
	for _, s := range c.rules {
		if s.trial != nil {
			list = append(list, s.trial.Candidate(s.domain, s.name))
		}
	}
	return list
}
