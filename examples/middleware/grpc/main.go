// Command grpc limits a gRPC server.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/examples/middleware/demo"
	"github.com/weir-rl/weir/grpclimit"
)

func main() {
	address := flag.String("listen", "127.0.0.1:3000", "address")
	flag.Parse()
	limiter, err := demo.NewLimiter()
	if err != nil {
		log.Fatal(err)
	}
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	server, err := newServer(limiter)
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(server.Serve(listener))
}

func newServer(limiter *weir.Limiter) (*grpc.Server, error) {
	gate, err := grpclimit.New(limiter, grpclimit.Options{
		Attributes: map[string]func(context.Context, string) string{
			// the user that the interceptor before has found out
			"user": func(ctx context.Context, _ string) string { return demo.UserOf(ctx) },
		},
	})
	if err != nil {
		return nil, err
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(authenticate, gate.Unary),
		grpc.ChainStreamInterceptor(authenticateStream, gate.Stream),
	)
	healthpb.RegisterHealthServer(server, health.NewServer()) // or a service of your own
	return server, nil
}

func identified(ctx context.Context) context.Context {
	for _, value := range metadata.ValueFromIncomingContext(ctx, "authorization") {
		if token, ok := strings.CutPrefix(value, "Bearer "); ok {
			return demo.WithToken(ctx, token)
		}
	}
	return ctx
}

func authenticate(ctx context.Context, request any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	return handler(identified(ctx), request)
}

func authenticateStream(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	return handler(srv, identifiedStream{stream, identified(stream.Context())})
}

type identifiedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s identifiedStream) Context() context.Context { return s.ctx }
