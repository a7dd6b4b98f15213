package rls

import (
	"cmp"
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/weir-rl/weir/internal/wire/h2"
	"github.com/weir-rl/weir/internal/wire/shed"
)

// ServerOptions tune NewServer. The zero value is right for most.
type ServerOptions struct {
	// TLS turns on TLS; nil means plain text.
	TLS *tls.Config
	// Authorize decides about every call except health checks; by default all may call.
	Authorize Authorizer
	// Ready is the answer of health checks; nil means ready. It must be quick and safe for
	// concurrent use.
	Ready func() bool
	// HandshakeTimeout bounds the time until a new connection is set up, TLS included; 0 means 10
	// s.
	HandshakeTimeout time.Duration
	// MaxRequestBytes bounds one request; 0 means 1 MiB.
	MaxRequestBytes int
	// MaxMemory bounds what all connections make the process keep, see h2.Options; 0 means 256 MiB.
	MaxMemory int64
	// MaxConnections bounds the connections; 0 means 10,000. Further ones wait to be accepted.
	MaxConnections int
	// Line turns away calls that waited too long. nil turns none away.
	Line *shed.Door
	// Logger logs defects in weir itself that failed a call; nil means nobody.
	Logger *slog.Logger
	// Beside registers other services, which grpc-go serves on the same port, with the same check
	// of callers; nil means none.
	Beside func(grpc.ServiceRegistrar)
}

// Server serves the gRPC door: RLS, health and reflection. Make one with NewServer.
type Server struct {
	server *h2.Server
	rest   *grpc.Server // health and reflection
	health *healthService
}

// healthNames are the services whose health is served: the server, the name of
// envoyproxy/ratelimit, and the service.
var healthNames = []string{"", "ratelimit", rlspb.RateLimitService_ServiceDesc.ServiceName}

// maxStreams bounds the calls under way on one connection: an Envoy asks about each request that it
// has, and a worker of it has one connection. What they cost is bounded by ServerOptions.MaxMemory.
const maxStreams = 1024

// otherCalls bounds the calls that grpc-go serves beside a stream for each connection.
const otherCalls = 4096

// NewServer returns a server of r, grpc.health.v1 and reflection. ShouldRateLimit is served from
// the wire bytes; grpc-go, which costs several times as much for a call, serves the rest.
func NewServer(r *Service, o ServerOptions) *Server {
	most := cmp.Or(o.MaxRequestBytes, 1<<20)
	connections := cmp.Or(o.MaxConnections, 10_000)
	s := &Server{
		rest:   grpc.NewServer(append(o.Authorize.options(), grpc.MaxRecvMsgSize(most))...),
		health: newHealth(o.Ready),
	}
	rlspb.RegisterRateLimitServiceServer(s.rest, r) // so that reflection lists it
	healthpb.RegisterHealthServer(s.rest, s.health)
	if o.Beside != nil {
		o.Beside(s.rest)
	}
	reflection.Register(s.rest)
	s.server = h2.New(h2.Options{
		Methods:        map[string]h2.Unary{rlspb.RateLimitService_ShouldRateLimit_FullMethodName: r.unary(o.Authorize)},
		Handler:        http.Handler(s.rest),
		Line:           o.Line,
		Turn:           turnedAway(o.Line),
		TLS:            o.TLS,
		MaxMessage:     most,
		MaxStreams:     maxStreams,
		MaxMemory:      int(o.MaxMemory),
		MaxConnections: connections,
		// The stream of an Envoy with quotas stays open. If each connection has one, there is still
		// room for others, health checks among them.
		MaxAllHandlers:   connections + otherCalls,
		HandshakeTimeout: o.HandshakeTimeout,
		Logger:           o.Logger,
	})
	return s
}

// Serve accepts connections from l until Shutdown or Stop; then it returns nil.
func (s *Server) Serve(l net.Listener) error { return s.server.Serve(l) }

// Memory reads how much memory the connections make the process keep.
func (s *Server) Memory() h2.MemoryStats { return s.server.Memory() }

// Drain makes health checks report that the server is going away; it goes on serving.
func (s *Server) Drain() { s.health.drain() }

// Shutdown drains: no new calls, those under way are finished, at the latest when ctx is done.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain()
	err := s.server.Shutdown(ctx)
	s.rest.Stop()
	return err
}

// Stop ends all at once.
func (s *Server) Stop() {
	s.Drain()
	s.server.Stop()
	s.rest.Stop()
}

// healthService is grpc's health service, which follows a function.
type healthService struct {
	*health.Server
	ready func() bool

	mu       sync.Mutex
	serving  bool
	draining chan struct{} // closed on drain
	once     sync.Once
}

// healthEvery is how often a watched health is looked at.
const healthEvery = 500 * time.Millisecond

func newHealth(ready func() bool) *healthService {
	if ready == nil {
		ready = func() bool { return true }
	}
	h := &healthService{Server: health.NewServer(), ready: ready, serving: true, draining: make(chan struct{})}
	for _, name := range healthNames {
		h.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
	}
	h.look()
	return h
}

// look updates the health that is served.
func (h *healthService) look() {
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
	for _, name := range healthNames {
		h.SetServingStatus(name, state)
	}
}

func (h *healthService) drain() {
	h.once.Do(func() {
		h.Server.Shutdown() // later states are ignored
		close(h.draining)
	})
}

// Check implements healthpb.HealthServer.
func (h *healthService) Check(ctx context.Context,
	r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	h.look()
	return h.Server.Check(ctx, r)
}

// List implements healthpb.HealthServer.
func (h *healthService) List(ctx context.Context, r *healthpb.HealthListRequest) (*healthpb.HealthListResponse, error) {
	h.look()
	return h.Server.List(ctx, r)
}

// Watch implements healthpb.HealthServer.
func (h *healthService) Watch(r *healthpb.HealthCheckRequest,
	stream grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	h.look()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		t := time.NewTicker(healthEvery)
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
