package gather

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

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/internal/util/pack"
)

// longer is a list of n elements.
func longer[T any](n int) []T { return make([]T, n) }

// minutesTo are n minutes up to an instant.
func minutesTo(unix int64, n int) (list []snapshot.Minute) {
	for i := range int64(n) {
		list = append(list, snapshot.Minute{T: unix/60*60 - (int64(n)-1-i)*60})
	}
	return list
}

// What no node gathers is read of none: as much of everything as a node can have is a snapshot, and
// one more is not.
func TestSnapshotBounds(t *testing.T) {
	texts := func(n int) []string { return longer[string](n) }
	evidence := func(n int) []insight.Verdict {
		m := map[string]float64{}
		for i := range n {
			m[fmt.Sprint(i)] = 1
		}
		return []insight.Verdict{{Evidence: m}}
	}
	for name, c := range map[string]struct {
		most   int
		change func(s *snapshot.Snapshot, r *snapshot.Rule, n int)
	}{
		"events": {200, func(s *snapshot.Snapshot, _ *snapshot.Rule, n int) { s.Events = longer[insight.Happening](n) }},
		"a domain's time": {360, func(s *snapshot.Snapshot, _ *snapshot.Rule, n int) {
			s.Domains[0].Series = longer[[snapshot.Lanes]uint32](n)
		}},
		"a rule's time": {360, func(_ *snapshot.Snapshot, r *snapshot.Rule, n int) {
			r.Series = longer[[snapshot.Lanes]uint32](n)
		}},
		"the time": {360, func(s *snapshot.Snapshot, _ *snapshot.Rule, n int) { s.From = s.Time - int64(n-1)*s.Step }},
		"domains": {100_001, func(s *snapshot.Snapshot, _ *snapshot.Rule, n int) {
			s.Domains = longer[snapshot.Domain](n)
		}},
		"attributes": {4096, func(_ *snapshot.Snapshot, r *snapshot.Rule, n int) { r.Per = texts(n) }},
		"limits": {65_536, func(_ *snapshot.Snapshot, r *snapshot.Rule, n int) {
			r.Windows = longer[snapshot.Window](n)
		}},
		"keys": {512, func(_ *snapshot.Snapshot, r *snapshot.Rule, n int) {
			r.All.Keys = longer[snapshot.SampledKey](n)
		}},
		"room for keys": {512, func(_ *snapshot.Snapshot, r *snapshot.Rule, n int) { r.All.K = n }},
		"refused keys": {256, func(_ *snapshot.Snapshot, r *snapshot.Rule, n int) {
			r.Refused.Keys = longer[snapshot.RefusedKey](n)
		}},
		"room for refused keys": {256, func(_ *snapshot.Snapshot, r *snapshot.Rule, n int) {
			r.Refused.K = n
		}},
		"what a key did": {32, func(_ *snapshot.Snapshot, r *snapshot.Rule, n int) {
			r.Refused.Keys = []snapshot.RefusedKey{{Events: longer[snapshot.Moment](n)}}
		}},
		"minutes":     {1440, func(s *snapshot.Snapshot, r *snapshot.Rule, n int) { r.Minutes = minutesTo(s.Time, n) }},
		"doors":       {101, func(_ *snapshot.Snapshot, r *snapshot.Rule, n int) { r.ByDoor = longer[insight.Count](n) }},
		"other rules": {64, func(_ *snapshot.Snapshot, r *snapshot.Rule, n int) { r.With = longer[insight.Count](n) }},
		"examples":    {8, func(_ *snapshot.Snapshot, r *snapshot.Rule, n int) { r.Examples = longer[uint64](n) }},
		"top keys": {64, func(_ *snapshot.Snapshot, r *snapshot.Rule, n int) {
			r.Live[snapshot.TopRefused] = longer[snapshot.TopKey](n)
		}},
		"top keys of 12 hours": {64, func(_ *snapshot.Snapshot, r *snapshot.Rule, n int) {
			r.Long[snapshot.TopNear] = longer[snapshot.TopKey](n)
		}},
		"room for top keys": {64, func(_ *snapshot.Snapshot, r *snapshot.Rule, n int) { r.TopMost = n }},
		"verdicts":          {len(insight.Verdicts), func(_ *snapshot.Snapshot, r *snapshot.Rule, n int) { r.Verdicts = longer[insight.Verdict](n) }},
		"examples of a verdict": {8, func(_ *snapshot.Snapshot, r *snapshot.Rule, n int) {
			r.Verdicts = []insight.Verdict{{Examples: texts(n)}}
		}},
		"evidence of a verdict":   {64, func(_ *snapshot.Snapshot, r *snapshot.Rule, n int) { r.Verdicts = evidence(n) }},
		"snapshots it is made of": {1, func(s *snapshot.Snapshot, _ *snapshot.Rule, n int) { s.Nodes = n }},
	} {
		for n, good := range map[int]bool{c.most: true, c.most + 1: false} {
			s := lived(t)
			c.change(s, &s.Rules[0], n)
			data, _ := s.AppendBinary(nil)
			if err := new(snapshot.Snapshot).UnmarshalBinary(data); (err == nil) != good {
				t.Errorf("%s: %d: %v", name, n, err)
			}
		}
	}
}

// Numbers that JSON cannot hold, and instants that are no dates, are of no node.
func TestSnapshotNumbers(t *testing.T) {
	for name, change := range map[string]func(s *snapshot.Snapshot, r *snapshot.Rule){
		"time, far ahead": func(s *snapshot.Snapshot, _ *snapshot.Rule) { s.Time += 1 << 61 },
		"the year 10000": func(s *snapshot.Snapshot, _ *snapshot.Rule) {
			s.From, s.Time = pack.LastSecond+1, pack.LastSecond+1
		},
		"begun before 1970": func(s *snapshot.Snapshot, _ *snapshot.Rule) { s.Started = -1 },
		"time before from":  func(s *snapshot.Snapshot, _ *snapshot.Rule) { s.Time = s.From - 1 },
		"no step":           func(s *snapshot.Snapshot, _ *snapshot.Rule) { s.Step = 0 },
		"an event":          func(s *snapshot.Snapshot, _ *snapshot.Rule) { s.Events[0].T = math.MaxInt64 },
		"a domain":          func(s *snapshot.Snapshot, _ *snapshot.Rule) { s.Domains[0].Since = math.MinInt64 },
		"a rule":            func(_ *snapshot.Snapshot, r *snapshot.Rule) { r.Since = 1 << 60 },
		"a verdict": func(_ *snapshot.Snapshot, r *snapshot.Rule) {
			r.Verdicts = []insight.Verdict{{Since: time.Date(20_000, 1, 1, 0, 0, 0, 0, time.UTC)}}
		},
		"a minute, to come": func(s *snapshot.Snapshot, r *snapshot.Rule) {
			r.Minutes = []snapshot.Minute{{T: s.Time/60*60 + 60}}
		},
		"a minute, long ago": func(s *snapshot.Snapshot, r *snapshot.Rule) {
			r.Minutes = []snapshot.Minute{{T: s.Time/60*60 - 1500*60}}
		},
		"no minute": func(s *snapshot.Snapshot, r *snapshot.Rule) {
			r.Minutes = []snapshot.Minute{{T: s.Time/60*60 - 1}}
		},
		"a minute that comes twice": func(s *snapshot.Snapshot, r *snapshot.Rule) {
			r.Minutes = append(minutesTo(s.Time, 1), minutesTo(s.Time, 1)...)
		},
	} {
		s := lived(t)
		change(s, &s.Rules[0])
		data, _ := s.AppendBinary(nil)
		if err := new(snapshot.Snapshot).UnmarshalBinary(data); err == nil {
			t.Errorf("%s: it is read", name)
		}
	}
	// They are not written, so that one figure that is none costs no other one.
	s := lived(t)
	s.P99, s.Rules[0].Summary.MaxFill, s.Rules[0].Windows[0].MaxFill = math.Inf(1), math.NaN(), float32(math.Inf(-1))
	data, _ := s.AppendBinary(nil)
	var read snapshot.Snapshot
	if err := read.UnmarshalBinary(data); err != nil || read.P99 != 0 || read.Rules[0].Summary.MaxFill != 0 ||
		read.Rules[0].Windows[0].MaxFill != 0 {
		t.Errorf("%v: P99 %v", err, read.P99)
	}
}

// A snapshot of another node merges only if it is of the same time; what this node has no use for
// is not kept until then.
func TestFit(t *testing.T) {
	for name, c := range map[string]struct {
		change func(x *snapshot.Snapshot)
		skew   time.Duration
		ok     bool
	}{
		"the same":            {func(*snapshot.Snapshot) {}, 0, true},
		"2 minutes ahead":     {func(x *snapshot.Snapshot) { x.Time, x.From = x.Time+120, x.From+120 }, 0, true},
		"more":                {func(x *snapshot.Snapshot) { x.Time, x.From = x.Time+121, x.From+121 }, 121 * time.Second, false},
		"behind":              {func(x *snapshot.Snapshot) { x.Time, x.From = x.Time-121, x.From-121 }, -121 * time.Second, false},
		"in the year 2000":    {func(x *snapshot.Snapshot) { x.From += 946684800 - x.Time; x.Time = 946684800 }, time.Duration(946684800-lived(t).Time) * time.Second, false},
		"at the end of time":  {func(x *snapshot.Snapshot) { x.From, x.Time = pack.LastSecond, pack.LastSecond }, 100 * 365 * 24 * time.Hour, false},
		"of a shorter time":   {func(x *snapshot.Snapshot) { x.From += 600 }, 0, false},
		"in other steps":      {func(x *snapshot.Snapshot) { x.Step = 1 }, 0, false},
		"to another question": {func(x *snapshot.Snapshot) { x.Over = 60 }, 0, false},
	} {
		s, x := lived(t), lived(t)
		c.change(x)
		_, err := s.Fit(x)
		skew, _ := errors.AsType[*snapshot.SkewError](err)
		if (err == nil) != c.ok || (skew != nil) != (c.skew != 0) || skew != nil && skew.Ahead != c.skew {
			t.Errorf("%s: %v", name, err)
		}
		if c.ok {
			o, err := viewOf(snapshot.Merge(s, x)).Overview(t.Context(), "", time.Hour)
			if err != nil || o.Requests != 2*s.Domains[0].Count[snapshot.LaneMet] || len(o.Series.T) > 63 {
				t.Errorf("%s: %d steps, %+v %v", name, len(o.Series.T), o, err)
			}
		}
	}
	s, x := lived(t), lived(t)
	x.Rules[1].Definition++
	x.Rules[2].Name = "unknown here"
	for i := range 300 {
		x.Domains = append(x.Domains, snapshot.Domain{Name: fmt.Sprint("d", i), Since: 1})
	}
	x.Node = "x"
	lacked := s.Rules[2].Name
	differ, err := s.Fit(x)
	if err != nil {
		t.Fatal(err)
	}
	if len(differ) != 3 || differ[0].Rule != s.Rules[1].Name || differ[0].Node != "x" ||
		differ[0].Here != differ[0].There ||
		differ[1].Rule != "unknown here" || differ[1].Here != "" || differ[2].Rule != lacked || differ[2].There != "" ||
		differ[2].Here == "" {
		t.Errorf("%+v", differ)
	}
	for _, r := range x.Rules {
		if r.Definition == s.Rules[1].Definition+1 || r.Name == "unknown here" {
			t.Errorf("%s is kept", r.Name)
		}
	}
	if len(x.Rules) != len(s.Rules)-2 || len(x.Domains) != len(s.Domains)+snapshot.MostStrange {
		t.Errorf("%d rules and %d domains are kept", len(x.Rules), len(x.Domains))
	}
}

// viewOf answers from a snapshot.
func viewOf(s *snapshot.Snapshot) *snapshot.View {
	return &snapshot.View{Ask: func(context.Context, snapshot.Want) (*snapshot.Snapshot, insight.Nodes, error) {
		return s, insight.Nodes{Asked: 1, Answered: 1}, nil
	}}
}

// What is merged stays bounded however many nodes there are, and whatever they tell.
func TestMergeBounded(t *testing.T) {
	s := lived(t)
	all := []*snapshot.Snapshot{s}
	for node := range 40 {
		x := *s
		x.Events = nil
		for i := range snapshot.MostEvents {
			x.Events = append(x.Events, insight.Happening{T: s.Time - int64(node*snapshot.MostEvents+i)*200,
				Kind: "saturated"})
		}
		x.Domains = slices.Clone(s.Domains)
		for i := range snapshot.MostStrange {
			x.Domains = append(x.Domains, snapshot.Domain{Name: fmt.Sprint(node, "-", i), Since: 1})
		}
		x.Rules = slices.Clone(s.Rules)
		x.Rules[0].With = nil
		for i := range snapshot.MostWith {
			x.Rules[0].With = append(x.Rules[0].With, insight.Count{Value: fmt.Sprint(node, "-", i), Count: 1})
		}
		all = append(all, &x)
	}
	m := snapshot.Merge(all...)
	if len(m.Events) > snapshot.MostEvents ||
		!slices.IsSortedFunc(m.Events, func(a, b insight.Happening) int { return cmp.Compare(a.T, b.T) }) {
		t.Errorf("%d events", len(m.Events))
	}
	if newest := m.Events[len(m.Events)-1]; newest.T < s.Time {
		t.Errorf("the newest event is of %d, and there is one of %d", newest.T, s.Time)
	}
	if len(m.Domains) != len(s.Domains)+snapshot.MostStrange || len(m.Rules[0].With) > snapshot.MostWith {
		t.Errorf("%d domains, %d other rules", len(m.Domains), len(m.Rules[0].With))
	}
	if want := 41 * s.Domains[0].Count[snapshot.LaneMet]; m.Domains[0].Count[snapshot.LaneMet] != want {
		t.Errorf("%d requests, want %d", m.Domains[0].Count[snapshot.LaneMet], want)
	}
}

// answersJSON asks a snapshot every question, and fails if JSON cannot hold an answer.
func answersJSON(t *testing.T, s *snapshot.Snapshot) {
	t.Helper()
	v := viewOf(s)
	var list []any
	keep := func(x any, err error) {
		if err != nil && !errors.Is(err, insight.ErrUnknown) {
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
	for _, by := range []string{insight.ByRefused, insight.ByAsked, insight.ByNear} {
		for _, over := range []time.Duration{time.Minute, time.Hour} {
			keys, _, err := v.Keys(t.Context(), insight.KeysQuery{By: by, Over: over})
			keep(keys, err)
		}
	}
	key, _, err := v.Key(t.Context(), "shop", "user=user-1")
	keep(key, err)
	if _, err := json.Marshal(list); err != nil {
		t.Fatal(strings.TrimPrefix(err.Error(), "json: "))
	}
}
