package rls

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	ratelimitpb "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

// What grpc-go makes of the same service with all that is known to make it faster: a codec over the
// wire bytes, pooled buffers, workers. Server is measured against it, and held to answer alike.

// grpcGo serves r with grpc-go.
func grpcGo(r *Service) *grpc.Server {
	s := grpc.NewServer(append(serverOptions(), grpc.ForceServerCodecV2(newCodec()))...)
	s.RegisterService(serviceDesc(), r)
	return s
}

func serverOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(1 << 20),
		grpc.MaxConcurrentStreams(1024),
		grpc.MaxHeaderListSize(16 << 10),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second,
			PermitWithoutStream: true}),
		grpc.NumStreamWorkers(64), // which keep their grown stacks
	}
}

// serviceDesc is the generated description with a handler of our own.
func serviceDesc() *grpc.ServiceDesc {
	desc := rlspb.RateLimitService_ServiceDesc
	desc.Methods = []grpc.MethodDesc{{MethodName: "ShouldRateLimit", Handler: handlerOf}}
	return &desc
}

func handlerOf(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	r := srv.(*Service)
	c := r.acquire()
	err := decode(c)
	if err == nil {
		err = r.decide(ctx, c)
	}
	if err != nil {
		r.release(c)
		return nil, err
	}
	return c, nil
}

// codec is the protobuf codec, except for a call, which it reads from and writes to the wire.
type codec struct {
	encoding.CodecV2
}

func newCodec() codec { return codec{encoding.GetCodecV2(grpcproto.Name)} }

func (k codec) Unmarshal(data mem.BufferSlice, v any) error {
	c, ok := v.(*call)
	if !ok {
		return k.CodecV2.Unmarshal(data, v)
	}
	if len(data) == 1 {
		c.readWire(string(data[0].ReadOnlyData()))
	} else {
		c.readWire(string(data.Materialize()))
	}
	return nil
}

// Marshal gives an call back to its pool: it can be written once.
func (k codec) Marshal(v any) (mem.BufferSlice, error) {
	c, ok := v.(*call)
	if !ok {
		return k.CodecV2.Marshal(v)
	}
	defer c.service.release(c)
	out, err := c.writeWire(nil)
	return mem.BufferSlice{mem.SliceBuffer(out)}, err
}

// TestRLSLikeGRPCGo: the door answers every call as grpc-go does for the same service, whether it
// reads it or not.
func TestRLSLikeGRPCGo(t *testing.T) {
	const rules = `
domain: d
descriptors:
- {key: a, rate_limit: {unit: minute, requests_per_unit: 5}}
- {key: b, rate_limit: {unit: hour, requests_per_unit: 3}, descriptors: [{key: c, rate_limit: {unit: second, requests_per_unit: 1}}]}
limits:
- {name: n, when: {n: "*"}, allow: 4/hour, algorithm: sliding_log}
`
	for name, wrap := range waysToDecide() {
		t.Run(name, func(t *testing.T) {
			ours, theirs := newBedOn(t, rules, Options{}, ServerOptions{}, wrap),
				newBed(t, rules, Options{}, ServerOptions{})
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			s := grpcGo(theirs.rls)
			go func() { _ = s.Serve(l) }()
			t.Cleanup(s.Stop)
			theirConn := dial(t, l.Addr().String())
			ask := func(conn *grpc.ClientConn, request []byte, o ...grpc.CallOption) string {
				var answer []byte
				err := conn.Invoke(context.Background(), rlspb.RateLimitService_ShouldRateLimit_FullMethodName, request,
					&answer,
					append(o, grpc.ForceCodec(rawCodec{}))...)
				return fmt.Sprintf("%x %v %q", answer, status.Code(err), status.Convert(err).Message())
			}
			rapid.Check(t, func(t *rapid.T) {
				var request []byte
				if rapid.IntRange(0, 9).Draw(t, "kind") == 0 {
					request = rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "bytes")
				} else {
					m := &rlspb.RateLimitRequest{Domain: rapid.SampledFrom([]string{"d", "other", ""}).Draw(t,
						"domain"), HitsAddend: rapid.Uint32Range(0, 3).Draw(t, "hits")}
					for range rapid.IntRange(0, 4).Draw(t, "descriptors") {
						d := &ratelimitpb.RateLimitDescriptor{}
						for range rapid.IntRange(0, 3).Draw(t, "entries") {
							d.Entries = append(d.Entries, &ratelimitpb.RateLimitDescriptor_Entry{
								Key: rapid.SampledFrom([]string{"a", "b", "c", "n"}).Draw(t, "key"),
								Value: rapid.SampledFrom([]string{"x", "y", strings.Repeat("z", 20_000)}).Draw(t,
									"value")})
						}
						m.Descriptors = append(m.Descriptors, d)
					}
					var err error
					if request, err = proto.Marshal(m); err != nil {
						t.Fatal(err)
					}
				}
				if got, want := ask(ours.conn, request), ask(theirConn, request); got != want {
					t.Fatalf("%x\n got %.300s\nwant %.300s", request, got, want)
				}
			})
		})
	}
}
