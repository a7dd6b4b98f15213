package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/store/lease"
)

var (
	descLeaseDecisions = prometheus.NewDesc("weir_lease_decisions_total",
		"Decisions of leased limits: by this node alone (local), by Redis (store), and in part by either, since a limit was not leased or had no units here (mixed).", []string{"domain", "rule", "limit", "by"}, nil)
	descLeaseUnits = prometheus.NewDesc("weir_lease_units_total",
		"Units of leased limits: lent to this node (granted); of these, told to Redis as used (used) and given back (returned), and those that ended untold, so that they count as used (lapsed).", []string{"domain", "rule", "limit", "what"}, nil)
	descLeaseRefused = prometheus.NewDesc("weir_lease_refused_while_out_total",
		"Refusals of leased limits that would have been admissions if no units had been lent to any node: what leases cost.", []string{"domain", "rule", "limit"}, nil)
	descLeaseHeld    = prometheus.NewDesc("weir_lease_held_units", "Units that this node was lent and can use.", nil, nil)
	descLeaseUntold  = prometheus.NewDesc("weir_lease_untold_units", "Units that this node has used, and not told Redis of yet.", nil, nil)
	descLeaseKeys    = prometheus.NewDesc("weir_lease_keys", "Keys of which this node was lent units lately.", nil, nil)
	descLeaseDropped = prometheus.NewDesc("weir_lease_dropped_total",
		"Keys whose units this node gave up before their end: its clock leaped (clock), it stood still (pause), Redis' clock leaped or another server answered (store), other numbers came into force (rules).", []string{"cause"}, nil)
	descLeaseLate = prometheus.NewDesc("weir_lease_late_total",
		"Units that may have been used after their end: above 0 there is a defect in weir, or a clock that went wrong.", nil, nil)
)

var descsLeases = []*prometheus.Desc{
	descLeaseDecisions, descLeaseUnits, descLeaseRefused, descLeaseHeld, descLeaseUntold, descLeaseKeys, descLeaseDropped, descLeaseLate,
}

// collectLeases sends a reading of this node's leases as metrics.
func collectLeases(ch chan<- prometheus.Metric, s *lease.Stats) {
	counter, gauge := counterTo(ch), gaugeTo(ch)
	gauge(descLeaseHeld, float64(s.Left))
	gauge(descLeaseUntold, float64(s.Untold))
	gauge(descLeaseKeys, float64(s.Keys))
	counter(descLeaseDropped, s.DroppedByClock, "clock")
	counter(descLeaseDropped, s.DroppedByPause, "pause")
	counter(descLeaseDropped, s.DroppedByStore, "store")
	counter(descLeaseDropped, s.DroppedByRules, "rules")
	counter(descLeaseLate, s.Late)
	// Counters with one name differ in how their window is cut, as before and after a reload.
	byName := map[limitName]*lease.LimitStats{}
	for i := range s.Limits {
		l := &s.Limits[i]
		name := limitName{l.Counter.Domain, l.Counter.Rule, l.Counter.Window}
		sum := byName[name]
		if sum == nil {
			byName[name] = l
			continue
		}
		sum.Local, sum.Store, sum.Mixed = sum.Local+l.Local, sum.Store+l.Store, sum.Mixed+l.Mixed
		sum.Granted, sum.Used, sum.Returned, sum.Lapsed = sum.Granted+l.Granted, sum.Used+l.Used, sum.Returned+l.Returned, sum.Lapsed+l.Lapsed
		sum.RefusedWhileOut += l.RefusedWhileOut
	}
	for name, l := range byName {
		domain, rule, limit := label(name.domain), label(name.rule), label(name.window)
		counter(descLeaseDecisions, l.Local, domain, rule, limit, "local")
		counter(descLeaseDecisions, l.Store, domain, rule, limit, "store")
		counter(descLeaseDecisions, l.Mixed, domain, rule, limit, "mixed")
		counter(descLeaseUnits, l.Granted, domain, rule, limit, "granted")
		counter(descLeaseUnits, l.Used, domain, rule, limit, "used")
		counter(descLeaseUnits, l.Returned, domain, rule, limit, "returned")
		counter(descLeaseUnits, l.Lapsed, domain, rule, limit, "lapsed")
		counter(descLeaseRefused, l.RefusedWhileOut, domain, rule, limit)
	}
}
