package snapshot

import (
	"slices"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/internal/util/human"
)

// Summary is what follows from the samples of a rule.
type Summary struct {
	Keys, KeysRefused       float64
	KeysError, RefusedError float64
	KeysWould               float64 // keys for which the rule is not enforced, and that it would have refused
	Fill                    [11]uint64
	MaxFill                 float64
	Episodes                insight.Episodes
	Good                    insight.Good
}

// Summarise fills in Summary from the samples.
func (r *Rule) Summarise() {
	r.Summary = Summary{}
	s := &r.Summary
	s.Keys, s.KeysError = r.All.Distinct()
	s.KeysRefused, s.RefusedError = r.Refused.Distinct()
	s.Keys = max(s.Keys, s.KeysRefused)
	would := 0
	for i := range r.All.Keys {
		if r.All.Keys[i].Would {
			would++
		}
	}
	s.KeysWould = s.Keys * human.Share(float64(would), float64(len(r.All.Keys)))
	sample := r.All.facts()
	s.Fill = judge.Histogram(sample, s.Keys)
	for i := range sample {
		s.MaxFill = max(s.MaxFill, sample[i].Fill)
	}
	for i := range r.Refused.Keys {
		k := &r.Refused.Keys[i]
		s.Episodes.Add(&k.Episodes)
		s.MaxFill = max(s.MaxFill, float64(k.Fill))
	}
	r.fillWindows()
	f := r.facts(nil)
	s.Good = judge.GoodOf(&f)
}

// fillWindows raises the peak use of each window to what the sampled keys asked for. That may be
// beyond the limit, which a decision alone does not show.
func (r *Rule) fillWindows() {
	note := func(k *SampledKey) {
		for i := range min(len(r.Windows), len(k.Demands)) {
			if d := &k.Demands[i]; d.limit > 0 {
				w := &r.Windows[i]
				w.MaxFill = max(w.MaxFill, float32(float64(d.Peak())/float64(d.limit)))
			}
		}
	}
	for i := range r.All.Keys {
		note(&r.All.Keys[i])
	}
	for i := range r.Refused.Keys {
		note(&r.Refused.Keys[i].SampledKey)
	}
	if len(r.Windows) == 1 { // the limit may have been another one when it was used most
		w := &r.Windows[0]
		w.MaxFill = max(w.MaxFill, float32(r.Summary.MaxFill))
	}
}

// facts turns a sample into facts for Judge.
func (s *Sample) facts() []judge.KeyFacts {
	out := make([]judge.KeyFacts, len(s.Keys))
	for i := range s.Keys {
		out[i] = s.Keys[i].facts()
	}
	return out
}

func (k *SampledKey) facts() judge.KeyFacts {
	f := judge.KeyFacts{Hash: k.Hash, Asked: k.Asked, Refused: k.Refused, Fill: float64(k.Fill), Own: k.Own,
		Known: k.Known, OK: -1}
	f.Demand = make([]int64, len(k.Demands))
	for i := range k.Demands {
		f.Demand[i] = int64(k.Demands[i].Peak())
	}
	if k.Answers > 0 {
		f.OK = float64(k.Well) / float64(k.Answers)
	}
	return f
}

// Facts returns the facts from which Judge judges the i-th rule. The snapshot must hold samples,
// and should be over JudgedOver. Counts of the history file from before the program began stay out:
// the samples do not cover that time, and figures over two different times say nothing together.
func (s *Snapshot) Facts(i int) judge.Facts { return s.Rules[i].facts(s) }

// facts makes the facts; s is nil if only the figures from samples matter.
func (r *Rule) facts(s *Snapshot) judge.Facts {
	f := judge.Facts{
		Domain: r.Domain, Rule: r.Name, Mode: r.Mode, Per: r.Per, File: r.File, Line: r.Line,
		Since: unixTime(r.Since),
		Met:   r.Sampled[LaneMet], Refused: r.Sampled[LaneRefused], Alone: r.Sampled[LaneAlone],
		Soft: r.Sampled[LaneSoft],
		Near: r.Sampled[LaneNear], Banned: r.Sampled[LaneBanned], WouldRefuse: r.Sampled[LaneWould], Errors: r.Errors,
		Error: r.Error,
		Keys:  r.Summary.Keys, KeysRefused: r.Summary.KeysRefused, KeysError: r.Summary.KeysError,
		RefusedError: r.Summary.RefusedError,
		DomainMet:    r.DomainMet, Sample: r.All.facts(), MaxFill: r.Summary.MaxFill, Episodes: r.Summary.Episodes,
		OKShare: -1, With: r.With,
	}
	for i, w := range r.Windows {
		if shift := UnitShift(w.Limit); shift > 0 {
			for k := range f.Sample {
				if d := f.Sample[k].Demand; i < len(d) {
					d[i] <<= shift
				}
			}
		}
		f.Windows = append(f.Windows, judge.WindowFacts{
			Name: w.Name, Rate: w.Rate, Limit: w.Limit, Window: w.Window, Bucket: w.Bucket, Refused: w.Refused,
			MaxFill: float64(w.MaxFill),
		})
		f.MaxFill = max(f.MaxFill, float64(w.MaxFill))
	}
	for i := range r.Refused.Keys {
		k := &r.Refused.Keys[i]
		if k.Remote && k.Refused == 0 {
			continue
		}
		facts := k.facts()
		facts.Episodes = k.Episodes
		f.RefusedSample = append(f.RefusedSample, facts)
		if k.Refused > f.TopRefused {
			f.TopRefused, f.TopKey = k.Refused, k.Text
		}
	}
	for _, k := range r.Long[TopRefused] {
		if k.Count >= f.TopRefused {
			f.TopRefused, f.TopKey = k.Count, k.Text
		}
	}
	f.TopRefused = min(f.TopRefused, max(f.Refused, f.WouldRefuse))
	if r.Drawn > 0 {
		f.Known = uint64(float64(f.Met) * float64(r.DrawnKnown) / float64(r.Drawn))
	}
	if r.Answers > 0 {
		f.OKShare = float64(r.Well) / float64(r.Answers)
	}
	f.Examples = examplesOf(r.Examples)
	if s == nil {
		return f
	}
	f.From, f.To = unixTime(max(s.From, min(max(r.Since, s.Started), s.Time))), unixTime(s.Time)
	for _, m := range r.Minutes {
		refused := m.Refused
		if r.shadow() {
			refused = m.Would
		}
		minute := judge.Minute{
			T: m.T, Met: uint64(m.Met), Refused: uint64(refused), Admitted: uint64(m.Met - min(refused, m.Met)),
			Keys: float64(m.Keys), TopShare: -1,
		}
		minute.TopKeys = float64(TopPercent(m.Keys))
		if m.TopShare != UnknownShare {
			minute.TopShare = float64(m.TopShare) / 100
		}
		if n := int(m.Signal); n > 0 && n <= len(Saturations) {
			minute.Saturated, minute.Signal = true, Saturations[n-1]
		}
		f.Minutes = append(f.Minutes, minute)
	}
	return f
}

// curve returns the points of Curve, how many keys other limits would affect, and the window that
// they are for.
func (r *Rule) curve() (points []insight.CurvePoint, of string) {
	f := r.facts(nil)
	window := f.Binding()
	if window < 0 || len(f.Sample) == 0 || f.Windows[window].Limit <= 0 {
		return nil, ""
	}
	limits := []int64{f.Windows[window].Limit}
	most := int64(1)
	for i := range f.Sample {
		if window < len(f.Sample[i].Demand) {
			most = max(most, f.Sample[i].Demand[window])
		}
	}
	for at := float64(1); at < float64(max(most, 4*limits[0]))*1.2; at *= 1.2 {
		limits = append(limits, max(int64(at), 1))
	}
	slices.Sort(limits)
	return f.CurveAt(window, slices.Compact(limits)), f.Windows[window].Name
}
