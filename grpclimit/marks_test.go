package grpclimit_test

import (
	"sync/atomic"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/grpclimit"
)

// A call for a domain that no rule declares says so, whether it passes or is refused.
func TestUnknownDomain(t *testing.T) {
	const rules = "domain: shop\nlimits: [{ name: daily, per: [user], allow: 4/day, algorithm: sliding_log }]\n"
	domain := grpclimit.Options{Identity: byUser, Domain: "shopp"}
	var header metadata.MD
	if _, err := serve(t, limiter(t, rules), domain).Check(as("ada"), &healthpb.HealthCheckRequest{}, grpc.Header(&header)); err != nil {
		t.Fatal(err)
	}
	if got := first(header, "ratelimit-warning"); got != "unknown_domain" {
		t.Errorf("a call that passes: %v", header)
	}
	var trailer metadata.MD
	_, err := serve(t, limiter(t, rules, weir.DenyUnknownDomains()), domain).Check(as("ada"),
		&healthpb.HealthCheckRequest{}, grpc.Trailer(&trailer))
	if got := first(trailer, "ratelimit-warning"); status.Code(err) != codes.ResourceExhausted ||
		got != "unknown_domain" {
		t.Errorf("a refusal: %v %v", err, trailer)
	}
}

// A client is told that it comes near a limit, and that it is above it, before it is refused; and
// the refusal has the id of the decision.
func TestMarks(t *testing.T) {
	var id atomic.Uint64
	var door atomic.Value
	client := serve(t, limiter(t, `
limits:
  - { name: daily, per: [user], allow: 4/day, algorithm: sliding_log, warn: 75%, throttle: { soft: 25% } }
  - { name: trial, per: [user], allow: 1/day, algorithm: sliding_log, on_limit: shadow }
`, weir.WithHooks(weir.Hooks{Decided: func(r *weir.Request, d *weir.Decision) {
		id.Store(uint64(d.ID))
		door.Store(r.Door)
	}})), grpclimit.Options{Identity: byUser})
	for i, want := range []struct{ warning, soft string }{
		{"", ""}, {"", ""}, {`near_limit; limit="daily"`, ""}, {`near_limit; limit="daily"`, ""}, {`near_limit; limit="daily"`, "exceeded"},
	} {
		var header metadata.MD
		if _, err := client.Check(as("ada"), &healthpb.HealthCheckRequest{}, grpc.Header(&header)); err != nil {
			t.Fatal(err)
		}
		if got := first(header, "ratelimit-warning"); got != want.warning {
			t.Errorf("call %d: ratelimit-warning %q, want %q", i+1, got, want.warning)
		}
		if got := first(header, "ratelimit-soft"); got != want.soft {
			t.Errorf("call %d: ratelimit-soft %q, want %q", i+1, got, want.soft)
		}
	}
	var trailer metadata.MD
	_, err := client.Check(as("ada"), &healthpb.HealthCheckRequest{}, grpc.Trailer(&trailer))
	var info *errdetails.ErrorInfo
	for _, d := range status.Convert(err).Details() {
		if d, ok := d.(*errdetails.ErrorInfo); ok {
			info = d
		}
	}
	want := weir.DecisionID(id.Load()).String()
	if info.GetReason() != "RATE_LIMITED" || info.GetDomain() != "github.com/weir-rl/weir" ||
		info.GetMetadata()["limit"] != "daily" || info.GetMetadata()["decision"] != want || want == "" {
		t.Errorf("decision %s: %v", want, info)
	}
	if trailer.Get("ratelimit-warning") != nil || trailer.Get("ratelimit-soft") != nil ||
		trailer.Get("retry-after") == nil || door.Load() != "grpc" {
		t.Errorf("a refusal through %v: %v", door.Load(), trailer)
	}
}

func first(md metadata.MD, name string) string {
	if v := md.Get(name); len(v) == 1 {
		return v[0]
	}
	return ""
}
