package gather

import (
	"fmt"
	"slices"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/internal/observe/insight/series"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/rule"
)

// Snapshot returns a snapshot of the Collector.
func (c *Collector) Snapshot(want snapshot.Want) *snapshot.Snapshot {
	s, _ := c.snapshot(want, func(r *ruleState) bool {
		return (want.Domain == "" || r.domain == want.Domain) && (want.Rule == "" || r.name == want.Rule)
	})
	return s
}

// SnapshotAsked is Snapshot without the rules that nobody asked for on this node, if there are more
// than explainedRules.
func (c *Collector) SnapshotAsked(want snapshot.Want) *snapshot.Snapshot {
	s, _ := c.snapshot(want, func(r *ruleState) bool { return r.isCounted() || c.few() })
	return s
}

// few reports whether there are so few rules that each is judged each minute. mu is held.
func (c *Collector) few() bool { return len(c.rules) <= explainedRules+1 }

// snapshot is Snapshot for the rules that f selects; found reports whether there are any.
func (c *Collector) snapshot(want snapshot.Want, f func(*ruleState) bool) (s *snapshot.Snapshot, found bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s = c.begin(&want)
	for _, d := range c.domainsNamed(want.Domain) {
		s.Domains = append(s.Domains, domainOf(d.series, d.name, d.since, s))
	}
	if want.Domain == "" || want.Domain == insight.CommandDomain {
		if d, ok := c.commandDomain(s); ok {
			s.Domains = append(s.Domains, d)
		}
	}
	n := 0
	for _, r := range c.rules {
		if f(r) {
			n++
		}
	}
	s.Rules = make([]snapshot.Rule, 0, n) // growing it with 100,000 rules took half of the time
	for _, r := range c.rules {
		if f(r) {
			s.Rules = append(s.Rules, r.snapshot(s, s.Over, &want, &c.doors))
		}
	}
	return s, n > 0
}

// begin takes in everything up to now, and returns a snapshot without domains and rules. mu is
// held.
func (c *Collector) begin(want *snapshot.Want) *snapshot.Snapshot {
	if want.Over <= 0 {
		want.Over = snapshot.DefaultOver
	}
	over := int64(min(max(want.Over, time.Second), snapshot.MostOver) / time.Second)
	c.drain()
	now := c.now().Unix()
	c.count(now)
	s := &snapshot.Snapshot{
		Nodes: 1, Seed: c.Seed(), Started: c.started.Unix(), Time: now, StoreTime: c.storeNow().UnixMicro(), Over: over,
		Step:  snapshot.StepFor(over),
		Taken: c.taken.Load(), Thinned: c.thinned.Load(), Bytes: c.o.Memory - c.left,
	}
	s.From = (now - over + s.Step) / s.Step * s.Step
	if c.o.P99 != nil {
		s.P99 = c.o.P99()
	}
	if c.o.Broken != nil {
		s.Broken = c.o.Broken()
	}
	s.StoreErrors += c.errors.Sum(s.From, now)
	if want.Domain == "" {
		if s.Unknown = c.unknowns.Sum(s.From, now); s.Unknown > 0 {
			s.UnknownDomain = c.unknown.name()
		}
	}
	for _, h := range c.events {
		if max(h.T, h.Until) >= s.From {
			s.Events = append(s.Events, h)
		}
	}
	return s
}

// domainOf returns the snapshot of a domain from its series.
func domainOf(r *series.Series, name string, since int64, of *snapshot.Snapshot) snapshot.Domain {
	out := snapshot.Domain{Name: name, Recent: r.Recent(of.Time), Since: since}
	out.Series, out.Count = r.Strip(of.From, of.Time, of.Step)
	const day = 24 * 60 * 60
	if of.Started <= of.From-day || r.Oldest() <= of.From-day {
		out.HasBefore = true
		out.Before = r.Within(of.From-day, of.Time-day+1)
	}
	return out
}

func modeOf(r *rule.Rule) string {
	switch {
	case r.Shadow || r.Lyft != nil && r.Lyft.Shadow:
		return insight.ModeShadow
	case r.Lyft != nil && r.Lyft.Quota:
		return insight.ModeQuota
	}
	return insight.ModeEnforce
}

func (r *ruleState) snapshot(s *snapshot.Snapshot, over int64, want *snapshot.Want, doors *doorNames) snapshot.Rule {
	r.noteFullest()
	out := snapshot.Rule{
		Domain: r.domain, Name: r.name, Definition: r.definition, File: r.rule.Pos.File, Line: r.rule.Pos.Line,
		Mode: modeOf(r.rule), Brought: r.brought, Since: r.since.Unix(),
		Verdicts: r.verdicts, TopMost: r.live[0].most,
	}
	if !r.isCounted() && r.kin != nil {
		out.Verdicts = r.kin.of(r)
	}
	for _, k := range r.rule.Per {
		name := k[0]
		for _, also := range k[1:] {
			name += "|" + also
		}
		out.Per = append(out.Per, name)
	}
	if r.rule.Lyft != nil {
		for _, e := range r.rule.Lyft.Path {
			if e.Value == "" {
				out.Per = append(out.Per, e.Key)
			}
		}
	}
	place := 0
	for _, w := range r.rule.Windows {
		if !isLimited(w) {
			continue
		}
		ws := windowSnapshot(w)
		for i := range r.eras {
			if known := r.eras[i].windows; place < len(known) {
				ws.Refused, ws.MaxFill = ws.Refused+known[place].refused, max(ws.MaxFill, known[place].maxFill)
			}
		}
		place++
		out.Windows = append(out.Windows, ws)
	}
	if r.isCommand() {
		for _, name := range insight.CommandNames {
			out.Windows = append(out.Windows, snapshot.Window{Name: name})
		}
	}
	if want.OnlyTop {
		r.listsInto(&out)
		return out
	}
	if r.series == nil {
		// The counts since it came into force: no others are known.
		out.Count, out.Sampled = snapshot.Counts(r.total), snapshot.Counts(r.total)
	} else {
		if want.Series {
			out.Series, out.Count = r.series.Strip(s.From, s.Time, s.Step)
		} else {
			out.Count = r.series.Sum(s.From, s.Time)
		}
		switch from := s.JudgedFrom(); {
		case s.Started > from:
			out.Sampled = snapshot.Counts(r.total)
		case from == s.From:
			out.Sampled = out.Count
		default:
			out.Sampled = r.series.Sum(from, s.Time)
		}
		out.Recent = r.series.Recent(s.Time)
		r.series.Each(over, s.From, s.Time, func(unix int64, b *snapshot.Bucket) {
			if at := (unix - s.From) * 12 / (s.Time - s.From + 1); at >= 0 && at < 12 {
				out.Trend[at] += b[snapshot.LaneRefused]
			}
		})
	}
	out.Errors, out.Error = r.failuresOf(s.From, s.Time)
	for _, id := range r.examples {
		if id != 0 {
			out.Examples = append(out.Examples, id)
		}
	}
	if r.trial != nil {
		out.Trial = r.trial.Trial
	}
	r.drawnInto(&out, doors)
	r.samples(&out, s, want)
	if want.Top {
		r.listsInto(&out)
	}
	return out
}

func (r *ruleState) listsInto(out *snapshot.Rule) {
	if r.trial != nil {
		out.WouldTop = r.trial.top.snapshot()
	}
	for kind := range snapshot.TopKinds {
		out.Live[kind], out.Long[kind] = r.live[kind].snapshot(), r.long[kind].snapshot()
		for _, list := range [...][]snapshot.TopKey{out.Live[kind], out.Long[kind]} {
			for i := range list {
				list[i].Obeyed, list[i].Early = r.returnsOf(list[i].Hash)
			}
		}
	}
}

// returnsOf returns how often a refused key came back when it was told to, and how often earlier.
func (r *ruleState) returnsOf(hash uint64) (obeyed, early uint64) {
	for i := range r.eras {
		x := r.eras[i].refused
		if x == nil {
			continue
		}
		if at := x.find(hash); at >= 0 {
			obeyed, early = obeyed+x.traces[at].Obeyed, early+x.traces[at].Early
		}
	}
	return obeyed, early
}

// drawnInto fills in the figures that come from decisions drawn by chance.
func (r *ruleState) drawnInto(out *snapshot.Rule, doors *doorNames) {
	byDoor, with := map[uint8]uint64{}, map[string]uint64{}
	for i := range r.eras {
		x := &r.eras[i]
		out.Drawn, out.DrawnKnown = out.Drawn+x.drawn, out.DrawnKnown+x.drawnKnown
		out.Answers, out.Well = out.Answers+x.answers, out.Well+x.well
		for door, n := range x.byDoor {
			byDoor[door] += n
		}
		for name, n := range x.with {
			with[name] += n
		}
	}
	for name, n := range with {
		out.With = append(out.With, insight.Count{Value: name, Count: n})
	}
	slices.SortFunc(out.With, insight.CompareCounts)
	out.With = out.With[:min(len(out.With), snapshot.MostWith)]
	for door, n := range byDoor {
		out.ByDoor = append(out.ByDoor, insight.Count{Value: doors.name(door), Count: n})
	}
	slices.SortFunc(out.ByDoor, insight.CompareCounts)
}

// samples fills in the samples, if wanted, and the summary that follows from them.
func (r *ruleState) samples(out *snapshot.Rule, s *snapshot.Snapshot, want *snapshot.Want) {
	all, refused := r.eras[currentEra].all.snapshot(), r.eras[currentEra].refused.refusedSnapshot()
	for i := range r.eras[1:] {
		if x := &r.eras[1+i]; x.all != nil {
			old, oldRefused := x.all.snapshot(), x.refused.refusedSnapshot()
			all.Merge(&old)
			refused.Merge(&oldRefused, true)
		}
	}
	out.All, out.Refused = all, refused
	out.Summarise()
	switch {
	case want.Samples:
		out.DomainMet = r.domainMet(s)
		if r.series == nil {
			return
		}
		r.series.EachMinute(s.Time-snapshot.MinuteSteps*60, s.Time-60, func(unix int64, b *snapshot.Bucket) {
			if b[snapshot.LaneMet] == 0 {
				return
			}
			m := &r.minutes[unix/60%int64(len(r.minutes))]
			out.Minutes = append(out.Minutes, snapshot.Minute{
				T: unix, Keys: m.Keys, TopShare: m.TopShare, Signal: m.Signal,
				Met: b[snapshot.LaneMet], Refused: b[snapshot.LaneRefused], Would: b[snapshot.LaneWould],
			})
		})
	case want.Clients:
	case want.Key != "":
		out.All = snapshot.Sample{}
		out.Refused.Keys = slices.DeleteFunc(out.Refused.Keys,
			func(k snapshot.RefusedKey) bool { return k.Text != want.Key })
	default:
		out.All, out.Refused = snapshot.Sample{}, snapshot.RefusedSample{}
	}
}

// domainMet returns how many requests came to the domain in the time of a snapshot, while the rule
// was there, and were not refused by bans: these could not meet it. Of a domain that is not
// followed it counts the time before the snapshot, too.
func (r *ruleState) domainMet(s *snapshot.Snapshot) (n uint64) {
	switch {
	case r.domainState == nil:
		return 0
	case r.began > s.From, r.domainState.series == &series.Nothing:
		return r.domainState.total - r.domainBefore
	}
	r.domainState.series.Each(s.Time-s.From, s.From, s.Time,
		func(_ int64, b *snapshot.Bucket) {
			n += uint64(b[snapshot.LaneMet] - min(b[snapshot.LaneBanned], b[snapshot.LaneMet]))
		})
	return n
}

// windowSnapshot says what a limit is.
func windowSnapshot(w *rule.Window) snapshot.Window {
	c := w.Limit.Config()
	out := snapshot.Window{
		Name: w.Name, Limit: w.Limit.Capacity(), Window: c.Window,
		Bucket: c.Algorithm.HasBurst(),
		Allows: allowsText(w.Limit), Rate: judge.RateText(c),
	}
	if c.Algorithm.HasSlots() {
		out.Window = 0
	}
	return out
}

// allowsText says in words what a limit allows.
func allowsText(l *algo.Limit) string {
	c := l.Config()
	var text string
	switch {
	case c.Algorithm.HasSlots():
		text = fmt.Sprintf("%d at a time", c.N)
	case c.Algorithm.HasBurst():
		text = fmt.Sprintf("%d per %s, burst %d", c.N, c.Period(), max(c.Burst, 0))
	default:
		text = fmt.Sprintf("%d per %s", c.N, c.Period())
	}
	if l.Scheduled() {
		text += ", by a schedule"
	}
	return text
}
