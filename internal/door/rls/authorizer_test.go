package rls

import (
	"context"
	"net"
	"testing"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// TestGRPCToken: calls without a token are refused, except for health.
func TestGRPCToken(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, doortest.LoginRules)
	s := NewServer(New(l, Options{}), ServerOptions{Authorize: Authorize(doortest.Tokens[auth.Tokens](t, "sesame"))})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(listener) }()
	defer func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := rlspb.NewRateLimitServiceClient(conn)
	question := &rlspb.RateLimitRequest{Domain: "shop"}
	ask := func(authorization ...string) codes.Code {
		ctx := t.Context()
		for _, a := range authorization {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", a)
		}
		_, err := client.ShouldRateLimit(ctx, question)
		return status.Code(err)
	}
	for _, c := range []struct {
		authorization string
		want          codes.Code
	}{
		{"", codes.Unauthenticated}, {"Bearer x", codes.Unauthenticated}, {"sesame", codes.Unauthenticated},
		{"Bearer sesame", codes.InvalidArgument}, // it is looked at, and has no descriptors
	} {
		if got := ask(c.authorization); got != c.want {
			t.Errorf("%q: %v, want %v", c.authorization, got, c.want)
		}
	}
	if got := ask(); got != codes.Unauthenticated {
		t.Errorf("without metadata: %v", got)
	}
	health := healthpb.NewHealthClient(conn)
	if r, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil ||
		r.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v %v", r, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if stream, err := health.Watch(ctx, &healthpb.HealthCheckRequest{}); err != nil {
		t.Error(err)
	} else if _, err := stream.Recv(); err != nil {
		t.Errorf("watch: %v", err)
	}
	for range 9 {
		ask("Bearer x")
	}
	if got := ask("Bearer sesame"); got != codes.ResourceExhausted {
		t.Errorf("after ten wrong ones: %v", got)
	}
}
