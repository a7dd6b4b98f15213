//go:build unix

package rls

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/internal/wire/listen"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// The echo server decodes the same request and encodes an equal answer with grpc-go's own codec,
// and decides nothing.

func TestMain(m *testing.M) { doortest.CPUMain(m) }

func init() {
	door := func(wrap func(store.Store) store.Store) func(net.Listener) error {
		return func(l net.Listener) error {
			r, err := benchService(wrap)
			if err != nil {
				return err
			}
			return NewServer(r, ServerOptions{}).Serve(listen.New(l, listen.Options{})) // as weir serve has it
		}
	}
	doortest.CPUServers["rls"] = door(atOnce)
	doortest.CPUServers["far"] = door(func(s store.Store) store.Store { // one over a network that need not be asked
		return &doortest.WaitingStore{Store: s, Waits: func([]store.Charge) bool { return false }, Far: true}
	})
	doortest.CPUServers["workers"] = door(func(s store.Store) store.Store { return &doortest.WaitingStore{Store: s, Far: true} }) // one that is asked
	doortest.CPUServers["grpc-go"] = func(l net.Listener) error {
		r, err := benchService(atOnce)
		if err != nil {
			return err
		}
		return grpcGo(r).Serve(l)
	}
	doortest.CPUServers["echo"] = func(l net.Listener) error {
		s := grpc.NewServer()
		rlspb.RegisterRateLimitServiceServer(s, echo{})
		return s.Serve(l)
	}
}

func atOnce(s store.Store) store.Store { return s }

func benchService(wrap func(store.Store) store.Store) (*Service, error) {
	limiter, err := benchLimiter(wrap)
	if err != nil {
		return nil, err
	}
	return New(limiter, Options{}), nil
}

func benchLimiter(wrap func(store.Store) store.Store) (*weir.Limiter, error) {
	set, _, err := file.Load([]file.Source{{Name: "r.yaml", Data: []byte(
		"domain: bench\ndescriptors:\n- {key: user, rate_limit: {unit: minute, requests_per_unit: 1000000}}\n")}}, file.Options{})
	if err != nil {
		return nil, err
	}
	inner, err := memory.New(memory.Options{})
	if err != nil {
		return nil, err
	}
	return weir.New(wrap(inner), weir.WithRules(set))
}

type echo struct{}

func (echo) ShouldRateLimit(_ context.Context, m *rlspb.RateLimitRequest) (*rlspb.RateLimitResponse, error) {
	answer := &rlspb.RateLimitResponse{OverallCode: rlspb.RateLimitResponse_OK}
	for range m.Descriptors {
		answer.Statuses = append(answer.Statuses, &rlspb.RateLimitResponse_DescriptorStatus{
			Code:               rlspb.RateLimitResponse_OK,
			CurrentLimit:       &rlspb.RateLimitResponse_RateLimit{RequestsPerUnit: 1000000, Unit: rlspb.RateLimitResponse_RateLimit_MINUTE},
			LimitRemaining:     999_000,
			DurationUntilReset: &durationpb.Duration{Seconds: 42},
		})
	}
	return answer, nil
}

const benchKeys = 10_000

func benchRequests() []*rlspb.RateLimitRequest {
	requests := make([]*rlspb.RateLimitRequest, benchKeys)
	for i := range requests {
		requests[i] = &rlspb.RateLimitRequest{Domain: "bench", Descriptors: []*ratelimitpb.RateLimitDescriptor{{
			Entries: []*ratelimitpb.RateLimitDescriptor_Entry{{Key: "user", Value: fmt.Sprintf("user-%06d", i)}}}}}
	}
	return requests
}

// round makes requests from so many callers over one connection.
func round(b *testing.B, addr string, requests []*rlspb.RateLimitRequest, callers, each int) func() int {
	client := rlspb.NewRateLimitServiceClient(dial(b, addr))
	return func() int {
		var all sync.WaitGroup
		for caller := range callers {
			all.Go(func() {
				for i := range each {
					if _, err := client.ShouldRateLimit(context.Background(), requests[(caller*each+i*7)%len(requests)]); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		all.Wait()
		return callers * each
	}
}

// BenchmarkCPURLS compares the door's processor time per decision, over one connection, with the
// same decisions behind grpc-go at its best, and with an echo behind grpc-go as it comes. Use
// -benchtime 5x.
func BenchmarkCPURLS(b *testing.B) {
	requests := benchRequests()
	for _, c := range []struct{ callers, each int }{{64, 400}, {1, 4000}} {
		b.Run(fmt.Sprintf("callers=%d", c.callers), func(b *testing.B) {
			doortest.CompareCPU(b, func(addr string) func() int { return round(b, addr, requests, c.callers, c.each) },
				"rls", "far", "workers", "grpc-go", "echo")
		})
	}
}

// BenchmarkRLS and BenchmarkEcho are whole calls, client included, over one connection.
func BenchmarkRLS(b *testing.B) {
	r, err := benchService(atOnce)
	if err != nil {
		b.Fatal(err)
	}
	s := NewServer(r, ServerOptions{})
	benchCalls(b, s.Serve, s.Stop)
}

func BenchmarkEcho(b *testing.B) {
	s := grpc.NewServer()
	rlspb.RegisterRateLimitServiceServer(s, echo{})
	benchCalls(b, s.Serve, s.Stop)
}

func benchCalls(b *testing.B, serve func(net.Listener) error, stop func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = serve(l) }()
	b.Cleanup(stop)
	client := rlspb.NewRateLimitServiceClient(dial(b, l.Addr().String()))
	requests := benchRequests()
	var n atomic.Int64
	b.ReportAllocs()
	b.SetParallelism(32)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := client.ShouldRateLimit(context.Background(), requests[int(n.Add(1))%len(requests)]); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// BenchmarkRLSWire is what the server does between reading and writing bytes.
func BenchmarkRLSWire(b *testing.B) {
	r, err := benchService(atOnce)
	if err != nil {
		b.Fatal(err)
	}
	var wire [][]byte
	for _, request := range benchRequests() {
		data, err := proto.Marshal(request)
		if err != nil {
			b.Fatal(err)
		}
		wire = append(wire, data)
	}
	ctx := context.Background()
	var out []byte
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		i++
		if out, _, err = r.answerWire(ctx, wire[i%len(wire)], out[:0], nil); err != nil {
			b.Fatal(err)
		}
	}
}

// TestCPUServer: the harness measures a process of its own.
func TestCPUServer(t *testing.T) {
	c := doortest.StartCPUServer(t, "rls")
	conn, err := net.Dial("tcp", c.Addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	if first := c.Used(t); first <= 0 || c.Used(t) < first {
		t.Errorf("used %v", first)
	}
}
