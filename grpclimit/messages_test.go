package grpclimit_test

import (
	"context"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/grpclimit"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// dial opens a real server with the services that register adds, and connects to it.
func dial(t *testing.T, l *weir.Limiter,
	register func(*grpc.Server), serviceConfig string, o grpclimit.Options) *grpc.ClientConn {
	t.Helper()
	if o.Skip == nil { // the health service stands for any other here
		o.Skip = func(string) bool { return false }
	}
	g := newGate(t, l, o)
	s := grpc.NewServer(grpc.UnaryInterceptor(g.Unary), grpc.StreamInterceptor(g.Stream))
	register(s)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///"+listener.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(serviceConfig))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return conn
}

// Each message on a stream meets the rules for messages, the opening those for openings; the
// refusal of a message ends the stream with details that a client can parse.
func TestMessages(t *testing.T) {
	l := limiter(t, `
limits:
- {name: opened, when: {grpc.message: "!received"}, per: [user], allow: 2/hour, algorithm: sliding_log}
- {name: messages, when: {grpc.message: received}, per: [user], allow: 6/hour, algorithm: sliding_log}
`)
	conn := dial(t, l, func(s *grpc.Server) { reflection.Register(s) }, `{}`,
		grpclimit.Options{Identity: byUser, Messages: true,
			MessageHits: func(_ context.Context, method string, message any) int64 {
				if r, ok := message.(*reflectionpb.ServerReflectionRequest); !ok ||
					!strings.HasSuffix(method, "/ServerReflectionInfo") || r.Host == "" {
					t.Errorf("%s: %T", method, message)
				}
				return 2
			}})
	client := reflectionpb.NewServerReflectionClient(conn)
	open := func() (grpc.BidiStreamingClient[reflectionpb.ServerReflectionRequest,
		reflectionpb.ServerReflectionResponse], context.CancelFunc) {
		ctx, cancel := context.WithCancel(as("ada"))
		stream, err := client.ServerReflectionInfo(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return stream, cancel
	}
	ask := func(stream grpc.BidiStreamingClient[reflectionpb.ServerReflectionRequest,
		reflectionpb.ServerReflectionResponse]) error {
		if err := stream.Send(&reflectionpb.ServerReflectionRequest{Host: "h", MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil && err != io.EOF {
			t.Fatal(err)
		}
		_, err := stream.Recv()
		return err
	}
	stream, cancel := open()
	defer cancel()
	for i := range 3 {
		if err := ask(stream); err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	s := status.Convert(ask(stream))
	if s.Code() != codes.ResourceExhausted ||
		!strings.HasPrefix(s.Message(), `rate limit "messages" exceeded; retry in `) {
		t.Fatalf("the fourth message: %v", s)
	}
	var retry *errdetails.RetryInfo
	var quota *errdetails.QuotaFailure
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.RetryInfo:
			retry = d
		case *errdetails.QuotaFailure:
			quota = d
		}
	}
	if v := quota.GetViolations(); retry.GetRetryDelay().AsDuration() <= 0 || len(v) != 1 ||
		v[0].QuotaId != "messages" {
		t.Errorf("%v %v", retry, quota)
	}
	if md := stream.Trailer(); first(md, "grpc-retry-pushback-ms") != "-1" || first(md, "retry-after") == "" ||
		first(md, "ratelimit-remaining") != "0" {
		t.Errorf("the trailer: %v", md)
	}
	if md, err := stream.Header(); err != nil || first(md, "ratelimit-limit") != "2" ||
		first(md, "ratelimit-remaining") != "1" {
		t.Errorf("the header speaks of the opening: %v %v", md, err)
	}
	// The second opening passes, the third does not, and messages are not counted as openings.
	second, cancel := open()
	defer cancel()
	if s := status.Convert(ask(second)); !strings.Contains(s.Message(), `"messages"`) {
		t.Errorf("%v", s)
	}
	third, cancel := open()
	defer cancel()
	if s := status.Convert(ask(third)); !strings.Contains(s.Message(), `"opened"`) {
		t.Errorf("%v", s)
	}
}

// received is a stream without a network, from which messages come as fast as they are taken.
type received struct {
	serverStream
	wait chan struct{} // nil: none is waited for
}

func (s received) RecvMsg(any) error {
	if s.wait != nil {
		<-s.wait
	}
	return s.ctx.Err()
}

var bidi = &grpc.StreamServerInfo{FullMethod: "/shop.Orders/Talk", IsClientStream: true, IsServerStream: true}

// A message that must wait holds up the stream; a slot is given back when the next message is asked
// for, or the handler returns.
func TestMessagesWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t, `
limits:
- {name: pace, when: {grpc.message: received}, algorithm: leaky_bucket, allow: {rate: 2/s, burst: 10}}
- {name: at-a-time, when: {grpc.message: received}, allow: 1 concurrent}
`)
		intercept := newGate(t, l, grpclimit.Options{NoHeaders: true, Messages: true}).Stream
		start := time.Now()
		var at []time.Duration
		for range 2 {
			err := intercept(nil, received{serverStream: serverStream{ctx: t.Context()}}, bidi,
				func(_ any, s grpc.ServerStream) error {
					for range 3 {
						if err := s.RecvMsg(nil); err != nil {
							return err
						}
						at = append(at, time.Since(start))
					}
					return nil
				})
			if err != nil {
				t.Fatal(err)
			}
		}
		want := []time.Duration{0, 500 * time.Millisecond, time.Second, 1500 * time.Millisecond, 2 * time.Second,
			2500 * time.Millisecond}
		if !slices.Equal(at, want) {
			t.Errorf("messages came at %v", at)
		}
		var d weir.Decision
		if err := l.Decide(t.Context(), &weir.Request{Attributes: weir.Map{"grpc.message": "received"}, Peek: true}, &d); err != nil || d.Limits[1].Remaining != 1 {
			t.Errorf("the slot was not given back: %v %+v", err, d.Limits)
		}
	})
}

// A handler may return while a goroutine of its own still receives, or waits for its turn.
func TestMessagesAfterReturn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := limiter(t,
			"limits:\n- {name: pace, when: {grpc.message: received}, algorithm: leaky_bucket, allow: {rate: 1/h, burst: 10}}\n- {name: slots, when: {grpc.message: received}, allow: 5 concurrent}\n")
		intercept := newGate(t, l, grpclimit.Options{NoHeaders: true, Messages: true}).Stream
		for _, late := range []bool{false, true} {
			stream := received{serverStream: serverStream{ctx: t.Context()}, wait: make(chan struct{}, 2)}
			stream.wait <- struct{}{}
			var wg sync.WaitGroup
			var got []codes.Code
			err := intercept(nil, stream, bidi, func(_ any, s grpc.ServerStream) error {
				wg.Go(func() {
					for range 3 {
						err := s.RecvMsg(nil)
						if got = append(got, status.Code(err)); err != nil {
							return
						}
					}
				})
				synctest.Wait() // it has one message, unless it waits for its turn
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			stream.wait <- struct{}{}
			wg.Wait()
			if want := []codes.Code{codes.OK, codes.Canceled}; !late && !slices.Equal(got, want) ||
				late && !slices.Equal(got, want[1:]) {
				t.Errorf("%v", got)
			}
		}
		var d weir.Decision
		if err := l.Decide(t.Context(), &weir.Request{Attributes: weir.Map{"grpc.message": "received"}, Peek: true}, &d); err != nil || d.Limits[1].Remaining != 5 {
			t.Errorf("slots were not given back: %v %+v", err, d.Limits)
		}
	})
}

// A client that retries by its service config is told when, and comes exactly once more.
func TestPushBack(t *testing.T) {
	l := limiter(t,
		"limits:\n- {name: a, when: {grpc.method: Check}, allow: {rate: 20/s, burst: 1}}\n- {name: b, when: {grpc.method: List}, allow: 0/s}\n")
	const patient = `{"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 2, "initialBackoff": "3600s", "maxBackoff": "3600s", "backoffMultiplier": 1, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]}`
	client := healthpb.NewHealthClient(dial(t, l,
		func(s *grpc.Server) { healthpb.RegisterHealthServer(s, health.NewServer()) }, patient, grpclimit.Options{}))
	ctx := patience.Context(t)
	for i := range 2 {
		if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
			t.Errorf("call %d: %v", i, err)
		}
	}
	var trailer metadata.MD
	if _, err := client.List(ctx, &healthpb.HealthListRequest{}, grpc.Trailer(&trailer)); status.Code(
		err) != codes.ResourceExhausted || first(trailer, "grpc-retry-pushback-ms") != "-1" {
		t.Errorf("what can never pass: %v, %v", err, trailer)
	}
}

// A call and the messages on its stream are part of the trace that the program tells.
func TestTrace(t *testing.T) {
	var traced sync.Map // by the message of the request
	l := limiter(t, "limits:\n- {name: n, per: [user], allow: 50/hour, algorithm: sliding_log}\n",
		weir.WithHooks(weir.Hooks{Decided: func(r *weir.Request, _ *weir.Decision) {
			kind, _ := r.Attributes.Attribute("grpc.message")
			traced.Store(kind, r.Trace)
		}}))
	want := &weir.Trace{TraceID: [16]byte{1}, SpanID: [8]byte{2}}
	conn := dial(t, l, func(s *grpc.Server) { reflection.Register(s) }, `{}`,
		grpclimit.Options{Identity: byUser, Messages: true,
			Trace: func(ctx context.Context, method string) *weir.Trace {
				if _, ok := metadata.FromIncomingContext(ctx); !ok ||
					!strings.HasSuffix(method, "/ServerReflectionInfo") {
					t.Errorf("%s: the context is not that of the call", method)
				}
				return want
			}})
	stream, err := reflectionpb.NewServerReflectionClient(conn).ServerReflectionInfo(as("ada"))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"", "received"} {
		if got, _ := traced.Load(kind); got != want {
			t.Errorf("grpc.message %q: %v", kind, got)
		}
	}
}
