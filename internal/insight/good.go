package insight

import "math"

// goodKeys is what a rule did to keys that behave well.
type goodKeys struct {
	Good
	identity bool     // an identity tells them; else their answers and their patience must
	f        float64  // refusals of good keys ÷ refusals
	seen     int      // good ones in the sample of refused keys
	episodes Episodes // theirs
	weight   float64  // keys that each of that sample stands for
}

// perKey returns the place of the limits in which keys may be judged by their demand: those with a
// window, by number.
func (f *Facts) perKey() []int {
	var list []int
	for i := range f.Windows {
		if f.Windows[i].Window > 0 {
			list = append(list, i)
		}
	}
	return list
}

// GoodOf returns what a rule did to clients that behave well.
func GoodOf(f *Facts) Good { return goodOf(f).Good }

// HasIdentity reports whether enough requests carry an identity to tell good keys by it.
func (f *Facts) HasIdentity() bool {
	return f.Known > 0 && float64(f.Known) >= identityShare*float64(f.Met)
}

// goodOf counts good keys. Those that were never refused are taken from the sample of all keys,
// where what is not known of a key speaks for it: the share of good keys refused is rather told too
// small than too large.
func goodOf(f *Facts) goodKeys {
	g := goodKeys{identity: f.HasIdentity(), weight: 1}
	denied := float64(f.Refused)
	if f.Mode == "shadow" {
		denied = float64(f.WouldRefuse)
	}
	n := float64(len(f.RefusedSample))
	refusals := 0.0
	for i := range f.RefusedSample {
		if k := &f.RefusedSample[i]; k.good(g.identity) {
			g.seen++
			refusals += float64(k.Refused)
			g.episodes.Obeyed += k.Episodes.Obeyed
			g.episodes.Early += k.Episodes.Early
		}
	}
	if n > 0 {
		g.weight = max(f.KeysRefused/n, 1)
	}
	unrefused := 0.0
	for i := range f.Sample {
		if k := &f.Sample[i]; k.Refused == 0 && (!g.identity || k.Known) && (k.OK < 0 || k.OK >= goodOK) {
			unrefused++
		}
	}
	all := float64(len(f.Sample))
	stand := 1.0
	if all > 0 {
		stand = max(f.Keys/all, 1)
	}
	refused, others := float64(g.seen)*g.weight, unrefused*stand
	g.Refused = uint64(math.Round(min(refusals*g.weight, denied)))
	g.Keys, g.All = uint64(math.Round(refused)), uint64(math.Round(refused+others))
	g.f = share(float64(g.Refused), denied)
	g.Share = share(refused, refused+others)

	// The bounds of both counts, each at 95 %: together they hold more often than that.
	refusedLow, refusedHigh := bounds(float64(g.seen), n, f.KeysRefused, f.RefusedError)
	othersLow, othersHigh := bounds(unrefused, all, f.Keys, f.KeysError)
	g.Low, g.High = share(refusedLow, refusedLow+othersHigh), share(refusedHigh, refusedHigh+othersLow)
	g.PlusMinus = (g.High - g.Low) / 2
	return g
}

// bounds returns the bounds of how many of total keys are such that x of a sample of n are. An
// error of 0 says that the sample holds all.
func bounds(x, n, total, err float64) (low, high float64) {
	if err == 0 {
		return x, x
	}
	low, high = Wilson(x, n)
	return low * total * max(1-1.96*err, 0), high * total * (1 + 1.96*err)
}

// good reports whether a refused key behaves well. Where an identity is told it must be known, and
// nothing must speak against it. Where none is, an answer of 200 proves nothing, since a scraper
// gets 200s: the key must also have waited as it was told, and not have asked for far too much.
func (k *KeyFacts) good(identity bool) bool {
	ended := k.Episodes.Obeyed + k.Episodes.Early
	obeys := ended > 0 && float64(k.Episodes.Obeyed) >= goodObey*float64(ended)
	if identity {
		return k.Known && (k.OK < 0 || k.OK >= goodOK) && (ended == 0 || obeys)
	}
	return k.OK >= goodOK && obeys && k.Fill <= goodFill
}
