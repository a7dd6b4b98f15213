package main

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/weir-rl/weir/internal/testkit/certtest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestTLS: every door speaks TLS, HTTP/2 where it speaks HTTP; the proxy knows its clients by their
// certificates; new certificates are taken over by SIGHUP, and broken ones are not.
func TestTLS(t *testing.T) {
	servertest.InFolder(t, servertest.Hourly)
	ca, clients := certtest.New(t, "ca"), certtest.New(t, "clients")
	names := []string{"cert.pem", "key.pem", "clients.pem", "ca.pem"}
	cert, key := ca.Issue("first", 0, "127.0.0.1", "weir.example")
	certtest.Write(t, names, cert, key, clients.PEM, ca.PEM)
	var proto string
	upstream := httptest.NewServer(http.HandlerFunc(
		func(_ http.ResponseWriter, r *http.Request) { proto = r.Header.Get("X-Forwarded-Proto") }))
	defer upstream.Close()
	p := servertest.Start(t, "serve", "--rules=rules.yaml", "--tls-cert=cert.pem", "--tls-key=key.pem",
		"--tls-client-ca=clients.pem", "--tls-client-doors=proxy",
		"--listen-proxy=127.0.0.1:0", "--proxy-upstream="+upstream.URL, "--identity=user=tls")
	http2, http1 := servertest.ClientOf(t, true, ca.Client(""), nil), servertest.ClientOf(t, false, ca.Client(""), nil)
	for i, client := range []*http.Client{http1, http2, http2} {
		status, body := servertest.Ask(t, client, "GET", "https://"+p.Addr("http")+"/api/v1/limit?key=ada", "")
		if want := []int{200, 200, 429}[i]; status != want {
			t.Errorf("HTTP, request %d: %d %s, want %d", i, status, body, want)
		}
	}
	if r, err := http2.Get("https://" + p.Addr("http") + "/healthcheck"); err != nil || r.ProtoMajor != 2 {
		t.Errorf("HTTP/2: %v", err)
	} else {
		r.Body.Close()
	}
	if status, _ := servertest.Ask(t, http.DefaultClient, "GET", "http://"+p.Addr("http")+"/healthcheck", ""); status != 400 {
		t.Errorf("without TLS: %d", status)
	}
	question := &rlspb.RateLimitRequest{Domain: "shop",
		Descriptors: []*ratelimitv3.RateLimitDescriptor{{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "key",
			Value: "ada"}}}}}
	conn, err := grpc.NewClient(p.Addr("grpc"), grpc.WithTransportCredentials(credentials.NewTLS(ca.Client(""))))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if r, err := rlspb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), question); err != nil ||
		r.OverallCode != rlspb.RateLimitResponse_OVER_LIMIT {
		t.Errorf("gRPC: %v %v", r, err)
	}
	if status, body := servertest.Ask(t, http1, "GET", "https://"+p.Addr("admin")+"/api/v1/rules", ""); status != 200 {
		t.Errorf("admin: %d %s", status, body)
	}
	resp, err := tls.Dial("tcp", p.Addr("resp"), ca.Client(""))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Close()
	_ = resp.SetDeadline(patience.End(t))
	if _, err := io.WriteString(resp, "PING\r\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(resp).ReadString('\n'); err != nil || line != "+PONG\r\n" {
		t.Errorf("RESP: %q %v", line, err)
	}
	for _, want := range []string{"--cacert", "https://" + p.Addr("admin") + "/metrics"} {
		p.Stdout.Await(t, want)
	}

	// The proxy lets nobody in without a certificate of its clients' authority, and counts by its
	// name.
	proxy := "https://" + p.Addr("proxy") + "/"
	// A client whose connection is closed before it has asked may dial again.
	var strangers atomic.Int64
	dial := func() (net.Conn, error) { strangers.Add(1); return net.Dial("tcp", p.Addr("proxy")) }
	for _, stranger := range []*tls.Config{ca.Client(""), ca.Client("ada")} {
		if status, body := servertest.Ask(t, servertest.ClientOf(t, true, stranger, dial), "GET", proxy, ""); status != 0 {
			t.Errorf("a stranger: %d %s", status, body)
		}
	}
	for _, name := range []string{"ada", "bob"} {
		config := ca.Client("")
		config.GetClientCertificate = clients.Client(name).GetClientCertificate
		for i := range 3 {
			if status, body := servertest.Ask(t, servertest.ClientOf(t, i > 0, config, nil), "GET", proxy, ""); status != []int{200, 200, 429}[i] {
				t.Errorf("%s, request %d: %d %s", name, i, status, body)
			}
		}
	}
	if proto != "https" {
		t.Errorf("the upstream is told %q", proto)
	}

	// New files.
	shown := func(door string) string {
		c, err := tls.Dial("tcp", p.Addr(door), ca.Client(""))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	hangup := func() {
		t.Helper()
		if err := servertest.HangUp(); err != nil {
			t.Fatal(err)
		}
	}
	cert, key = ca.Issue("second", 0, "127.0.0.1")
	certtest.Write(t, names, cert, key)
	hangup()
	p.Stderr.Await(t, "certificates loaded")
	for _, door := range []string{"http", "grpc", "admin"} {
		if got := shown(door); got != "second" {
			t.Errorf("%s shows the %s certificate", door, got)
		}
	}
	certtest.Write(t, names, []byte("rubbish"))
	hangup()
	p.Stderr.Await(t, "certificates not loaded")
	if got := shown("http"); got != "second" {
		t.Errorf("after rubbish the %s certificate is shown", got)
	}
	// Files that were looked at while they were written may have been in the log before.
	servertest.Eventually(t, "readyz says that the new ones are not in force", func() bool {
		status, body := servertest.Ask(t, http1, "GET", "https://"+p.Addr("admin")+"/readyz", "")
		if status != 200 {
			t.Fatalf("readyz: %d %s", status, body)
		}
		return strings.Contains(body, "new certificates are not in force")
	})
	if _, body := servertest.Ask(t, http1, "GET", "https://"+p.Addr("admin")+"/metrics", ""); strangers.Load() < 2 ||
		// The server looks by itself, too.
		!regexp.MustCompile(`(?m)^weir_certificate_load_errors_total [12]$`).MatchString(body) ||
		!strings.Contains(body, fmt.Sprintf("weir_connections_refused_total{door=%q,reason=%q} %d\n", "proxy",
			"tls_handshake", strangers.Load())) {
		t.Errorf("metrics do not tell of it, or not of %d strangers:\n%s", strangers.Load(), body)
	}
	p.End()

	// The commands reach such an admin port.
	certtest.Write(t, names, cert, key)
	p = servertest.Start(t, "serve", "--rules=rules.yaml", "--tls-cert=cert.pem", "--tls-key=key.pem",
		"--tls-client-ca=clients.pem", "--tls-doors=admin")
	if status, _ := servertest.Ask(t, http.DefaultClient, "GET", "http://"+p.Addr("http")+"/healthcheck", ""); status != 200 {
		t.Errorf("a door that is not in tls.doors: %d", status)
	}
	own, ownKey := clients.Issue("operator", 0)
	certtest.Write(t, []string{"own.pem", "own.key"}, own, ownKey)
	good := start(t, "ban", "list", "--server=https://"+p.Addr("admin"), "--ca=ca.pem", "--cert=own.pem",
		"--key=own.key")
	good.Exits(0)
	start(t, "ban", "list", "--server=https://"+p.Addr("admin"), "--ca=ca.pem").Exits(1)
	start(t, "ban", "list", "--server=https://"+p.Addr("admin"), "--ca=absent.pem").Exits(exitUsage)
	p.End()
}

// TestUnixDoors: doors on unix sockets serve, trust whom the configuration says, and leave nothing
// behind.
func TestUnixDoors(t *testing.T) {
	dir := servertest.InFolder(t, servertest.Hourly)
	upstream := httptest.NewServer(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("X-Forwarded-For")) }))
	defer upstream.Close()
	for _, trusted := range []bool{false, true} {
		args := []string{"serve", "--rules=rules.yaml", "--listen-http=unix:http.sock", "--listen-grpc=unix:grpc.sock",
			"--listen-admin=unix:" + dir + "/admin.sock",
			"--listen-proxy=unix:proxy.sock", "--proxy-upstream=" + upstream.URL}
		if trusted {
			args = append(args, "--trusted-peers=unix", "--client-ip-trusted-proxies=unix")
		}
		p := servertest.Start(t, args...)
		if got := p.Addr("admin"); got != "unix:"+dir+"/admin.sock" {
			t.Errorf("the log says %s", got)
		}
		p.Stdout.Await(t, "curl --unix-socket 'http.sock' -i 'http://localhost/api/v1/limit")
		over := func(name string) *http.Client {
			return servertest.ClientOf(t, false, nil, func() (net.Conn, error) { return net.Dial("unix", name) })
		}
		if info, err := os.Lstat("http.sock"); err != nil || info.Mode() != os.ModeSocket|0o660 {
			t.Errorf("%v %v", info, err)
		}
		if status, body := servertest.Ask(t, over("http.sock"), "GET", "http://localhost/api/v1/limit?key=ada", ""); status != 200 {
			t.Errorf("HTTP: %d %s", status, body)
		}
		refund := 403
		if trusted {
			refund = 200
		}
		if status, body := servertest.Ask(t, over("http.sock"), "GET", "http://localhost/api/v1/limit?key=ada&hits=-1", ""); status != refund {
			t.Errorf("a refund, trusted %v: %d %s", trusted, status, body)
		}
		conn, err := grpc.NewClient("unix:"+dir+"/grpc.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		question := &rlspb.RateLimitRequest{Domain: "shop",
			Descriptors: []*ratelimitv3.RateLimitDescriptor{{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "key", Value: "eve"}}}}}
		if r, err := rlspb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), question); err != nil ||
			r.OverallCode != rlspb.RateLimitResponse_OK {
			t.Errorf("gRPC: %v %v", r, err)
		}
		_ = conn.Close()
		for i := range 3 {
			status, body := servertest.Ask(t, over("proxy.sock"), "GET", "http://shop/", "", "X-Forwarded-For",
				"198.51.100.7")
			want, told := 200, "" // without an address no limit per address is met
			if trusted {
				want, told = []int{200, 200, 429}[i], "198.51.100.7"
			}
			if status != want || status == 200 && body != told {
				t.Errorf("proxy, trusted %v, request %d: %d %q", trusted, i, status, body)
			}
		}
		start(t, "ban", "list", "--server=unix:"+dir+"/admin.sock").Exits(0)
		start(t, "explain", "--rules=rules.yaml", "--server=unix:admin.sock", "key=ada").Exits(0)
		second := servertest.Start(t, args...)
		second.Exits(exitFailure)
		if !strings.Contains(second.Stderr.String(), "listen.admin: unix:"+dir+"/admin.sock is in use") {
			t.Errorf("a second server wrote\n%s", second.Stderr)
		}
		p.End()
		if left, err := filepath.Glob("*.sock"); err != nil || len(left) > 0 {
			t.Errorf("%v are left", left)
		}
	}
}
