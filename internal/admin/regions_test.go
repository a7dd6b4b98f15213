package admin

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/rule"
)

// inRegion are nodes of one region among several.
type inRegion struct {
	alone
	read insight.RegionsReading
}

func (n *inRegion) Regions(context.Context) (*insight.RegionsReading, insight.Nodes) {
	read := n.read
	return &read, insight.Nodes{Asked: 2, Answered: 2}
}

const regionRules = `
domain: shop
limits:
  - { name: tokens, per: [tenant], allow: 1001/day, consistency: { regions: { over: 0% } } }
  - name: search
    allow: [600/min, { rate: 60/s, burst: 30 }]
    consistency: { regions: { over: 20%, tell: 5% } }
  - { name: local, per: [ip], allow: 10/min }
  - { name: free, when: { path: /free }, allow: unlimited }
`

const otherRules = `
domain: mail
limits:
  - { name: send, per: [user], allow: 100/hour, consistency: { regions: sync } }
`

// askRegions makes an admin port of a node in eu, and asks it.
func askRegions(t *testing.T, n Nodes, target string) (doortest.Answer, RegionsReport) {
	t.Helper()
	l, _, _ := doortest.NewLimiter(t, regionRules, otherRules)
	h := New(l, Options{Nodes: n, Regions: &Regions{
		Own: "eu", Table: []Region{{"ap", 1}, {"eu", 2}, {"sa", 0}, {"us", 1}},
		Ceiling: func(c *rule.Counter, l *algo.Limit) *algo.Limit {
			of, err := l.Scale(int64(100+c.Regions.Over)*2, 400)
			if err != nil {
				t.Fatal(err)
			}
			return of
		},
	}})
	t.Cleanup(h.Close)
	a := onAdmin(h, "GET", target, "")
	var report RegionsReport
	if a.Status == 200 {
		if err := json.Unmarshal([]byte(a.Body), &report); err != nil {
			t.Fatal(err)
		}
	}
	return a, report
}

// TestRegions: the regions with their shares and states, and the limits over all of them with this
// region's ceilings.
func TestRegions(t *testing.T) {
	soon, late := 0.4, 12.5
	n := &inRegion{read: insight.RegionsReading{
		Leader: "n2", Untold: 1, Orders: 2, Keys: 3,
		Peers: []insight.RegionPeer{
			{Region: "ap", Staleness: &late, Rules: true, Gaps: 4}, {Region: "sa"}, {Region: "us", Staleness: &soon, Weights: true, Uses: 100, Unknown: 7, Errors: 5, Asked: 9, Borrowed: 80, Lost: 6},
		},
		Limits: []insight.RegionalUnits{
			{Domain: "shop", Rule: "search", Window: "search:1s", Used: insight.NetUnits{Units: 100, Back: 10}, CeilingRefusals: 12},
			{Domain: "shop", Rule: "search", Window: "search:60s", Used: insight.NetUnits{Units: 400}, OverUnits: 11},
		},
	}}
	a, report := askRegions(t, n, "/api/v1/regions")
	if a.Status != 200 {
		t.Fatal(a.Body)
	}
	if report.Region != "eu" || report.Leader != "n2" || report.Untold != 1 || report.Orders != 2 || report.Keys != 3 ||
		report.Nodes.Answered != 2 {
		t.Errorf("%+v", report)
	}
	var got []string
	for _, r := range report.Regions {
		got = append(got, r.Region+" "+r.State)
	}
	if want := "ap silent, eu own, sa never, us heard"; strings.Join(got, ", ") != want {
		t.Errorf("the regions are %v, want %s", got, want)
	}
	if eu, us := report.Regions[1], report.Regions[3]; !eu.Own || eu.Weight != 2 || eu.Share != 0.5 ||
		us.Share != 0.25 || !us.Weights || us.Rules || us.Borrowed != 80 || *us.Staleness != soon ||
		eu.Staleness != nil {
		t.Errorf("eu %+v, us %+v", eu, us)
	}
	if strings.Join(report.Each, " ") != "shop/local" {
		t.Errorf("counted by each region: %v", report.Each)
	}
	if len(report.Limits) != 3 || report.Limits[0].Rule != "tokens" || report.Limits[1].Rule != "search" ||
		report.Limits[2].Rule != "send" {
		t.Fatalf("%+v", report.Limits)
	}
	tokens, search, send := report.Limits[0], report.Limits[1], report.Limits[2]
	if !send.Sync || tokens.Sync || tokens.Over != 0 || search.Over != 20 || search.Tell != 5 {
		t.Errorf("over: %+v", report.Limits)
	}
	if w := tokens.Windows; len(w) != 1 || w[0].Limit != 1001 || w[0].Ceiling != 500 {
		t.Errorf("the ceiling of tokens: %+v", w)
	}
	if w := search.Windows; len(w) != 2 || w[0].Name != "search:60s" || w[0].Ceiling != 360 || w[1].Burst != 30 ||
		w[1].CeilingBurst != 18 {
		t.Errorf("the ceilings of search: %+v", w)
	}
	if search.Used != (insight.NetUnits{Units: 500, Back: 10}) || search.OverUnits != 11 ||
		search.CeilingRefusals != 12 || tokens.Used.Units != 0 {
		t.Errorf("the units: %+v", report.Limits)
	}
	if w := search.Windows; w[0].Counted == nil || w[0].Counted.OverUnits != 11 || w[1].Counted == nil ||
		w[1].Counted.CeilingRefusals != 12 || tokens.Windows[0].Counted != nil {
		t.Errorf("the units of each window: %+v", report.Limits)
	}
	if _, report := askRegions(t, n, "/api/v1/regions?domain=mail"); len(report.Limits) != 1 || len(report.Each) != 0 ||
		len(report.Regions) != 4 {
		t.Errorf("of one domain: %+v", report)
	}
}

// TestRegionsUnheard: while no node leads, nothing is known of the other regions.
func TestRegionsUnheard(t *testing.T) {
	_, report := askRegions(t, &inRegion{}, "/api/v1/regions")
	for _, r := range report.Regions {
		if want := map[bool]string{true: "own", false: "unknown"}[r.Own]; r.State != want {
			t.Errorf("%s is %s", r.Region, r.State)
		}
	}
}

// TestNoRegions: a server that is in none says so, and how to set some up, and does not list them.
func TestNoRegions(t *testing.T) {
	w := newWhole(t, func(o *Options) { o.Regions = nil })
	if a := w.as("viewer", "GET", "/api/v1/regions", ""); a.Status != 404 ||
		!strings.Contains(a.Body, "no regions are configured") || !strings.Contains(a.Body, "regions.weights") {
		t.Errorf("%d %s", a.Status, a.Body)
	}
	if a := w.as("viewer", "GET", "/help", ""); strings.Contains(a.Body, "/api/v1/regions") {
		t.Error("they are listed")
	}
}
