package metrics

import "github.com/prometheus/client_golang/prometheus"

// ExportOptions say what NewExports reads. A nil field means that there is no such metric.
type ExportOptions struct {
	DecisionsDropped func() uint64 // decisions that the decision log left out
	Failed           func() uint64 // failed exports to OpenTelemetry's collector
	Dropped          func() uint64 // dropped spans
}

// NewExports returns a collector of the decision log and of the exports by OpenTelemetry, for
// Metrics.Registry.
func NewExports(o ExportOptions) prometheus.Collector {
	return group{
		counted("weir_decision_log_dropped_total",
			"Decisions that the decision log left out: beyond its bound of a second, since too many waited, or since they could not be written.", o.DecisionsDropped),
		counted("weir_otel_failed_exports_total",
			"Exports to the collector of OpenTelemetry that failed; each may have held many spans or metrics.", o.Failed),
		source[ExportOptions]{func() ExportOptions { return o }, exportRows},
	}
}

var exportRows = []row[ExportOptions]{
	counters("weir_otel_dropped_total", "signal",
		"Spans (traces) that the collector of OpenTelemetry did not get: too many waited, or their export failed.",
		func(o ExportOptions, n count) {
			if o.Dropped != nil {
				n(o.Dropped(), "traces")
			}
		}),
}
