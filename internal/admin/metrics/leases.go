package metrics

import "github.com/weir-rl/weir/store/lease"

var leaseRows = []row[lease.Stats]{
	gauge("weir_lease_held_units", "Units that this node was lent and can use.",
		func(s lease.Stats) int64 { return s.Left }),
	gauge("weir_lease_untold_units", "Units that this node has used, and not told Redis of yet.",
		func(s lease.Stats) int64 { return s.Untold }),
	gauge("weir_lease_keys", "Keys of which this node was lent units lately.",
		func(s lease.Stats) int64 { return s.Keys }),
	counters("weir_lease_dropped_total", "cause",
		"Keys whose units this node gave up before their end: its clock leaped (clock), it stood still (pause), Redis' clock leaped or another server answered (store), other numbers came into force (rules).",
		func(s lease.Stats, n count) {
			n(s.DroppedByClock, "clock")
			n(s.DroppedByPause, "pause")
			n(s.DroppedByStore, "store")
			n(s.DroppedByRules, "rules")
		}),
	counter("weir_lease_late_total",
		"Units that may have been used after their end: above 0 there is a defect in weir, or a clock that went wrong.",
		func(s lease.Stats) uint64 { return s.Late }),
	ofLeases("weir_lease_decisions_total", "domain rule limit by",
		"Decisions of leased limits: by this node alone (local), by Redis (store), and in part by either, since a limit was not leased or had no units here (mixed).",
		func(l *lease.LimitStats, n count) {
			n(l.Local, "local")
			n(l.Store, "store")
			n(l.Mixed, "mixed")
		}),
	ofLeases("weir_lease_units_total", "domain rule limit what",
		"Units of leased limits: lent to this node (granted); of these, told to Redis as used (used) and given back (returned), and those that ended untold, so that they count as used (lapsed).",
		func(l *lease.LimitStats, n count) {
			n(l.Granted, "granted")
			n(l.Used, "used")
			n(l.Returned, "returned")
			n(l.Lapsed, "lapsed")
		}),
	ofLeases("weir_lease_refused_while_out_total", "domain rule limit",
		"Refusals of leased limits that would have been admissions if no units had been lent to any node: what leases cost.",
		func(l *lease.LimitStats, n count) { n(l.RefusedWhileOut) }),
}

// ofLeases returns the row of counters of each limit that lends.
func ofLeases(name, labels, help string, each func(l *lease.LimitStats, n count)) row[lease.Stats] {
	return counters(name, labels, help, func(s lease.Stats, n count) {
		for name, l := range byName(s.Limits) {
			each(l, n.of(name.domain, name.rule, name.window))
		}
	})
}

// byName adds up the counts of counters with one name, which differ in how their window is cut, as
// before and after a reload.
func byName(limits []lease.LimitStats) map[limitName]*lease.LimitStats {
	all := map[limitName]*lease.LimitStats{}
	for _, l := range limits {
		name := limitName{l.Counter.Domain, l.Counter.Rule, l.Counter.Window}
		sum := all[name]
		if sum == nil {
			all[name] = &l
			continue
		}
		sum.Local, sum.Store, sum.Mixed = sum.Local+l.Local, sum.Store+l.Store, sum.Mixed+l.Mixed
		sum.Granted, sum.Used, sum.Returned, sum.Lapsed = sum.Granted+l.Granted, sum.Used+l.Used,
			sum.Returned+l.Returned, sum.Lapsed+l.Lapsed
		sum.RefusedWhileOut += l.RefusedWhileOut
	}
	return all
}
