package server

import (
	"maps"
	"slices"

	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/store/regions"
)

// adminRegions are the regions in the form of the admin API; nil if there is only one.
func (p *program) adminRegions() *admin.Regions {
	if p.storage.regions == nil {
		return nil
	}
	r := &admin.Regions{Own: p.c.region, Ceiling: p.storage.regions.Ceiling}
	for _, name := range slices.Sorted(maps.Keys(p.c.regionWeights)) {
		r.Table = append(r.Table, admin.Region{Name: name, Weight: p.c.regionWeights[name]})
	}
	return r
}

// readRegions is this node's reading of the counters between regions, for the other nodes.
func (s *storage) readRegions() *insight.RegionsReading {
	stats := s.regions.Stats()
	r := &insight.RegionsReading{Untold: stats.Untold, Orders: stats.Orders, Keys: stats.Keys}
	if stats.Leads {
		r.Leader = "this one"
	}
	for i := range stats.Peers {
		p := &stats.Peers[i]
		peer := insight.RegionPeer{
			Region: p.Name, Weights: p.Differs.Table, Rules: p.Differs.Rules, Uses: p.Uses, Unknown: p.Unknown,
			Gaps: p.Gaps, Errors: p.Errors, Asked: p.Asked, Borrowed: p.Borrowed, Lost: p.Lost,
		}
		if p.Stale >= 0 {
			old := p.Stale.Seconds()
			peer.Staleness = &old
		}
		r.Peers = append(r.Peers, peer)
	}
	for name, l := range stats.Limits {
		r.Limits = append(r.Limits, insight.RegionalUnits{
			Domain: name.Domain, Rule: name.Rule, Window: name.Limit, Used: units(l.Used), Told: units(l.Told), Heard: units(l.Heard), Late: units(l.Late),
			Unsure: units(l.Unsure), OverUnits: l.Over, Borrowed: l.Borrowed, CeilingRefusals: l.Ceiling,
		})
	}
	slices.SortFunc(r.Limits, insight.CompareRegional)
	return r
}

func units(n regions.Net) insight.NetUnits { return insight.NetUnits{Units: n.Used, Back: n.Back} }
