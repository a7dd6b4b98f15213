package metrics

import "github.com/weir-rl/weir/store/regions"

var regionRows = []row[regions.Stats]{
	gauge("weir_region_leads", "1 on the node that hears the other regions for all nodes of its own.",
		func(s regions.Stats) float64 { return oneIf(s.Leads) }),
	gauge("weir_region_keys", "Keys with uses that are not told yet.",
		func(s regions.Stats) int { return s.Keys }),
	counter("weir_region_untold_total",
		"Uses that the other regions may not hear of, since the store failed while they were told.",
		func(s regions.Stats) uint64 { return s.Untold }),
	gauges("weir_region_staleness_seconds", "peer",
		"How old the newest use of another region is that was certainly heard; only on the node that hears, and once something was heard.",
		func(s regions.Stats, v value) {
			for _, p := range s.Peers {
				if p.Stale >= 0 {
					v(p.Stale.Seconds(), p.Name)
				}
			}
		}),
	gauges("weir_region_differs", "peer what",
		"1 if another region has other weights (table) or other rule files (rules), as it said last; only on the node that hears.",
		func(s regions.Stats, v value) {
			for _, p := range s.Peers {
				if p.Stale >= 0 {
					v(oneIf(p.Differs.Table), p.Name, "table")
					v(oneIf(p.Differs.Rules), p.Name, "rules")
				}
			}
		}),
	ofPeers("weir_region_uses_total", "peer what",
		"Uses that another region reported: charged here (heard), and of rules that are not known here (unknown).",
		func(p *regions.PeerStats, n count) {
			n(p.Uses-p.Unknown, p.Name, "heard")
			n(p.Unknown, p.Name, "unknown")
		}),
	ofPeers("weir_region_gaps_total", "peer",
		"Times that a part of another region's log was gone before it was heard.",
		func(p *regions.PeerStats, n count) { n(p.Gaps, p.Name) }),
	ofPeers("weir_region_errors_total", "peer", "Calls to the store of another region that failed.",
		func(p *regions.PeerStats, n count) { n(p.Errors, p.Name) }),
	ofPeers("weir_region_borrow_requests_total", "peer", "Times that another region was asked for units.",
		func(p *regions.PeerStats, n count) { n(p.Asked, p.Name) }),
	ofPeers("weir_region_loans_total", "peer what",
		"Units that another region lent: put to use here (borrowed), and those that came too late, so that nobody has them (lost).",
		func(p *regions.PeerStats, n count) {
			n(p.Borrowed, p.Name, "borrowed")
			n(p.Lost, p.Name, "lost")
		}),
	ofRegionLimits("weir_region_units_total", "domain rule limit what",
		"Units of limits that hold over several regions: admitted by this node (used), told to the other regions (told), heard of them and charged (heard), heard when they did not count any more (late), heard while the store failed, so that nobody knows whether they were charged (unsure), borrowed of them (borrowed).",
		func(l *regions.LimitStats, n count) {
			n(l.Used.Used, "used")
			n(l.Told.Used, "told")
			n(l.Heard.Used, "heard")
			n(l.Late.Used, "late")
			n(l.Unsure.Used, "unsure")
			n(l.Borrowed, "borrowed")
		}),
	ofRegionLimits("weir_region_units_back_total", "domain rule limit what",
		"Units that were given back after they were used, as weir_region_units_total.",
		func(l *regions.LimitStats, n count) {
			n(l.Used.Back, "used")
			n(l.Told.Back, "told")
			n(l.Heard.Back, "heard")
			n(l.Late.Back, "late")
			n(l.Unsure.Back, "unsure")
		}),
	ofRegionLimits("weir_region_over_units_total", "domain rule limit",
		"Units that were heard of other regions and found the limit full: what all regions admitted beyond it.",
		func(l *regions.LimitStats, n count) { n(l.Over) }),
	ofRegionLimits("weir_region_ceiling_refusals_total", "domain rule limit",
		"Requests that the ceiling of this region refused though the limit had room, as far as was heard: the price of the bound.",
		func(l *regions.LimitStats, n count) { n(l.Ceiling) }),
}

// ofPeers returns the row of counters of each other region.
func ofPeers(name, labels, help string, each func(p *regions.PeerStats, n count)) row[regions.Stats] {
	return counters(name, labels, help, func(s regions.Stats, n count) {
		for i := range s.Peers {
			each(&s.Peers[i], n)
		}
	})
}

// ofRegionLimits returns the row of counters of each limit, to whose labels each adds the rest.
func ofRegionLimits(name, labels, help string, each func(l *regions.LimitStats, n count)) row[regions.Stats] {
	return counters(name, labels, help, func(s regions.Stats, n count) {
		for name, l := range s.Limits {
			each(&l, n.of(name.Domain, name.Rule, name.Limit))
		}
	})
}
