package metrics

import "github.com/prometheus/client_golang/prometheus"

// ExportOptions say what NewExports reads. A nil field means that there is no such metric.
type ExportOptions struct {
	DecisionsDropped func() uint64                  // decisions that the decision log left out
	Failed           func() uint64                  // failed exports to OpenTelemetry's collector
	Dropped          func() (spans, records uint64) // dropped spans and log records
}

// NewExports returns a collector of the decision log and of the exports by OpenTelemetry, for
// Metrics.Registry.
func NewExports(o ExportOptions) prometheus.Collector { return exportCollector{o} }

type exportCollector struct{ o ExportOptions }

var (
	descDecisionsDropped = prometheus.NewDesc("weir_decision_log_dropped_total", "Decisions that the decision log left out: beyond its bound of a second, since too many waited, or since they could not be written.", nil, nil)
	descExportsDropped   = prometheus.NewDesc("weir_otel_dropped_total", "Spans (traces) and log records (logs) that the collector of OpenTelemetry did not get: too many waited, or their export failed.", []string{"signal"}, nil)
	descExportsFailed    = prometheus.NewDesc("weir_otel_failed_exports_total", "Exports to the collector of OpenTelemetry that failed; each may have held many spans, log records or metrics.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c exportCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- descDecisionsDropped
	ch <- descExportsFailed
	ch <- descExportsDropped
}

// Collect implements prometheus.Collector.
func (c exportCollector) Collect(ch chan<- prometheus.Metric) {
	counter := counterTo(ch)
	if c.o.DecisionsDropped != nil {
		counter(descDecisionsDropped, c.o.DecisionsDropped())
	}
	if c.o.Failed != nil {
		counter(descExportsFailed, c.o.Failed())
	}
	if c.o.Dropped != nil {
		spans, records := c.o.Dropped()
		counter(descExportsDropped, spans, "traces")
		counter(descExportsDropped, records, "logs")
	}
}
