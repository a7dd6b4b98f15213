package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/host/load"
	"github.com/weir-rl/weir/overload"
	"github.com/weir-rl/weir/rule"
)

// shedNames are the labels of overload.Priorities.
var shedNames = [len(overload.Priorities)]string{"sheddable", "default", "critical"}

// LoadOptions say what NewLoad reads. A nil field means that there is no such metric.
type LoadOptions struct {
	// Limiter and Signals say which share of the elastic limits is in force.
	Limiter *weir.Limiter
	Signals weir.Signals
	// List reads the signals, without those that weir measures but no rule follows. Overload reads
	// the bound on requests in flight.
	List     func() []load.Info
	Overload func() overload.Stats
}

// NewLoad returns a collector of signals, elastic limits and overload, for Metrics.Registry.
func NewLoad(o LoadOptions) prometheus.Collector {
	return group{
		source[[]load.Info]{o.List, signalRows}, source[LoadOptions]{func() LoadOptions { return o }, elasticRows},
		source[overload.Stats]{o.Overload, overloadRows},
	}
}

var signalRows = []row[[]load.Info]{
	gauges("weir_signal_percent", "signal",
		"Filtered value of a signal of elastic limits; left out while there is none.",
		func(list []load.Info, v value) {
			for _, s := range list {
				if followed(s) && !s.Stale {
					v(float64(s.Value), label(s.Name))
				}
			}
		}),
	gauges("weir_signal_stale", "signal",
		"1 if there is no value of a signal, so that limits which follow it stand at 100 percent; 0 else.",
		func(list []load.Info, v value) {
			for _, s := range list {
				if followed(s) {
					v(oneIf(s.Stale), label(s.Name))
				}
			}
		}),
	counters("weir_signal_errors_total", "signal", "Tries to read a signal that failed.",
		func(list []load.Info, n count) {
			for _, s := range list {
				if followed(s) {
					n(s.Errors, label(s.Name))
				}
			}
		}),
}

// followed reports whether a signal is more than one that weir measures and no rule follows.
func followed(s load.Info) bool { return s.Used || s.Kind != load.Measured }

var elasticRows = []row[LoadOptions]{
	gauges("weir_elastic_share", "domain rule limit",
		"Share of an elastic limit that is in force on this node: 1 is all of it.",
		func(o LoadOptions, v value) {
			if o.Limiter == nil || o.Signals == nil {
				return
			}
			set, _ := o.Limiter.Rules()
			elasticShares(set, o.Signals, func(r *rule.Rule, share float64) {
				v(share, label(r.Domain), label(r.Name), label(r.Name))
			})
		}),
}

var overloadRows = []row[overload.Stats]{
	gauge("weir_overload_limit", "How many requests may be under way at the same time.",
		func(s overload.Stats) int { return s.Limit }),
	gauge("weir_overload_in_flight", "Requests under way.",
		func(s overload.Stats) int { return s.InFlight }),
	counters("weir_overload_shed_total", "priority",
		"Requests that were turned away since too many were under way, by priority.",
		func(s overload.Stats, n count) {
			for i, name := range shedNames {
				n(s.Refused[i], name)
			}
		}),
}

// elasticShares calls tell with the share of each elastic rule of set, once for each name.
func elasticShares(set *rule.Set, signals weir.Signals, tell func(r *rule.Rule, share float64)) {
	if set == nil {
		return
	}
	type name struct{ domain, rule string }
	told := map[name]bool{}
	for _, r := range set.Rules() {
		if r.Elastic == nil || told[name{r.Domain, r.Name}] {
			continue
		}
		told[name{r.Domain, r.Name}] = true
		share := 1.0
		if v, ok := signals.Signal(r.Elastic.Signal); ok {
			num, den := r.Elastic.Share(v)
			share = float64(num) / float64(den)
		}
		tell(r, share)
	}
}
