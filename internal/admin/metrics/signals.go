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
func NewLoad(o LoadOptions) prometheus.Collector { return loadCollector{o} }

type loadCollector struct{ o LoadOptions }

var (
	descSignal       = prometheus.NewDesc("weir_signal_percent", "Filtered value of a signal of elastic limits; left out while there is none.", []string{"signal"}, nil)
	descSignalStale  = prometheus.NewDesc("weir_signal_stale", "1 if there is no value of a signal, so that limits which follow it stand at 100 percent; 0 else.", []string{"signal"}, nil)
	descSignalErrors = prometheus.NewDesc("weir_signal_errors_total", "Tries to read a signal that failed.", []string{"signal"}, nil)
	descElastic      = prometheus.NewDesc("weir_elastic_share", "Share of an elastic limit that is in force on this node: 1 is all of it.", []string{"domain", "rule", "limit"}, nil)
	descOverload     = prometheus.NewDesc("weir_overload_limit", "How many requests may be under way at the same time.", nil, nil)
	descInFlight     = prometheus.NewDesc("weir_overload_in_flight", "Requests under way.", nil, nil)
	descShed         = prometheus.NewDesc("weir_overload_shed_total", "Requests that were turned away since too many were under way, by priority.", []string{"priority"}, nil)
)

var descsLoad = []*prometheus.Desc{descSignal, descSignalStale, descSignalErrors, descElastic, descOverload, descInFlight, descShed}

// Describe implements prometheus.Collector.
func (c loadCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descsLoad {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c loadCollector) Collect(ch chan<- prometheus.Metric) {
	counter, gauge := counterTo(ch), gaugeTo(ch)
	if c.o.List != nil {
		for _, s := range c.o.List() {
			if !s.Used && s.Kind == load.Measured {
				continue
			}
			stale := 0.0
			if s.Stale {
				stale = 1
			} else {
				gauge(descSignal, float64(s.Value), label(s.Name))
			}
			gauge(descSignalStale, stale, label(s.Name))
			counter(descSignalErrors, s.Errors, label(s.Name))
		}
	}
	if c.o.Limiter != nil && c.o.Signals != nil {
		set, _ := c.o.Limiter.Rules()
		elasticShares(set, c.o.Signals, func(r *rule.Rule, share float64) {
			gauge(descElastic, share, label(r.Domain), label(r.Name), label(r.Name))
		})
	}
	if c.o.Overload != nil {
		o := c.o.Overload()
		gauge(descOverload, float64(o.Limit))
		gauge(descInFlight, float64(o.InFlight))
		for i, name := range shedNames {
			counter(descShed, o.Refused[i], name)
		}
	}
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
