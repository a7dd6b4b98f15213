package server

import (
	"fmt"
	"testing"

	"github.com/spf13/pflag"
)

// TestOTelSettings: what the variables of OpenTelemetry say holds where no setting does.
func TestOTelSettings(t *testing.T) {
	load := func(args []string, env ...string) (*Config, error) {
		flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
		AddFlags(flags)
		if err := flags.Parse(args); err != nil {
			t.Fatal(err)
		}
		return Load(flags, env)
	}
	for _, c := range []struct {
		args []string
		env  []string
		want string // endpoint, protocol, traces, metrics
	}{
		{want: " 0 0 1m0s"},
		{env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=https://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_METRIC_EXPORT_INTERVAL=5000"}, want: "https://c:4317 1 0 5s"},
		{env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=https://c:4317", "OTEL_SDK_DISABLED=true"}, want: " 0 0 1m0s"},
		{env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c", "OTEL_TRACES_EXPORTER=none", "OTEL_METRICS_EXPORTER=none"}, want: "http://c 0 -1 0s"},
		{args: []string{"--otel-endpoint=http://a:4318", "--otel-traces=2.5%"}, env: []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://c", "OTEL_TRACES_EXPORTER=none", "OTEL_METRIC_EXPORT_INTERVAL=5000"}, want: "http://a:4318 0 0.025 5s"},
		{args: []string{"--otel-traces=off"}, want: " 0 -1 1m0s"},
	} {
		got, err := load(c.args, c.env...)
		if err != nil {
			t.Errorf("%q %q: %v", c.args, c.env, err)
			continue
		}
		o := &got.otel
		if text := fmt.Sprint(o.Endpoint, " ", o.Protocol, " ", o.Traces, " ", o.Metrics); text != c.want {
			t.Errorf("%q %q: %s, want %s", c.args, c.env, text, c.want)
		}
	}
	for _, args := range [][]string{{"--otel-endpoint=collector:4317"}, {"--otel-traces=2"}, {"--otel-traces=101%"},
		{"--decisions-outcomes=refused"}, {"--decisions-per-second=0"}} {
		if _, err := load(args); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
}
