package grpclimit_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/grpclimit"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// billed is a service that says what it cost: in a trailer, in a header, or not at all.
type billed struct {
	healthpb.UnimplementedHealthServer
}

func (billed) Check(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	switch r.Service {
	case "trailer":
		if err := grpc.SetHeader(ctx, metadata.Pairs("x-tokens", "1")); err != nil {
			return nil, err
		}
		return &healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}, grpc.SetTrailer(ctx,
			metadata.Pairs("x-tokens", "20", "x-tokens", "30"))
	case "header":
		return &healthpb.HealthCheckResponse{}, grpc.SendHeader(ctx, metadata.Pairs("X-Tokens", "40"))
	case "fails":
		return nil, status.Error(codes.Unavailable, "away")
	case "gives up":
		return nil, context.Canceled // of a context of its own
	}
	return &healthpb.HealthCheckResponse{}, nil
}

func (billed) Watch(r *healthpb.HealthCheckRequest,
	stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	// Before the messages: a client that has them all hangs up, and then no trailer can be set.
	if err := grpc.SetTrailer(stream.Context(), metadata.Pairs("x-tokens", "60")); err != nil {
		return err
	}
	stream.SetTrailer(metadata.Pairs("x-tokens", "70"))
	for range 3 {
		if err := stream.Send(&healthpb.HealthCheckResponse{Status: healthpb.HealthCheckResponse_SERVING}); err != nil {
			// two bytes
			return err
		}
	}
	if r.Service == "" {
		return nil
	}
	<-stream.Context().Done()
	switch r.Service {
	case "sends on":
		return stream.Send(&healthpb.HealthCheckResponse{})
	case "wraps":
		return status.Errorf(codes.Internal, "the query failed: %v", stream.Context().Err())
	}
	return stream.Context().Err()
}

// bills starts a server that bills, and returns a client of it, and a function that holds what the
// limit lost since its last call against what the call between should have cost.
func bills(t *testing.T) (l *weir.Limiter, client healthpb.HealthClient, step func(name string, cost int64)) {
	t.Helper()
	l = limiter(t, `
limits:
- name: tokens
  allow: 2000/hour
  algorithm: sliding_log
  cost: 100
  cost_after: 'response.status >= 500 ? 0 : int(response.header["x-tokens"]) + response.bytes'
`)
	conn := dial(t, l, func(s *grpc.Server) { healthpb.RegisterHealthServer(s, billed{}) }, `{}`,
		grpclimit.Options{OnError: func(_ context.Context, err error) { t.Error(err) }})
	client = healthpb.NewHealthClient(conn)
	left := func() int64 {
		var d weir.Decision
		if err := l.Decide(t.Context(), &weir.Request{Peek: true}, &d); err != nil {
			t.Fatal(err)
		}
		return d.Limits[0].Remaining
	}
	before := left()
	return l, client, func(name string, cost int64) {
		t.Helper()
		now := left()
		if cost != 100 { // the client hears of the end before the server settles
			patience.Until(t, name+" is settled", func() bool { now = left(); return before-now != 100 })
		}
		if before-now != cost {
			t.Errorf("%s cost %d, want %d", name, before-now, cost)
		}
		before = now
	}
}

// What a call really cost is settled when it has ended.
func TestCostAfter(t *testing.T) {
	l, client, step := bills(t)
	for _, c := range []struct {
		service string
		cost    int64
	}{{"trailer", 30 + 2}, {"header", 40}, {"fails", 0}, {"gives up", 100}, {"says nothing", 100}} {
		_, _ = client.Check(t.Context(), &healthpb.HealthCheckRequest{Service: c.service})
		step(c.service, c.cost)
	}
	stream, err := client.Watch(t.Context(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = stream.Recv()
	}
	step("a stream", 70+6)

	// A client that hangs up is billed for the messages it got, whatever the handler says then.
	for _, service := range []string{"sends on", "wraps", "says so"} {
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{Service: service})
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		_, _ = stream.Recv()
		// a message without fields has no bytes
		step(service, 70+6)
	}

	// A handler that panics has failed.
	intercept := newGate(t, l, grpclimit.Options{}).Unary
	func() {
		defer func() { _ = recover() }()
		_ = call(t.Context(), intercept, func() { panic("a handler's own") })
	}()
	step("a panic", 0)
}

// A client whose deadline is too short is billed for the messages it got.
func TestCostAfterDeadline(t *testing.T) {
	timeout := 20 * time.Millisecond
	patience.Until(t, "a client gets all messages before its deadline", func() bool {
		timeout *= 2
		_, client, step := bills(t)
		ctx, cancel := context.WithTimeout(t.Context(), timeout)
		defer cancel()
		stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{Service: "says so"})
		got := 0
		for err == nil {
			if _, err = stream.Recv(); err == nil {
				got++
			}
		}
		if status.Code(err) != codes.DeadlineExceeded {
			t.Fatalf("after %d messages: %v", got, err)
		}
		if got == 3 {
			step("a call with a deadline", 70+6)
		}
		return got == 3
	})
}
