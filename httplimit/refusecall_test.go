package httplimit_test

import (
	"net"
	"net/http"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/store/memory"
)

// TestRefusedCall: a call of gRPC that the middleware refuses, before a server of gRPC that
// net/http serves, ends with trailers that its client understands; one over HTTP/1.1 is none.
func TestRefusedCall(t *testing.T) {
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	limiter, err := weir.New(store, weir.Limit("calls", "1/h", "host"))
	if err != nil {
		t.Fatal(err)
	}
	limit, err := httplimit.New(limiter, httplimit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	calls := grpc.NewServer()
	healthpb.RegisterHealthServer(calls, health.NewServer())
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: limit(calls), Protocols: new(http.Protocols)}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	defer func() { _ = s.Close(); <-done }()
	conn, err := grpc.NewClient("passthrough:"+l.Addr().String(),
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client, ctx := healthpb.NewHealthClient(conn), patience.Context(t)
	if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{}); err != nil {
		t.Fatal(err)
	}
	_, err = client.Check(ctx, &healthpb.HealthCheckRequest{})
	refusal := status.Convert(err)
	retry := false
	for _, d := range refusal.Details() {
		info, ok := d.(*errdetails.RetryInfo)
		retry = retry || ok && info.RetryDelay.AsDuration() > 0
	}
	if refusal.Code() != codes.ResourceExhausted || !retry {
		t.Errorf("%v, with RetryInfo: %v", err, retry)
	}
	resp, err := http.Post("http://"+l.Addr().String()+"/grpc.health.v1.Health/Check", "application/grpc", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusTooManyRequests {
		t.Errorf("over HTTP/1.1: %s", resp.Status)
	}
}
