package proxy

import (
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/testproc"
	"github.com/weir-rl/weir/overload"
)

// grpcUpstream starts a gRPC server, and returns its URL.
func grpcUpstream(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, health.NewServer())
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return "h2c://" + l.Addr().String()
}

// healthClient is a client of that server at an address.
func healthClient(t *testing.T, addr string) healthpb.HealthClient {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return healthpb.NewHealthClient(conn)
}

// A call of gRPC that ends in the proxy ends as a gRPC server would end it: by trailers, with a
// code that its client understands, and when to come back.
func TestGRPCRefusals(t *testing.T) {
	upstream := grpcUpstream(t)
	for _, c := range []struct {
		name, response string
		code           codes.Code
		message        string
	}{
		{"by default", ``, codes.ResourceExhausted, `rate limit "calls" exceeded; retry in `},
		{"a status of the rule", `{status: 503}`, codes.Unavailable, `rate limit "calls" exceeded; retry in `},
		{"a text of the rule", `{status: 403, headers: {X-Reason: "{{.Limit}}"}, body: "100 % used: {{.Limit}}, für heute"}`, codes.PermissionDenied, "100 % used: calls, für heute"},
		{"a code of the rule", `{headers: {Grpc-Status: "9"}, body: {html: "<p>no</p>", text: "later"}}`, codes.FailedPrecondition, "later"},
		{"a page", `{content_type: text/html, body: "<p>no</p>"}`, codes.ResourceExhausted, `rate limit "calls" exceeded; retry in `},
	} {
		t.Run(c.name, func(t *testing.T) {
			yaml := `limits: [{name: calls, when: {path: /grpc.health.v1.Health/**}, allow: 2/h, algorithm: fixed_window, align: first_request`
			if c.response != "" {
				yaml += `, response: ` + c.response
			}
			addr := newProxy(t, upstream, yaml+`}]`)
			client := healthClient(t, addr)
			ctx := patience.Context(t)
			if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
				t.Fatal(err)
			}
			stream, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
			var header, trailer metadata.MD
			_, err = client.Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
			refused(t, c.code, c.message, err, trailer)
			if c.name == "a text of the rule" && !slices.Equal(trailer.Get("x-reason"), []string{"calls"}) {
				t.Errorf("x-reason: %q", trailer.Get("x-reason"))
			}
			// A stream that is refused, too.
			if stream, err = client.Watch(ctx, &healthpb.HealthCheckRequest{}); err == nil {
				_, err = stream.Recv()
			}
			refused(t, c.code, c.message, err, stream.Trailer())
		})
	}
}

// refused checks how a refused call has ended.
func refused(t *testing.T, code codes.Code, message string, err error, trailer metadata.MD) {
	t.Helper()
	s := status.Convert(err)
	if s.Code() != code || !strings.HasPrefix(s.Message(), message) {
		t.Errorf("%v %q, want %v %q", s.Code(), s.Message(), code, message)
	}
	var retry time.Duration
	var limit, reason string
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.RetryInfo:
			retry = d.RetryDelay.AsDuration()
		case *errdetails.QuotaFailure:
			if v := d.Violations; len(v) == 1 && v[0].QuotaValue == 2 && v[0].QuotaId == "calls" {
				limit = v[0].Subject + ": " + v[0].Description
			}
		case *errdetails.ErrorInfo:
			reason = d.Reason + " " + d.Domain + " " + d.Metadata["limit"]
			if d.Metadata["decision"] == "" {
				t.Errorf("no decision in %v", d)
			}
		default:
			t.Errorf("a detail that nobody expects: %v", d)
		}
	}
	if retry <= 0 || retry > time.Hour || limit != "limit:calls: at most 2 in 3600 s (fixed_window)" ||
		reason != "RATE_LIMITED github.com/weir-rl/weir calls" {
		t.Errorf("details: retry in %v, %q, %q", retry, limit, reason)
	}
	for _, name := range []string{"grpc-retry-pushback-ms", "retry-after", "ratelimit", "x-ratelimit-decision"} {
		if len(trailer.Get(name)) != 1 {
			t.Errorf("%s in the trailer: %q", name, trailer.Get(name))
		}
	}
}

// Whatever else ends a call in the proxy ends it so, too.
func TestGRPCFailures(t *testing.T) {
	port, held, err := testproc.Reserve(false) // nobody listens there
	if err != nil {
		t.Fatal(err)
	}
	defer testproc.Release(held)
	gone := "h2c://" + testproc.Loopback(port)
	full, err := overload.New(overload.Options{Fixed: 1})
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := full.Acquire(overload.Default); !ok {
		t.Fatal("no room")
	}
	for _, c := range []struct {
		name, upstream string
		change         func(*Options)
		md             []string
		code           codes.Code
		message        string
		retry          bool
	}{
		{"no upstream", gone, func(*Options) {}, nil, codes.Unavailable, "The server behind this proxy could not be reached", false},
		{"no room", gone, func(o *Options) { o.Overload = full }, nil, codes.Unavailable, "This service is busier than it can be", true},
		{"two credentials", gone, func(*Options) {}, []string{"authorization", "Bearer a", "authorization", "Bearer b"}, codes.InvalidArgument, "The request has more than one Authorization header", false},
	} {
		addr := newProxy(t, c.upstream, noLimits, c.change)
		ctx := metadata.AppendToOutgoingContext(patience.Context(t), c.md...)
		_, err := healthClient(t, addr).Check(ctx, &healthpb.HealthCheckRequest{})
		s := status.Convert(err)
		if s.Code() != c.code || !strings.HasPrefix(s.Message(), c.message) {
			t.Errorf("%s: %v %q, want %v %q", c.name, s.Code(), s.Message(), c.code, c.message)
		}
		retry := slices.ContainsFunc(s.Details(), func(d any) bool {
			info, ok := d.(*errdetails.RetryInfo)
			return ok && info.RetryDelay.AsDuration() == time.Second
		})
		if retry != c.retry {
			t.Errorf("%s: RetryInfo of a second: %v, want %v", c.name, retry, c.retry)
		}
	}
}

// What only looks like a call of gRPC, over HTTP/1.1, gets an answer of HTTP.
func TestGRPCOverHTTP1(t *testing.T) {
	addr := newProxy(t, newUpstream(t, nil).URL, `limits: [{name: none, allow: 0/h}]`)
	resp, err := client(t, false).Post("http://"+addr+"/grpc.health.v1.Health/Check", "application/grpc", nil)
	if read(t, resp, err); resp.StatusCode != 429 || resp.Header.Get("Grpc-Status") != "" {
		t.Errorf("%d %v", resp.StatusCode, resp.Header)
	}
}
