// Package judge judges rules: from facts about a rule to verdicts, with evidence and proposals. It
// is pure: it reads no clock, keeps nothing, and locks nothing.
//
// Begin with Facts (facts.go), which a server and a replay fill in alike, and Judge (verdict.go).
// strict.go and loose.go hold the verdicts that need most reckoning, good.go says which clients
// behave well, and patch.go writes proposals as changes of a rule file.
package judge

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/util/human"
)

// The bounds of the verdicts. docs/operating/insight.md lists them, and says why.
const (
	goodRefused     = 0.001 // Thresholds.GoodRefused
	identityShare   = 0.2   // of the requests, from which an identity tells good keys
	goodOK          = 0.9   // of a good key's answers
	goodObey        = 0.5   // of a good key's episodes
	goodFill        = 3     // of a good key that is not known
	fewestGood      = 3     // good keys refused
	fewestRefused   = 20    // refusals, below which nothing is said of them
	refusedKeys     = 0.01  // of the keys
	fewestEnded     = 20    // episodes
	ignoredObey     = 0.2
	brokenShare     = 0.01 // of the requests
	fewestDomainMet = 1000
	neverMetTime    = 24 * time.Hour
	bindingMet      = 10_000
	bindingTime     = 24 * time.Hour
	bindingFill     = 0.5
	earlyKnown      = 20 // requests, below which nothing is known so far
	earlyMet        = 1000
	earlyTime       = time.Hour
)

// judge is a Judge at work.
type judge struct {
	*Facts
	target float64 // Thresholds.GoodRefused
	denied uint64  // d, or w of a rule in shadow
	shadow bool
	good   goodKeys
	usual  float64 // see usualOf
	before Memory  // of the last judgement
	after  Memory  // of this one
}

// Judge is Memory.Judge for a rule that is judged for the first time.
func Judge(f *Facts, o Thresholds) []insight.Verdict {
	list, _ := Memory{}.Judge(f, o)
	return list
}

// Judge returns all verdicts that hold for a rule, in the order of Verdicts, and what to remember
// for the next judgement. The first verdict is the one to show. If none is Alarming, nobody needs
// to look. The list is empty only for a rule that limits nothing. Each verdict holds since f.To, as
// far as Judge knows: see KeepSince. Judge keeps nothing of f, and changes nothing of m. It may be
// called concurrently.
func (m Memory) Judge(f *Facts, o Thresholds) ([]insight.Verdict, Memory) {
	j := &judge{Facts: f, target: o.GoodRefused, denied: f.Refused, shadow: f.Mode == insight.ModeShadow,
		usual: usualOf(f.Minutes), before: m, after: Memory{At: f.To.Unix(), Met: f.Met}}
	if j.target <= 0 {
		j.target = goodRefused
	}
	if j.shadow {
		j.denied = f.WouldRefuse
	}
	j.good = goodOf(f)
	var out []insight.Verdict
	for _, check := range []func(*judge) *insight.Verdict{
		(*judge).broken, (*judge).looseCrowd, (*judge).looseFew, (*judge).strict, (*judge).maybeStrict,
		(*judge).ignored,
		(*judge).addsNothing, (*judge).neverMet, (*judge).neverBinding,
	} {
		if v := check(j); v != nil {
			out = append(out, *v)
		}
	}
	if len(j.Windows) > 0 && !slices.ContainsFunc(out,
		func(v insight.Verdict) bool { return v.Verdict == insight.NeverMet }) {
		certain := slices.ContainsFunc(out,
			func(v insight.Verdict) bool { return v.Confidence == insight.High && v.Verdict != insight.Broken })
		if v := j.tooEarly(len(out) == 0); v != nil && !certain {
			out = append(out, *v)
		} else if len(out) == 0 {
			out = append(out, *j.quiet())
		}
	}
	for i := range out {
		for name, x := range out[i].Evidence {
			out[i].Evidence[name] = human.Digits(x)
		}
	}
	j.keepAbsent()
	return out, j.after
}

// KeepSince sets the time since which each verdict in now holds, if it held before as well.
func KeepSince(before, now []insight.Verdict) {
	for i := range now {
		for k := range before {
			if before[k].Verdict == now[i].Verdict && before[k].Since.Before(now[i].Since) {
				now[i].Since = before[k].Since
			}
		}
	}
}

// verdict returns a verdict with the figures that every verdict has. seconds is the time that they
// all cover, up to To.
func (j *judge) verdict(name, confidence, sentence string) *insight.Verdict {
	v := &insight.Verdict{Verdict: name, Confidence: confidence, Domain: j.Domain, Rule: j.Rule, Since: j.To,
		Sentence: sentence,
		Evidence: map[string]float64{"met": float64(j.Met), "refused": float64(j.Refused),
			"seconds": max(j.To.Sub(j.From), 0).Seconds()},
		Examples: []string{}}
	if j.shadow {
		v.Evidence["would_refuse"] = float64(j.WouldRefuse)
	}
	if j.Banned > 0 {
		v.Evidence["banned"] = float64(j.Banned) // which are not among refused
	}
	v.Examples = append(v.Examples, j.Examples[:min(5, len(j.Examples))]...)
	return v
}

// refuses is the verb for the rule's effect on a request: "were refused", "would be refused".
func (j *judge) refuses() string {
	if j.shadow || j.Replay {
		return "would be refused"
	}
	return "were refused"
}

// over returns the time in words: "in 24 h".
func (j *judge) over() string {
	if j.Replay {
		return "in the log"
	}
	return "in " + human.Lasted(j.To.Sub(j.From))
}

// broken holds if an expression fails.
func (j *judge) broken() *insight.Verdict {
	if j.Errors == 0 || float64(j.Errors) < brokenShare*float64(j.Met) {
		return nil
	}
	at := j.Error
	if at == "" {
		at = "an expression"
	}
	v := j.verdict(insight.Broken, insight.High,
		fmt.Sprintf("An expression failed on %s %s: %s", human.Count(j.Errors, "request"), j.over(), at))
	v.Evidence["errors"] = float64(j.Errors)
	return v
}

// tooEarly holds if too little is known. alone says that no other verdict holds: a server then says
// what is known so far as soon as there is something, see quiet.
func (j *judge) tooEarly(alone bool) *insight.Verdict {
	if j.Replay {
		return j.tooShort(alone)
	}
	if alone && j.Met >= earlyKnown || !alone && j.sure() {
		return nil
	}
	v := j.verdict(insight.TooEarly, insight.Low, "")
	v.Evidence["max_fill"] = j.MaxFill
	if j.Met == 0 {
		v.Sentence = j.notMetYet() + j.Unmet.kept()
		v.Evidence["domain_met"] = float64(j.DomainMet)
		if near := j.Unmet.nearest(); near != "" {
			v.Proposal = &insight.Proposal{Sentence: strings.TrimSpace(near)}
		}
		return v
	}
	v.Sentence = fmt.Sprintf("Too early to tell: %s in %s so far.", human.Count(j.Met, "request"),
		human.Lasted(j.To.Sub(j.From)))
	if wait := j.wait(earlyMet, earlyTime); wait != "" {
		v.Sentence += fmt.Sprintf(" About %s more.", wait)
	}
	return v
}

// tooShort is tooEarly for a log, which has no more to come.
func (j *judge) tooShort(alone bool) *insight.Verdict {
	t := j.To.Sub(j.From)
	enough := j.Met >= earlyMet && t >= earlyTime
	if enough && (!alone || !j.untouched() || j.Met >= bindingMet) {
		return nil
	}
	v := j.verdict(insight.TooEarly, insight.Low, "")
	v.Evidence["max_fill"] = j.MaxFill
	switch {
	case j.Met == 0:
		v.Sentence = j.notMetYet() + j.Unmet.kept()
		v.Evidence["domain_met"] = float64(j.DomainMet)
	case enough:
		v.Sentence = fmt.Sprintf(
			"Nobody came near it: no client used more than %s. That says something from %s on; the log has %s for it.",
			human.Percent(j.MaxFill), human.Count(uint64(bindingMet), "request"), human.Number(j.Met))
	default:
		v.Sentence = fmt.Sprintf("The log has %s for it, in %s: too few to judge it by. %s in %s would do.",
			human.Count(j.Met, "request"), human.Lasted(t), human.Number(earlyMet), human.Lasted(earlyTime))
	}
	return v
}

// wait returns how much longer it takes until there were so many requests in so long; "" if that
// is too long to say.
func (j *judge) wait(met uint64, long time.Duration) string {
	t := j.To.Sub(j.From)
	wait := max(long-t, 0)
	if j.Met < met {
		need := float64(met-j.Met) * max(t.Seconds(), 1) / float64(j.Met)
		wait = max(wait, time.Duration(min(need, 366*86400)*float64(time.Second)))
	}
	if wait >= 90*24*time.Hour {
		return ""
	}
	return human.Lasted(wait)
}

// sureAfter says after how many requests and how long something is sure.
func (j *judge) sureAfter(met uint64, long time.Duration) string {
	text := fmt.Sprintf("after %s and %s", human.Count(met, "request"), human.Lasted(long))
	if wait := j.wait(met, long); wait != "" {
		text += ", in about " + wait
	}
	return text
}

// sure reports whether enough is known for high confidence.
func (j *judge) sure() bool {
	return j.Met >= earlyMet && (j.Replay || j.To.Sub(j.From) >= earlyTime)
}

// notMetYet says that no request met the rule, but that it is too early to call it never met.
func (j *judge) notMetYet() string {
	t := j.To.Sub(j.From)
	switch {
	case j.Replay:
		return fmt.Sprintf("None of %s in the log met it: too few to say that none ever does.",
			human.Count(j.DomainMet, "request"))
	case j.DomainMet == 0:
		return fmt.Sprintf("Too early to tell: there was no request in %s.", human.Lasted(t))
	}
	text := fmt.Sprintf("Too early to tell: none of %s of the domain met it in %s so far.",
		human.Count(j.DomainMet, "request"), human.Lasted(t))
	if t < neverMetTime {
		return text + fmt.Sprintf(" About %s more.", human.Lasted(neverMetTime-t))
	}
	return text + fmt.Sprintf(" From %s on that says something.", human.Number(fewestDomainMet))
}

// quiet returns reserve or works: nothing speaks against the rule, as far as is known. It says how
// sure that is.
func (j *judge) quiet() *insight.Verdict {
	if j.denied == 0 {
		who := "Nobody"
		if j.Banned > 0 {
			who = "Beside what bans refused nobody"
		}
		v := j.verdict(insight.Reserve, j.confident(), fmt.Sprintf("%s %s %s; no client used more than %s.",
			who, strings.Replace(j.refuses(), "were", "was", 1), j.over(), human.Percent(j.MaxFill)))
		v.Evidence["max_fill"] = j.MaxFill
		if j.untouched() && !j.Replay {
			v.Confidence = insight.Low
			v.Sentence += fmt.Sprintf(" If that stays so, it never binds: sure %s.",
				j.sureAfter(bindingMet, bindingTime))
			return v
		}
		v.Sentence += j.unsure()
		return v
	}
	denied := float64(j.denied)
	text := fmt.Sprintf("%s of %s (%s) %s %s", human.Number(denied), human.Count(j.Met, "request"),
		human.Percent(human.Share(denied, float64(j.Met))), j.refuses(), j.over())
	if len(j.Per) > 0 && j.KeysRefused > 0 {
		text += fmt.Sprintf(", of %s of %s", human.Number(j.KeysRefused), human.Count(j.Keys, "key"))
	}
	v := j.verdict(insight.Works, j.confident(), text+"."+j.unsure())
	j.keys(v)
	return v
}

// unsure says what it takes until a verdict is sure; "" if it is.
func (j *judge) unsure() string {
	if j.sure() || j.Replay {
		return ""
	}
	return fmt.Sprintf(" That is sure %s.", j.sureAfter(earlyMet, earlyTime))
}

// keys adds the numbers of keys to a verdict.
func (j *judge) keys(v *insight.Verdict) {
	v.Evidence["keys"], v.Evidence["keys_refused"] = math.Round(j.Keys), math.Round(j.KeysRefused)
}

// confident is the confidence of a verdict that does not depend on who is good.
func (j *judge) confident() string {
	if !j.sure() {
		return insight.Low
	}
	return insight.High
}

// neverMet holds if requests came, and none met the rule.
func (j *judge) neverMet() *insight.Verdict {
	t := j.To.Sub(j.From)
	if j.Met == 0 && j.Errors == 0 && j.Proven.Verdict == insight.NeverMet {
		v := j.verdict(insight.NeverMet, insight.High, human.Upper(j.Proven.Why)+".")
		v.Evidence["domain_met"] = float64(j.DomainMet)
		v.Proposal = &insight.Proposal{Sentence: insight.MendOrDelete}
		return v
	}
	if j.Met+j.Banned > 0 || j.Errors > 0 || j.DomainMet < fewestDomainMet || !j.Replay && t < neverMetTime {
		return nil
	}
	text := fmt.Sprintf("None of %s of the domain met it %s.", human.Count(j.DomainMet, "request"), j.over())
	if j.Replay {
		text = fmt.Sprintf("None of %s in the log met it.", human.Count(j.DomainMet, "request"))
	}
	v := j.verdict(insight.NeverMet, insight.High, text+j.Unmet.kept())
	v.Evidence["domain_met"] = float64(j.DomainMet)
	v.Proposal = &insight.Proposal{Sentence: j.Unmet.nearest() + insight.MendOrDelete}
	return v
}

// addsNothing holds if something else refused every request that the rule refused.
func (j *judge) addsNothing() *insight.Verdict {
	if j.Proven.Verdict == insight.AddsNothing && j.denied+j.Soft+j.Banned == 0 {
		v := j.verdict(insight.AddsNothing, insight.High,
			"It "+j.Proven.Why+".")
		v.Proposal = &insight.Proposal{Sentence: "Without it the same requests would be refused. Delete it."}
		return v
	}
	if j.shadow || j.Refused < fewestRefused || j.Alone > 0 {
		return nil
	}
	text := fmt.Sprintf("Each of the %s that it refused %s was refused by another rule, too",
		human.Count(j.Refused, "request"), j.over())
	v := j.verdict(insight.AddsNothing, insight.High, "")
	v.Evidence["alone"] = 0
	does, one := "Without it the same requests would be refused. Delete it.", ""
	switch {
	case len(j.With) > 0 && j.With[0].Count >= j.Refused:
		one = j.With[0].Value
		v.Sentence = fmt.Sprintf("%s: %s.", text, one)
		does = fmt.Sprintf("Without it, %s would refuse the same. Delete one of them.", one)
	case len(j.With) > 0:
		var names []string
		for _, c := range j.With[:min(3, len(j.With))] {
			names = append(names, fmt.Sprintf("%s (%s)", c.Value, human.Number(c.Count)))
		}
		v.Sentence = fmt.Sprintf("%s: %s.", text, human.List(names, "or"))
	default:
		v.Sentence = text + "."
	}
	if _, steady := j.steadied(insight.AddsNothing, nil, one); !steady {
		v.Sentence += j.notYet(insight.AddsNothing)
		return v
	}
	v.Proposal = &insight.Proposal{Sentence: does}
	return v
}

// knocked reports whether hardly any refused client waits as it is told.
func (j *judge) knocked() bool {
	ended := j.Episodes.Obeyed + j.Episodes.Early
	return ended >= fewestEnded && float64(j.Episodes.Obeyed) < ignoredObey*float64(ended)
}

// ignored holds if refused clients come back earlier than they were told to.
func (j *judge) ignored() *insight.Verdict {
	e := j.Episodes
	ended := e.Obeyed + e.Early
	if j.shadow && !j.Replay {
		return nil // nobody was told to come back
	}
	if !j.knocked() {
		return nil
	}
	text := fmt.Sprintf("After %s %s clients came back before they were told to: they do not read Retry-After.",
		human.Portion(float64(e.Early), float64(ended)), human.Count(ended, "refusal"))
	v := j.verdict(insight.Ignored, insight.High, text)
	v.Evidence["obeyed"], v.Evidence["early"], v.Evidence["gave_up"] = float64(e.Obeyed), float64(e.Early),
		float64(e.GaveUp)
	v.Evidence["obey"] = human.Share(float64(e.Obeyed), float64(ended))
	if j.TopRefused*2 > j.denied && j.TopBanned {
		v.Sentence += " The key that has most of the refusals is banned now."
	} else if j.TopRefused*2 > j.denied {
		v.Proposal = &insight.Proposal{Sentence: fmt.Sprintf(
			"One key has %s of the refusals: a word with its owner, or a ban of it.", human.Percent(
				min(human.Share(float64(j.TopRefused), float64(j.denied)), 1)))}
	} else {
		v.Proposal = &insight.Proposal{Sentence: "Have them wait with on_limit: {wait: …}, ban those that knock on with ban, or have your own clients wait as Retry-After says, with jitter."}
	}
	return v
}

// neverBinding holds if nobody came near the limit.
func (j *judge) neverBinding() *insight.Verdict {
	if len(j.Windows) == 0 || !j.untouched() {
		return nil
	}
	limits, steady := j.lower() // from the beginning on, so that the verdict need not wait for it
	if j.Met < bindingMet || !j.Replay && j.To.Sub(j.From) < bindingTime {
		return nil
	}
	v := j.verdict(insight.NeverBinding, insight.High,
		fmt.Sprintf("Of %s none %s; no client used more than %s of what it may.", human.Count(j.Met, "request"),
			strings.Replace(j.refuses(), "were", "was", 1), human.Percent(j.MaxFill)))
	v.Evidence["max_fill"] = j.MaxFill
	switch rates := j.rates(limits); {
	case !steady:
		v.Sentence += j.notYet(insight.NeverBinding)
	case rates != nil:
		v.Proposal = &insight.Proposal{Sentence: fmt.Sprintf("%s is at least twice what 99.9 %% of the keys need.",
			human.List(rates, "and")), Patch: unifiedDiff(j.File, j.Text, j.withLimits(limits))}
	}
	return v
}

// untouched reports whether nobody was refused, and nobody came near a limit.
func (j *judge) untouched() bool {
	return j.denied+j.Soft+j.Banned == 0 && j.MaxFill < bindingFill
}

// lower returns lower limits that nearly all keys would keep far below, 0 for none, and whether
// these are steady.
func (j *judge) lower() (limits []int64, steady bool) {
	limits = make([]int64, len(j.Windows))
	some := false
	for _, i := range j.perKey() {
		w := &j.Windows[i]
		if need := Needed(j.Sample, i, 0.999); need > 0 && notchUp(2*float64(need)) < w.Limit && !w.Bucket {
			limits[i], some = notchUp(2*float64(need)), true
		}
	}
	if !some {
		return limits, true
	}
	if limits, steady = j.steadied(insight.NeverBinding, limits, ""); !steady {
		return nil, false
	}
	for i := range limits {
		if limits[i] >= j.Windows[i].Limit {
			limits[i] = 0
		}
	}
	return limits, true
}
