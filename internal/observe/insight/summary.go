package insight

import (
	"slices"
)

// Summary is what follows from the samples of a rule.
type Summary struct {
	Keys, KeysRefused       float64
	KeysError, RefusedError float64
	Fill                    [11]uint64
	MaxFill                 float64
	Episodes                Episodes
	Good                    Good
}

// summarise fills in Summary from the samples.
func (r *RuleSnapshot) summarise() {
	r.Summary = Summary{}
	s := &r.Summary
	s.Keys, s.KeysError = r.All.distinct()
	s.KeysRefused, s.RefusedError = r.Refused.distinct()
	s.Keys = max(s.Keys, s.KeysRefused)
	sample := r.All.facts()
	s.Fill = Histogram(sample, s.Keys)
	for i := range sample {
		s.MaxFill = max(s.MaxFill, sample[i].Fill)
	}
	for i := range r.Refused.Keys {
		k := &r.Refused.Keys[i]
		s.Episodes.add(&k.Episodes)
		s.MaxFill = max(s.MaxFill, float64(k.Fill))
	}
	r.fillWindows()
	f := r.facts(nil)
	s.Good = GoodOf(&f)
}

// fillWindows raises the peak use of each window to what the sampled keys asked for. That may be
// beyond the limit, which a decision alone does not show.
func (r *RuleSnapshot) fillWindows() {
	note := func(k *SampledKey) {
		for i := range min(len(r.Windows), len(k.Demands)) {
			if d := &k.Demands[i]; d.limit > 0 {
				w := &r.Windows[i]
				w.MaxFill = max(w.MaxFill, float32(float64(d.peak())/float64(d.limit)))
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
func (s *SampleSnapshot) facts() []KeyFacts {
	out := make([]KeyFacts, len(s.Keys))
	for i := range s.Keys {
		out[i] = s.Keys[i].facts()
	}
	return out
}

func (k *SampledKey) facts() KeyFacts {
	f := KeyFacts{Hash: k.Hash, Asked: k.Asked, Refused: k.Refused, Fill: float64(k.Fill), Own: k.Own, Known: k.Known, OK: -1}
	f.Demand = make([]int64, len(k.Demands))
	for i := range k.Demands {
		f.Demand[i] = int64(k.Demands[i].peak())
	}
	if k.Answers > 0 {
		f.OK = float64(k.Well) / float64(k.Answers)
	}
	return f
}

// Facts returns the facts from which Judge judges the i-th rule. The snapshot must hold samples,
// and should be over JudgedOver. Counts of the history file from before the program began stay out:
// the samples do not cover that time, and figures over two different times say nothing together.
func (s *Snapshot) Facts(i int) Facts { return s.Rules[i].facts(s) }

// facts makes the facts; s is nil if only the figures from samples matter.
func (r *RuleSnapshot) facts(s *Snapshot) Facts {
	f := Facts{
		Domain: r.Domain, Rule: r.Name, Mode: r.Mode, Per: r.Per, File: r.File, Line: r.Line,
		Since: unix(r.Since),
		Met:   r.Sampled[laneMet], Refused: r.Sampled[laneRefused], Alone: r.Sampled[laneAlone], Soft: r.Sampled[laneSoft],
		Near: r.Sampled[laneNear], Banned: r.Sampled[laneBanned], WouldRefuse: r.Sampled[laneWould], Errors: r.Errors, Error: r.Error,
		Keys: r.Summary.Keys, KeysRefused: r.Summary.KeysRefused, KeysError: r.Summary.KeysError, RefusedError: r.Summary.RefusedError,
		DomainMet: r.DomainMet, Sample: r.All.facts(), MaxFill: r.Summary.MaxFill, Episodes: r.Summary.Episodes, OKShare: -1, With: r.With,
	}
	for i, w := range r.Windows {
		if shift := unitShift(w.Limit); shift > 0 {
			for k := range f.Sample {
				if d := f.Sample[k].Demand; i < len(d) {
					d[i] <<= shift
				}
			}
		}
		f.Windows = append(f.Windows, WindowFacts{
			Name: w.Name, Rate: w.Rate, Limit: w.Limit, Window: w.Window, Bucket: w.Bucket, Refused: w.Refused, MaxFill: float64(w.MaxFill),
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
		f.TopRefused = max(f.TopRefused, k.Refused)
	}
	for _, k := range r.Long[topRefused] {
		f.TopRefused = max(f.TopRefused, k.Count)
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
	f.From, f.To = unix(max(s.From, min(max(r.Since, s.Started), s.Time))), unix(s.Time)
	f.NotInForce = s.Broken
	for _, m := range r.Minutes {
		refused := m.Refused
		if r.shadow() {
			refused = m.Would
		}
		minute := Minute{
			T: m.T, Met: uint64(m.Met), Refused: uint64(refused), Admitted: uint64(m.Met - min(refused, m.Met)),
			Keys: float64(m.Keys), TopShare: -1,
		}
		state := minuteState{keys: m.Keys}
		minute.TopKeys = float64(state.topKeys())
		if m.TopShare != none {
			minute.TopShare = float64(m.TopShare) / 100
		}
		if n := int(m.Signal); n > 0 && n <= len(saturations) {
			minute.Saturated, minute.Signal = true, saturations[n-1]
		}
		f.Minutes = append(f.Minutes, minute)
	}
	return f
}

// curve returns the points of Curve, how many keys other limits would affect, and the window that
// they are for.
func (r *RuleSnapshot) curve() (out []CurvePoint, of string) {
	f := r.facts(nil)
	window := f.binding()
	if window < 0 || len(f.Sample) == 0 || f.Windows[window].Limit <= 0 {
		return nil, ""
	}
	g := toldGood(&f)
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
	limits = slices.Compact(limits)
	for _, limit := range limits {
		out = append(out, f.point(g, window, limit))
	}
	return out, f.Windows[window].Name
}

// judgedAtOnce is how many rules are judged from one snapshot. Each snapshot reads the counters of
// all rules. A single one for all of them would hold mu for too long, and hold all their samples.
const judgedAtOnce = 16

// judge makes new verdicts, once a minute.
func (c *Collector) judge() {
	want := Want{Over: JudgedOver(c.now()), Samples: true, Top: true}
	c.mu.Lock()
	rules := slices.Clone(c.rules)
	c.mu.Unlock()
	for some := range slices.Chunk(rules, judgedAtOnce) {
		var inForce []*ruleState
		s, _ := c.snapshot(want, func(r *ruleState) bool {
			if r.isCommand() || !slices.Contains(some, r) {
				return false
			}
			inForce = append(inForce, r)
			return true
		})
		for i, r := range inForce {
			f := s.Facts(i)
			c.Complete(&f)
			verdicts := Judge(&f, Thresholds{GoodRefused: c.o.GoodRefused})
			c.mu.Lock()
			KeepSince(r.verdicts, verdicts)
			r.verdicts = verdicts
			r.judged = judgedOf(&s.Rules[i], verdicts)
			c.mu.Unlock()
		}
	}
}

// Complete adds facts of a rule that no snapshot holds: the text of its file and, if no request met
// it, what keeps requests from it.
func (c *Collector) Complete(f *Facts) {
	if c.o.Text != nil && f.File != "" {
		f.Text = c.o.Text(f.File)
	}
	if f.Met == 0 && f.DomainMet > 0 {
		f.Unmet = c.unmet(f.Domain, f.Rule)
	}
}

// Judged is the last judgement of a rule, with some counts up to now, for metrics.
type Judged struct {
	Domain, Rule string
	Verdicts     []string
	// GoodRefused is the share of good keys that the rule refuses, and MaxFill the largest share of
	// its limit that one key used; below 0 if not known.
	GoodRefused, MaxFill float64
	// LooseUntil has the verdicts on a rush that the rule did not hold, with the end of that rush
	// in Unix seconds: about now while it goes on. It is nil if there was none.
	LooseUntil map[string]int64
	// Episodes counts the episodes of sampled refused keys that ended on this node since it has
	// known the rule. It counts up to now, not up to the judgement, and never falls.
	Episodes Episodes
}

func judgedOf(r *RuleSnapshot, verdicts []Verdict) Judged {
	j := Judged{Domain: r.Domain, Rule: r.Name, GoodRefused: -1, MaxFill: -1}
	for i := range verdicts {
		j.Verdicts = append(j.Verdicts, verdicts[i].Verdict)
		if until, ok := verdicts[i].Evidence[rushUntil]; ok {
			if j.LooseUntil == nil {
				j.LooseUntil = map[string]int64{}
			}
			j.LooseUntil[verdicts[i].Verdict] = int64(until)
		}
	}
	if r.Summary.Good.All > 0 {
		j.GoodRefused = r.Summary.Good.Share
	}
	if r.Sampled[laneMet] > 0 {
		j.MaxFill = r.Summary.MaxFill
	}
	return j
}

// Judged returns the last judgement of each rule in force, in rule order. It leaves out rules that
// were not judged yet.
func (c *Collector) Judged() (list []Judged) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range c.rules {
		if r.judged.Rule != "" {
			j := r.judged
			j.Episodes = r.ended
			list = append(list, j)
		}
	}
	return list
}
