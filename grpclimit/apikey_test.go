package grpclimit_test

import (
	"testing"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/grpclimit"
)

// A call counts by its API key wherever that stands, and the key is known by its hash.
func TestMetadataAPIKey(t *testing.T) {
	const of = "client=sha256:2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b" // of "secret"
	for _, c := range []struct {
		source string
		calls  [][]string
		want   []codes.Code
	}{
		{"apikey", [][]string{
			{"x-api-key", "secret"}, {"authorization", "Bearer secret"}, {"api-key", "secret"}, {"x-api-key", "other"}, {},
			{"x-api-key", "secret", "authorization", "Bearer other"}, {"x-api-key", "a", "x-api-key", "b"}, {"authorization", "AWS4-HMAC-SHA256 Signature=a"},
		}, []codes.Code{
			codes.OK, codes.ResourceExhausted, codes.ResourceExhausted, codes.OK, codes.OK,
			codes.InvalidArgument, codes.InvalidArgument, codes.Unauthenticated,
		}},
		{"Hash:X-Token", [][]string{{"x-token", "secret"}, {"x-token", "secret"}, {"x-token", "other"}, {}},
			[]codes.Code{codes.OK, codes.ResourceExhausted, codes.OK, codes.OK}},
	} {
		var told []string
		l := limiter(t, "limits: [{name: a, per: [client], allow: 1/day, algorithm: sliding_log}]", weir.WithHooks(weir.Hooks{
			Decided: func(r *weir.Request, d *weir.Decision) {
				for i := range d.Matches.Hits {
					h := &d.Matches.Hits[i]
					told = append(told, h.Window.KeyParts(h.Key)...)
				}
			},
		}))
		client, _ := serveGate(t, l, grpclimit.Options{Identity: map[string]string{"client": c.source}})
		for i, pairs := range c.calls {
			_, err := client.Check(metadata.AppendToOutgoingContext(t.Context(), pairs...),
				&healthpb.HealthCheckRequest{})
			if status.Code(err) != c.want[i] {
				t.Errorf("%s %q: %v, want %v", c.source, pairs, err, c.want[i])
			}
		}
		if len(told) == 0 || told[0] != of {
			t.Errorf("%s: the keys are %q", c.source, told)
		}
	}
	l := limiter(t, "limits: [{name: a, per: [client], allow: 1/day, algorithm: sliding_log}]")
	if _, err := grpclimit.New(l, grpclimit.Options{Identity: map[string]string{"client": "hash:"}}); err == nil {
		t.Error("a hash of nothing is taken")
	}
}
