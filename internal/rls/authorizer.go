package rls

import (
	"context"
	"strings"

	"github.com/weir-rl/weir/internal/auth"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Authorizer decides about calls of gRPC: address is the peer's, authorization the metadata of that
// name, "" for none. What it returns, if not nil, is a status.
type Authorizer func(address, authorization string) error

// Authorize returns an Authorizer that asks for one of the tokens.
func Authorize(t *auth.Tokens) Authorizer {
	return func(address, authorization string) error {
		switch t.CheckBearer(address, authorization) {
		case auth.Right:
			return nil
		case auth.TooMany:
			return status.Error(codes.ResourceExhausted, "too many wrong tokens came from this address; its tokens are not looked at for a while")
		case auth.Forbidden:
			return status.Error(codes.PermissionDenied, "the role of this token does not open this door; it needs operator, editor or admin")
		}
		return status.Error(codes.Unauthenticated, "needs the metadata authorization: Bearer and a token of auth.tokens_file")
	}
}

// call authorizes a call of grpc-go. Health is told to everybody, since what probes it has no
// tokens.
func (a Authorizer) call(ctx context.Context, method string) error {
	if strings.HasPrefix(method, "/"+healthpb.Health_ServiceDesc.ServiceName+"/") {
		return nil
	}
	address, authorization := "", ""
	if p, ok := peer.FromContext(ctx); ok {
		address = p.Addr.String()
	}
	if values := metadata.ValueFromIncomingContext(ctx, "authorization"); len(values) > 0 {
		authorization = values[0]
	}
	return a(address, authorization)
}

// options are the interceptors for a server of grpc-go; a nil Authorizer needs none.
func (a Authorizer) options() []grpc.ServerOption {
	if a == nil {
		return nil
	}
	return []grpc.ServerOption{
		grpc.UnaryInterceptor(func(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
			if err := a.call(ctx, info.FullMethod); err != nil {
				return nil, err
			}
			return next(ctx, request)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
			if err := a.call(stream.Context(), info.FullMethod); err != nil {
				return err
			}
			return next(srv, stream)
		}),
	}
}
