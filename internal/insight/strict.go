package insight

import (
	"fmt"
	"math"
)

// strict holds where the rule refuses clients that behave well.
func (j *judge) strict() *Verdict {
	g := &j.good
	if g.seen < fewestGood || g.Low <= j.target {
		return nil
	}
	confidence := Low
	if g.identity && j.Met >= earlyMet {
		confidence = High
	}
	text := fmt.Sprintf("%s of %s (%s) %s %s", number(float64(g.Keys)), counted(float64(g.All), "good client"), percent(g.Share), j.refuses(), j.over())
	if e := j.Episodes; e.Obeyed+e.Early > 0 {
		text += fmt.Sprintf("; %s came back when told", percent(share(float64(e.Obeyed), float64(e.Obeyed+e.Early))))
	}
	text += fmt.Sprintf(". %s of what it refuses is theirs.", percent(g.f))
	v := j.verdict(Strict, confidence, text)
	j.keys(v)
	v.Evidence["good_keys"], v.Evidence["good_keys_refused"] = float64(g.All), float64(g.Keys)
	v.Evidence["g"], v.Evidence["g_low"], v.Evidence["f"] = g.Share, g.Low, g.f
	return v
}

// maybeStrict holds where many keys are refused, and nothing tells who they are.
func (j *judge) maybeStrict() *Verdict {
	if j.good.identity || j.denied < fewestRefused || j.KeysRefused < refusedKeys*j.Keys || 2*j.TopRefused > j.denied {
		return nil
	}
	v := j.verdict(MaybeStrict, Low, fmt.Sprintf("%s of %s of %s (%s) %s %s, and nothing tells whether these clients are good.",
		counted(float64(j.denied), "request"), number(j.KeysRefused), counted(j.Keys, "key"), percent(share(j.KeysRefused, j.Keys)), j.refuses(), j.over()))
	j.keys(v)
	v.Evidence["top_refused"] = math.Round(float64(j.TopRefused))
	return v
}
