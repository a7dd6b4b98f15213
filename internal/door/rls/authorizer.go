package rls

import (
	"context"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/door/auth"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Authorizer decides about calls of gRPC. The zero value lets all pass.
type Authorizer struct {
	// check judges a call: address is the peer's, authorization the metadata of that name, "" for
	// none. It returns a status, or nil to let the call pass. A nil check lets all pass.
	check func(address, authorization string) error
	// watch calls gone when check would no longer let a call pass that it has let pass.
	watch func(authorization string, gone func()) (stop func())
}

// Authorize returns an Authorizer that asks for one of the tokens.
func Authorize(t *auth.Tokens) Authorizer {
	return Authorizer{watch: t.WatchBearer, check: func(address, authorization string) error {
		switch t.CheckBearer(address, authorization) {
		case auth.Right:
			return nil
		case auth.TooMany:
			return status.Error(codes.ResourceExhausted,
				"too many wrong tokens came from this address; its tokens are not looked at for a while")
		case auth.Forbidden:
			return status.Error(codes.PermissionDenied,
				"the role of this token does not open this door; it needs operator, editor or admin")
		}
		return status.Error(codes.Unauthenticated,
			"needs the metadata authorization: Bearer and a token of auth.tokens_file")
	}}
}

// errGone ends a stream that was opened with a token that is good no more.
var errGone = status.Error(codes.Unauthenticated, "the token of this stream is no longer in auth.tokens_file")

// call authorizes a call of grpc-go. Health is open to everybody, since probes have no tokens.
func (a Authorizer) call(ctx context.Context, method string) error {
	if isHealth(method) {
		return nil
	}
	address := ""
	if p, ok := peer.FromContext(ctx); ok {
		address = p.Addr.String()
	}
	return a.check(address, authorizationOf(ctx))
}

func isHealth(method string) bool {
	return strings.HasPrefix(method, "/"+healthpb.Health_ServiceDesc.ServiceName+"/")
}

func authorizationOf(ctx context.Context) string {
	if values := metadata.ValueFromIncomingContext(ctx, "authorization"); len(values) > 0 {
		return values[0]
	}
	return ""
}

// endsFor is how long a stream may take to end by itself when its token has gone.
const endsFor = time.Second

// stream serves a stream, whose token was right when it began, until it ends or the token goes.
func (a Authorizer) stream(srv any, stream grpc.ServerStream, next grpc.StreamHandler) error {
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	defer a.watch(authorizationOf(ctx), func() { cancel(errGone) })()
	type outcome struct {
		err   error
		panic any
	}
	done := make(chan outcome, 1)
	go func() {
		var o outcome
		defer func() {
			o.panic = recover()
			done <- o
		}()
		o.err = next(srv, cancelled{stream, ctx})
	}()
	var o outcome
	select {
	case o = <-done:
	case <-ctx.Done():
		if context.Cause(ctx) != errGone {
			o = <-done
			break
		}
		// One that waits for its client alone, and does not look at its context, ends when this
		// has returned.
		timer := time.NewTimer(endsFor)
		defer timer.Stop()
		select {
		case o = <-done:
		case <-timer.C:
		}
		o.err = errGone
	}
	if o.panic != nil {
		panic(o.panic)
	}
	return o.err
}

// cancelled is a stream with another context.
type cancelled struct {
	grpc.ServerStream
	ctx context.Context
}

// Context implements grpc.ServerStream.
func (c cancelled) Context() context.Context { return c.ctx }

// options are the interceptors for a server of grpc-go; the zero Authorizer needs none.
func (a Authorizer) options() []grpc.ServerOption {
	if a.check == nil {
		return nil
	}
	return []grpc.ServerOption{
		grpc.UnaryInterceptor(
			func(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
				if err := a.call(ctx, info.FullMethod); err != nil {
					return nil, err
				}
				return next(ctx, request)
			}),
		grpc.StreamInterceptor(
			func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
				if err := a.call(stream.Context(), info.FullMethod); err != nil {
					return err
				}
				if isHealth(info.FullMethod) {
					return next(srv, stream)
				}
				return a.stream(srv, stream, next)
			}),
	}
}
