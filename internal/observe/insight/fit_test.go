package insight

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/util/pack"
)

// longer is a list of n elements.
func longer[T any](n int) []T { return make([]T, n) }

// minutesTo are n minutes up to an instant.
func minutesTo(unix int64, n int) (list []MinuteSnapshot) {
	for i := range int64(n) {
		list = append(list, MinuteSnapshot{T: unix/60*60 - (int64(n)-1-i)*60})
	}
	return list
}

// What no node gathers is read of none: as much of everything as a node can have is a snapshot, and
// one more is not.
func TestSnapshotBounds(t *testing.T) {
	texts := func(n int) []string { return longer[string](n) }
	evidence := func(n int) []Verdict {
		m := map[string]float64{}
		for i := range n {
			m[fmt.Sprint(i)] = 1
		}
		return []Verdict{{Evidence: m}}
	}
	for name, c := range map[string]struct {
		most   int
		change func(s *Snapshot, r *RuleSnapshot, n int)
	}{
		"events":          {200, func(s *Snapshot, _ *RuleSnapshot, n int) { s.Events = longer[Happening](n) }},
		"a domain's time": {360, func(s *Snapshot, _ *RuleSnapshot, n int) { s.Domains[0].Series = longer[[lanes]uint32](n) }},
		"a rule's time":   {360, func(_ *Snapshot, r *RuleSnapshot, n int) { r.Series = longer[[lanes]uint32](n) }},
		"the time":        {360, func(s *Snapshot, _ *RuleSnapshot, n int) { s.From = s.Time - int64(n-1)*s.Step }},
		"domains":         {100_001, func(s *Snapshot, _ *RuleSnapshot, n int) { s.Domains = longer[DomainSnapshot](n) }},
		"attributes":      {4096, func(_ *Snapshot, r *RuleSnapshot, n int) { r.Per = texts(n) }},
		"limits":          {65_536, func(_ *Snapshot, r *RuleSnapshot, n int) { r.Windows = longer[WindowSnapshot](n) }},
		"keys":            {512, func(_ *Snapshot, r *RuleSnapshot, n int) { r.All.Keys = longer[SampledKey](n) }},
		"room for keys":   {512, func(_ *Snapshot, r *RuleSnapshot, n int) { r.All.K = n }},
		"refused keys":    {256, func(_ *Snapshot, r *RuleSnapshot, n int) { r.Refused.Keys = longer[RefusedKey](n) }},
		"room for refused keys": {256, func(_ *Snapshot, r *RuleSnapshot, n int) {
			r.Refused.K = n
		}},
		"what a key did": {32, func(_ *Snapshot, r *RuleSnapshot, n int) {
			r.Refused.Keys = []RefusedKey{{Events: longer[Moment](n)}}
		}},
		"minutes":                 {1440, func(s *Snapshot, r *RuleSnapshot, n int) { r.Minutes = minutesTo(s.Time, n) }},
		"doors":                   {101, func(_ *Snapshot, r *RuleSnapshot, n int) { r.ByDoor = longer[Count](n) }},
		"other rules":             {64, func(_ *Snapshot, r *RuleSnapshot, n int) { r.With = longer[Count](n) }},
		"examples":                {8, func(_ *Snapshot, r *RuleSnapshot, n int) { r.Examples = longer[uint64](n) }},
		"top keys":                {64, func(_ *Snapshot, r *RuleSnapshot, n int) { r.Live[topRefused] = longer[TopKey](n) }},
		"top keys of 12 hours":    {64, func(_ *Snapshot, r *RuleSnapshot, n int) { r.Long[topNear] = longer[TopKey](n) }},
		"room for top keys":       {64, func(_ *Snapshot, r *RuleSnapshot, n int) { r.TopMost = n }},
		"verdicts":                {len(Verdicts), func(_ *Snapshot, r *RuleSnapshot, n int) { r.Verdicts = longer[Verdict](n) }},
		"examples of a verdict":   {8, func(_ *Snapshot, r *RuleSnapshot, n int) { r.Verdicts = []Verdict{{Examples: texts(n)}} }},
		"evidence of a verdict":   {64, func(_ *Snapshot, r *RuleSnapshot, n int) { r.Verdicts = evidence(n) }},
		"snapshots it is made of": {1, func(s *Snapshot, _ *RuleSnapshot, n int) { s.Nodes = n }},
	} {
		for n, good := range map[int]bool{c.most: true, c.most + 1: false} {
			s := lived(t)
			c.change(s, &s.Rules[0], n)
			data, _ := s.AppendBinary(nil)
			if err := new(Snapshot).UnmarshalBinary(data); (err == nil) != good {
				t.Errorf("%s: %d: %v", name, n, err)
			}
		}
	}
}

// Numbers that JSON cannot hold, and instants that are no dates, are of no node.
func TestSnapshotNumbers(t *testing.T) {
	for name, change := range map[string]func(s *Snapshot, r *RuleSnapshot){
		"time, far ahead":   func(s *Snapshot, _ *RuleSnapshot) { s.Time += 1 << 61 },
		"the year 10000":    func(s *Snapshot, _ *RuleSnapshot) { s.From, s.Time = pack.LastSecond+1, pack.LastSecond+1 },
		"begun before 1970": func(s *Snapshot, _ *RuleSnapshot) { s.Started = -1 },
		"time before from":  func(s *Snapshot, _ *RuleSnapshot) { s.Time = s.From - 1 },
		"no step":           func(s *Snapshot, _ *RuleSnapshot) { s.Step = 0 },
		"an event":          func(s *Snapshot, _ *RuleSnapshot) { s.Events[0].T = math.MaxInt64 },
		"a domain":          func(s *Snapshot, _ *RuleSnapshot) { s.Domains[0].Since = math.MinInt64 },
		"a rule":            func(_ *Snapshot, r *RuleSnapshot) { r.Since = 1 << 60 },
		"a verdict": func(_ *Snapshot, r *RuleSnapshot) {
			r.Verdicts = []Verdict{{Since: time.Date(20_000, 1, 1, 0, 0, 0, 0, time.UTC)}}
		},
		"a minute, to come":  func(s *Snapshot, r *RuleSnapshot) { r.Minutes = []MinuteSnapshot{{T: s.Time/60*60 + 60}} },
		"a minute, long ago": func(s *Snapshot, r *RuleSnapshot) { r.Minutes = []MinuteSnapshot{{T: s.Time/60*60 - 1500*60}} },
		"no minute":          func(s *Snapshot, r *RuleSnapshot) { r.Minutes = []MinuteSnapshot{{T: s.Time/60*60 - 1}} },
		"a minute that comes twice": func(s *Snapshot, r *RuleSnapshot) {
			r.Minutes = append(minutesTo(s.Time, 1), minutesTo(s.Time, 1)...)
		},
	} {
		s := lived(t)
		change(s, &s.Rules[0])
		data, _ := s.AppendBinary(nil)
		if err := new(Snapshot).UnmarshalBinary(data); err == nil {
			t.Errorf("%s: it is read", name)
		}
	}
	// They are not written, so that one figure that is none costs no other one.
	s := lived(t)
	s.P99, s.Rules[0].Summary.MaxFill, s.Rules[0].Windows[0].MaxFill = math.Inf(1), math.NaN(), float32(math.Inf(-1))
	data, _ := s.AppendBinary(nil)
	var read Snapshot
	if err := read.UnmarshalBinary(data); err != nil || read.P99 != 0 || read.Rules[0].Summary.MaxFill != 0 || read.Rules[0].Windows[0].MaxFill != 0 {
		t.Errorf("%v: P99 %v", err, read.P99)
	}
	// Of another node they are none.
	for _, bad := range []float64{math.Inf(1), math.Inf(-1), math.NaN()} {
		c := pack.Writer(nil)
		x := math.Float64bits(bad)
		c.Fixed(&x)
		in := pack.Reader(c.Bytes())
		if in.Float(new(float64)); !in.Failed() {
			t.Errorf("%v is read", bad)
		}
		c = pack.Writer(nil)
		x = uint64(math.Float32bits(float32(bad)))
		c.Uint(&x)
		in = pack.Reader(c.Bytes())
		if in.Float32(new(float32)); !in.Failed() {
			t.Errorf("%v is read, of 32 bits", bad)
		}
	}
}

// A snapshot of another node merges only if it is of the same time; what this node has no use for
// is not kept until then.
func TestFit(t *testing.T) {
	for name, c := range map[string]struct {
		change func(x *Snapshot)
		skew   time.Duration
		ok     bool
	}{
		"the same":            {func(*Snapshot) {}, 0, true},
		"2 minutes ahead":     {func(x *Snapshot) { x.Time, x.From = x.Time+120, x.From+120 }, 0, true},
		"more":                {func(x *Snapshot) { x.Time, x.From = x.Time+121, x.From+121 }, 121 * time.Second, false},
		"behind":              {func(x *Snapshot) { x.Time, x.From = x.Time-121, x.From-121 }, -121 * time.Second, false},
		"in the year 2000":    {func(x *Snapshot) { x.From += 946684800 - x.Time; x.Time = 946684800 }, time.Duration(946684800-lived(t).Time) * time.Second, false},
		"at the end of time":  {func(x *Snapshot) { x.From, x.Time = pack.LastSecond, pack.LastSecond }, 100 * 365 * 24 * time.Hour, false},
		"of a shorter time":   {func(x *Snapshot) { x.From += 600 }, 0, false},
		"in other steps":      {func(x *Snapshot) { x.Step = 1 }, 0, false},
		"to another question": {func(x *Snapshot) { x.Over = 60 }, 0, false},
	} {
		s, x := lived(t), lived(t)
		c.change(x)
		err := s.Fit(x)
		skew, _ := errors.AsType[*SkewError](err)
		if (err == nil) != c.ok || (skew != nil) != (c.skew != 0) || skew != nil && skew.Ahead != c.skew {
			t.Errorf("%s: %v", name, err)
		}
		if c.ok {
			o, err := viewOf(Merge(s, x)).Overview(t.Context(), "", time.Hour)
			if err != nil || o.Requests != 2*s.Domains[0].Count[laneMet] || len(o.Series.T) > 63 {
				t.Errorf("%s: %d steps, %+v %v", name, len(o.Series.T), o, err)
			}
		}
	}
	s, x := lived(t), lived(t)
	x.Rules[1].Definition++
	x.Rules[2].Name = "unknown here"
	for i := range 300 {
		x.Domains = append(x.Domains, DomainSnapshot{Name: fmt.Sprint("d", i), Since: 1})
	}
	if err := s.Fit(x); err != nil {
		t.Fatal(err)
	}
	for _, r := range x.Rules {
		if r.Definition == s.Rules[1].Definition+1 || r.Name == "unknown here" {
			t.Errorf("%s is kept", r.Name)
		}
	}
	if len(x.Rules) != len(s.Rules)-2 || len(x.Domains) != len(s.Domains)+mostStrange {
		t.Errorf("%d rules and %d domains are kept", len(x.Rules), len(x.Domains))
	}
}

// viewOf answers from a snapshot.
func viewOf(s *Snapshot) *View {
	return &View{Ask: func(context.Context, Want) (*Snapshot, Nodes, error) { return s, Nodes{Asked: 1, Answered: 1}, nil }}
}

// What is merged stays bounded however many nodes there are, and whatever they tell.
func TestMergeBounded(t *testing.T) {
	s := lived(t)
	all := []*Snapshot{s}
	for node := range 40 {
		x := *s
		x.Events = nil
		for i := range mostEvents {
			x.Events = append(x.Events, Happening{T: s.Time - int64(node*mostEvents+i)*200, Kind: "saturated"})
		}
		x.Domains = slices.Clone(s.Domains)
		for i := range mostStrange {
			x.Domains = append(x.Domains, DomainSnapshot{Name: fmt.Sprint(node, "-", i), Since: 1})
		}
		x.Rules = slices.Clone(s.Rules)
		x.Rules[0].With = nil
		for i := range mostWith {
			x.Rules[0].With = append(x.Rules[0].With, Count{Value: fmt.Sprint(node, "-", i), Count: 1})
		}
		all = append(all, &x)
	}
	m := Merge(all...)
	if len(m.Events) > mostEvents || !slices.IsSortedFunc(m.Events, func(a, b Happening) int { return cmp.Compare(a.T, b.T) }) {
		t.Errorf("%d events", len(m.Events))
	}
	if newest := m.Events[len(m.Events)-1]; newest.T < s.Time {
		t.Errorf("the newest event is of %d, and there is one of %d", newest.T, s.Time)
	}
	if len(m.Domains) != len(s.Domains)+mostStrange || len(m.Rules[0].With) > mostWith {
		t.Errorf("%d domains, %d other rules", len(m.Domains), len(m.Rules[0].With))
	}
	if want := 41 * s.Domains[0].Count[laneMet]; m.Domains[0].Count[laneMet] != want {
		t.Errorf("%d requests, want %d", m.Domains[0].Count[laneMet], want)
	}
}

// answersJSON asks a snapshot every question, and fails if JSON cannot hold an answer.
func answersJSON(t *testing.T, s *Snapshot) {
	t.Helper()
	v := viewOf(s)
	var list []any
	keep := func(x any, err error) {
		if err != nil && !errors.Is(err, ErrUnknown) {
			t.Fatal(err)
		}
		list = append(list, x)
	}
	overview, err := v.Overview(t.Context(), "", time.Hour)
	keep(overview, err)
	rules, _, err := v.Rules(t.Context(), "", time.Hour)
	keep(rules, err)
	rule, _, err := v.Rule(t.Context(), "shop", "search", time.Hour)
	keep(rule, err)
	for _, by := range []string{ByRefused, ByAsked, ByNear} {
		for _, over := range []time.Duration{time.Minute, time.Hour} {
			keys, _, err := v.Keys(t.Context(), KeysQuery{By: by, Over: over})
			keep(keys, err)
		}
	}
	key, _, err := v.Key(t.Context(), "shop", "user=user-1")
	keep(key, err)
	if _, err := json.Marshal(list); err != nil {
		t.Fatal(strings.TrimPrefix(err.Error(), "json: "))
	}
}
