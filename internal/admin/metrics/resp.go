package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/internal/door/resp"
)

// NewRESP returns a collector of the door for the Redis protocol, for Metrics.Registry.
func NewRESP(read func() resp.Stats) prometheus.Collector { return respCollector{read} }

type respCollector struct{ read func() resp.Stats }

var (
	descRESPDecisions = prometheus.NewDesc("weir_resp_decisions_total", "Decisions over the Redis protocol, by command and outcome; error: nothing was decided.", []string{"command", "outcome"}, nil)
	descRESPOther     = prometheus.NewDesc("weir_resp_other_commands_total", "Commands over the Redis protocol that decide nothing.", nil, nil)
	descRESPDropped   = prometheus.NewDesc("weir_resp_dropped_connections_total", "Connections over the Redis protocol that were closed by this end, by reason.", []string{"reason"}, nil)
	descRESPMemory    = prometheus.NewDesc("weir_resp_connection_bytes", "Memory that the connections over the Redis protocol take.", nil, nil)
)

var descsRESP = []*prometheus.Desc{descRESPDecisions, descRESPOther, descRESPDropped, descRESPMemory}

// Describe implements prometheus.Collector.
func (c respCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descsRESP {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c respCollector) Collect(ch chan<- prometheus.Metric) {
	counter, r := counterTo(ch), c.read()
	for _, d := range r.Decisions {
		counter(descRESPDecisions, d.N, d.Name, d.Outcome)
	}
	counter(descRESPOther, r.Other)
	for _, d := range r.Dropped {
		counter(descRESPDropped, d.N, d.Name)
	}
	gaugeTo(ch)(descRESPMemory, float64(r.Memory))
}
