// Package xdstest serves rules over xDS as Envoy Gateway does: by the snapshot cache and the server
// of go-control-plane, which answer a refusal by sending the same again at once.
package xdstest

import (
	"context"
	"crypto/tls"
	"net"
	"slices"
	"sync"
	"testing"

	corepb "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoverypb "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	"github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	configpb "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// Node is the id that the server knows its client by.
const Node = "envoy-ratelimit"

// Server is a control plane at one address. Start it anew after Stop, and it has
// forgotten all. Safe for concurrent use.
type Server struct {
	t    *testing.T
	Addr string

	mu       sync.Mutex
	requests []*discoverypb.DiscoveryRequest // of all streams
	cache    cache.SnapshotCache
	server   *grpc.Server
	done     chan struct{}
}

// New returns a server that runs, and holds no snapshot. config turns on TLS; nil is plain text.
func New(t *testing.T, config *tls.Config) *Server {
	t.Helper()
	s := &Server{t: t, Addr: "127.0.0.1:0"}
	s.Start(config)
	t.Cleanup(s.Stop)
	return s
}

// Start runs the server at its address.
func (s *Server) Start(config *tls.Config) {
	s.t.Helper()
	var l net.Listener
	patience.Until(s.t, "the address is free", func() bool {
		var err error
		l, err = net.Listen("tcp", s.Addr)
		return err == nil
	})
	var options []grpc.ServerOption
	if config != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(config)))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Addr = l.Addr().String()
	s.cache = cache.NewSnapshotCache(false, cache.IDHash{}, nil)
	s.server = grpc.NewServer(options...)
	s.done = make(chan struct{})
	discoverypb.RegisterAggregatedDiscoveryServiceServer(s.server, serverv3.NewServer(context.Background(), s.cache,
		serverv3.CallbackFuncs{StreamRequestFunc: func(_ int64, r *discoverypb.DiscoveryRequest) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.requests = append(s.requests, r)
			return nil
		}}))
	server, done := s.server, s.done
	go func() { defer close(done); _ = server.Serve(l) }()
}

// Stop ends the server, and all that goes through it.
func (s *Server) Stop() {
	s.mu.Lock()
	server, done := s.server, s.done
	s.mu.Unlock()
	server.Stop()
	<-done
}

// Set puts a snapshot in the place of the last one.
func (s *Server) Set(version string, configs ...*configpb.RateLimitConfig) {
	s.t.Helper()
	var list []types.Resource
	for _, c := range configs {
		list = append(list, c)
	}
	snapshot, err := cache.NewSnapshot(version, map[resource.Type][]types.Resource{resource.RateLimitConfigType: list})
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	held := s.cache
	s.mu.Unlock()
	if err := held.SetSnapshot(context.Background(), Node, snapshot); err != nil {
		s.t.Fatal(err)
	}
}

// Requests returns all that clients have said.
func (s *Server) Requests() []*discoverypb.DiscoveryRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// Refusals returns the requests that refuse something.
func (s *Server) Refusals() []*discoverypb.DiscoveryRequest {
	return slices.DeleteFunc(s.Requests(), func(r *discoverypb.DiscoveryRequest) bool { return r.GetErrorDetail() == nil })
}

// AwaitAck waits until a client says that a version is in force.
func (s *Server) AwaitAck(version string) {
	s.t.Helper()
	patience.Until(s.t, "version "+version+" is acknowledged", func() bool {
		return slices.ContainsFunc(s.Requests(), func(r *discoverypb.DiscoveryRequest) bool {
			return r.GetVersionInfo() == version && r.GetErrorDetail() == nil
		})
	})
}

// FirstNode is the node that the first request names.
func (s *Server) FirstNode() *corepb.Node {
	s.t.Helper()
	patience.Until(s.t, "a client asks", func() bool { return len(s.Requests()) > 0 })
	return s.Requests()[0].GetNode()
}

// Config is the RateLimitConfig of a domain with one limit for each name, of n requests a year.
func Config(domain string, n uint32, names ...string) *configpb.RateLimitConfig {
	c := &configpb.RateLimitConfig{Name: domain, Domain: domain}
	for _, name := range names {
		c.Descriptors = append(c.Descriptors, &configpb.RateLimitDescriptor{Key: name,
			RateLimit: &configpb.RateLimitPolicy{Unit: configpb.RateLimitUnit_YEAR, RequestsPerUnit: n}})
	}
	return c
}
