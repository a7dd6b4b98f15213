package otel

import (
	"context"
	"net/url"
	"strings"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetricgrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// at returns the URL for a signal: /v1/ and its name behind the path of the endpoint (OTLP/HTTP).
func (o *Options) at(signal string) string {
	u, err := url.Parse(o.Endpoint)
	if err != nil {
		return o.Endpoint // the exporter says what is wrong
	}
	u.Path = strings.TrimRight(u.Path, "/") + "/v1/" + signal
	return u.String()
}

// The exporters read the other OTEL_EXPORTER_OTLP_* variables themselves: certificates, time-outs,
// compression, and headers if Options has none.

func (o *Options) traceExporter(ctx context.Context) (sdktrace.SpanExporter, error) {
	if o.Protocol == GRPC {
		options := []otlptracegrpc.Option{otlptracegrpc.WithEndpointURL(o.Endpoint)}
		return otlptrace.New(ctx, otlptracegrpc.NewClient(options...))
	}
	options := []otlptracehttp.Option{otlptracehttp.WithEndpointURL(o.at("traces"))}
	return otlptrace.New(ctx, otlptracehttp.NewClient(options...))
}

func (o *Options) metricExporter(ctx context.Context) (sdkmetric.Exporter, error) {
	if o.Protocol == GRPC {
		options := []otlpmetricgrpc.Option{otlpmetricgrpc.WithEndpointURL(o.Endpoint)}
		return otlpmetricgrpc.New(ctx, options...)
	}
	options := []otlpmetrichttp.Option{otlpmetrichttp.WithEndpointURL(o.at("metrics"))}
	return otlpmetrichttp.New(ctx, options...)
}
