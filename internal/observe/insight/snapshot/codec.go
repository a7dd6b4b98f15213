package snapshot

import (
	"errors"
	"math"
	"slices"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/util/pack"
)

// Version is the first byte of an encoded Snapshot. It grows with every change to the
// encoding. A node leaves out the snapshots of nodes whose version it does not know.
const Version = 9

// errSnapshot says that bytes are no Snapshot of this version.
var errSnapshot = errors.New("not a snapshot of insight that this version knows")

// AppendBinary appends the snapshot to b, for other nodes. It never fails.
func (s *Snapshot) AppendBinary(b []byte) ([]byte, error) {
	c := coder{pack.Writer(append(b, Version))}
	c.snapshot(s)
	return c.Bytes(), nil
}

// UnmarshalBinary is the inverse of AppendBinary. It uses memory in proportion to the length of b.
// Bytes of another version are an error.
func (s *Snapshot) UnmarshalBinary(b []byte) error {
	if len(b) == 0 || b[0] != Version {
		return errSnapshot
	}
	c := coder{pack.Reader(b[1:])}
	var out Snapshot
	c.snapshot(&out)
	if !c.ReadAll() {
		return errSnapshot
	}
	*s = out
	return nil
}

// coder codes the parts of a snapshot.
type coder struct{ *pack.Coder }

func (c coder) snapshot(s *Snapshot) {
	pack.Number(c.Coder, &s.Nodes)
	c.Fixed(&s.Seed)
	c.Instant(&s.Started)
	c.Instant(&s.Time)
	c.Int(&s.Over)
	c.Instant(&s.From)
	c.Int(&s.Step)
	c.Int(&s.Bytes)
	c.Float(&s.P99)
	for _, v := range []*uint64{&s.StoreErrors, &s.Taken, &s.Thinned, &s.Unknown} {
		c.Uint(v)
	}
	c.Text(&s.UnknownDomain)
	c.Text(&s.Broken)
	pack.Slice(c.Coder, &s.Events, MostEvents, func(h *insight.Happening) {
		c.Instant(&h.T)
		c.Instant(&h.Until)
		c.Text(&h.Kind)
		c.Text(&h.Version)
		c.Text(&h.Signal)
		c.changes(&h.RuleChanges)
	})
	pack.Slice(c.Coder, &s.Domains, MostDomains, func(d *Domain) {
		c.Text(&d.Name)
		c.counts(&d.Count)
		c.counts(&d.Recent)
		c.counts(&d.Before)
		c.Bool(&d.HasBefore)
		c.Instant(&d.Since)
		c.strip(&d.Series)
	})
	pack.Slice(c.Coder, &s.Rules, MostRules, c.rule)
	if s.Nodes != 1 || s.Step <= 0 || s.Time < s.From || (s.Time-s.From)/s.Step >= mostSteps {
		c.Fail()
	}
	for i := range s.Rules {
		last := s.Time - (MinuteSteps+2)*60
		for _, m := range s.Rules[i].Minutes {
			if m.T <= last || m.T > s.Time || m.T%60 != 0 {
				c.Fail()
				return
			}
			last = m.T
		}
	}
}

func (c coder) changes(x *insight.RuleChanges) {
	c.Size(&x.More, math.MaxInt32)
	pack.Slice(c.Coder, &x.Changes, insight.MostChanges, func(r *insight.RuleChange) {
		c.clipped(&r.Domain)
		c.clipped(&r.Rule)
		c.clipped(&r.Change)
		pack.Slice(c.Coder, &r.Fields, insight.MostFields, func(f *insight.FieldChange) {
			c.clipped(&f.Field)
			c.clipped(&f.Before)
			c.clipped(&f.After)
		})
	})
}

// clipped codes a text of at most insight.MostValue bytes.
func (c coder) clipped(s *string) {
	if c.Text(s); len(*s) > insight.MostValue {
		c.Fail()
	}
}

func (c coder) counts(v *Counts) {
	for i := range v {
		c.Uint(&v[i])
	}
}

// strip codes a series. A step in which nothing happened is a single 0.
func (c coder) strip(s *Strip) {
	pack.Slice(c.Coder, (*[][Lanes]uint32)(s), mostSteps, func(b *[Lanes]uint32) { (*Bucket)(b).Code(c.Coder) })
}

func (c coder) rule(r *Rule) {
	c.Text(&r.Domain)
	c.Text(&r.Name)
	c.Fixed(&r.Definition)
	c.Text(&r.File)
	pack.Number(c.Coder, &r.Line)
	c.Text(&r.Mode)
	pack.Slice(c.Coder, &r.Per, mostPer, c.Text)
	c.Bool(&r.Brought)
	c.Instant(&r.Since)
	pack.Slice(c.Coder, &r.Windows, mostWindows, func(w *Window) {
		c.Text(&w.Name)
		c.Text(&w.Allows)
		c.Text(&w.Rate)
		c.Int(&w.Limit)
		pack.Number(c.Coder, &w.Window)
		c.Bool(&w.Bucket)
		c.Uint(&w.Refused)
		c.Float32(&w.MaxFill)
	})
	c.counts(&r.Count)
	c.counts(&r.Sampled)
	c.Uint(&r.DomainMet)
	c.counts(&r.Recent)
	for i := range r.Trend {
		pack.Number(c.Coder, &r.Trend[i])
	}
	c.strip(&r.Series)
	c.summary(&r.Summary)
	c.Size(&r.All.K, MostKeys)
	pack.Slice(c.Coder, &r.All.Keys, MostKeys, c.sampledKey)
	c.Size(&r.Refused.K, MostRefused)
	pack.Slice(c.Coder, &r.Refused.Keys, MostRefused, c.refusedKey)
	pack.Slice(c.Coder, &r.Minutes, MinuteSteps, func(m *Minute) {
		c.Int(&m.T)
		c.Float32(&m.Keys)
		pack.Number(c.Coder, &m.TopShare)
		pack.Number(c.Coder, &m.Signal)
		pack.Number(c.Coder, &m.Met)
		pack.Number(c.Coder, &m.Refused)
		pack.Number(c.Coder, &m.Would)
	})
	for _, v := range []*uint64{&r.Errors, &r.Drawn, &r.DrawnKnown, &r.Answers, &r.Well} {
		c.Uint(v)
	}
	c.Text(&r.Error)
	pack.Slice(c.Coder, &r.ByDoor, MostDoors, c.count)
	pack.Slice(c.Coder, &r.With, MostWith, c.count)
	pack.Slice(c.Coder, &r.Examples, MostExamples, c.Fixed)
	c.Size(&r.TopMost, MostTop)
	for kind := range TopKinds {
		pack.Slice(c.Coder, &r.Live[kind], MostTop, c.topKey)
		pack.Slice(c.Coder, &r.Long[kind], MostTop, c.topKey)
	}
	c.Instant(&r.Trial.Since)
	pack.Number(c.Coder, &r.Trial.Enforce)
	for _, v := range r.Trial.counts() {
		c.Uint(v)
	}
	pack.Slice(c.Coder, &r.WouldTop, MostTop, c.topKey)
	pack.Slice(c.Coder, &r.Verdicts, len(insight.Verdicts), c.verdict)
}

func (c coder) count(v *insight.Count) {
	c.Text(&v.Value)
	c.Uint(&v.Count)
}

func (c coder) episodes(e *insight.Episodes) {
	for _, v := range []*uint64{&e.Obeyed, &e.Early, &e.GaveUp, &e.LeftOut} {
		c.Uint(v)
	}
}

func (c coder) summary(s *Summary) {
	for _, v := range []*float64{&s.Keys, &s.KeysRefused, &s.KeysError, &s.RefusedError, &s.KeysWould, &s.MaxFill} {
		c.Float(v)
	}
	for i := range s.Fill {
		c.Uint(&s.Fill[i])
	}
	c.episodes(&s.Episodes)
	g := &s.Good
	for _, v := range []*uint64{&g.Refused, &g.RefusedPlusMinus, &g.Of, &g.Keys, &g.All} {
		c.Uint(v)
	}
	for _, v := range []*float64{&g.Share, &g.Low, &g.High, &g.PlusMinus} {
		c.Float(v)
	}
	c.Text(&g.Confidence)
}

func (c coder) sampledKey(k *SampledKey) {
	c.Fixed(&k.Hash)
	c.Uint(&k.Asked)
	c.Uint(&k.Refused)
	pack.Number(c.Coder, &k.Answers)
	pack.Number(c.Coder, &k.Well)
	c.Float32(&k.Fill)
	c.Bool(&k.Known)
	c.Bool(&k.Own)
	c.Bool(&k.Would)
	pack.Slice(c.Coder, &k.Demands, mostWindows, func(d *Demand) {
		pack.Number(c.Coder, &d.limit)
		for i := range d.windows {
			w := &d.windows[i]
			pack.Number(c.Coder, &w.index)
			pack.Number(c.Coder, &w.used)
			pack.Number(c.Coder, &w.refused)
		}
	})
}

func (c coder) refusedKey(k *RefusedKey) {
	c.sampledKey(&k.SampledKey)
	c.Text(&k.Text)
	c.Int(&k.Since)
	c.Bool(&k.Remote)
	c.episodes(&k.Episodes)
	c.Bool(&k.All)
	last := k.Since
	pack.Slice(c.Coder, &k.Events, LastEvents, func(m *Moment) {
		// Times follow each other closely.
		at, retry := m.At-last, m.Retry-m.At
		c.Int(&at)
		c.Bool(&m.Refused)
		if m.Refused {
			c.Int(&retry)
		}
		if m.At = last + at; m.Refused {
			m.Retry = m.At + retry
		}
		last = m.At
	})
}

func (c coder) topKey(k *TopKey) {
	c.Fixed(&k.Hash)
	for _, v := range []*uint64{&k.Count, &k.Over, &k.Asked, &k.Refused, &k.Obeyed, &k.Early} {
		c.Uint(v)
	}
	c.Int(&k.At)
	c.Float32(&k.Fill)
	pack.Number(c.Coder, &k.Window)
	c.Bool(&k.Known)
	c.Bool(&k.Estimated)
	c.Text(&k.Text)
}

func (c coder) verdict(v *insight.Verdict) {
	for _, s := range []*string{&v.Verdict, &v.Confidence, &v.Domain, &v.Rule, &v.Sentence} {
		c.Text(s)
	}
	c.Time(&v.Since)
	has := v.Proposal != nil
	if c.Bool(&has); has {
		if v.Proposal == nil {
			v.Proposal = new(insight.Proposal)
		}
		c.Text(&v.Proposal.Sentence)
		c.Text(&v.Proposal.Patch)
	}
	type item struct {
		name  string
		value float64
	}
	var evidence []item
	for name, value := range v.Evidence {
		evidence = append(evidence, item{name, value})
	}
	slices.SortFunc(evidence, func(a, b item) int {
		if a.name < b.name {
			return -1
		}
		return 1
	})
	pack.Slice(c.Coder, &evidence, mostEvidence, func(i *item) {
		c.Text(&i.name)
		c.Float(&i.value)
	})
	if c.Reads() {
		v.Evidence = make(map[string]float64, len(evidence))
		for _, i := range evidence {
			v.Evidence[i.name] = i.value
		}
	}
	pack.Slice(c.Coder, &v.Examples, MostExamples, c.Text)
	if c.Reads() {
		v.Examples = notNil(v.Examples)
	}
}
