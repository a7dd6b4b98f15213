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

	weir "github.com/weir-rl/weir"
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
	log.Fatal(newServer(limiter).Serve(listener))
}

func newServer(limiter *weir.Limiter) *grpc.Server {
	options := []grpclimit.Option{
		// The user is who the interceptor before says.
		grpclimit.WithAttributes(func(ctx context.Context, _ string) weir.Pairs {
			if user := demo.UserOf(ctx); user != "" {
				return weir.Pairs{{Name: "user", Value: user}}
			}
			return nil
		}),
		grpclimit.WithLines(grpclimit.NewLines(0)), // calls and streams of a user wait in one line
	}
	server := grpc.NewServer(
		grpc.ChainUnaryInterceptor(authenticate, grpclimit.UnaryServerInterceptor(limiter, options...)),
		grpc.ChainStreamInterceptor(authenticateStream, grpclimit.StreamServerInterceptor(limiter, options...)),
	)
	healthpb.RegisterHealthServer(server, health.NewServer()) // or a service of your own
	return server
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
