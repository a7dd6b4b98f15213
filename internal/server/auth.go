package server

import (
	"context"
	"net/http"
	"strings"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// forwardAuthToken is the header in which a proxy shows its token to forward auth. Authorization is the client's own there:
// what it holds must be neither taken for the proxy's token, nor counted as a guess of the proxy.
const forwardAuthToken = "X-Weir-Token"

// TokenDoors say which parts of the HTTP door need a token.
type TokenDoors struct {
	HTTP        bool // the decision API
	ForwardAuth bool // /api/v1/forward-auth
}

// RequireToken returns a handler that asks for one of the tokens before h sees a request. /healthcheck is open.
func RequireToken(h http.Handler, t *Tokens, doors TokenDoors) http.Handler {
	const forwardAuth = "/api/v1/forward-auth"
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.URL.Path
		verdict := Right
		switch {
		case path == "/healthcheck":
		case path == forwardAuth || strings.HasPrefix(path, forwardAuth+"/"):
			if doors.ForwardAuth {
				verdict = t.checkProxy(r)
			}
		case doors.HTTP:
			verdict = t.CheckRequest(r)
		}
		if verdict != Right {
			refuseToken(w, verdict, "weir")
			return
		}
		h.ServeHTTP(w, r)
	})
}

// checkProxy tells what comes of the token of a proxy that asks for its client.
func (t *Tokens) checkProxy(r *http.Request) Verdict {
	lines := r.Header[forwardAuthToken]
	switch len(lines) {
	case 0:
		return NoToken
	case 1:
		return t.Check(r.RemoteAddr, lines[0])
	}
	return Wrong // the client sent one, and the proxy added its own
}

// refuseToken answers a request that no door opens to.
func refuseToken(w http.ResponseWriter, v Verdict, realm string) {
	challenge := `Bearer realm="` + realm + `"`
	switch v {
	case TooMany:
		w.Header().Set("Retry-After", "6") // one guess is forgiven in that time
		problem(w, http.StatusTooManyRequests, "too many wrong tokens came from this address; its tokens are not looked at for a while", "")
		return
	case Wrong:
		challenge += `, error="invalid_token"`
	}
	w.Header().Set("WWW-Authenticate", challenge)
	problem(w, http.StatusUnauthorized, "needs a bearer token of auth.tokens_file", "")
}

// Authorizer decides about calls of gRPC: address is the peer's, authorization the metadata of that name, "" for none. What
// it returns, if not nil, is a status.
type Authorizer func(address, authorization string) error

// Authorizer returns what GRPCOptions.Authorize wants.
func (t *Tokens) Authorizer() Authorizer {
	return func(address, authorization string) error {
		switch t.CheckBearer(address, authorization) {
		case Right:
			return nil
		case TooMany:
			return status.Error(codes.ResourceExhausted, "too many wrong tokens came from this address; its tokens are not looked at for a while")
		}
		return status.Error(codes.Unauthenticated, "needs the metadata authorization: Bearer and a token of auth.tokens_file")
	}
}

// call authorizes a call of grpc-go. Health is told to everybody, since what probes it has no tokens.
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
