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
		}
	}
}

// judgeKins judges the rules that nobody met. s is without rules.
func (c *Collector) judgeKins(s *snapshot.Snapshot, want *snapshot.Want) {
	for _, k := range c.kins {
		r := k.judged.snapshot(s, s.Over, want, &c.doors)
		if r.Mode = k.mode; k.limited {
			r.Windows = make([]snapshot.Window, 1)
		}
		of := *s
		of.Rules = []snapshot.Rule{r}
		f := of.Facts(0)
		verdicts := judge.Judge(&f, judge.Thresholds{})
		c.judgements++
		judge.KeepSince(k.verdicts, verdicts)
		k.verdicts, k.failed, k.names = verdicts, r.Error, nil
		for i := range verdicts {
			k.names = append(k.names, verdicts[i].Verdict)
		}
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
