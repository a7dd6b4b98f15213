package grpclimit_test

import (
	"context"
	"fmt"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/grpclimit"
	"github.com/weir-rl/weir/store/memory"
)

// A server that lets each user call twice a day.
func Example() {
	store, err := memory.New(memory.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	limiter, err := weir.New(store, weir.Limit("calls-per-user", "2/day", "user"))
	if err != nil {
		log.Fatal(err)
	}

	gate, err := grpclimit.New(limiter, grpclimit.Options{
		Identity: map[string]string{"user": "x-user-id"},
		Skip:     func(string) bool { return false }, // or health checks, as below, would pass
	})
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(gate.Unary),
		grpc.ChainStreamInterceptor(gate.Stream),
	)
	healthpb.RegisterHealthServer(server, health.NewServer()) // or a service of your own
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	go server.Serve(listener)
	defer server.Stop()

	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	client := healthpb.NewHealthClient(conn)
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-user-id", "ada")
	for range 3 {
		_, err := client.Check(ctx, &healthpb.HealthCheckRequest{})
		fmt.Println(status.Code(err))
	}
	// Output:
	// OK
	// OK
	// ResourceExhausted
}

// Rules can tell methods apart by path, grpc.service and grpc.method; a program adds what else it
// knows of a call.
func ExampleOptions_attributes() {
	store, err := memory.New(memory.Options{})
	if err != nil {
		log.Fatal(err)
	}
	defer store.Close()
	limiter, err := weir.New(store, weir.Limit("calls-per-tenant", "100/min", "tenant"))
	if err != nil {
		log.Fatal(err)
	}
	type tenant struct{} // the key under which an interceptor before keeps who calls
	gate, err := grpclimit.New(limiter, grpclimit.Options{
		Attributes: map[string]func(ctx context.Context, fullMethod string) string{
			"tenant": func(ctx context.Context, _ string) string { name, _ := ctx.Value(tenant{}).(string); return name },
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	grpc.NewServer(grpc.UnaryInterceptor(gate.Unary), grpc.StreamInterceptor(gate.Stream))
}
