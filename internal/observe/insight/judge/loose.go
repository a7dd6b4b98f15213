package judge

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/util/human"
)

// The bounds of loose_crowd and loose_few.
const (
	fewestMinutes = 3    // saturated ones in a row
	looseDenied   = 0.01 // of the requests in them
	crowdKeys     = 3    // times the median before
	crowdEach     = 2    // times the requests of each key before, at most
	crowdBefore   = 60   // minutes before
	fewestBefore  = 10   // minutes that must be known of them
	fewShare      = 0.5  // of the admitted requests, to the top 1 % of keys
)

// A rush is some saturated minutes in a row that the rule let through.
type rush struct {
	minutes []Minute
	keys    float64 // most in a minute
	before  float64 // the median before
	usual   float64 // 95th percentile of the requests admitted in an unsaturated minute
}

// looseCrowd holds if many more clients than usual came at once, each with as many requests as
// usual.
func (j *judge) looseCrowd() *insight.Verdict {
	if j.usual < 0 {
		return nil
	}
	// What is usual is followed before it is needed, so that there is a number when a rush comes.
	limits, steady := j.steadied(insight.LooseCrowd, []int64{notchDown(j.usual)}, "")
	r := j.rush(func(m, before *Minute) bool {
		each, usual := human.Share(float64(m.Met), m.Keys), human.Share(float64(before.Met), before.Keys)
		return m.Keys >= crowdKeys*max(before.Keys, 1) && each <= crowdEach*max(usual, 1)
	})
	if r == nil {
		return nil
	}
	v := j.verdict(insight.LooseCrowd, insight.High,
		fmt.Sprintf(
			"%s clients came in a minute instead of %s, each asked as usual, and the service was saturated for %s: a limit per client cannot stop a crowd.",
			human.Number(r.keys), human.Number(r.before), human.Count(len(r.minutes), "minute")))
	r.evidence(v)
	v.Evidence["usual_per_second"] = r.usual / 60
	const otherwise = "Or proxy.concurrency: adaptive, or throttle: {elastic: …}."
	if !steady {
		v.Sentence += j.notYet(insight.LooseCrowd)
		v.Proposal = &insight.Proposal{
			Sentence: "A second limit without per, as the service can take it. " + otherwise,
		}
		return v
	}
	n, unit := limits[0], "min"
	burst := max(n/6, 1) // 10 s of it
	if n >= 10*60 {
		n, unit = n/60, "s"
	}
	v.Proposal = &insight.Proposal{
		Sentence: fmt.Sprintf(
			"A second limit without per, %d/%s with a bucket of 10 s of it: about what the service took "+
				"in 95 %% of its minutes. %s", n, unit, otherwise),
		Patch: unifiedDiff(j.File, j.Text, j.withRule(j.Rule+"-crowd",
			fmt.Sprintf("allow: { rate: %d/%s, burst: %d }", n, unit, burst), "algorithm: token_bucket")),
	}
	return v
}

// looseFew holds if a few clients took most of the admitted requests while the service was
// saturated.
func (j *judge) looseFew() *insight.Verdict {
	if len(j.Per) == 0 {
		return nil
	}
	r := j.rush(func(m, _ *Minute) bool { return m.TopShare >= fewShare })
	if r == nil {
		return nil
	}
	v := j.verdict(insight.LooseFew, insight.High,
		fmt.Sprintf("A few clients took most of what it admitted while the service was saturated for %s.",
			human.Count(len(r.minutes), "minute")))
	r.evidence(v)
	few, took, rest, keys := 0.0, 0.0, 0.0, 0.0
	for _, m := range r.minutes {
		few, took = few+max(m.TopKeys, 1), took+float64(m.Admitted)*m.TopShare
		rest, keys = rest+float64(m.Admitted)*(1-m.TopShare), keys+m.Keys
	}
	n := float64(len(r.minutes))
	few, took, rest, keys = few/n, took/n, rest/n, keys/n
	v.Sentence = fmt.Sprintf("%s of %s took %s of what it admitted while the service was saturated for %s.",
		human.Number(few), human.Count(keys, "client"), human.Percent(human.Share(took, took+rest)),
		human.Count(n, "minute"))
	v.Evidence["top_keys"], v.Evidence["top_share"] = few, human.Share(took, took+rest)
	// Each of the few clients may have an equal part of the usual admissions that the others leave,
	// but at least as much as one of the others.
	each := max((r.usual-rest)/few, human.Share(rest, max(keys-few, 1)), 1)
	for _, i := range j.perKey() {
		w := &j.Windows[i]
		limits := make([]int64, len(j.Windows))
		if limits[i] = notchDown(each * w.Window.Minutes()); limits[i] >= w.Limit || w.Bucket {
			continue
		}
		limits, steady := j.steadied(insight.LooseFew, limits, "")
		if !steady {
			v.Sentence += j.notYet(insight.LooseFew)
			break
		}
		if limits[i] >= w.Limit {
			break
		}
		touched, plusMinus := Affected(j.Sample, j.Keys, i, limits[i])
		others := max(touched-few, 0)
		text := fmt.Sprintf("%s would cut them to what the service takes; it would touch %s.", w.with(limits[i]),
			human.Count(others, "other client"))
		if others < 0.5 {
			text = fmt.Sprintf("%s would cut them to what the service takes, and touch nobody else.", w.with(limits[i]))
		} else if plusMinus >= 0.5 {
			text = fmt.Sprintf("%s would cut them to what the service takes; it would touch %s (± %s).",
				w.with(limits[i]), human.Count(others, "other client"), human.Number(plusMinus))
		}
		v.Proposal = &insight.Proposal{Sentence: text, Patch: unifiedDiff(j.File, j.Text, j.withLimits(limits))}
		break
	}
	return v
}

// RushUntil is the name of the figure for the end of a rush, in Unix seconds. A verdict holds for
// as long as its minutes are known, a day, and the rush is mostly over long before.
const RushUntil = "until"

func (r *rush) evidence(v *insight.Verdict) {
	v.Evidence["saturated_minutes"], v.Evidence["keys_in_a_minute"] = float64(len(r.minutes)), r.keys
	v.Evidence["keys_before"], v.Evidence["usual_per_minute"] = r.before, r.usual
	v.Evidence[RushUntil] = float64(r.minutes[len(r.minutes)-1].T + 60)
}

// usualOf returns the 95th percentile of the requests admitted in an unsaturated minute; below 0 if
// there are too few.
func usualOf(minutes []Minute) float64 {
	var usual []uint64
	for i := range minutes {
		if !minutes[i].Saturated {
			usual = append(usual, minutes[i].Admitted)
		}
	}
	if len(usual) < fewestBefore {
		return -1
	}
	slices.Sort(usual)
	return float64(usual[(len(usual)*95+99)/100-1])
}

// rush returns the latest run of saturated minutes for which is holds, in which the rule refused
// next to nothing and admitted more than in 95 % of the unsaturated minutes; nil if there is none.
// before is the median minute of the hour before.
func (j *judge) rush(is func(m, before *Minute) bool) *rush {
	if j.usual < 0 {
		return nil
	}
	r := &rush{usual: j.usual}
	var found *rush
	for i := range j.Minutes {
		m := &j.Minutes[i]
		if len(r.minutes) > 0 && r.minutes[len(r.minutes)-1].T+60 != m.T {
			r = &rush{usual: r.usual}
		}
		if !m.Saturated || float64(m.Refused) >= looseDenied*float64(m.Met) || float64(m.Admitted) <= r.usual {
			r = &rush{usual: r.usual}
			continue
		}
		before, ok := medianMinute(j.Minutes[:i], m.T)
		if !ok || !is(m, &before) {
			r = &rush{usual: r.usual}
			continue
		}
		if len(r.minutes) == 0 {
			r.before = before.Keys
		}
		r.minutes, r.keys = append(r.minutes, *m), max(r.keys, m.Keys)
		if len(r.minutes) >= fewestMinutes {
			found = r
		}
	}
	return found
}

// medianMinute returns the minute with the median number of keys in the hour before t; ok is false
// if too few minutes of that hour are known. minutes are the minutes before t.
func medianMinute(minutes []Minute, t int64) (m Minute, ok bool) {
	from, _ := slices.BinarySearchFunc(minutes, t-60*crowdBefore,
		func(m Minute, t int64) int { return cmp.Compare(m.T, t) })
	last := slices.Clone(minutes[from:])
	if len(last) < fewestBefore {
		return Minute{}, false
	}
	slices.SortFunc(last, func(a, b Minute) int { return cmp.Compare(a.Keys, b.Keys) })
	return last[len(last)/2], true
}
