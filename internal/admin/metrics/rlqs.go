package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door/rlqs"
	"github.com/weir-rl/weir/internal/observe"
)

// NewRLQS returns a collector of the door for Envoy's quotas, for Metrics.Registry.
func NewRLQS(read func() rlqs.Stats) prometheus.Collector { return source[rlqs.Stats]{read, rlqsRows} }

var rlqsRows = []row[rlqs.Stats]{
	gauge("weir_rlqs_streams", "Open streams of Envoys with quotas.", func(s rlqs.Stats) int { return s.Streams }),
	gauge("weir_rlqs_buckets", "Buckets of these Envoys.", func(s rlqs.Stats) int { return s.Buckets }),
	counters("weir_rlqs_assigned_units_total", "domain limit",
		"Units of a limit that were assigned to Envoys, without what was assigned as a rate.",
		func(s rlqs.Stats, n count) {
			for name, l := range s.Limits {
				n(l.Assigned, name.Domain, name.Name)
			}
		}),
	counters("weir_rlqs_reported_total", "domain limit what",
		"Requests that Envoys decided by what was assigned, as they report them.",
		func(s rlqs.Stats, n count) {
			for name, l := range s.Limits {
				n(l.Allowed, name.Domain, name.Name, "allowed")
				n(l.Denied, name.Domain, name.Name, "denied")
			}
		}),
	counters("weir_rlqs_over_units_total", "domain limit",
		"Units of a limit that Envoys let through beyond what was paid.",
		func(s rlqs.Stats, n count) {
			for name, l := range s.Limits {
				n(l.Over, name.Domain, name.Name)
			}
		}),
	counter("weir_rlqs_short_total", "Reports with refusals of buckets whose limits had room.",
		func(s rlqs.Stats) uint64 { return s.Short }),
	counters("weir_rlqs_abandoned_total", "cause", "Buckets that an Envoy was told to forget, by cause.",
		func(s rlqs.Stats, n count) {
			n(s.AbandonedIdle, "idle")
			n(s.AbandonedMany, "many")
			n(s.AbandonedID, "id")
		}),
	counter("weir_rlqs_refused_total", "Streams that were closed because of the client's messages.",
		func(s rlqs.Stats) uint64 { return s.Refused }),
}

// reported counts requests that Envoy decided, for their limits; and ones for a domain that no rule
// file declares, which meet no limit.
func (m *Metrics) reported(r *weir.Request, d *weir.Decision, passed, refused int64) {
	if !d.Known {
		c := &m.unknownCells[observe.DoorOf(r.Door)]
		c[allowed].Add(uint64(max(passed, 0)))
		c[denied].Add(uint64(max(refused, 0)))
		m.reportUnknown(d)
		return
	}
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
