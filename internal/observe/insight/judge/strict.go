package judge

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/util/human"
)

// strict holds if the rule refuses clients that behave well.
func (j *judge) strict() *insight.Verdict {
	g := &j.good
	if g.seen < fewestGood || g.Low <= j.target {
		return nil
	}
	confidence := insight.Low
	if g.identity && j.sure() {
		confidence = insight.High
	}
	text := fmt.Sprintf("%s of %s (%s) %s %s", human.Number(g.Keys), human.Count(g.All, "good client"),
		human.Percent(g.Share), j.refuses(), j.over())
	if e := g.episodes; e.Obeyed+e.Early > 0 {
		text += fmt.Sprintf("; %s came back when told",
			human.Percent(human.Share(float64(e.Obeyed), float64(e.Obeyed+e.Early))))
	}
	text += fmt.Sprintf(". %s its refusals hit them.", human.Upper(human.Portion(g.f, 1)))
	v := j.verdict(insight.Strict, confidence, text)
	j.keys(v)
	v.Evidence["good_keys"], v.Evidence["good_keys_refused"] = float64(g.All), float64(g.Keys)
	if e := g.episodes; e.Obeyed+e.Early > 0 {
		v.Evidence["obey"] = human.Share(float64(e.Obeyed), float64(e.Obeyed+e.Early))
	}
	v.Evidence["g"], v.Evidence["g_low"], v.Evidence["f"] = g.Share, g.Low, g.f
	if !g.identity {
		v.Proposal = &insight.Proposal{
			Sentence: "Whoever attacks can behave so, too: no other limit is proposed. " + nameIdentity,
		}
		return v
	}
	limits := j.fitting(j.target * (float64(g.All) + 0.5))
	if limits == nil {
		return v
	}
	limits, steady := j.steadied(insight.Strict, limits, "")
	if !steady {
		v.Sentence += j.notYet(insight.Strict)
		return v
	}
	good, others := j.above(limits)
	rates := human.List(j.rates(limits), "and")
	text = fmt.Sprintf("%s would refuse %s of them, and still %s.", rates, orNone(good), human.Count(others, "other"))
	if others < 0.5 {
		text = fmt.Sprintf("%s would refuse %s of them, and nobody else.", rates, orNone(good))
	}
	v.Proposal = &insight.Proposal{Sentence: text, Patch: unifiedDiff(j.File, j.Text, j.withLimits(limits))}
	return v
}

// nameIdentity is the advice where nothing tells who is good.
const nameIdentity = "Name what makes a client known in insight.known, such as user; then this can be told."

// maybeStrict holds if many keys are refused, and nothing shows who they are. Clients that do not
// wait as they are told are not it: see ignored. No limit is proposed: it may be attackers alone
// who ask for more.
func (j *judge) maybeStrict() *insight.Verdict {
	if j.good.identity || j.denied < fewestRefused || j.KeysRefused < refusedKeys*j.Keys ||
		2*j.TopRefused > j.denied || j.knocked() {
		return nil
	}
	v := j.verdict(insight.MaybeStrict, insight.Low,
		fmt.Sprintf("%s of %s of %s (%s) %s %s, and nothing tells whether these clients are good.",
			human.Count(j.denied, "request"), human.Number(j.KeysRefused), human.Count(j.Keys, "key"),
			human.Percent(human.Share(j.KeysRefused, j.Keys)), j.refuses(), j.over()))
	j.keys(v)
	v.Evidence["top_refused"] = math.Round(float64(j.TopRefused))
	text := nameIdentity
	if j.Replay {
		text = "A log with the user in it could tell (--fields user=…)."
	}
	v.Proposal = &insight.Proposal{Sentence: text}
	return v
}

// orNone writes a number, "none" for 0.
func orNone(n float64) string {
	if n < 0.5 {
		return "none"
	}
	return human.Number(n)
}

// fitting returns for each window the smallest round limit at which it refuses at most atMost of
// the good keys that were refused; 0 if the limit need not change. It returns nil if no limit need
// change, or if that is not known.
func (j *judge) fitting(atMost float64) []int64 {
	limits := make([]int64, len(j.Windows))
	any := false
	for _, i := range j.perKey() {
		w := &j.Windows[i]
		var demands []int64
		for k := range j.RefusedSample {
			key := &j.RefusedSample[k]
			if i >= len(key.Demand) {
				return nil
			}
			if !key.Own && key.good(j.good.identity) {
				demands = append(demands, key.Demand[i])
			}
		}
		slices.Sort(demands)
		may := int(atMost / j.good.weight) // of the sample
		if may >= len(demands) {
			continue
		}
		if need := demands[len(demands)-1-may]; need > w.Limit {
			limits[i], any = notchUp(float64(need)), true
		}
	}
	if !any {
		return nil
	}
	return limits
}

// above counts the refused keys that ask for more than these limits in one of the windows, good and
// other keys separately. A limit of 0 stands for the limit in force.
func (j *judge) above(limits []int64) (good, others float64) {
	for k := range j.RefusedSample {
		key := &j.RefusedSample[k]
		above := false
		for _, i := range j.perKey() {
			limit := limits[i]
			if limit == 0 {
				limit = j.Windows[i].Limit
			}
			above = above || i < len(key.Demand) && key.Demand[i] > limit
		}
		switch {
		case !above && !key.Own:
		case key.good(j.good.identity):
			good += j.good.weight
		default:
			others += j.good.weight
		}
	}
	return good, others
}

// rates writes limits as a rule file does.
func (j *judge) rates(limits []int64) []string {
	var words []string
	for i, n := range limits {
		if n > 0 {
			words = append(words, j.Windows[i].with(n))
		}
	}
	return words
}

// with writes the limit with another number.
func (w *WindowFacts) with(n int64) string {
	if _, unit, ok := strings.Cut(w.Rate, "/"); ok {
		return human.Number(n) + "/" + unit
	}
	return human.Number(n)
}
