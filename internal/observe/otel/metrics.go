package otel

import (
	"context"
	"encoding/hex"

	"github.com/prometheus/client_golang/prometheus"
	prombridge "go.opentelemetry.io/contrib/bridges/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// producer reads a Prometheus registry through OpenTelemetry's bridge. For the trace id of an
// exemplar the bridge takes the bytes of its text (contrib v0.72.0), which no collector recognises.
// producer replaces them by the 16 bytes of OTLP.
type producer struct{ bridge sdkmetric.Producer }

func newProducer(g prometheus.Gatherer) sdkmetric.Producer {
	return producer{prombridge.NewMetricProducer(prombridge.WithGatherer(g))}
}

// Produce implements sdkmetric.Producer.
func (p producer) Produce(ctx context.Context) ([]metricdata.ScopeMetrics, error) {
	scopes, err := p.bridge.Produce(ctx)
	for i := range scopes {
		for k := range scopes[i].Metrics {
			switch data := scopes[i].Metrics[k].Data.(type) {
			case metricdata.Sum[float64]:
				for n := range data.DataPoints {
					mend(data.DataPoints[n].Exemplars)
				}
			case metricdata.Histogram[float64]:
				for n := range data.DataPoints {
					mend(data.DataPoints[n].Exemplars)
				}
			}
		}
	}
	return scopes, err
}

func mend(exemplars []metricdata.Exemplar[float64]) {
	for i := range exemplars {
		e := &exemplars[i]
		if len(e.TraceID) != 32 {
			continue
		}
		if id, err := hex.DecodeString(string(e.TraceID)); err == nil {
			e.TraceID = id
		}
	}
}
