package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/netutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
)

// GRPCOptions tune NewGRPCServer. The zero value is right for most.
type GRPCOptions struct {
	// TLS turns on TLS; nil means plain text.
	TLS *tls.Config
	// Ready is what health checks tell; nil means ready. It must be quick and safe for concurrent use.
	Ready func() bool
	// HandshakeTimeout bounds the time until a new connection is set up, TLS included; 0 means 10 s.
	HandshakeTimeout time.Duration
	// MaxRequestBytes bounds one request; 0 means 1 MiB.
	MaxRequestBytes int
	// MaxStreams bounds the calls under way on one connection; 0 means 1,024.
	MaxStreams uint32
	// MaxConnections bounds the connections; 0 means 10,000. Further ones wait to be accepted.
	MaxConnections int
}

// GRPCServer serves the gRPC door: RLS, health and reflection. Make one with NewGRPCServer.
type GRPCServer struct {
	server         *grpc.Server
	health         *rlsHealth
	maxConnections int
}

// rlsHealthNames are the services whose health is told: the server, the name of envoyproxy/ratelimit, and the service.
var rlsHealthNames = []string{"", "ratelimit", rlspb.RateLimitService_ServiceDesc.ServiceName}

// NewGRPCServer returns a server of r, grpc.health.v1 and reflection.
func NewGRPCServer(r *RLS, o GRPCOptions) *GRPCServer {
	s := &GRPCServer{
		server:         grpc.NewServer(append(rlsServerOptions(o), grpc.ForceServerCodecV2(newRLSCodec()))...),
		health:         newRLSHealth(o.Ready),
		maxConnections: cmp.Or(o.MaxConnections, 10_000),
	}
	s.server.RegisterService(rlsServiceDesc(), r)
	healthpb.RegisterHealthServer(s.server, s.health)
	reflection.Register(s.server)
	return s
}

// rlsServiceDesc is the generated description with a handler of our own.
func rlsServiceDesc() *grpc.ServiceDesc {
	desc := rlspb.RateLimitService_ServiceDesc
	desc.Methods = []grpc.MethodDesc{{MethodName: "ShouldRateLimit", Handler: rlsHandler}}
	return &desc
}

// rlsServerOptions are the bounds, and what measures better than grpc-go's defaults for many small calls.
func rlsServerOptions(o GRPCOptions) []grpc.ServerOption {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(cmp.Or(o.MaxRequestBytes, 1<<20)),
		grpc.MaxConcurrentStreams(cmp.Or(o.MaxStreams, 1024)),
		grpc.MaxHeaderListSize(16 << 10),
		grpc.ConnectionTimeout(cmp.Or(o.HandshakeTimeout, 10*time.Second)),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			MaxConnectionAge:      24 * time.Hour,
			MaxConnectionAgeGrace: time.Hour,
			Time:                  time.Minute,
			Timeout:               20 * time.Second,
		}),
		// Workers keep their grown stacks; a fresh goroutine would grow its own in every call. A handful of workers is
		// worse than none.
		grpc.NumStreamWorkers(64),
	}
	if o.TLS != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(o.TLS)))
	}
	return options
}

// Serve accepts connections from l until Shutdown or Stop; then it returns nil.
func (s *GRPCServer) Serve(l net.Listener) error {
	err := s.server.Serve(netutil.LimitListener(l, s.maxConnections))
	if errors.Is(err, grpc.ErrServerStopped) { // before it began
		return nil
	}
	return err
}

// Drain makes health checks tell that the server is going away; it goes on serving.
func (s *GRPCServer) Drain() { s.health.drain() }

// Shutdown drains: no new calls, those under way are finished, at the latest when ctx is done.
func (s *GRPCServer) Shutdown(ctx context.Context) error {
	s.Drain()
	done := make(chan struct{})
	go func() {
		s.server.GracefulStop()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		s.server.Stop()
		<-done
		return ctx.Err()
	}
}

// Stop ends all at once.
func (s *GRPCServer) Stop() {
	s.Drain()
	s.server.Stop()
}

// rlsHealth is grpc's health service, which follows a function.
type rlsHealth struct {
	*health.Server
	ready func() bool

	mu       sync.Mutex
	serving  bool
	draining chan struct{} // closed on drain
	once     sync.Once
}

// rlsHealthEvery is how often a watched health is looked at.
const rlsHealthEvery = 500 * time.Millisecond

func newRLSHealth(ready func() bool) *rlsHealth {
	if ready == nil {
		ready = func() bool { return true }
	}
	h := &rlsHealth{Server: health.NewServer(), ready: ready, serving: true, draining: make(chan struct{})}
	for _, name := range rlsHealthNames {
		h.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
	}
	h.look()
	return h
}

// look brings the told health up to date.
func (h *rlsHealth) look() {
	serving := h.ready()
	h.mu.Lock()
	defer h.mu.Unlock()
	if serving == h.serving {
		return
	}
	h.serving = serving
	state := healthpb.HealthCheckResponse_NOT_SERVING
	if serving {
		state = healthpb.HealthCheckResponse_SERVING
	}
	for _, name := range rlsHealthNames {
		h.SetServingStatus(name, state)
	}
}

func (h *rlsHealth) drain() {
	h.once.Do(func() {
		h.Server.Shutdown() // later states are ignored
		close(h.draining)
	})
}

// Check implements healthpb.HealthServer.
func (h *rlsHealth) Check(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	h.look()
	return h.Server.Check(ctx, r)
}

// List implements healthpb.HealthServer.
func (h *rlsHealth) List(ctx context.Context, r *healthpb.HealthListRequest) (*healthpb.HealthListResponse, error) {
	h.look()
	return h.Server.List(ctx, r)
}

// Watch implements healthpb.HealthServer.
func (h *rlsHealth) Watch(r *healthpb.HealthCheckRequest, stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	h.look()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		t := time.NewTicker(rlsHealthEvery)
		defer t.Stop()
		for {
			select {
			case <-stop:
				return
			case <-h.draining:
				return
			case <-t.C:
				h.look()
			}
		}
	}()
	return h.Server.Watch(r, stream)
}
