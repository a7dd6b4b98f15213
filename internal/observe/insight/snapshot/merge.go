package snapshot

import (
	"cmp"
	"math"
	"slices"

	"github.com/weir-rl/weir/internal/observe/insight"
)

// Merge makes one snapshot out of the snapshots of several nodes. It sums counts, keeps the
// smallest hashes of the union of samples, and sums the counts and bounds of top keys. All must
// answer the same question, and Fit must have accepted those from other nodes. Keys are left out of
// snapshots whose seed is not the first one's. Merge does not change its arguments, and returns nil
// for none.
//
// The rules are those in the first snapshot. A node that has another definition of a rule in force
// is left out of that rule: it judges something else.
func Merge(list ...*Snapshot) *Snapshot {
	if len(list) == 0 {
		return nil
	}
	out := *list[0]
	out.Events = slices.Clone(out.Events)
	for i := range out.Events {
		out.Events[i].Nodes = nodesOf(&out.Events[i], &out, len(list))
	}
	out.Domains = slices.Clone(out.Domains)
	out.Rules = slices.Clone(out.Rules)
	for i := range out.Domains {
		out.Domains[i].Series = slices.Clone(out.Domains[i].Series)
	}
	for i := range out.Rules {
		r := &out.Rules[i]
		r.Series, r.Windows, r.ByDoor = slices.Clone(r.Series), slices.Clone(r.Windows), slices.Clone(r.ByDoor)
		r.Minutes, r.With, r.Verdicts = slices.Clone(r.Minutes), slices.Clone(r.With), slices.Clone(r.Verdicts)
		r.Examples = slices.Clone(r.Examples)
	}
	type name struct{ domain, rule string }
	rules := map[name]int{}
	for i := range out.Rules {
		rules[name{out.Rules[i].Domain, out.Rules[i].Name}] = i
	}
	const lists = TopKinds*2 + 1
	tops := make([][lists][][]TopKey, len(out.Rules))
	addTops := func(at int, r *Rule) {
		for kind := range TopKinds {
			tops[at][kind] = append(tops[at][kind], r.Live[kind])
			tops[at][TopKinds+kind] = append(tops[at][TopKinds+kind], r.Long[kind])
		}
		tops[at][lists-1] = append(tops[at][lists-1], r.WouldTop)
	}
	for i := range out.Rules {
		addTops(i, &out.Rules[i])
	}
	domains := make(map[string]int, len(out.Domains))
	for i := range out.Domains {
		domains[out.Domains[i].Name] = i
	}
	most := len(domains) + MostStrange
	for _, x := range list[1:] {
		out.Nodes += x.Nodes
		out.Started, out.Time = min(out.Started, x.Started), max(out.Time, x.Time)
		out.P99 = max(out.P99, x.P99)
		out.StoreErrors += x.StoreErrors
		out.Unknown, out.UnknownDomain = out.Unknown+x.Unknown, cmp.Or(out.UnknownDomain, x.UnknownDomain)
		out.Taken, out.Thinned, out.Bytes = out.Taken+x.Taken, out.Thinned+x.Thinned, out.Bytes+x.Bytes
		out.Broken = cmp.Or(out.Broken, x.Broken)
		out.mergeEvents(x)
		shift := shiftOf(&out, x)
		for i := range x.Domains {
			out.mergeDomain(&x.Domains[i], domains, most, shift)
		}
		for i := range x.Rules {
			r := &x.Rules[i]
			at, have := rules[name{r.Domain, r.Name}]
			if !have || out.Rules[at].Definition != r.Definition {
				continue
			}
			out.Rules[at].merge(r, shift, out.Seed == x.Seed)
			if out.Seed == x.Seed {
				addTops(at, r)
			}
		}
	}
	for i := range out.Rules {
		r := &out.Rules[i]
		for kind := range TopKinds {
			r.Live[kind] = MergeTop(r.TopMost, tops[i][kind]...)
			r.Long[kind] = MergeTop(r.TopMost, tops[i][TopKinds+kind]...)
		}
		r.WouldTop = MergeTop(r.TopMost, tops[i][lists-1]...)
		if r.All.K > 0 && len(list) > 1 {
			r.Summarise()
		}
	}
	return &out
}

// shiftOf returns by how many steps the series of x begin after the series of s.
func shiftOf(s, x *Snapshot) int {
	if s.Step == 0 || x.Step != s.Step {
		return math.MaxInt32 // answers to different questions
	}
	return int((x.From - s.From) / s.Step)
}

// mergeEvents merges the events of another node. Events of the same kind within a minute become
// one. So do equal changes of rules within an hour, those that are nearest in time first: files
// reach some nodes later than others, and a change may be made, taken back and made again.
func (s *Snapshot) mergeEvents(x *Snapshot) {
	joins := s.changesOf(x)
	for i, h := range x.Events {
		h.Nodes = nodesOf(&h, x, 2)
		at, ok := joins[i]
		if !ok && len(h.Changes) == 0 {
			at, ok = s.nearest(&h)
		}
		if !ok {
			s.Events = append(s.Events, h)
			continue
		}
		e := &s.Events[at]
		e.T, e.Until = min(e.T, h.T), max(e.Until, h.Until)
		if len(h.Nodes) > 0 && !slices.Contains(e.Nodes, h.Nodes[0]) {
			e.Nodes = append(slices.Clip(e.Nodes), h.Nodes[0])
		}
	}
	slices.SortStableFunc(s.Events, func(a, b insight.Happening) int { return cmp.Compare(a.T, b.T) })
	s.Events = s.Events[max(0, len(s.Events)-MostEvents):]
}

// changesOf returns which changes of rules in x are which in s, by their places: each is one at
// most.
func (s *Snapshot) changesOf(x *Snapshot) map[int]int {
	type pair struct {
		at, of int // in s and in x
		apart  int64
	}
	var pairs []pair
	for of, h := range x.Events {
		if len(h.Changes) == 0 {
			continue
		}
		h.Nodes = nodesOf(&h, x, 2)
		for at := range s.Events {
			e := &s.Events[at]
			if apart := apartOf(e, &h); apart <= 3600 && isSame(e, &h) && sameChanges(e, &h) {
				pairs = append(pairs, pair{at, of, apart})
			}
		}
	}
	slices.SortStableFunc(pairs, func(a, b pair) int { return cmp.Compare(a.apart, b.apart) })
	joins, taken := map[int]int{}, map[int]bool{}
	for _, p := range pairs {
		if _, has := joins[p.of]; !has && !taken[p.at] {
			joins[p.of], taken[p.at] = p.at, true
		}
	}
	return joins
}

// nearest returns the place of the event that is the same as h within a minute; the nearest one of
// several.
func (s *Snapshot) nearest(h *insight.Happening) (at int, ok bool) {
	least := int64(60)
	for i := range s.Events {
		e := &s.Events[i]
		if apart := apartOf(e, h); isSame(e, h) && sameChanges(e, h) && (apart < least || apart == least && !ok) {
			at, least, ok = i, apart, true
		}
	}
	return at, ok
}

// isSame reports whether two events are of the same kind, and about the same thing.
func isSame(a, b *insight.Happening) bool {
	return a.Kind == b.Kind && a.Signal == b.Signal && a.Version == b.Version
}

// apartOf returns how much time there is between two events, in s; 0 or less if they overlap.
func apartOf(a, b *insight.Happening) int64 {
	return max(b.T-max(a.T, a.Until), a.T-max(b.T, b.Until))
}

// nodesOf names the node where rules changed, where several nodes are merged.
func nodesOf(h *insight.Happening, s *Snapshot, nodes int) []string {
	if nodes < 2 || h.Kind != "rules" || s.Node == "" {
		return nil
	}
	return []string{s.Node}
}

// sameChanges reports whether two events say the same of rules, each of another node: that a node
// made a change twice stands twice.
func sameChanges(a, b *insight.Happening) bool {
	same := func(x, y insight.RuleChange) bool {
		return x.Domain == y.Domain && x.Rule == y.Rule && x.Change == y.Change && slices.Equal(x.Fields, y.Fields)
	}
	if a.More != b.More || !slices.EqualFunc(a.Changes, b.Changes, same) {
		return false
	}
	return len(a.Changes) == 0 ||
		!slices.ContainsFunc(a.Nodes, func(n string) bool { return slices.Contains(b.Nodes, n) })
}

// mergeDomain adds a domain of another node. A domain that is not in places is added if there are
// fewer than most.
func (s *Snapshot) mergeDomain(x *Domain, places map[string]int, most, shift int) {
	at, have := places[x.Name]
	if !have {
		if len(places) >= most {
			return
		}
		own := *x
		own.Series = make(Strip, min(max(shift, 0), mostSteps))
		own.Series.merge(x.Series, shift)
		places[x.Name] = len(s.Domains)
		s.Domains = append(s.Domains, own)
		return
	}
	d := &s.Domains[at]
	d.Count.add(&x.Count)
	d.Recent.add(&x.Recent)
	d.Before.add(&x.Before)
	d.HasBefore = d.HasBefore || x.HasBefore
	d.Since = min(d.Since, x.Since)
	d.Series.merge(x.Series, shift)
}

// merge adds what another node knows of the rule. It merges keys only if keys says that both nodes
// hash them alike.
func (r *Rule) merge(x *Rule, shift int, keys bool) {
	// A node that met no request of the rule says that there was none.
	if met := r.met(); !met && x.met() || met == x.met() && len(r.Verdicts) == 0 {
		r.Verdicts = x.Verdicts
	}
	r.Since = min(r.Since, x.Since)
	r.Trial.merge(&x.Trial)
	r.Count.add(&x.Count)
	r.Sampled.add(&x.Sampled)
	r.DomainMet += x.DomainMet
	r.Recent.add(&x.Recent)
	for i := range r.Trend {
		r.Trend[i] += x.Trend[i]
	}
	r.Series.merge(x.Series, shift)
	for i := range min(len(r.Windows), len(x.Windows)) {
		r.Windows[i].Refused += x.Windows[i].Refused
		r.Windows[i].MaxFill = max(r.Windows[i].MaxFill, x.Windows[i].MaxFill)
	}
	r.Errors, r.Error = r.Errors+x.Errors, cmp.Or(r.Error, x.Error)
	r.Drawn, r.DrawnKnown = r.Drawn+x.Drawn, r.DrawnKnown+x.DrawnKnown
	r.Answers, r.Well = r.Answers+x.Answers, r.Well+x.Well
	r.ByDoor, r.With = mergeCounts(r.ByDoor, x.ByDoor, MostDoors), mergeCounts(r.With, x.With, MostWith)
	r.Examples = append(r.Examples, x.Examples...)
	r.Examples = r.Examples[:min(len(r.Examples), MostExamples)]
	r.Minutes = mergeMinutes(r.Minutes, x.Minutes)
	if !keys {
		return
	}
	r.TopMost = max(r.TopMost, x.TopMost)
	if !r.lacksSample() && !x.lacksSample() {
		r.All.Merge(&x.All)
		r.Refused.Merge(&x.Refused, false)
		return // Merge makes the new summary
	}
	if r.All.K > 0 {
		r.Summarise() // of the nodes so far
		r.All, r.Refused = Sample{}, RefusedSample{}
	}
	r.Summary.merge(&x.Summary)
}

// met reports whether a request met the rule, in the time asked for or in the time that was judged.
func (r *Rule) met() bool {
	return r.Count[LaneMet] > 0 || r.Sampled[LaneMet] > 0 || len(r.Verdicts) > 0 && r.Verdicts[0].Evidence["met"] > 0
}

// lacksSample reports whether the rule has a summary of keys without the keys themselves.
func (r *Rule) lacksSample() bool { return r.All.K == 0 && r.Summary.Keys > 0 }

// merge adds another node's summary where the samples are not there. The node that saw most keys
// decides on their number: a node that sees all clients counts them all. Refusals add up.
func (s *Summary) merge(x *Summary) {
	if x.Keys > s.Keys {
		s.Keys, s.KeysError, s.Fill = x.Keys, x.KeysError, x.Fill
	}
	if x.KeysRefused > s.KeysRefused {
		s.KeysRefused, s.RefusedError = x.KeysRefused, x.RefusedError
	}
	s.KeysWould = max(s.KeysWould, x.KeysWould)
	s.MaxFill = max(s.MaxFill, x.MaxFill)
	s.Episodes.Add(&x.Episodes)
	a, b := s.Good, x.Good
	if b.Refused > a.Refused || a.Confidence == "" {
		a, b = b, a
	}
	s.Good = a
	s.Good.Refused, s.Good.Of = a.Refused+b.Refused, a.Of+b.Of
	s.Good.RefusedPlusMinus = a.RefusedPlusMinus + b.RefusedPlusMinus
}

func mergeCounts(a, b []insight.Count, most int) []insight.Count {
	for _, x := range b {
		if i := slices.IndexFunc(a, func(c insight.Count) bool { return c.Value == x.Value }); i >= 0 {
			a[i].Count += x.Count
		} else {
			a = append(a, x)
		}
	}
	slices.SortFunc(a, insight.CompareCounts)
	return a[:min(len(a), most)]
}

// mergeMinutes adds the minutes of two nodes. Both may have seen the same keys. So it takes the
// larger number of keys, which is certain.
func mergeMinutes(a, b []Minute) []Minute {
	var out []Minute
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].T < b[0].T:
			out, a = append(out, a[0]), a[1:]
		case len(a) == 0 || b[0].T < a[0].T:
			out, b = append(out, b[0]), b[1:]
		default:
			m, x := a[0], b[0]
			m.Met, m.Refused, m.Would = m.Met+x.Met, m.Refused+x.Refused, m.Would+x.Would
			m.Keys = max(m.Keys, x.Keys)
			if m.TopShare == UnknownShare || x.TopShare != UnknownShare && x.Met > a[0].Met {
				m.TopShare = x.TopShare
			}
			if m.Signal == 0 {
				m.Signal = x.Signal
			}
			out, a, b = append(out, m), a[1:], b[1:]
		}
	}
	return out
}
