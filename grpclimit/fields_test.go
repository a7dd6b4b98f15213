package grpclimit_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/grpclimit"
)

// A call with metadata that comes twice, where a rule in force or the identity reads it, is
// refused: the handler might act by another value than the rules count by.
func TestRepeatedMetadata(t *testing.T) {
	const rules = `
limits:
- {name: keys, per: [header.x-api-key], allow: 3/day, algorithm: sliding_log}
- {name: trial, when: {header.x-trial: "1"}, allow: 9/day, algorithm: sliding_log, on_limit: shadow}
- {name: langs, when: {header.accept-language: "*"}, allow: 99/day, algorithm: sliding_log}
`
	var log bytes.Buffer
	client, gate := serveGate(t, limiter(t, rules),
		grpclimit.Options{Identity: byUser, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for _, c := range []struct {
		pairs []string
		want  codes.Code
	}{
		{[]string{"x-api-key", "a"}, codes.OK},
		{[]string{"x-api-key", "a", "x-api-key", "b"}, codes.InvalidArgument},
		{[]string{"x-api-key", "a", "x-api-key", "a"}, codes.InvalidArgument},
		{[]string{"x-user-id", "a", "x-user-id", "b"}, codes.InvalidArgument},
		{[]string{"x-trial", "1", "x-trial", "2"}, codes.OK},
		{[]string{"x-other", "1", "x-other", "2"}, codes.OK},
		{[]string{"accept-language", "de", "accept-language", "en"}, codes.OK},
	} {
		_, err := client.Check(metadata.AppendToOutgoingContext(t.Context(), c.pairs...),
			&healthpb.HealthCheckRequest{})
		if status.Code(err) != c.want {
			t.Errorf("%q: %v, want %v", c.pairs, err, c.want)
		}
	}
	stream, err := client.Watch(metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "a", "x-api-key", "b"),
		&healthpb.HealthCheckRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.InvalidArgument {
		t.Errorf("a stream: %v", err)
	}
	if got := gate.FieldStats(); got.Repeated != 4 {
		t.Errorf("%+v", got)
	}
	if text := log.String(); strings.Count(text, "\n") != 1 || !strings.Contains(text, "x-api-key") {
		t.Errorf("%s", text)
	}

	kept, _ := serveGate(t, limiter(t, rules), grpclimit.Options{KeepRepeated: true})
	for i := range 4 {
		_, err := kept.Check(metadata.AppendToOutgoingContext(t.Context(), "x-api-key", "a", "x-api-key", "b"),
			&healthpb.HealthCheckRequest{})
		if want := []codes.Code{0, 0, 0, codes.ResourceExhausted}[i]; status.Code(err) != want {
			t.Errorf("kept, call %d: %v", i, err)
		}
	}
}

// One credential in the metadata is one key, however it is spelled.
func TestMetadataCredentials(t *testing.T) {
	for _, c := range []struct {
		rules    string
		identity map[string]string
	}{
		{"limits: [{name: a, per: [header.authorization], allow: 1/day, algorithm: sliding_log}]", nil},
		{"limits: [{name: a, per: [user], allow: 1/day, algorithm: sliding_log}]", map[string]string{"user": "authorization"}},
	} {
		client, gate := serveGate(t, limiter(t, c.rules), grpclimit.Options{Identity: c.identity})
		for i, value := range []string{"Bearer k", "bearer k", "BEARER   k", "Bearer k k", "Bearer:k"} {
			want := codes.ResourceExhausted
			switch i {
			case 0:
				want = codes.OK
			case 3, 4:
				want = codes.Unauthenticated
			}
			_, err := client.Check(metadata.AppendToOutgoingContext(context.Background(), "authorization", value),
				&healthpb.HealthCheckRequest{})
			if status.Code(err) != want {
				t.Errorf("%s %q: %v, want %v", c.rules, value, err, want)
			}
		}
		if got := gate.FieldStats(); got.Unreadable != 2 {
			t.Errorf("%+v", got)
		}
	}
}

// A signed token in the metadata is one key, however its signature is spelled.
func TestMetadataSignedToken(t *testing.T) {
	const token = "eyJ1c2VyIjoiYWRhIn0.aOgTgA.Jr2lXk8-bQ0tYp_5vNfZ1cDmRs"
	for _, c := range []struct {
		rules    string
		identity map[string]string
	}{
		{"limits: [{name: a, per: [header.x-token], allow: 1/day, algorithm: sliding_log}]", nil},
		{"limits: [{name: a, per: [user], allow: 1/day, algorithm: sliding_log}]", map[string]string{"user": "x-token"}},
	} {
		client, gate := serveGate(t, limiter(t, c.rules), grpclimit.Options{Identity: c.identity})
		for i, want := range []codes.Code{codes.OK, codes.ResourceExhausted, codes.ResourceExhausted,
			codes.InvalidArgument} {
			value := token + []string{"E", "F", "E=", "E~"}[i]
			_, err := client.Check(metadata.AppendToOutgoingContext(context.Background(), "x-token", value),
				&healthpb.HealthCheckRequest{})
			if status.Code(err) != want {
				t.Errorf("%s %q: %v, want %v", c.rules, value, err, want)
			}
		}
		if got := gate.FieldStats(); got.Unreadable != 1 {
			t.Errorf("%+v", got)
		}
	}
}

// serveGate is serve, and returns the gate as well.
func serveGate(t *testing.T, l *weir.Limiter, o grpclimit.Options) (healthpb.HealthClient, *grpclimit.Gate) {
	t.Helper()
	if o.Skip == nil { // the health service stands for any other here
		o.Skip = func(string) bool { return false }
	}
	g := newGate(t, l, o)
	return probed(t, g), g
}
