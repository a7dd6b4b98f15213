package h2

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"io"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding/gzip"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// bytesCodec sends bytes as they are.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) ([]byte, error)      { return v.([]byte), nil }
func (bytesCodec) Unmarshal(data []byte, v any) error { *v.(*[]byte) = bytes.Clone(data); return nil }
func (bytesCodec) Name() string                       { return "proto" }

// grpcDial connects grpc-go's client.
func grpcDial(t testing.TB, addr string, o ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+addr, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials())}, o...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// invoke makes a call with bytes.
func invoke(ctx context.Context, conn *grpc.ClientConn, path string, in []byte, o ...grpc.CallOption) ([]byte, error) {
	var out []byte
	err := conn.Invoke(ctx, path, in, &out, append(o, grpc.ForceCodec(bytesCodec{}))...)
	return out, err
}

func TestGRPCCallers(t *testing.T) {
	both(t, func(t *testing.T, o Options) {
		_, addr := serve(t, o)
		conn := grpcDial(t, addr)
		for _, callers := range effort.Of([]int{1, 64}, []int{1, 64, 1000}) {
			var all sync.WaitGroup
			for caller := range callers {
				all.Go(func() {
					for i := range max(3, 200/callers) {
						ctx, cancel := context.Background(), func() {}
						if i%2 == 1 {
							ctx, cancel = context.WithTimeout(ctx, patience.Left(t))
						}
						in := fmt.Appendf(nil, "caller %d, call %d", caller, i)
						out, err := invoke(ctx, conn, echoPath, in)
						if cancel(); err != nil || !bytes.Equal(in, out) {
							t.Errorf("%s: %s, %v", in, out, err)
							return
						}
					}
				})
			}
			all.Wait()
		}
	})
}

func TestGRPCLarge(t *testing.T) {
	both(t, func(t *testing.T, o Options) {
		_, addr := serve(t, o)
		conn := grpcDial(t, addr)
		var all sync.WaitGroup
		for i := range effort.Of(4, 12) {
			all.Go(func() {
				in := bytes.Repeat([]byte{byte(i)}, 1<<20-i)
				out, err := invoke(context.Background(), conn, echoPath, in)
				if err != nil || !bytes.Equal(in, out) {
					t.Errorf("%d bytes, %v", len(out), err)
				}
			})
		}
		all.Wait()
		if _, err := invoke(context.Background(), conn, echoPath, make([]byte, 1<<20+1)); status.Code(
			err) != codes.ResourceExhausted {
			t.Errorf("a message that is too large: %v", err)
		}
		if out, err := invoke(context.Background(), conn, echoPath, []byte("alive")); err != nil ||
			string(out) != "alive" {
			t.Errorf("%s, %v", out, err)
		}
	})
}

func TestGRPCGzip(t *testing.T) {
	both(t, func(t *testing.T, o Options) {
		_, addr := serve(t, o)
		conn := grpcDial(t, addr)
		for _, n := range []int{0, 10, 1 << 20} {
			in := make([]byte, n)
			out, err := invoke(context.Background(), conn, echoPath, in, grpc.UseCompressor(gzip.Name))
			if err != nil || !bytes.Equal(in, out) {
				t.Errorf("%d bytes: %d, %v", n, len(out), err)
			}
		}
		_, err := invoke(context.Background(), conn, echoPath, make([]byte, 2<<20), grpc.UseCompressor(gzip.Name))
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("2 MiB that are small when compressed: %v", err)
		}
	})
}

func TestGRPCEnds(t *testing.T) {
	svc := newService()
	_, addr := serve(t, Options{Methods: svc.methods()})
	conn := grpcDial(t, addr)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := invoke(ctx, conn, waitPath, nil); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a deadline: %v", err)
	}
	ctx, cancel = context.WithCancel(context.Background())
	failed := make(chan error, 1)
	go func() {
		_, err := invoke(ctx, conn, waitPath, nil)
		failed <- err
	}()
	eventually(t, "the call waits", func() bool { return svc.waiting.Load() > 0 })
	cancel()
	if err := <-failed; status.Code(err) != codes.Canceled {
		t.Errorf("a call that is cancelled: %v", err)
	}
	eventually(t, "it learns of it", func() bool { return svc.canceled.Load() > 0 && svc.waiting.Load() == 0 })
	_, err := invoke(context.Background(), conn, failPath, append([]byte{7}, "100 % of ü\n~"...))
	if s := status.Convert(err); s.Code() != codes.PermissionDenied || s.Message() != "100 % of ü\n~" {
		t.Errorf("%v", err)
	}
	ctx = metadata.AppendToOutgoingContext(context.Background(), "authorization", "Bearer x")
	if out, err := invoke(ctx, conn, headPath, []byte("authorization")); err != nil || string(out) != "Bearer x" {
		t.Errorf("%s, %v", out, err)
	}
}

// TestGRPCPings: a client that pings as often as grpc-go lets it is served, and one with a small
// window measures on.
func TestGRPCPings(t *testing.T) {
	_, addr := serve(t, Options{Methods: newService().methodsAs(true)})
	conn := grpcDial(t, addr,
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, PermitWithoutStream: true}))
	for i := range effort.Of(1000, 3000) { // more than the pings that a client may send for nothing
		if out, err := invoke(context.Background(), conn, sizePath, []byte("200")); err != nil || len(out) != 200 {
			t.Fatalf("call %d: %d bytes, %v", i, len(out), err)
		}
	}
}

// TestGRPCHandler: grpc-go behind the handler serves what is no call of ours, on the same
// connection.
func TestGRPCHandler(t *testing.T) {
	rest := grpc.NewServer()
	states := health.NewServer()
	healthpb.RegisterHealthServer(rest, states)
	defer rest.Stop()
	_, addr := serve(t, Options{Methods: newService().methods(), Handler: rest})
	conn := grpcDial(t, addr)
	client := healthpb.NewHealthClient(conn)
	watch, err := client.Watch(context.Background(), &healthpb.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []healthpb.HealthCheckResponse_ServingStatus{1, 2, 1} {
		if i > 0 {
			states.SetServingStatus("", want)
		}
		if got, err := watch.Recv(); err != nil || got.Status != want {
			t.Fatalf("%v, %v; want %v", got, err, want)
		}
		if got, err := client.Check(context.Background(), &healthpb.HealthCheckRequest{}); err != nil ||
			got.Status != want {
			t.Fatalf("%v, %v; want %v", got, err, want)
		}
		if out, err := invoke(context.Background(), conn, echoPath, []byte("x")); err != nil || string(out) != "x" {
			t.Fatalf("%s, %v", out, err)
		}
	}
	if _, err := invoke(context.Background(), conn, "/test.Service/Unknown", nil); status.Code(
		err) != codes.Unimplemented {
		t.Errorf("an unknown call: %v", err)
	}
}

// certificate makes one for localhost that is its own authority.
func certificate(t testing.TB) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{"localhost"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// TestTLS: over TLS of the server or of its listener, with the client's certificate if that is
// asked for.
func TestTLS(t *testing.T) {
	own, pool := certificate(t)
	for _, mutual := range []bool{false, true} {
		for _, listener := range []bool{false, true} {
			t.Run(fmt.Sprintf("mutual=%t/listener=%t", mutual, listener), func(t *testing.T) {
				config := &tls.Config{Certificates: []tls.Certificate{own}, NextProtos: []string{"h2"}}
				if mutual {
					config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, pool
				}
				o := Options{Methods: newService().methodsAs(true)}
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				addr := l.Addr().String()
				if listener {
					l = tls.NewListener(l, config)
				} else {
					o.TLS = &tls.Config{Certificates: config.Certificates, ClientAuth: config.ClientAuth,
						ClientCAs: config.ClientCAs}
				}
				serveOn(t, l, o)
				client := &tls.Config{RootCAs: pool, ServerName: "localhost", Certificates: []tls.Certificate{own}}
				conn := grpcDial(t, addr, grpc.WithTransportCredentials(credentials.NewTLS(client)))
				for range 10 {
					if out, err := invoke(context.Background(), conn, echoPath, []byte("x")); err != nil ||
						string(out) != "x" {
						t.Fatalf("%s, %v", out, err)
					}
				}
				if mutual {
					stranger := grpcDial(t, addr,
						grpc.WithTransportCredentials(credentials.NewTLS(
							&tls.Config{RootCAs: pool, ServerName: "localhost"})))
					if _, err := invoke(context.Background(), stranger, echoPath, nil); status.Code(
						err) != codes.Unavailable {
						t.Errorf("without a certificate: %v", err)
					}
				}
				// crypto/tls lets clients of HTTP/1.1 pass as if they named no protocol.
				old, err := tls.Dial("tcp", addr, &tls.Config{RootCAs: pool, ServerName: "localhost",
					NextProtos: []string{"http/1.1"}, Certificates: client.Certificates})
				if err != nil {
					t.Fatal(err)
				}
				defer old.Close()
				_ = old.SetDeadline(patience.End(t)) // a test that hangs
				_, _ = io.WriteString(old, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
				if got, err := io.ReadAll(old); err != nil || !strings.HasPrefix(string(got), "HTTP/1.1 505 ") {
					t.Errorf("HTTP/1.1 is answered %q, %v", got, err)
				}
			})
		}
	}
}
