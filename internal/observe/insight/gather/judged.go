package gather

import (
	"slices"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
)

const (
	// judgedAtOnce is how many rules or kins are judged without releasing mu. All at once would
	// hold it for too long, and hold all their samples.
	judgedAtOnce = 16
	// judgedUnasked is how many rules that somebody met are judged in a minute though nobody asks
	// them any more: what is said of them ages.
	judgedUnasked = 1000
	// judgedKins is how many kins are judged at most each time.
	judgedKins = 10_000
)

// judge makes new verdicts, once a minute. Up to explainedRules it judges each rule. Of more, it
// judges those that were asked since, those whose turn it is, and one for all of each kin, up to
// judgedKins in turn: what that takes does not grow with the rules that nobody asks.
func (c *Collector) judge() {
	want := snapshot.Want{Over: snapshot.JudgedOver(c.now()), Samples: true, Top: true}
	set, proofs := c.allProven()
	c.mu.Lock()
	few := c.few()
	if !few {
		for range min(judgedUnasked, len(c.counted)) {
			c.turn = (c.turn + 1) % len(c.counted)
			c.read(c.counted[c.turn])
		}
	}
	if !few && proofs != nil && c.provenAsked != set && c.tables.Load().now.set == set {
		c.provenAsked = set
		for _, r := range c.rules { // these are judged by what is proven of them alone
			if _, ok := proofs[[2]string{r.domain, r.name}]; ok {
				c.ask(r)
			}
		}
	}
	s := c.begin(&want)
	list, kins := c.rules, []*kin(nil)
	if !few {
		list, kins = c.asked, c.kinsInTurn()
	}
	list = slices.Clone(list)
	c.mu.Unlock()
	c.judgeKins(kins, s, &want)
	var quiet []*ruleState
	texts := map[string]string{} // of the files, each asked for once
	text := func(file string) string {
		if _, have := texts[file]; !have {
			texts[file] = c.o.Text(file)
		}
		return texts[file]
	}
	for some := range slices.Chunk(list, judgedAtOnce) {
		of := *s
		var inForce []*ruleState
		c.mu.Lock()
		for _, r := range some {
			if r.isAsked && !r.fresh {
				quiet = append(quiet, r)
			}
			unbrought := r.brought && r.total[snapshot.LaneMet] == 0
			if r.fresh = false; !r.isCommand() && !unbrought && c.numbers[r.gate.number] == r {
				inForce, of.Rules = append(inForce, r), append(of.Rules, r.snapshot(s, s.Over, &want, &c.doors))
			}
		}
		c.mu.Unlock()
		for i, r := range inForce {
			f := of.Facts(i)
			c.mu.Lock()
			before := r.memory
			c.mu.Unlock()
			verdicts, memory := c.judgeOne(&f, before, text)
			c.mu.Lock()
			if c.numbers[r.gate.number] == r { // still in force
				c.beginCounts(r)
				judge.KeepSince(r.verdicts, verdicts)
				r.verdicts, r.memory = verdicts, memory
				r.judged = judgedOf(&of.Rules[i], verdicts)
				c.judgements++
			}
			c.mu.Unlock()
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range quiet {
		r.isAsked = r.fresh
	}
	c.asked = slices.DeleteFunc(c.asked, func(r *ruleState) bool { return !r.isAsked })
}

// Judge judges a rule, given what was remembered of it. It adds facts that no snapshot holds: the
// text of the rule's file, which only proposals read, what the rules alone prove of it and, if no
// request met the rule, what keeps requests from it.
func (c *Collector) Judge(f *judge.Facts, before judge.Memory) ([]insight.Verdict, judge.Memory) {
	return c.judgeOne(f, before, c.o.Text)
}

func (c *Collector) judgeOne(f *judge.Facts, before judge.Memory,
	text func(file string) string) ([]insight.Verdict, judge.Memory) {
	f.Proven = c.proven(f.Domain, f.Rule)
	if f.Met == 0 && f.DomainMet > 0 {
		f.Unmet = c.unmet(f.Domain, f.Rule)
	}
	f.TopBanned = c.o.Banned != nil && f.TopKey != "" && c.o.Banned(f.Domain, f.Rule, f.TopKey)
	verdicts, memory := before.Judge(f, judge.Thresholds{})
	proposes := func(v insight.Verdict) bool { return v.Proposal != nil }
	if c.o.Text != nil && f.File != "" && slices.ContainsFunc(verdicts, proposes) {
		f.Text = text(f.File)
		verdicts, memory = before.Judge(f, judge.Thresholds{})
	}
	return verdicts, memory
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
		switch {
		case r.judged.Rule != "":
			j := r.judged
			j.Episodes = r.ended
			list = append(list, j)
		case r.kin != nil && r.kin.names != nil:
			list = append(list, Judged{Domain: r.domain, Rule: r.name, Verdicts: r.kin.names, GoodRefused: -1,
				MaxFill: -1})
		}
	}
	return list
}
