package judge

import (
	"cmp"
	"math"
	"slices"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/util/human"
)

// Report returns the report of the rule, with histogram, curve and verdicts. Fields that only a
// server knows (Trend, PerSecond, Series, Top, NearNow, By) are left to the caller.
func (f *Facts) Report(o Thresholds) insight.RuleReport {
	r := insight.RuleReport{
		Domain: f.Domain, Name: f.Rule, File: f.File, Line: f.Line, Since: f.Since, Mode: f.Mode, Limits: []string{},
		Per:  f.Per,
		From: f.From, Met: f.Met, Refused: f.Refused, RefusedAlone: f.Alone, Soft: f.Soft, Near: f.Near,
		Banned:      f.Banned,
		WouldRefuse: f.WouldRefuse, Errors: f.Errors,
		Keys: uint64(math.Round(f.Keys)), KeysRefused: uint64(math.Round(f.KeysRefused)), KeysError: f.KeysError,
		Fill: Histogram(f.Sample, f.Keys), MaxFill: f.MaxFill, Episodes: f.Episodes,
		KnownShare: human.Share(float64(f.Known), float64(f.Met)), OKShare: f.OKShare, Good: GoodOf(f), Curve: Curve(f),
		Verdicts: Judge(f, o),
	}
	if len(r.Curve) > 0 {
		r.CurveOf = f.Windows[f.Binding()].Name
	}
	for _, w := range f.Windows {
		r.Limits = append(r.Limits, w.Allows)
		r.Windows = append(r.Windows, insight.WindowReport{Name: w.Name, Allows: w.Allows, Limit: w.Limit,
			Window: w.Window.Seconds(), Refused: w.Refused, MaxFill: w.MaxFill})
	}
	return r
}

// Binding returns the window that refuses most, among the windows whose demand per key is known. If
// two refuse equally often, it is the one with the higher peak use. It is -1 if there is none.
func (f *Facts) Binding() int {
	window := -1
	for _, i := range f.perKey() {
		if window < 0 || cmp.Or(cmp.Compare(f.Windows[i].Refused, f.Windows[window].Refused),
			cmp.Compare(f.Windows[i].MaxFill, f.Windows[window].MaxFill)) > 0 {
			window = i
		}
	}
	return window
}

// Curve returns how many keys a limit of another size would refuse, for the window that refuses
// most. It has at most 64 points, from a limit that nearly all keys exceed to one that none does.
// It is nil if the demand is not known.
func Curve(f *Facts) []insight.CurvePoint {
	window := f.Binding()
	if window < 0 || len(f.Sample) == 0 {
		return nil
	}
	limits := []int64{f.Windows[window].Limit}
	for i := range f.Sample {
		if window < len(f.Sample[i].Demand) {
			limits = append(limits, roundUp(float64(f.Sample[i].Demand[window])))
		}
	}
	slices.Sort(limits)
	limits = slices.Compact(limits)
	const most = 64
	if n := len(limits); n > most {
		in := f.Windows[window].Limit
		some := make([]int64, 0, most+1)
		for i := range most {
			some = append(some, limits[i*(n-1)/(most-1)])
		}
		limits = append(some, in)
		slices.Sort(limits)
		limits = slices.Compact(limits)
	}
	return f.CurveAt(window, limits)
}

// CurveAt returns how many keys each of some limits would refuse, for a window.
func (f *Facts) CurveAt(window int, limits []int64) (points []insight.CurvePoint) {
	g := toldGood(f)
	for _, l := range limits {
		points = append(points, f.point(g, window, l))
	}
	return points
}
