package gather

import (
	"slices"
	"strings"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/rule"
)

// kin are rules on which the same verdicts hold for as long as nobody meets them: nothing is known
// that tells them apart. One judgement is for all of them, however many there are.
type kin struct {
	kinKey
	judged   *ruleState // a rule without a name, like any of them
	verdicts []insight.Verdict
	names    []string // of the verdicts
	failed   string   // the end of the sentence that says which expression failed
	unmet    int      // of the rules, those without counts of their own
}

// kinKey is all that a verdict on a rule that nobody met depends on.
type kinKey struct {
	domain       *domainState
	domainBefore uint64
	since, began int64
	mode         string
	limited      bool
	alike        *alikeRules
}

func (s *ruleState) kinKey() kinKey {
	return kinKey{domain: s.domainState, domainBefore: s.domainBefore, since: s.since.Unix(), began: s.began,
		mode: modeOf(s.rule), limited: slices.ContainsFunc(s.rule.Windows, isLimited), alike: s.alike}
}

// isLimited reports whether a window has a limit.
func isLimited(w *rule.Window) bool { return w.Limit != nil && w.Counter != nil }

// relate finds the kin of each rule. mu is held.
func (c *Collector) relate() {
	kins := map[kinKey]*kin{}
	for _, k := range c.kins {
		kins[k.kinKey] = k
	}
	c.kins = nil
	used := map[*kin]bool{}
	for _, s := range c.rules {
		if s.brought { // no rule until a request brings one
			continue
		}
		key := s.kinKey()
		k := kins[key]
		if k == nil {
			k = &kin{kinKey: key, judged: &ruleState{
				rule: &rule.Rule{Domain: s.domain}, domain: s.domain, domainState: s.domainState, domainBefore: s.domainBefore,
				since: s.since, began: s.began, alike: s.alike, ruleCounts: &notCounted, ruleFigures: &notFollowed,
			}}
			if s.kin != nil { // its verdicts go on
				k.verdicts, k.names, k.failed = s.kin.verdicts, s.kin.names, s.kin.failed
			}
			kins[key] = k
		}
		if s.kin = k; !used[k] {
			used[k] = true
			c.kins = append(c.kins, k)
			k.unmet = 0
		}
		if !s.isCounted() {
			k.unmet++
		}
	}
}

// kinsInTurn returns the kins to be judged next: those with rules that nobody met. mu is held.
func (c *Collector) kinsInTurn() (list []*kin) {
	for range c.kins {
		if len(list) == judgedKins {
			break
		}
		c.kinTurn = (c.kinTurn + 1) % len(c.kins)
		if k := c.kins[c.kinTurn]; k.unmet > 0 {
			list = append(list, k)
		}
	}
	return list
}

// judgeKins judges the rules that nobody met. s is without rules.
func (c *Collector) judgeKins(list []*kin, s *snapshot.Snapshot, want *snapshot.Want) {
	for some := range slices.Chunk(list, judgedAtOnce) {
		of := *s
		c.mu.Lock()
		for _, k := range some {
			r := k.judged.snapshot(s, s.Over, want, &c.doors)
			if r.Mode = k.mode; k.limited {
				r.Windows = make([]snapshot.Window, 1)
			}
			of.Rules = append(of.Rules, r)
		}
		c.mu.Unlock()
		told := make([][]insight.Verdict, len(some))
		for i := range some {
			f := of.Facts(i)
			told[i] = judge.Judge(&f, judge.Thresholds{})
		}
		c.mu.Lock()
		for i, k := range some {
			c.judgements++
			judge.KeepSince(k.verdicts, told[i])
			k.verdicts, k.failed, k.names = told[i], of.Rules[i].Error, nil
			for _, v := range told[i] {
				k.names = append(k.names, v.Verdict)
			}
		}
		c.mu.Unlock()
	}
}

// of returns the verdicts on one of the rules.
func (k *kin) of(s *ruleState) []insight.Verdict {
	verdicts := slices.Clone(k.verdicts)
	for i := range verdicts {
		v := &verdicts[i]
		v.Rule = s.name
		if at := s.at(); k.failed != "" && at != "" && v.Verdict == insight.Broken {
			if begin, found := strings.CutSuffix(v.Sentence, k.failed); found {
				v.Sentence = begin + at + k.failed
			}
		}
	}
	return verdicts
}
