//go:build unix

package server

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
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/memory"
)

// The echo server decodes the same request and encodes an equal answer with grpc-go's own codec, and decides nothing.
// Goal: the server's processor time per decision is at most 1.25 times that of the echo with the same server options.

func init() {
	cpuServers["rls"] = func(l net.Listener) error {
		limiter, err := rlsBenchLimiter()
		if err != nil {
			return err
		}
		return NewGRPCServer(NewRLS(limiter, RLSOptions{}), GRPCOptions{}).Serve(l)
	}
	cpuServers["echo"] = func(l net.Listener) error {
		return rlsEchoServer(GRPCOptions{}).Serve(l)
	}
	cpuServers["echo-defaults"] = func(l net.Listener) error {
		s := grpc.NewServer()
		rlspb.RegisterRateLimitServiceServer(s, rlsEcho{})
		return s.Serve(l)
	}
}

func rlsBenchLimiter() (*weir.Limiter, error) {
	set, _, err := rule.Load([]rule.Source{{Name: "r.yaml", Data: []byte(
		"domain: bench\ndescriptors:\n- {key: user, rate_limit: {unit: minute, requests_per_unit: 1000000}}\n")}}, rule.Options{})
	if err != nil {
		return nil, err
	}
	store, err := memory.New(memory.Options{})
	if err != nil {
		return nil, err
	}
	return weir.New(store, weir.WithRules(set))
}

func rlsEchoServer(o GRPCOptions) *grpc.Server {
	s := grpc.NewServer(rlsServerOptions(o)...)
	rlspb.RegisterRateLimitServiceServer(s, rlsEcho{})
	return s
}

type rlsEcho struct{}

func (rlsEcho) ShouldRateLimit(_ context.Context, m *rlspb.RateLimitRequest) (*rlspb.RateLimitResponse, error) {
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

const rlsBenchKeys = 10_000

func rlsBenchRequests() []*rlspb.RateLimitRequest {
	requests := make([]*rlspb.RateLimitRequest, rlsBenchKeys)
	for i := range requests {
		requests[i] = &rlspb.RateLimitRequest{Domain: "bench", Descriptors: []*ratelimitpb.RateLimitDescriptor{{
			Entries: []*ratelimitpb.RateLimitDescriptor_Entry{{Key: "user", Value: fmt.Sprintf("user-%06d", i)}}}}}
	}
	return requests
}

// rlsRound makes requests from 64 callers over one connection.
func rlsRound(b *testing.B, addr string, requests []*rlspb.RateLimitRequest) func() int {
	const callers, each = 64, 400
	client := rlspb.NewRateLimitServiceClient(rlsDial(b, addr))
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

// BenchmarkCPURLS compares the server's processor time per decision with that of echo servers. Use -benchtime 5x.
func BenchmarkCPURLS(b *testing.B) {
	requests := rlsBenchRequests()
	compareCPU(b, func(addr string) func() int { return rlsRound(b, addr, requests) }, "rls", "echo", "echo-defaults")
}

// BenchmarkRLS and BenchmarkEcho are whole calls, client included, over one connection.
func BenchmarkRLS(b *testing.B) {
	limiter, err := rlsBenchLimiter()
	if err != nil {
		b.Fatal(err)
	}
	s := NewGRPCServer(NewRLS(limiter, RLSOptions{}), GRPCOptions{})
	benchCalls(b, s.Serve, s.Stop)
}

func BenchmarkEcho(b *testing.B) {
	s := rlsEchoServer(GRPCOptions{})
	benchCalls(b, s.Serve, s.Stop)
}

func benchCalls(b *testing.B, serve func(net.Listener) error, stop func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = serve(l) }()
	b.Cleanup(stop)
	client := rlspb.NewRateLimitServiceClient(rlsDial(b, l.Addr().String()))
	requests := rlsBenchRequests()
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

// BenchmarkRLSHandler is what the server does between reading and writing bytes.
func BenchmarkRLSHandler(b *testing.B) {
	limiter, err := rlsBenchLimiter()
	if err != nil {
		b.Fatal(err)
	}
	benchHandler(b, newRLSCodec(), rlsServiceDesc(), NewRLS(limiter, RLSOptions{}))
}

func BenchmarkEchoHandler(b *testing.B) {
	benchHandler(b, encoding.GetCodecV2("proto"), &rlspb.RateLimitService_ServiceDesc, rlsEcho{})
}

func benchHandler(b *testing.B, codec encoding.CodecV2, desc *grpc.ServiceDesc, service any) {
	var wire []mem.BufferSlice
	for _, r := range rlsBenchRequests() {
		data, err := proto.Marshal(r)
		if err != nil {
			b.Fatal(err)
		}
		wire = append(wire, mem.BufferSlice{mem.SliceBuffer(data)})
	}
	ctx := context.Background()
	i := 0
	decode := func(v any) error { return codec.Unmarshal(wire[i%len(wire)], v) }
	b.ReportAllocs()
	for b.Loop() {
		i++
		reply, err := desc.Methods[0].Handler(service, ctx, decode, nil)
		if err != nil {
			b.Fatal(err)
		}
		out, err := codec.Marshal(reply)
		if err != nil {
			b.Fatal(err)
		}
		out.Free()
	}
}
