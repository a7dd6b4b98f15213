package fleet

import (
	"reflect"
	"testing"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/testkit/redistest"
)

// TestRegions: any node answers with the counts of all nodes of the region, and with the staleness
// of another region as seen by the node that hears it.
func TestRegions(t *testing.T) {
	t.Parallel()
	all := newFleet(t, redistest.Start(t).URL(), 3, shop)
	old := 0.5
	search := func(used, over uint64) insight.RegionalUnits {
		return insight.RegionalUnits{Domain: "shop", Rule: "search", Used: insight.NetUnits{Units: used, Back: 1},
			OverUnits: over, CeilingRefusals: used}
	}
	all[0].regions = insight.RegionsReading{Untold: 1, Keys: 2,
		Peers: []insight.RegionPeer{{Region: "us", Borrowed: 10}}, Limits: []insight.RegionalUnits{search(100, 0)}}
	all[1].regions = insight.RegionsReading{
		Leader: "it", Orders: 3,
		Peers: []insight.RegionPeer{{Region: "ap"}, {Region: "us", Staleness: &old, Rules: true, Uses: 7, Borrowed: 1}},
		// It has a rule that the others do not have yet.
		Limits: []insight.RegionalUnits{{Domain: "mail", Rule: "send", Told: insight.NetUnits{Units: 4}}, search(10, 5)},
	}
	want := &insight.RegionsReading{
		Leader: "node-1", Untold: 1, Orders: 3, Keys: 2,
		Peers: []insight.RegionPeer{{Region: "ap"}, {Region: "us", Staleness: &old, Rules: true, Uses: 7, Borrowed: 11}},
		Limits: []insight.RegionalUnits{
			{Domain: "mail", Rule: "send", Told: insight.NetUnits{Units: 4}},
			{Domain: "shop", Rule: "search", Used: insight.NetUnits{Units: 110, Back: 2}, OverUnits: 5, CeilingRefusals: 110},
		},
	}
	for _, m := range all {
		got, n := m.Regions(t.Context())
		if n.Answered != 3 || n.Asked != 3 || n.Remark != "" {
			t.Errorf("%s: %+v", m.Self(), n)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", m.Self(), got, want)
		}
	}
	if of := want.Of("shop", "search"); of.OverUnits != 5 {
		t.Errorf("of a rule: %+v", of)
	}
	many := insight.RegionsReading{Limits: []insight.RegionalUnits{
		{Domain: "shop", Rule: "a", Window: "a", OverUnits: 1}, {Domain: "shop", Rule: "search", Window: "search:1s", OverUnits: 2},
		{Domain: "shop", Rule: "search", Window: "search:60s", OverUnits: 5}, {Domain: "shop", Rule: "z", Window: "z", OverUnits: 10},
	}}
	if of, window := many.Of("shop", "search"), many.OfWindow("shop", "search", "search:60s"); of.OverUnits != 7 ||
		of.Window != "" || window.OverUnits != 5 {
		t.Errorf("of several windows: %+v, of one %+v", of, window)
	}
	if of := want.Of("shop", "none"); of != (insight.RegionalUnits{Domain: "shop", Rule: "none"}) {
		t.Errorf("of none: %+v", of)
	}
}

// TestNoRegions: a node that is alone, or in no region, has no regions.
func TestNoRegions(t *testing.T) {
	f := New(Options{Name: "a"})
	if got, n := f.Regions(t.Context()); len(got.Peers) != 0 || n != alone {
		t.Errorf("%+v %+v", got, n)
	}
}
