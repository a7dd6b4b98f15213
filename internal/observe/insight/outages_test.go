package insight_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
)

// at is an instant some seconds after another.
func at(s float64) time.Time {
	return time.Date(2026, 11, 30, 10, 20, 0, 0, time.UTC).Add(time.Duration(s * float64(time.Second)))
}

func lasted(node string, from, to float64, n insight.OutageCounts) insight.Outage {
	o := insight.Outage{Store: "redis", Kind: insight.StoreAway, From: at(from), Times: 1, OutageCounts: n,
		Nodes: []insight.OutageNode{{Node: node, Alone: n.Alone}}}
	if to > 0 {
		o.To = new(at(to))
	}
	return o
}

// Outages that nodes met at one time are one, with the sum of what they decided alone; others are
// not.
func TestMergeOutages(t *testing.T) {
	t.Parallel()
	b := []insight.Outage{
		lasted("b", 39, 73, insight.OutageCounts{Alone: 400, ShareAdmitted: 400, Over: 2}),
		lasted("b", 500, 510, insight.OutageCounts{Alone: 1}),
	}
	a := []insight.Outage{
		lasted("a", 40, 74, insight.OutageCounts{Alone: 467, ShareAdmitted: 460, Refused: 7}),
		{Store: insight.OutageRegion, Region: "us", Kind: insight.StoreAway, From: at(41), Times: 1,
			Nodes: []insight.OutageNode{{Node: "a"}}},
		lasted("a", 505, 0, insight.OutageCounts{Alone: 5}),
	}
	a[0].CountersLost = true
	a[0].Kind, b[0].Cause = insight.StoreUnanswered, "refused"
	got := insight.MergeOutages(b, a)
	if len(got) != 3 {
		t.Fatalf("%+v", got)
	}
	again, region, first := got[0], got[1], got[2]
	if !again.Lasts() || again.Alone != 6 || !again.From.Equal(at(500)) || len(again.Nodes) != 2 {
		t.Errorf("%+v", again)
	}
	if region.Title != "Region us away" || region.Summary != "what it admitted was not heard, and ceilings held instead" {
		t.Errorf("%+v", region)
	}
	if !first.From.Equal(at(39)) || !first.To.Equal(at(74)) || first.Kind != insight.StoreAway ||
		first.Cause != "refused" ||
		first.Title != "Redis away" || first.Summary != "867 decided alone, at least 2 over, counters lost" ||
		!reflect.DeepEqual(first.Nodes, []insight.OutageNode{{Node: "a", Alone: 467}, {Node: "b", Alone: 400}}) {
		t.Errorf("%+v", first)
	}
	if len(b[0].Nodes) != 1 || b[0].Alone != 400 {
		t.Errorf("the list was changed: %+v", b[0])
	}
}

func TestOutageWords(t *testing.T) {
	t.Parallel()
	over := new(at(60))
	for _, test := range []struct {
		outage         insight.Outage
		title, summary string
	}{
		{insight.Outage{Store: "redis", Kind: insight.StoreAway,
			OutageCounts: insight.OutageCounts{Alone: 1867, Unsettled: 3}},
			"Redis away", "1,867 decided alone"},
		{insight.Outage{Store: "redis", Kind: insight.StoreAway, PartsAway: 11, Parts: 32, To: over, Times: 3,
			OutageCounts: insight.OutageCounts{Alone: 867, Over: 2, Unsettled: 3, Unsure: 1}},
			"11 of 32 parts of Redis away", "867 decided alone, 2 over, 3 to be settled, 1 perhaps over, 3 times"},
		{insight.Outage{Store: "postgres", Kind: insight.StoreUnanswered, OutageCounts: insight.OutageCounts{Alone: 2}},
			"PostgreSQL did not answer in time", "2 decided alone"},
		{insight.Outage{Store: "cassandra", Kind: insight.StoreAway}, "Cassandra away", "no request came meanwhile"},
		{insight.Outage{Store: "redis", Kind: insight.StoreEmpty, CountersLost: true, To: over},
			"Redis came back empty", "counters lost"},
		{insight.Outage{Store: insight.OutageRules, Kind: insight.StoreAway}, "Database of the rules away",
			"the rules in force stayed, and no change of them arrived"},
	} {
		if test.outage.Describe(); test.outage.Title != test.title || test.outage.Summary != test.summary {
			t.Errorf("%s: %s", test.outage.Title, test.outage.Summary)
		}
	}
	for text, p := range map[string]insight.StorePolicies{
		"admits 1/3 of each limit": {Local: 4}, "fails closed (refuses all)": {Deny: 1}, "has no limits": {},
		"admits 1/3 of each limit under 2 rules, fails open (admits all) under 1 rule": {Local: 2, Allow: 1},
	} {
		if got := p.Does(3); got != text {
			t.Errorf("%+v: %s", p, got)
		}
	}
	if got := (insight.StorePolicies{Local: 4}).Does(1); got != "counts alone, up to the whole limit" {
		t.Error(got)
	}
}
