package server

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	doors "github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/observe/otel"
	"github.com/weir-rl/weir/internal/server/settings"
	"github.com/weir-rl/weir/store"
)

// otelSettings is the section otel.
var otelSettings = []setting{
	{Path: "otel.endpoint",
		Help: "URL of a collector of OpenTelemetry, such as http://127.0.0.1:4318; nothing is sent if it is empty (else OTEL_EXPORTER_OTLP_ENDPOINT)",
		Set: settings.Text(func(c *Config, s string) error {
			c.otel.Endpoint = s
			return checkEndpoint(s)
		})},
	{Path: "otel.traces", Value: "0%",
		Help: "share of the requests without a traceparent that are followed; those whose traceparent says so are followed in any case; off for none",
		Set: settings.Text(func(c *Config, s string) (err error) {
			if c.otel.Traces = -1; s == "off" {
				return nil
			}
			c.otel.Traces, err = parseShare(s)
			return err
		})},
}

// otelConfig is the configuration of exports to a collector.
type otelConfig struct {
	otel otel.Options
}

// otelInterval is how often metrics are sent where OTEL_METRIC_EXPORT_INTERVAL does not say: as
// OpenTelemetry's SDKs do.
const otelInterval = time.Minute

// parseShare reads a share such as 0.1%.
func parseShare(s string) (float64, error) {
	number, ok := strings.CutSuffix(s, "%")
	share, err := strconv.ParseFloat(strings.TrimSpace(number), 64)
	if !ok && s != "0" || err != nil || !(share >= 0 && share <= 100) {
		return 0, fmt.Errorf("%q is no share from 0%% to 100%%, such as 0.1%%", s)
	}
	return share / 100, nil
}

func checkEndpoint(s string) error {
	if s == "" {
		return nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" {
		return fmt.Errorf("%s is no URL of a collector; write for example http://127.0.0.1:4318", settings.RedactURL(s))
	}
	return nil
}

func otelProtocol(s string) (otel.Protocol, error) {
	switch s {
	case "http", "http/protobuf":
		return otel.HTTP, nil
	case "grpc":
		return otel.GRPC, nil
	}
	return 0, fmt.Errorf("%q must be http or grpc", s)
}

// readOTelEnv takes over the OTEL_* variables that say whether to send, where to, how, and which
// signals. A setting that somebody named goes before its variable. The exporters read the others
// (certificates, headers, compression, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES) themselves.
func (c *Config) readOTelEnv(variables map[string]string) error {
	c.otel.Metrics = otelInterval
	var problems []error
	read := func(name, path string, take func(s string) error) {
		if s := variables[name]; s != "" && !c.named[path] {
			if err := take(s); err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", name, err))
			}
		}
	}
	read("OTEL_EXPORTER_OTLP_ENDPOINT", "otel.endpoint",
		func(s string) error { c.otel.Endpoint = s; return checkEndpoint(s) })
	read("OTEL_EXPORTER_OTLP_PROTOCOL", "",
		func(s string) (err error) { c.otel.Protocol, err = otelProtocol(s); return err })
	read("OTEL_METRIC_EXPORT_INTERVAL", "", func(s string) error {
		ms, err := strconv.ParseUint(s, 10, 31)
		c.otel.Metrics = time.Duration(ms) * time.Millisecond
		return err
	})
	none := func(off func()) func(string) error {
		return func(s string) error {
			if s == "none" {
				off()
			}
			return nil
		}
	}
	read("OTEL_TRACES_EXPORTER", "otel.traces", none(func() { c.otel.Traces = -1 }))
	read("OTEL_METRICS_EXPORTER", "", none(func() { c.otel.Metrics = 0 }))
	if c.inPlace && variables["OTEL_METRICS_EXPORTER"] == "" { // envoyproxy/ratelimit sends traces alone
		c.otel.Metrics = 0
	}
	if strings.EqualFold(variables["OTEL_SDK_DISABLED"], "true") {
		c.otel.Endpoint = ""
	}
	return errors.Join(problems...)
}

// startOTel starts what sends to a collector, if there is one.
func (p *program) startOTel(context.Context) error {
	o := p.c.otel
	if o.Endpoint == "" {
		return nil
	}
	o.Version, o.Node, o.Logger = p.version, p.node.Label(), p.log
	// The parts that the registry reads are made later, beside the goroutine that sends.
	o.Gatherer = prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		if !p.built.Load() {
			return nil, nil
		}
		return p.metrics.Registry().Gather()
	})
	var err error
	if p.otel, err = otel.Start(context.Background(), o); err != nil {
		return err
	}
	p.log.Info("traces and metrics go to a collector", "endpoint", settings.RedactURL(o.Endpoint))
	return nil
}

// stopOTel sends what waits. A collector that is away does not hold up the end of the program for
// long.
func (p *program) stopOTel() error {
	if p.otel == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	if err := p.otel.Shutdown(ctx); err != nil {
		p.log.Warn("what waited to be sent to otel.endpoint is lost", "error", err)
	}
	return nil
}

// tracer returns what follows requests at doors; nil for nobody.
func (p *program) tracer() doors.Tracer {
	if p.otel == nil || p.otel.Tracer() == nil {
		return nil
	}
	return p.otel.Tracer()
}

// tracedStore returns s, followed in traces if it asks one that nodes share.
func (p *program) tracedStore(s store.Store) store.Store {
	if p.tracer() == nil || p.storage.shared == nil {
		return s
	}
	return p.otel.Tracer().Store(s, kindOf(p.c.store).system)
}
