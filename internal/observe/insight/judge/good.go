package judge

import (
	"math"
	"slices"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/util/human"
)

// goodKeys is how a rule treated keys that behave well.
type goodKeys struct {
	insight.Good
	identity bool             // an identity tells them apart; else their answers and their patience do
	f        float64          // refusals of good keys ÷ refusals
	seen     int              // good ones in the sample of refused keys
	episodes insight.Episodes // theirs
	weight   float64          // keys that each key of that sample stands for
	stand    float64          // keys that each key of the sample of all keys stands for
}

// TellsGood reports whether something shows which keys behave well: an identity, or answers
// together with the patience of refused clients. A rule in shadow refuses nobody, so there is no
// patience to see.
func (f *Facts) TellsGood() bool {
	if f.HasIdentity() {
		return true
	}
	if f.Mode == insight.ModeShadow && !f.Replay {
		return false
	}
	answered := func(k KeyFacts) bool { return k.OK >= 0 }
	return slices.ContainsFunc(f.Sample, answered) || slices.ContainsFunc(f.RefusedSample, answered)
}

// Good reports whether a key behaves well. identity is the result of Facts.HasIdentity, and
// Facts.TellsGood must be true.
func (k *KeyFacts) Good(identity bool) bool {
	if k.Refused == 0 {
		return k.behaves(identity)
	}
	return k.good(identity)
}

// behaves reports whether nothing speaks against a key that was not refused.
func (k *KeyFacts) behaves(identity bool) bool {
	return k.Refused == 0 && (!identity || k.Known) && (k.OK < 0 || k.OK >= goodOK)
}

// above returns how many good keys asked for more than a limit in a window. Keys with numbers of
// their own stay out, as in Affected.
func (g *goodKeys) above(f *Facts, window int, limit int64) (keys float64) {
	asks := func(k *KeyFacts) bool { return !k.Own && window < len(k.Demand) && k.Demand[window] > limit }
	for i := range f.RefusedSample {
		if k := &f.RefusedSample[i]; asks(k) && k.good(g.identity) {
			keys += g.weight
		}
	}
	for i := range f.Sample {
		if k := &f.Sample[i]; asks(k) && k.behaves(g.identity) {
			keys += g.stand
		}
	}
	return keys
}

// point says what another limit for a window would do. g are the good keys; nil if they are not
// known.
func (f *Facts) point(g *goodKeys, window int, limit int64) insight.CurvePoint {
	p := insight.CurvePoint{Limit: limit}
	p.Keys, p.PlusMinus = Affected(f.Sample, f.Keys, window, limit)
	p.Keys, p.PlusMinus = human.Digits(p.Keys), human.Digits(p.PlusMinus)
	if g != nil {
		good := human.Digits(min(g.above(f, window, limit), p.Keys))
		p.GoodKeys = &good
	}
	return p
}

// toldGood returns the good keys; nil if nothing shows them.
func toldGood(f *Facts) *goodKeys {
	if !f.TellsGood() {
		return nil
	}
	g := goodOf(f)
	return &g
}

// perKey returns the windows whose demand per key is known, by number in Facts.Windows.
func (f *Facts) perKey() []int {
	var list []int
	for i := range f.Windows {
		if f.Windows[i].Window > 0 {
			list = append(list, i)
		}
	}
	return list
}

// GoodOf returns how a rule treated clients that behave well.
func GoodOf(f *Facts) insight.Good { return goodOf(f).Good }

// HasIdentity reports whether enough requests carry an identity to recognise good keys by it.
func (f *Facts) HasIdentity() bool {
	return f.Known > 0 && float64(f.Known) >= identityShare*float64(f.Met)
}

// goodOf counts good keys. Keys that were never refused come from the sample of all keys. There,
// anything unknown about a key speaks for it, so the share of good keys that were refused is rather
// too small than too large.
func goodOf(f *Facts) goodKeys {
	g := goodKeys{identity: f.HasIdentity(), weight: 1, stand: 1}
	denied := float64(f.Refused)
	if f.Mode == insight.ModeShadow {
		denied = float64(f.WouldRefuse)
	}
	n := float64(len(f.RefusedSample))
	refusals, squares := 0.0, 0.0
	for i := range f.RefusedSample {
		if k := &f.RefusedSample[i]; k.good(g.identity) {
			g.seen++
			refusals += float64(k.Refused)
			squares += float64(k.Refused) * float64(k.Refused)
			g.episodes.Obeyed += k.Episodes.Obeyed
			g.episodes.Early += k.Episodes.Early
		}
	}
	if n > 0 {
		g.weight = max(f.KeysRefused/n, 1)
	}
	unrefused := 0.0
	for i := range f.Sample {
		if f.Sample[i].behaves(g.identity) {
			unrefused++
		}
	}
	all := float64(len(f.Sample))
	if all > 0 {
		g.stand = max(f.Keys/all, 1)
	}
	if !f.TellsGood() {
		return g
	}
	g.Confidence = insight.Low
	if g.identity {
		g.Confidence = insight.High
	}
	refused, others := float64(g.seen)*g.weight, unrefused*g.stand
	g.Refused, g.Of = uint64(math.Round(min(refusals*g.weight, denied))), uint64(denied)
	if f.RefusedError > 0 && n > 1 {
		// The total is estimated from a sample without replacement (Cochran, Sampling Techniques,
		// §2.6), and from a number of keys that is itself an estimate.
		mean := refusals / n
		spread := max(squares/n-mean*mean, 0) * n / (n - 1)
		sampling := f.KeysRefused * math.Sqrt(spread/n*max(1-n/f.KeysRefused, 0))
		plusMinus := 1.96 * math.Hypot(sampling, refusals*g.weight*f.RefusedError)
		g.RefusedPlusMinus = uint64(math.Round(min(plusMinus, denied)))
	}
	g.Keys, g.All = uint64(math.Round(refused)), uint64(math.Round(refused+others))
	g.f = human.Share(float64(g.Refused), denied)
	g.Share = human.Share(refused, refused+others)

	// The bounds of both counts, each at 95 %: together they hold more often than that.
	refusedLow, refusedHigh := shareBounds(float64(g.seen), n, f.KeysRefused, f.RefusedError)
	othersLow, othersHigh := shareBounds(unrefused, all, f.Keys, f.KeysError)
	g.Low, g.High = human.Share(refusedLow, refusedLow+othersHigh), human.Share(refusedHigh, refusedHigh+othersLow)
	g.PlusMinus = (g.High - g.Low) / 2
	return g
}

// shareBounds returns the bounds of how many of total keys have a property that x of a sample of n
// keys have. An error of 0 says that the sample holds all keys.
func shareBounds(x, n, total, err float64) (low, high float64) {
	if err == 0 {
		return x, x
	}
	low, high = Wilson(x, n)
	return low * total * max(1-1.96*err, 0), high * total * (1 + 1.96*err)
}

// good reports whether a refused key behaves well. If clients have identities, the key must be
// known, and nothing must speak against it. Otherwise an answer of 200 proves nothing, because a
// scraper gets 200s: the key must also have waited as it was told, and must not have asked for far
// too much.
func (k *KeyFacts) good(identity bool) bool {
	ended := k.Episodes.Obeyed + k.Episodes.Early
	obeys := ended > 0 && float64(k.Episodes.Obeyed) >= goodObey*float64(ended)
	if identity {
		return k.Known && (k.OK < 0 || k.OK >= goodOK) && (ended == 0 || obeys)
	}
	return k.OK >= goodOK && obeys && k.Fill <= goodFill
}
