package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door/rlqs"
)

// NewRLQS returns a collector of the door for Envoy's quotas, for Metrics.Registry.
func NewRLQS(read func() rlqs.Stats) prometheus.Collector { return rlqsCollector{read} }

type rlqsCollector struct{ read func() rlqs.Stats }

var (
	descRLQSStreams   = prometheus.NewDesc("weir_rlqs_streams", "Open streams of Envoys with quotas.", nil, nil)
	descRLQSBuckets   = prometheus.NewDesc("weir_rlqs_buckets", "Buckets of these Envoys.", nil, nil)
	descRLQSAssigned  = prometheus.NewDesc("weir_rlqs_assigned_units_total", "Units of a limit that were assigned to Envoys, without what was assigned as a rate.", []string{"domain", "limit"}, nil)
	descRLQSReported  = prometheus.NewDesc("weir_rlqs_reported_total", "Requests that Envoys decided by what was assigned, as they report them.", []string{"domain", "limit", "what"}, nil)
	descRLQSOver      = prometheus.NewDesc("weir_rlqs_over_units_total", "Units of a limit that Envoys let through beyond what was paid.", []string{"domain", "limit"}, nil)
	descRLQSShort     = prometheus.NewDesc("weir_rlqs_short_total", "Reports with refusals of buckets whose limits had room.", nil, nil)
	descRLQSAbandoned = prometheus.NewDesc("weir_rlqs_abandoned_total", "Buckets that an Envoy was told to forget, by cause.", []string{"cause"}, nil)
	descRLQSRefused   = prometheus.NewDesc("weir_rlqs_refused_total", "Streams that were closed for what the client did.", nil, nil)
)

var descsRLQS = []*prometheus.Desc{
	descRLQSStreams, descRLQSBuckets, descRLQSAssigned, descRLQSReported, descRLQSOver, descRLQSShort, descRLQSAbandoned, descRLQSRefused,
}

// Describe implements prometheus.Collector.
func (c rlqsCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descsRLQS {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c rlqsCollector) Collect(ch chan<- prometheus.Metric) {
	counter, gauge, s := counterTo(ch), gaugeTo(ch), c.read()
	gauge(descRLQSStreams, float64(s.Streams))
	gauge(descRLQSBuckets, float64(s.Buckets))
	for name, l := range s.Limits {
		counter(descRLQSAssigned, l.Assigned, name.Domain, name.Name)
		counter(descRLQSReported, l.Allowed, name.Domain, name.Name, "allowed")
		counter(descRLQSReported, l.Denied, name.Domain, name.Name, "denied")
		counter(descRLQSOver, l.Over, name.Domain, name.Name)
	}
	counter(descRLQSShort, s.Short)
	counter(descRLQSAbandoned, s.AbandonedIdle, "idle")
	counter(descRLQSAbandoned, s.AbandonedMany, "many")
	counter(descRLQSAbandoned, s.AbandonedID, "id")
	counter(descRLQSRefused, s.Refused)
}

// reported counts requests that Envoy decided, for their limits.
func (m *Metrics) reported(_ *weir.Request, d *weir.Decision, passed, refused int64) {
	t, indexed := m.tableFor(d)
	if !indexed {
		return
	}
	for i := range d.Matches.Hits {
		w := d.Matches.Hits[i].Window
		if w.Counter == nil {
			continue
		}
		c := &t.limits[w.Counter.Index].cells
		c.n[allowed].Add(uint64(max(passed, 0)))
		c.n[denied].Add(uint64(max(refused, 0)))
	}
}
