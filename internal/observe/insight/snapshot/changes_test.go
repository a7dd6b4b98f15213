package snapshot

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/observe/insight"
)

// A change of the rules stands once, with all nodes that made it, even where files reach some of
// them half an hour later. A node that made it twice has it twice, another change stands by itself,
// and so does the same one a day later.
func TestMergeRuleChanges(t *testing.T) {
	change := func(to string) insight.RuleChanges {
		return insight.RuleChanges{Changes: []insight.RuleChange{{Domain: "shop", Rule: "images", Change: insight.Changed,
			Fields: []insight.FieldChange{{Field: "allow", Before: "600/min", After: to}}}}, More: 2}
	}
	at := func(t int64, c insight.RuleChanges) insight.Happening {
		return insight.Happening{T: t, Kind: "rules", Version: "7", RuleChanges: c}
	}
	of := func(node string, events ...insight.Happening) *Snapshot {
		return &Snapshot{Node: node, Nodes: 1, Events: append([]insight.Happening{{T: 10, Kind: "start"}}, events...)}
	}
	up, back := change("700/min"), change("500/min")
	a := of("a", at(1000, up), at(1100, back), at(1200, up))
	m := Merge(a, of("b", at(1010, up), at(1800, back), at(2900, up)), of("c", at(1500, change("1/s")), at(90_000, up)))
	var got []string
	for _, e := range m.Events {
		got = append(got, strings.TrimSpace(fmt.Sprintln(e.T, e.Kind, e.Nodes, strings.Join(e.Lines(), "; "))))
	}
	want := []string{
		"10 start [] ",
		"1000 rules [a b] shop/images: allow 600/min → 700/min; and 2 more changes",
		"1100 rules [a b] shop/images: allow 600/min → 500/min; and 2 more changes",
		"1200 rules [a b] shop/images: allow 600/min → 700/min; and 2 more changes",
		"1500 rules [c] shop/images: allow 600/min → 1/s; and 2 more changes",
		"90000 rules [c] shop/images: allow 600/min → 700/min; and 2 more changes",
	}
	want[0] = strings.TrimSpace(want[0])
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if a.Events[1].Nodes != nil {
		t.Error("the snapshot that was merged is another one now")
	}
	if alone := Merge(a); alone.Events[1].Nodes != nil {
		t.Errorf("of one node: %v", alone.Events[1].Nodes)
	}
}

// TestNearestChange: equal changes of two nodes are joined to the nearest in time: a node that came
// later, or that files reach late, has the change that it made and no earlier one.
func TestNearestChange(t *testing.T) {
	c := insight.RuleChanges{Changes: []insight.RuleChange{{Domain: "shop", Rule: "images", Change: insight.Changed}}}
	of := func(node string, at ...int64) *Snapshot {
		s := &Snapshot{Node: node, Nodes: 1}
		for _, t := range at {
			s.Events = append(s.Events, insight.Happening{T: t, Kind: "rules", RuleChanges: c})
		}
		return s
	}
	for _, x := range []struct {
		a, b []int64
		want string
	}{
		{[]int64{1000, 1200}, []int64{1210}, "1000 [a]; 1200 [a b]"},
		{[]int64{1000, 1200}, []int64{1150, 1210}, "1000 [a b]; 1200 [a b]"},
		{[]int64{1000, 2000, 3000}, []int64{1990, 2980}, "1000 [a]; 1990 [a b]; 2980 [a b]"},
		{[]int64{1000}, []int64{900, 990, 5000}, "900 [b]; 990 [a b]; 5000 [b]"},
		{[]int64{1000, 9000}, []int64{4601}, "1000 [a]; 4601 [b]; 9000 [a]"},
	} {
		var got []string
		for _, e := range Merge(of("a", x.a...), of("b", x.b...)).Events {
			got = append(got, fmt.Sprint(e.T, " ", e.Nodes))
		}
		if text := strings.Join(got, "; "); text != x.want {
			t.Errorf("%v and %v: %s, want %s", x.a, x.b, text, x.want)
		}
	}
	// Of other events each has what is nearest, too.
	event := func(from, until int64) insight.Happening {
		return insight.Happening{T: from, Until: until, Kind: "saturated", Signal: "cpu"}
	}
	m := Merge(&Snapshot{Nodes: 1, Events: []insight.Happening{event(100, 110), event(160, 170)}},
		&Snapshot{Nodes: 1, Events: []insight.Happening{event(155, 180), event(300, 310)}})
	if len(m.Events) != 3 || m.Events[0].Until != 110 || m.Events[1].T != 155 || m.Events[1].Until != 180 {
		t.Errorf("%+v", m.Events)
	}
}

// What another node says of changes is bounded.
func TestCodeChanges(t *testing.T) {
	of := func(c insight.RuleChanges) error {
		s := &Snapshot{Nodes: 1, Step: 1, Events: []insight.Happening{{T: 1, Kind: "rules", RuleChanges: c}}}
		data, err := s.AppendBinary(nil)
		if err != nil {
			t.Fatal(err)
		}
		var back Snapshot
		if err := back.UnmarshalBinary(data); err != nil {
			return err
		}
		if !reflect.DeepEqual(back.Events, s.Events) {
			t.Errorf("%+v became %+v", s.Events, back.Events)
		}
		return nil
	}
	good := insight.RuleChange{Domain: "shop", Rule: "r", Change: insight.Changed,
		Fields: []insight.FieldChange{{Field: "allow", Before: "", After: strings.Repeat("x", insight.MostValue)}}}
	if err := of(insight.RuleChanges{Changes: []insight.RuleChange{good}, More: 5}); err != nil {
		t.Error(err)
	}
	long := good
	long.Fields = []insight.FieldChange{{Field: strings.Repeat("x", insight.MostValue+1)}}
	wide := good
	wide.Fields = make([]insight.FieldChange, insight.MostFields+1)
	for i, c := range []insight.RuleChanges{
		{Changes: []insight.RuleChange{long}}, {Changes: []insight.RuleChange{wide}},
		{Changes: make([]insight.RuleChange, insight.MostChanges+1)}, {More: -1},
	} {
		if of(c) == nil {
			t.Errorf("the bad changes %d are taken", i)
		}
	}
}
