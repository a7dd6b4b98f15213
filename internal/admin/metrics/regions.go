package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/store/regions"
)

var (
	descRegionLeads = prometheus.NewDesc("weir_region_leads",
		"1 on the node that hears the other regions for all nodes of its own.", nil, nil)
	descRegionStale = prometheus.NewDesc("weir_region_staleness_seconds",
		"How old the newest use of another region is that was certainly heard; only on the node that hears, and once something was heard.", []string{"peer"}, nil)
	descRegionDiffers = prometheus.NewDesc("weir_region_differs",
		"1 if another region has other weights (table) or other rule files (rules), as it said last; only on the node that hears.", []string{"peer", "what"}, nil)
	descRegionUses = prometheus.NewDesc("weir_region_uses_total",
		"Uses that another region told of: charged here (heard), and of rules that are not known here (unknown).", []string{"peer", "what"}, nil)
	descRegionGaps = prometheus.NewDesc("weir_region_gaps_total",
		"Times that a part of what another region told was gone before it was heard.", []string{"peer"}, nil)
	descRegionErrors = prometheus.NewDesc("weir_region_errors_total",
		"Calls to the store of another region that failed.", []string{"peer"}, nil)
	descRegionAsked = prometheus.NewDesc("weir_region_borrow_requests_total",
		"Times that another region was asked for units.", []string{"peer"}, nil)
	descRegionLoans = prometheus.NewDesc("weir_region_loans_total",
		"Units that another region lent: put to use here (borrowed), and those that came too late, so that nobody has them (lost).", []string{"peer", "what"}, nil)
	descRegionUnits = prometheus.NewDesc("weir_region_units_total",
		"Units of limits that hold over several regions: admitted by this node (used), told to the other regions (told), heard of them and charged (heard), heard when they did not count any more (late), heard while the store failed, so that nobody knows whether they were charged (unsure), borrowed of them (borrowed).",
		[]string{"domain", "rule", "limit", "what"}, nil)
	descRegionBack = prometheus.NewDesc("weir_region_units_back_total",
		"Units that were given back after they were used, as weir_region_units_total.", []string{"domain", "rule", "limit", "what"}, nil)
	descRegionOver = prometheus.NewDesc("weir_region_over_units_total",
		"Units that were heard of other regions and found the limit full: what all regions admitted beyond it.", []string{"domain", "rule", "limit"}, nil)
	descRegionCeiling = prometheus.NewDesc("weir_region_ceiling_refusals_total",
		"Requests that the ceiling of this region refused though the limit had room, as far as was heard: the price of the bound.", []string{"domain", "rule", "limit"}, nil)
	descRegionUntold = prometheus.NewDesc("weir_region_untold_total",
		"Uses that the other regions may not hear of, since the store failed while they were told.", nil, nil)
	descRegionKeys = prometheus.NewDesc("weir_region_keys",
		"Keys with uses that are not told yet.", nil, nil)
)

var descsRegions = []*prometheus.Desc{
	descRegionLeads, descRegionStale, descRegionDiffers, descRegionUses, descRegionGaps, descRegionErrors, descRegionAsked, descRegionLoans, descRegionUnits, descRegionBack, descRegionOver,
	descRegionCeiling, descRegionUntold, descRegionKeys,
}

// collectRegions sends a reading of the exchange between regions as metrics.
func collectRegions(ch chan<- prometheus.Metric, s *regions.Stats) {
	counter, gauge := counterTo(ch), gaugeTo(ch)
	gauge(descRegionLeads, one(s.Leads))
	gauge(descRegionKeys, float64(s.Keys))
	counter(descRegionUntold, s.Untold)
	for i := range s.Peers {
		p := &s.Peers[i]
		if p.Stale >= 0 {
			gauge(descRegionStale, p.Stale.Seconds(), p.Name)
			gauge(descRegionDiffers, one(p.Differs.Table), p.Name, "table")
			gauge(descRegionDiffers, one(p.Differs.Rules), p.Name, "rules")
		}
		counter(descRegionUses, p.Uses-p.Unknown, p.Name, "heard")
		counter(descRegionUses, p.Unknown, p.Name, "unknown")
		counter(descRegionGaps, p.Gaps, p.Name)
		counter(descRegionErrors, p.Errors, p.Name)
		counter(descRegionAsked, p.Asked, p.Name)
		counter(descRegionLoans, p.Borrowed, p.Name, "borrowed")
		counter(descRegionLoans, p.Lost, p.Name, "lost")
	}
	for name, l := range s.Limits {
		domain, rule, limit := label(name.Domain), label(name.Rule), label(name.Limit)
		for _, of := range []struct {
			net  regions.Net
			what string
		}{{l.Used, "used"}, {l.Told, "told"}, {l.Heard, "heard"}, {l.Late, "late"}, {l.Unsure, "unsure"}} {
			counter(descRegionUnits, of.net.Used, domain, rule, limit, of.what)
			counter(descRegionBack, of.net.Back, domain, rule, limit, of.what)
		}
		counter(descRegionUnits, l.Borrowed, domain, rule, limit, "borrowed")
		counter(descRegionOver, l.Over, domain, rule, limit)
		counter(descRegionCeiling, l.Ceiling, domain, rule, limit)
	}
}

func one(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
