package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	doors "github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/observe/otel"
	"github.com/weir-rl/weir/internal/util/chars"
	"github.com/weir-rl/weir/store"
)

// otelSettings is the section otel.
var otelSettings = []setting{
	{path: "otel.endpoint",
		help: "URL of a collector of OpenTelemetry, such as http://127.0.0.1:4318; nothing is sent if it is empty (else OTEL_EXPORTER_OTLP_ENDPOINT)",
		set: text(func(c *Config, s string) error {
			c.otel.Endpoint = s
			return checkEndpoint(s)
		})},
	{path: "otel.protocol", value: "http",
		help: "http (protobuf) or grpc (else OTEL_EXPORTER_OTLP_PROTOCOL)",
		set:  text(func(c *Config, s string) (err error) { c.otel.Protocol, err = otelProtocol(s); return err })},
	{path: "otel.traces", value: "0%",
		help: "share of the requests without a traceparent that are followed; those whose traceparent says so are followed in any case; off for none",
		set: text(func(c *Config, s string) (err error) {
			if c.otel.Traces = -1; s == "off" {
				return nil
			}
			c.otel.Traces, err = parseShare(s)
			return err
		})},
	{path: "otel.metrics", value: "1m0s",
		help: "how often metrics are sent; 0s for never (else OTEL_METRIC_EXPORT_INTERVAL)",
		set:  toDuration(0, func(c *Config) *time.Duration { return &c.otel.Metrics })},
	{path: "otel.headers_file",
		help: "file of headers to send along, NAME: VALUE a line, such as a token (else OTEL_EXPORTER_OTLP_HEADERS)",
		set:  toString(func(c *Config) *string { return &c.otelHeaders })},
}

// otelConfig is the configuration of exports to a collector.
type otelConfig struct {
	otel        otel.Options
	otelHeaders string
}

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
		return fmt.Errorf("%s is no URL of a collector; write for example http://127.0.0.1:4318", redactURL(s))
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

// readOTelEnv takes over the OTEL_* variables that say whether to send, where to, and which
// signals, for settings that nobody named. The exporters read the others (certificates, headers,
// compression, OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES) themselves.
func (c *Config) readOTelEnv(variables map[string]string) error {
	var problems []error
	read := func(name, path string, take func(s string) error) {
		if s := variables[name]; s != "" && !c.named[path] {
			if err := take(s); err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", name, err))
			}
		}
	}
	read("OTEL_EXPORTER_OTLP_ENDPOINT", "otel.endpoint", func(s string) error { c.otel.Endpoint = s; return checkEndpoint(s) })
	read("OTEL_EXPORTER_OTLP_PROTOCOL", "otel.protocol", func(s string) (err error) { c.otel.Protocol, err = otelProtocol(s); return err })
	read("OTEL_METRIC_EXPORT_INTERVAL", "otel.metrics", func(s string) error {
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
	read("OTEL_METRICS_EXPORTER", "otel.metrics", none(func() { c.otel.Metrics = 0 }))
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
	if p.c.otelHeaders != "" {
		f, err := os.Open(p.c.otelHeaders)
		if err != nil {
			return fmt.Errorf("otel.headers_file: %w", err)
		}
		defer f.Close()
		if o.Headers, err = readHeaders(f); err != nil {
			return fmt.Errorf("otel.headers_file: %w", err)
		}
	}
	o.Version, o.Logger = p.version, p.log
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
	p.log.Info("traces and metrics go to a collector", "endpoint", redactURL(o.Endpoint))
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

// readHeaders reads lines of NAME: VALUE. Empty lines and those that begin with # are passed over.
func readHeaders(r io.Reader) (map[string]string, error) {
	headers := map[string]string{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, ":")
		if name = strings.TrimSpace(name); !ok || !chars.IsToken(name) {
			// The error does not quote the line, which may hold a token.
			return nil, fmt.Errorf("line %d: write NAME: VALUE", n)
		}
		headers[name] = strings.TrimSpace(value)
	}
	return headers, lines.Err()
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
