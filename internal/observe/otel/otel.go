// Package otel sends traces and metrics to an OpenTelemetry collector, by OTLP. Begin with
// Start (otel.go); trace.go follows requests, store.go their calls of the store, queue.go sends,
// and export.go makes the exporters.
//
// What is sent waits in queues of bounded length. If the collector is slow or away, whatever does
// not fit into them is dropped and counted. A decision never waits for it.
package otel

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.40.0"

	"github.com/weir-rl/weir/internal/util/sparselog"
)

// Options tune Start. Endpoint must be set.
type Options struct {
	// Endpoint is the URL of the collector: for gRPC its host, for HTTP the part before /v1/traces.
	Endpoint string
	Protocol Protocol
	// Traces is the share of requests without a traceparent that are followed, from 0 to 1.
	// Requests whose caller follows them are followed in any case. Below 0 there are no traces.
	Traces float64
	// Metrics is how often metrics are sent; 0 is never.
	Metrics time.Duration
	// Version is the version of the program, and Node the name of this node.
	Version, Node string
	// Gatherer reads the metrics. It is called from the first export on.
	Gatherer prometheus.Gatherer
	// Logger reports failed exports, at most once a minute; nil reports nothing.
	Logger *slog.Logger
}

// Protocol is the transport of OTLP.
type Protocol uint8

// The protocols. JSON over HTTP is not supported.
const (
	HTTP Protocol = iota // protobuf over HTTP, port 4318
	GRPC                 // port 4317
)

// Telemetry is a running export. Make one with Start. Safe for concurrent use.
type Telemetry struct {
	traces       *sdktrace.TracerProvider // nil without
	metrics      *sdkmetric.MeterProvider // nil without
	tracer       *Tracer
	failed       atomic.Uint64
	spans        spans // with traces
	spanExporter sdktrace.SpanExporter
}

// Start begins to export. It does not wait for the collector, and does not fail if the collector is
// away.
func Start(ctx context.Context, o Options) (*Telemetry, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	t := new(Telemetry)
	// OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES take precedence over the names given here.
	about, err := resource.New(ctx,
		resource.WithAttributes(semconv.ServiceName("weir"), semconv.ServiceVersion(o.Version),
			semconv.ServiceInstanceID(o.Node)),
		resource.WithTelemetrySDK(), resource.WithHost(), resource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("otel: %w", err)
	}
	var remark sparselog.Line
	failed := func(err error) {
		t.failed.Add(1)
		if n := remark.Due(time.Minute); n > 0 {
			o.Logger.Warn("exports to otel.endpoint fail, and what they held is lost", "failures", n, "error", err)
		}
	}
	// The SDK reports failed exports of metrics, and exports that the collector took only in part,
	// through a function for the whole process alone.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(failed))
	otel.SetLogger(logr.Discard())
	if o.Traces >= 0 {
		if t.spanExporter, err = o.traceExporter(ctx); err != nil {
			return nil, fmt.Errorf("otel: traces: %w", err)
		}
		t.spans = spans{newQueue(t.spanExporter.ExportSpans, failed)}
		t.traces = sdktrace.NewTracerProvider(
			sdktrace.WithResource(about),
			// Tracer decides which requests are followed, before anything is made for them.
			sdktrace.WithSampler(sdktrace.AlwaysSample()),
			sdktrace.WithSpanProcessor(t.spans))
	}
	if o.Metrics > 0 {
		exporter, err := o.metricExporter(ctx)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("otel: metrics: %w", err), t.Shutdown(ctx))
		}
		t.metrics = sdkmetric.NewMeterProvider(
			sdkmetric.WithResource(about),
			sdkmetric.WithReader(sdkmetric.NewPeriodicReader(exporter,
				sdkmetric.WithInterval(o.Metrics), sdkmetric.WithTimeout(patience),
				sdkmetric.WithProducer(newProducer(o.Gatherer)))))
	}
	if t.traces != nil {
		t.tracer = newTracer(t.traces.Tracer(scope), o.Traces)
	}
	return t, nil
}

// scope is the name of this program as a source of telemetry.
const scope = "github.com/weir-rl/weir"

// Tracer returns the Tracer; nil without traces.
func (t *Telemetry) Tracer() *Tracer { return t.tracer }

// Failed returns how many exports failed. Each may have held many records.
func (t *Telemetry) Failed() uint64 { return t.failed.Load() }

// Dropped returns how many spans were not sent: too many waited, or their export failed.
func (t *Telemetry) Dropped() uint64 {
	if t.traces == nil {
		return 0
	}
	return t.spans.dropped.Load()
}

// Shutdown sends what is waiting, and ends when that is done, or ctx is.
func (t *Telemetry) Shutdown(ctx context.Context) error {
	var failures []error
	if t.traces != nil {
		failures = append(failures, t.traces.Shutdown(ctx), t.spanExporter.Shutdown(ctx))
	}
	if t.metrics != nil {
		failures = append(failures, t.metrics.Shutdown(ctx))
	}
	return errors.Join(failures...)
}
