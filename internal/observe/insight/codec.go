package insight

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"time"
)

// snapshotVersion is the first byte of an encoded Snapshot. It grows with every change to the
// encoding. A node leaves out the snapshots of nodes whose version it does not know.
const snapshotVersion = 6

// errSnapshot says that bytes are no Snapshot of this version.
var errSnapshot = errors.New("not a snapshot of insight that this version knows")

// AppendBinary appends the snapshot to b, for other nodes. It never fails.
func (s *Snapshot) AppendBinary(b []byte) ([]byte, error) {
	c := &coder{b: append(b, snapshotVersion), writes: true}
	c.snapshot(s)
	return c.b, nil
}

// UnmarshalBinary is the inverse of AppendBinary. It uses memory in proportion to the length of b.
// Bytes of another version are an error.
func (s *Snapshot) UnmarshalBinary(b []byte) error {
	if len(b) == 0 || b[0] != snapshotVersion {
		return errSnapshot
	}
	c := &coder{b: b[1:]}
	var out Snapshot
	c.snapshot(&out)
	if c.failed || len(c.b) > 0 {
		return errSnapshot
	}
	*s = out
	return nil
}

// coder writes or reads values. Both use the same functions, so that they cannot differ.
type coder struct {
	b      []byte
	writes bool
	failed bool
}

// fail ends reading: everything read so far is useless. Writing never fails.
func (c *coder) fail() {
	if !c.writes {
		c.failed, c.b = true, nil
	}
}

func (c *coder) uint(v *uint64) {
	if c.writes {
		c.b = binary.AppendUvarint(c.b, *v)
		return
	}
	x, n := binary.Uvarint(c.b)
	if n <= 0 {
		c.fail()
		return
	}
	*v, c.b = x, c.b[n:]
}

func (c *coder) int(v *int64) {
	x := uint64(*v)<<1 ^ uint64(*v>>63)
	c.uint(&x)
	*v = int64(x>>1) ^ -int64(x&1)
}

// number codes a number of any type.
func number64[T ~int | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64](c *coder, v *T) {
	x := int64(*v)
	c.int(&x)
	*v = T(x)
}

// size codes the capacity of a list, at most most.
func (c *coder) size(v *int, most int) {
	if number64(c, v); *v < 0 || *v > most {
		c.fail()
	}
}

// fixed codes a number whose values are all equally likely.
func (c *coder) fixed(v *uint64) {
	if c.writes {
		c.b = binary.LittleEndian.AppendUint64(c.b, *v)
		return
	}
	if len(c.b) < 8 {
		c.fail()
		return
	}
	*v, c.b = binary.LittleEndian.Uint64(c.b), c.b[8:]
}

// float codes a number that JSON can hold. An infinity or NaN is written as 0, and makes reading
// fail.
func (c *coder) float(v *float64) {
	x := math.Float64bits(*v)
	if c.writes && !finite(*v) {
		x = 0
	}
	if c.fixed(&x); c.writes {
		return
	}
	if *v = math.Float64frombits(x); !finite(*v) {
		*v = 0
		c.fail()
	}
}

func (c *coder) float32(v *float32) {
	x := uint64(math.Float32bits(*v))
	if c.writes && !finite(float64(*v)) {
		x = 0
	}
	if c.uint(&x); c.writes {
		return
	}
	if *v = math.Float32frombits(uint32(x)); !finite(float64(*v)) {
		*v = 0
		c.fail()
	}
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

func (c *coder) bool(v *bool) {
	x := uint64(0)
	if *v {
		x = 1
	}
	c.uint(&x)
	*v = x != 0
}

func (c *coder) text(v *string) {
	n := uint64(len(*v))
	c.uint(&n)
	if c.writes {
		c.b = append(c.b, *v...)
		return
	}
	if n > uint64(len(c.b)) {
		c.fail()
		return
	}
	*v, c.b = string(c.b[:n]), c.b[n:]
}

// instant codes Unix seconds, which JSON can hold as a date.
func (c *coder) instant(v *int64) {
	if c.int(v); *v < 0 || *v > lastSecond {
		c.fail()
	}
}

func (c *coder) time(v *time.Time) {
	x := v.UnixMicro()
	c.int(&x)
	if c.writes {
		return
	}
	if *v = time.UnixMicro(x).UTC(); v.Year() < 1 || v.Year() > 9999 {
		c.fail()
	}
}

// slice codes a slice of at most most elements; a reader rejects more. Each element takes at least
// one byte, so no length makes a reader use more memory than it was sent. If the slice is empty,
// the reader gets nil.
func slice[T any](c *coder, list *[]T, most int, f func(*T)) {
	n := uint64(len(*list))
	c.uint(&n)
	if c.writes {
		for i := range *list {
			f(&(*list)[i])
		}
		return
	}
	if n > uint64(len(c.b)) || n > uint64(most) {
		c.fail()
		return
	}
	*list = nil
	for range n {
		if c.failed {
			return
		}
		var x T
		f(&x)
		*list = append(*list, x)
	}
}

func (c *coder) snapshot(s *Snapshot) {
	number64(c, &s.Nodes)
	c.fixed(&s.Seed)
	c.instant(&s.Started)
	c.instant(&s.Time)
	c.int(&s.Over)
	c.instant(&s.From)
	c.int(&s.Step)
	c.int(&s.Bytes)
	c.float(&s.P99)
	for _, v := range []*uint64{&s.StoreErrors, &s.Taken, &s.Thinned} {
		c.uint(v)
	}
	c.text(&s.Broken)
	slice(c, &s.Events, mostEvents, func(h *Happening) {
		c.instant(&h.T)
		c.instant(&h.Until)
		c.text(&h.Kind)
		c.text(&h.Version)
		c.text(&h.Signal)
	})
	slice(c, &s.Domains, mostDomains, func(d *DomainSnapshot) {
		c.text(&d.Name)
		c.counts(&d.Count)
		c.counts(&d.Recent)
		c.counts(&d.Before)
		c.bool(&d.HasBefore)
		c.instant(&d.Since)
		c.strip(&d.Series)
	})
	slice(c, &s.Rules, mostRules, c.rule)
	if s.Nodes != 1 || s.Step <= 0 || s.Time < s.From || (s.Time-s.From)/s.Step >= mostSteps {
		c.fail()
	}
	for i := range s.Rules {
		last := s.Time - (minutes+2)*60
		for _, m := range s.Rules[i].Minutes {
			if m.T <= last || m.T > s.Time || m.T%60 != 0 {
				c.fail()
				return
			}
			last = m.T
		}
	}
}

func (c *coder) counts(v *Counts) {
	for i := range v {
		c.uint(&v[i])
	}
}

// strip codes a series. A step in which nothing happened is a single 0.
func (c *coder) strip(s *Strip) {
	slice(c, (*[][lanes]uint32)(s), mostSteps, c.bucket)
}

func (c *coder) bucket(b *[lanes]uint32) {
	used := uint64(0)
	for i, v := range b {
		if v != 0 {
			used |= 1 << i
		}
	}
	c.uint(&used)
	for i := range b {
		if used>>i&1 == 1 {
			x := uint64(b[i])
			c.uint(&x)
			b[i] = uint32(x)
		}
	}
}

func (c *coder) rule(r *RuleSnapshot) {
	c.text(&r.Domain)
	c.text(&r.Name)
	c.fixed(&r.Definition)
	c.text(&r.File)
	number64(c, &r.Line)
	c.text(&r.Mode)
	slice(c, &r.Per, mostPer, c.text)
	c.bool(&r.Brought)
	c.instant(&r.Since)
	slice(c, &r.Windows, mostWindows, func(w *WindowSnapshot) {
		c.text(&w.Name)
		c.text(&w.Allows)
		c.text(&w.Rate)
		c.int(&w.Limit)
		number64(c, &w.Window)
		c.bool(&w.Bucket)
		c.uint(&w.Refused)
		c.float32(&w.MaxFill)
	})
	c.counts(&r.Count)
	c.counts(&r.Sampled)
	c.uint(&r.DomainMet)
	c.counts(&r.Recent)
	for i := range r.Trend {
		number64(c, &r.Trend[i])
	}
	c.strip(&r.Series)
	c.summary(&r.Summary)
	c.size(&r.All.K, sizes[0].all)
	slice(c, &r.All.Keys, sizes[0].all, c.sampledKey)
	c.size(&r.Refused.K, sizes[0].refused)
	slice(c, &r.Refused.Keys, sizes[0].refused, c.refusedKey)
	slice(c, &r.Minutes, minutes, func(m *MinuteSnapshot) {
		c.int(&m.T)
		c.float32(&m.Keys)
		number64(c, &m.TopShare)
		number64(c, &m.Signal)
		number64(c, &m.Met)
		number64(c, &m.Refused)
		number64(c, &m.Would)
	})
	for _, v := range []*uint64{&r.Errors, &r.Drawn, &r.DrawnKnown, &r.Answers, &r.Well} {
		c.uint(v)
	}
	c.text(&r.Error)
	slice(c, &r.ByDoor, mostDoors, c.count)
	slice(c, &r.With, mostWith, c.count)
	slice(c, &r.Examples, mostExamples, c.fixed)
	c.size(&r.TopMost, sizes[0].top)
	for kind := range topKinds {
		slice(c, &r.Live[kind], sizes[0].top, c.topKey)
		slice(c, &r.Long[kind], sizes[0].top, c.topKey)
	}
	slice(c, &r.Verdicts, len(Verdicts), c.verdict)
}

func (c *coder) count(v *Count) {
	c.text(&v.Value)
	c.uint(&v.Count)
}

func (c *coder) episodes(e *Episodes) {
	for _, v := range []*uint64{&e.Obeyed, &e.Early, &e.GaveUp, &e.LeftOut} {
		c.uint(v)
	}
}

func (c *coder) summary(s *Summary) {
	for _, v := range []*float64{&s.Keys, &s.KeysRefused, &s.KeysError, &s.RefusedError, &s.MaxFill} {
		c.float(v)
	}
	for i := range s.Fill {
		c.uint(&s.Fill[i])
	}
	c.episodes(&s.Episodes)
	g := &s.Good
	for _, v := range []*uint64{&g.Refused, &g.RefusedPlusMinus, &g.Of, &g.Keys, &g.All} {
		c.uint(v)
	}
	for _, v := range []*float64{&g.Share, &g.Low, &g.High, &g.PlusMinus} {
		c.float(v)
	}
	c.text(&g.Confidence)
}

func (c *coder) sampledKey(k *SampledKey) {
	c.fixed(&k.Hash)
	c.uint(&k.Asked)
	c.uint(&k.Refused)
	number64(c, &k.Answers)
	number64(c, &k.Well)
	c.float32(&k.Fill)
	c.bool(&k.Known)
	c.bool(&k.Own)
	slice(c, &k.Demands, mostWindows, func(d *demand) {
		number64(c, &d.limit)
		for i := range d.windows {
			w := &d.windows[i]
			number64(c, &w.index)
			number64(c, &w.used)
			number64(c, &w.refused)
		}
	})
}

func (c *coder) refusedKey(k *RefusedKey) {
	c.sampledKey(&k.SampledKey)
	c.text(&k.Text)
	c.int(&k.Since)
	c.bool(&k.Remote)
	c.episodes(&k.Episodes)
	c.bool(&k.All)
	last := k.Since
	slice(c, &k.Events, lastEvents, func(m *Moment) {
		// Times follow each other closely.
		at, retry := m.At-last, m.Retry-m.At
		c.int(&at)
		c.bool(&m.Refused)
		if m.Refused {
			c.int(&retry)
		}
		if m.At = last + at; m.Refused {
			m.Retry = m.At + retry
		}
		last = m.At
	})
}

func (c *coder) topKey(k *TopKey) {
	c.fixed(&k.Hash)
	for _, v := range []*uint64{&k.Count, &k.Over, &k.Asked, &k.Refused, &k.Obeyed, &k.Early} {
		c.uint(v)
	}
	c.int(&k.At)
	c.float32(&k.Fill)
	number64(c, &k.Window)
	c.bool(&k.Known)
	c.bool(&k.Estimated)
	c.text(&k.Text)
}

func (c *coder) verdict(v *Verdict) {
	for _, s := range []*string{&v.Verdict, &v.Confidence, &v.Domain, &v.Rule, &v.Sentence} {
		c.text(s)
	}
	c.time(&v.Since)
	has := v.Proposal != nil
	if c.bool(&has); has {
		if v.Proposal == nil {
			v.Proposal = new(Proposal)
		}
		c.text(&v.Proposal.Sentence)
		c.text(&v.Proposal.Patch)
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
	slice(c, &evidence, mostEvidence, func(i *item) {
		c.text(&i.name)
		c.float(&i.value)
	})
	if !c.writes {
		v.Evidence = make(map[string]float64, len(evidence))
		for _, i := range evidence {
			v.Evidence[i.name] = i.value
		}
	}
	slice(c, &v.Examples, mostExamples, c.text)
	if !c.writes {
		v.Examples = notNil(v.Examples)
	}
}
