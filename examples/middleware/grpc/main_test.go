package main

import (
	"context"
	"net"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir/examples/middleware/demo"
)

// Calls and streams of a user are counted together; a refusal says when to come back, in a form
// that clients can parse.
func TestServer(t *testing.T) {
	limiter, err := demo.NewLimiter()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server, err := newServer(limiter)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///"+listener.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = conn.Close()
		server.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	client := healthpb.NewHealthClient(conn)
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(context.Background(), "authorization",
		"Bearer ada-token"))
	defer cancel()
	for i := range 9 {
		if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
			t.Errorf("call %d: %v", i, err)
		}
	}
	for _, want := range []codes.Code{codes.OK, codes.ResourceExhausted} {
		stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		if status.Code(err) != want {
			t.Errorf("a stream: %v, want %v", err, want)
		}
		if err != nil {
			var retry *errdetails.RetryInfo
			for _, d := range status.Convert(err).Details() {
				if r, ok := d.(*errdetails.RetryInfo); ok {
					retry = r
				}
			}
			if retry.GetRetryDelay().AsDuration() <= 0 {
				t.Errorf("%v has no time to come back", err)
			}
		}
	}
	// Another user has ten of his own, whatever metadata he sends.
	bob := metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer bob-token",
		"access-control-request-method", "GET")
	passed := 0
	for range 25 {
		if _, err := client.Check(bob, &healthpb.HealthCheckRequest{}); err == nil {
			passed++
		}
	}
	if passed != 10 {
		t.Errorf("%d of 25 calls of another user passed, 10 may", passed)
	}
}
