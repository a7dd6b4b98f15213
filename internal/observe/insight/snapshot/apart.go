package snapshot

import (
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
)

// laterBy is by how many seconds the figures of a node must begin later to be told: nodes of a
// fleet do not start at once.
const laterBy = 60

// Apart says how the nodes of some snapshots, which Merge would merge, differ from the first.
// differ is what Fit returned for them. It is nil if they do not.
func Apart(list []*Snapshot, differ []insight.RuleDiffers) *insight.Apart {
	a := &insight.Apart{Differ: differ[:min(len(differ), insight.MostApart)]}
	begun := make([]int64, len(list)) // when the figures of each node begin
	first := list[0].Time
	for i, s := range list {
		if s.Broken != "" && len(a.Broken) < insight.MostApart {
			a.Broken = append(a.Broken, insight.BrokenRules{Node: s.Node, Error: s.Broken})
		}
		begun[i] = s.Time
		for k := range s.Domains {
			begun[i] = min(begun[i], s.Domains[k].Since)
		}
		first = min(first, begun[i])
	}
	later := func(s *Snapshot, domain, rule string, since int64) {
		if since > s.From && len(a.Later) < insight.MostApart {
			a.Later = append(a.Later, insight.CountedSince{Node: s.Node, Domain: domain, Rule: rule,
				Since: unixTime(since)})
		}
	}
	for i, s := range list {
		if begun[i] > first+laterBy {
			later(s, "", "", begun[i])
		}
	}
	type name struct{ domain, rule string }
	since := map[name]int64{} // of each rule, where it is in force for longest
	for _, s := range list {
		for i := range s.Rules {
			r := &s.Rules[i]
			if at := (name{r.Domain, r.Name}); since[at] == 0 || r.Since < since[at] {
				since[at] = r.Since
			}
		}
	}
	for i, s := range list {
		for k := range s.Rules {
			// A rule that is as old as the figures of its node, or came with the program, did not
			// change: after a restart a rule that the history file does not know begins then.
			r := &s.Rules[k]
			if r.Since > max(begun[i]+1, s.Started+1) && r.Since > since[name{r.Domain, r.Name}]+1 && !r.Brought {
				later(s, r.Domain, r.Name, r.Since)
			}
		}
	}
	if len(a.Broken)+len(a.Differ)+len(a.Later) == 0 {
		return nil
	}
	return a
}

func unixTime(s int64) time.Time { return time.Unix(s, 0).UTC() }
