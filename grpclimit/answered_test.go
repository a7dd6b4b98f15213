package grpclimit_test

import (
	"context"
	"fmt"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/grpclimit"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// hearing is a hook that describes answers in words.
func hearing() (o weir.Option, told chan string) {
	told = make(chan string, 100)
	return weir.WithHooks(weir.Hooks{Answered: func(r *weir.Request, d *weir.Decision, a weir.Answer) {
		user, _ := r.Attributes.Attribute("user")
		told <- fmt.Sprintf("%s %s %s:%d: %d", r.Door, user, d.Limits[0].Window.Name, d.Limits[0].Remaining, a.Status)
	}}), told
}

// answers is a service that ends as it is asked to.
type answers struct {
	healthpb.UnimplementedHealthServer
	came chan struct{} // a call that waits for its client to hang up
}

func (s answers) Check(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	switch r.Service {
	case "missing":
		return nil, status.Error(codes.NotFound, "no")
	case "away":
		return nil, status.Error(codes.Unavailable, "no")
	case "plain error":
		return nil, fmt.Errorf("no")
	case "hung up":
		s.came <- struct{}{}
		<-ctx.Done()
		return nil, status.Error(codes.Internal, "the query was broken off")
	}
	return &healthpb.HealthCheckResponse{}, nil
}

func (s answers) Watch(r *healthpb.HealthCheckRequest,
	stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	if err := stream.Send(&healthpb.HealthCheckResponse{}); err != nil {
		return err
	}
	_, err := s.Check(stream.Context(), r)
	return err
}

// The hooks hear once of each call that was admitted, unary or a stream, when it has ended, and of
// no other.
func TestAnswered(t *testing.T) {
	for service, want := range map[string]int{"": 200, "missing": 404, "away": 503, "plain error": 500, "hung up": 0} {
		for _, streams := range []bool{false, true} {
			t.Run(fmt.Sprint(service, streams), func(t *testing.T) {
				option, told := hearing()
				l := limiter(t,
					"limits: [{name: a, per: [user], allow: 9/year, algorithm: sliding_log}, {name: closed, when: {user: eve}, allow: 0/year}]", option)
				s := answers{came: make(chan struct{}, 1)}
				client := healthpb.NewHealthClient(dial(t, l,
					func(r *grpc.Server) {
						healthpb.RegisterHealthServer(r,
							s)
					}, `{}`, grpclimit.Options{Identity: byUser}))
				if _, err := client.Check(as("eve"), &healthpb.HealthCheckRequest{}); status.Code(
					err) != codes.ResourceExhausted {
					t.Fatal(err)
				}
				ctx, hangUp := context.WithCancel(as("ada"))
				defer hangUp()
				if service == "hung up" {
					go func() { <-s.came; hangUp() }()
				}
				if streams {
					stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{Service: service})
					for err == nil {
						_, err = stream.Recv()
					}
				} else {
					_, _ = client.Check(ctx, &healthpb.HealthCheckRequest{Service: service})
				}
				if got := patience.Receive(t, "an answer", told); got != fmt.Sprintf("grpc ada a:8: %d", want) {
					t.Errorf("heard %q, want %d", got, want)
				}
				if len(told) > 0 {
					t.Errorf("heard %q besides", <-told)
				}
			})
		}
	}
}

// Of the messages of a stream the hooks hear nothing, but of its opening; of a handler that panics,
// that it failed.
func TestAnsweredOnce(t *testing.T) {
	option, told := hearing()
	l := limiter(t, "limits: [{name: a, allow: 9/year, algorithm: sliding_log}]", option)
	gate := newGate(t, l, grpclimit.Options{Messages: true, NoHeaders: true})
	err := gate.Stream(nil, receiving{serverStream{ctx: t.Context()}},
		&grpc.StreamServerInfo{FullMethod: "/shop.Orders/Create",
			IsClientStream: true}, func(_ any, s grpc.ServerStream) error {
			for range 3 {
				if err := s.RecvMsg(nil); err != nil {
					return err
				}
			}
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = call(t.Context(), gate.Unary, func() { panic("a handler's own") })
	}()
	for _, want := range []string{"grpc  a:8: 200", "grpc  a:4: 500"} {
		if got := <-told; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
	}
	if len(told) > 0 {
		t.Errorf("heard %q besides", <-told)
	}
}

// receiving is a stream with messages.
type receiving struct{ serverStream }

func (receiving) RecvMsg(any) error { return nil }

// Health, which is skipped here, is nothing that a limit admitted.
func TestAnsweredSkipped(t *testing.T) {
	option, told := hearing()
	l := limiter(t, "limits: [{name: a, allow: 9/year}]", option)
	conn := dial(t, l, func(s *grpc.Server) { healthpb.RegisterHealthServer(s, health.NewServer()) }, `{}`,
		grpclimit.Options{Skip: func(string) bool { return true }})
	if _, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	if len(told) > 0 {
		t.Errorf("heard %q", <-told)
	}
}
