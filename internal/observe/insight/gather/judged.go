package gather

import (
	"slices"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
)

// judgedAtOnce is how many rules are judged from one snapshot. Each snapshot reads the counters of
// all rules. A single one for all of them would hold mu for too long, and hold all their samples.
const judgedAtOnce = 16

// judge makes new verdicts, once a minute.
func (c *Collector) judge() {
	want := snapshot.Want{Over: snapshot.JudgedOver(c.now()), Samples: true, Top: true}
	c.mu.Lock()
	rules := slices.Clone(c.rules)
	c.mu.Unlock()
	for some := range slices.Chunk(rules, judgedAtOnce) {
		var inForce []*ruleState
		s, _ := c.snapshot(want, func(r *ruleState) bool {
			if r.isCommand() || !slices.Contains(some, r) {
				return false
			}
			inForce = append(inForce, r)
			return true
		})
		for i, r := range inForce {
			f := s.Facts(i)
			c.Complete(&f)
			c.mu.Lock()
			memory := r.memory
			c.mu.Unlock()
			verdicts, memory := memory.Judge(&f, judge.Thresholds{GoodRefused: c.o.GoodRefused})
			c.mu.Lock()
			judge.KeepSince(r.verdicts, verdicts)
			r.verdicts, r.memory = verdicts, memory
			r.judged = judgedOf(&s.Rules[i], verdicts)
			c.mu.Unlock()
		}
	}
}

// Complete adds facts of a rule that no snapshot holds: the text of its file, what the rules alone
// prove of it and, if no request met it, what keeps requests from it.
func (c *Collector) Complete(f *judge.Facts) {
	if c.o.Text != nil && f.File != "" {
		f.Text = c.o.Text(f.File)
	}
	f.Proven = c.proven(f.Domain, f.Rule)
	if f.Met == 0 && f.DomainMet > 0 {
		f.Unmet = c.unmet(f.Domain, f.Rule)
	}
}

// Judged is the last judgement of a rule, with some counts up to now, for metrics.
type Judged struct {
	Domain, Rule string
	Verdicts     []string
	// GoodRefused is the share of good keys that the rule refuses, and MaxFill the largest share of
	// its limit that one key used; below 0 if not known.
	GoodRefused, MaxFill float64
	// LooseUntil has the verdicts on a rush that the rule did not hold, with the end of that rush
	// in Unix seconds: about now while it goes on. It is nil if there was none.
	LooseUntil map[string]int64
	// Episodes counts the episodes of sampled refused keys that ended on this node since it has
	// known the rule. It counts up to now, not up to the judgement, and never falls.
	Episodes insight.Episodes
}

func judgedOf(r *snapshot.Rule, verdicts []insight.Verdict) Judged {
	j := Judged{Domain: r.Domain, Rule: r.Name, GoodRefused: -1, MaxFill: -1}
	for i := range verdicts {
		j.Verdicts = append(j.Verdicts, verdicts[i].Verdict)
		if until, ok := verdicts[i].Evidence[judge.RushUntil]; ok {
			if j.LooseUntil == nil {
				j.LooseUntil = map[string]int64{}
			}
			j.LooseUntil[verdicts[i].Verdict] = int64(until)
		}
	}
	if r.Summary.Good.All > 0 {
		j.GoodRefused = r.Summary.Good.Share
	}
	if r.Sampled[snapshot.LaneMet] > 0 {
		j.MaxFill = r.Summary.MaxFill
	}
	return j
}

// Judged returns the last judgement of each rule in force, in rule order. It leaves out rules that
// were not judged yet.
func (c *Collector) Judged() (list []Judged) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.rules {
		if r.judged.Rule != "" {
			j := r.judged
			j.Episodes = r.ended
			list = append(list, j)
		}
	}
	return list
}
