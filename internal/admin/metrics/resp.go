package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/internal/door/resp"
)

// NewRESP returns a collector of the door for the Redis protocol, for Metrics.Registry.
func NewRESP(read func() resp.Stats) prometheus.Collector { return source[resp.Stats]{read, respRows} }

var respRows = []row[resp.Stats]{
	counters("weir_resp_decisions_total", "command outcome",
		"Decisions over the Redis protocol, by command and outcome; error: nothing was decided.",
		func(s resp.Stats, n count) {
			for _, d := range s.Decisions {
				n(d.N, d.Name, d.Outcome)
			}
		}),
	counter("weir_resp_other_commands_total", "Commands over the Redis protocol that decide nothing.",
		func(s resp.Stats) uint64 { return s.Other }),
	counters("weir_resp_dropped_connections_total", "reason",
		"Connections over the Redis protocol that were closed by this end, by reason.",
		func(s resp.Stats, n count) {
			for _, d := range s.Dropped {
				n(d.N, d.Name)
			}
		}),
	gauge("weir_resp_connection_bytes", "Memory that the connections over the Redis protocol take.",
		func(s resp.Stats) int64 { return s.Memory }),
}
