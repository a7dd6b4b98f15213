package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/testproc"
	"github.com/weir-rl/weir/internal/wire/listen/certtest"
)

const hourly = "domain: shop\nlimits: [{ name: api, per: [user|ip|key], allow: 2/hour, algorithm: sliding_log }]\n"

// rulesFile writes rules to a file of their own.
func rulesFile(t *testing.T, rules string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "rules.yaml")
	writeRules(t, path, rules)
	return path
}

// inFolder changes to a folder of its own that holds rules.
func inFolder(t *testing.T, rules string) string {
	t.Helper()
	dir := testproc.SocketDir(t)
	t.Chdir(dir)
	writeRules(t, "rules.yaml", rules)
	return dir
}

// clientOf speaks HTTP/1.1, or HTTP/2, over connections of its own.
func clientOf(t *testing.T, h2 bool, config *tls.Config, dial func() (net.Conn, error)) *http.Client {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!h2)
	protocols.SetHTTP2(h2)
	tr := &http.Transport{TLSClientConfig: config, Protocols: protocols}
	if dial != nil {
		tr.DialContext = func(context.Context, string, string) (net.Conn, error) { return dial() }
	}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience.Left(t)}
}

// ask returns status and body; 0 and the error's text if there is no answer.
func ask(t *testing.T, client *http.Client, method, url, body string, headers ...string) (int, string) {
	t.Helper()
	r, err := http.NewRequest(method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := client.Do(r)
	if err != nil {
		return 0, err.Error()
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(b)
}

// TestTLS: every door speaks TLS, HTTP/2 where it speaks HTTP; the proxy knows its clients by their
// certificates; new certificates are taken over by SIGHUP, and broken ones are not.
func TestTLS(t *testing.T) {
	inFolder(t, hourly)
	ca, clients := certtest.New(t, "ca"), certtest.New(t, "clients")
	names := []string{"cert.pem", "key.pem", "clients.pem", "ca.pem"}
	cert, key := ca.Issue("first", 0, "127.0.0.1", "weir.example")
	certtest.Write(t, names, cert, key, clients.PEM, ca.PEM)
	var proto string
	upstream := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { proto = r.Header.Get("X-Forwarded-Proto") }))
	defer upstream.Close()
	p := startServer(t, "serve", "--rules=rules.yaml", "--tls-cert=cert.pem", "--tls-key=key.pem", "--tls-client-ca=clients.pem", "--tls-client-doors=proxy",
		"--listen-proxy=127.0.0.1:0", "--proxy-upstream="+upstream.URL, "--identity=user=tls")
	http2, http1 := clientOf(t, true, ca.Client(""), nil), clientOf(t, false, ca.Client(""), nil)
	for i, client := range []*http.Client{http1, http2, http2} {
		status, body := ask(t, client, "GET", "https://"+p.addr("http")+"/api/v1/limit?key=ada", "")
		if want := []int{200, 200, 429}[i]; status != want {
			t.Errorf("HTTP, request %d: %d %s, want %d", i, status, body, want)
		}
	}
	if r, err := http2.Get("https://" + p.addr("http") + "/healthcheck"); err != nil || r.ProtoMajor != 2 {
		t.Errorf("HTTP/2: %v", err)
	} else {
		r.Body.Close()
	}
	if status, _ := ask(t, http.DefaultClient, "GET", "http://"+p.addr("http")+"/healthcheck", ""); status != 400 {
		t.Errorf("without TLS: %d", status)
	}
	question := &rlspb.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "key", Value: "ada"}}}}}
	conn, err := grpc.NewClient(p.addr("grpc"), grpc.WithTransportCredentials(credentials.NewTLS(ca.Client(""))))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if r, err := rlspb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), question); err != nil || r.OverallCode != rlspb.RateLimitResponse_OVER_LIMIT {
		t.Errorf("gRPC: %v %v", r, err)
	}
	if status, body := ask(t, http1, "GET", "https://"+p.addr("admin")+"/api/v1/rules", ""); status != 200 {
		t.Errorf("admin: %d %s", status, body)
	}
	resp, err := tls.Dial("tcp", p.addr("resp"), ca.Client(""))
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
	for _, want := range []string{"--cacert", "https://" + p.addr("admin") + "/metrics"} {
		p.stdout.await(t, want)
	}

	// The proxy lets nobody in without a certificate of its clients' authority, and counts by its
	// name.
	proxy := "https://" + p.addr("proxy") + "/"
	// A client whose connection is closed before it has asked may dial again.
	var strangers atomic.Int64
	dial := func() (net.Conn, error) { strangers.Add(1); return net.Dial("tcp", p.addr("proxy")) }
	for _, stranger := range []*tls.Config{ca.Client(""), ca.Client("ada")} {
		if status, body := ask(t, clientOf(t, true, stranger, dial), "GET", proxy, ""); status != 0 {
			t.Errorf("a stranger: %d %s", status, body)
		}
	}
	for _, name := range []string{"ada", "bob"} {
		config := ca.Client("")
		config.GetClientCertificate = clients.Client(name).GetClientCertificate
		for i := range 3 {
			if status, body := ask(t, clientOf(t, i > 0, config, nil), "GET", proxy, ""); status != []int{200, 200, 429}[i] {
				t.Errorf("%s, request %d: %d %s", name, i, status, body)
			}
		}
	}
	if proto != "https" {
		t.Errorf("the upstream is told %q", proto)
	}

	// New files.
	shown := func(door string) string {
		c, err := tls.Dial("tcp", p.addr(door), ca.Client(""))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].Subject.CommonName
	}
	hangup := func() {
		t.Helper()
		if err := hangUp(); err != nil {
			t.Fatal(err)
		}
	}
	cert, key = ca.Issue("second", 0, "127.0.0.1")
	certtest.Write(t, names, cert, key)
	hangup()
	p.stderr.await(t, "certificates loaded")
	for _, door := range []string{"http", "grpc", "admin"} {
		if got := shown(door); got != "second" {
			t.Errorf("%s shows the %s certificate", door, got)
		}
	}
	certtest.Write(t, names, []byte("rubbish"))
	hangup()
	p.stderr.await(t, "certificates not loaded")
	if got := shown("http"); got != "second" {
		t.Errorf("after rubbish the %s certificate is shown", got)
	}
	if status, body := ask(t, http1, "GET", "https://"+p.addr("admin")+"/readyz", ""); status != 200 || !strings.Contains(body, "new certificates are not in force") {
		t.Errorf("readyz: %d %s", status, body)
	}
	if _, body := ask(t, http1, "GET", "https://"+p.addr("admin")+"/metrics", ""); strangers.Load() < 2 || !strings.Contains(body, "weir_certificate_load_errors_total 1\n") ||
		!strings.Contains(body, fmt.Sprintf("weir_connections_refused_total{door=%q,reason=%q} %d\n", "proxy", "tls_handshake", strangers.Load())) {
		t.Errorf("metrics do not tell of it, or not of %d strangers:\n%s", strangers.Load(), body)
	}
	p.end()

	// The commands reach such an admin port.
	certtest.Write(t, names, cert, key)
	p = startServer(t, "serve", "--rules=rules.yaml", "--tls-cert=cert.pem", "--tls-key=key.pem", "--tls-client-ca=clients.pem", "--tls-doors=admin")
	if status, _ := ask(t, http.DefaultClient, "GET", "http://"+p.addr("http")+"/healthcheck", ""); status != 200 {
		t.Errorf("a door that is not in tls.doors: %d", status)
	}
	own, ownKey := clients.Issue("operator", 0)
	certtest.Write(t, []string{"own.pem", "own.key"}, own, ownKey)
	good := start(t, "ban", "list", "--server=https://"+p.addr("admin"), "--ca=ca.pem", "--cert=own.pem", "--key=own.key")
	good.exits(0)
	start(t, "ban", "list", "--server=https://"+p.addr("admin"), "--ca=ca.pem").exits(1)
	start(t, "ban", "list", "--server=https://"+p.addr("admin"), "--ca=absent.pem").exits(exitUsage)
	p.end()
}

// TestUnixDoors: doors on unix sockets serve, trust whom the configuration says, and leave nothing
// behind.
func TestUnixDoors(t *testing.T) {
	dir := inFolder(t, hourly)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("X-Forwarded-For")) }))
	defer upstream.Close()
	for _, trusted := range []bool{false, true} {
		args := []string{"serve", "--rules=rules.yaml", "--listen-http=unix:http.sock", "--listen-grpc=unix:grpc.sock", "--listen-admin=unix:" + dir + "/admin.sock",
			"--listen-proxy=unix:proxy.sock", "--proxy-upstream=" + upstream.URL}
		if trusted {
			args = append(args, "--trusted-peers=unix", "--client-ip-trusted-proxies=unix")
		}
		p := startServer(t, args...)
		if got := p.addr("admin"); got != "unix:"+dir+"/admin.sock" {
			t.Errorf("the log says %s", got)
		}
		p.stdout.await(t, "curl --unix-socket 'http.sock' -i 'http://localhost/api/v1/limit")
		over := func(name string) *http.Client {
			return clientOf(t, false, nil, func() (net.Conn, error) { return net.Dial("unix", name) })
		}
		if info, err := os.Lstat("http.sock"); err != nil || info.Mode() != os.ModeSocket|0o660 {
			t.Errorf("%v %v", info, err)
		}
		if status, body := ask(t, over("http.sock"), "GET", "http://localhost/api/v1/limit?key=ada", ""); status != 200 {
			t.Errorf("HTTP: %d %s", status, body)
		}
		refund := 403
		if trusted {
			refund = 200
		}
		if status, body := ask(t, over("http.sock"), "GET", "http://localhost/api/v1/limit?key=ada&hits=-1", ""); status != refund {
			t.Errorf("a refund, trusted %v: %d %s", trusted, status, body)
		}
		conn, err := grpc.NewClient("unix:"+dir+"/grpc.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		question := &rlspb.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "key", Value: "eve"}}}}}
		if r, err := rlspb.NewRateLimitServiceClient(conn).ShouldRateLimit(t.Context(), question); err != nil || r.OverallCode != rlspb.RateLimitResponse_OK {
			t.Errorf("gRPC: %v %v", r, err)
		}
		_ = conn.Close()
		for i := range 3 {
			status, body := ask(t, over("proxy.sock"), "GET", "http://shop/", "", "X-Forwarded-For", "198.51.100.7")
			want, told := 200, "" // without an address no limit per address is met
			if trusted {
				want, told = []int{200, 200, 429}[i], "198.51.100.7"
			}
			if status != want || status == 200 && body != told {
				t.Errorf("proxy, trusted %v, request %d: %d %q", trusted, i, status, body)
			}
		}
		start(t, "ban", "list", "--server=unix:"+dir+"/admin.sock").exits(0)
		start(t, "explain", "--rules=rules.yaml", "--server=unix:admin.sock", "key=ada").exits(0)
		second := startServer(t, args...)
		second.exits(exitUsage)
		if !strings.Contains(second.stderr.String(), "listen.http: unix:http.sock is in use") {
			t.Errorf("a second server wrote\n%s", second.stderr)
		}
		p.end()
		if left, err := filepath.Glob("*.sock"); err != nil || len(left) > 0 {
			t.Errorf("%v are left", left)
		}
	}
}

// proxied dials address, and begins with a PROXY protocol header.
func proxied(address, source string) func() (net.Conn, error) {
	return func() (net.Conn, error) {
		c, err := net.Dial("tcp", address)
		if err == nil && source != "" {
			_, err = fmt.Fprintf(c, "PROXY TCP4 %s 203.0.113.1 1234 443\r\n", source)
		}
		return c, err
	}
}

// TestProxyProtocolDoors: a PROXY protocol header from a listed peer names the client, for limits
// and for trust.
func TestProxyProtocolDoors(t *testing.T) {
	t.Parallel()
	rules := rulesFile(t, hourly)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("X-Forwarded-For")) }))
	defer upstream.Close()
	args := []string{"serve", "--rules=" + rules, "--listen-proxy=127.0.0.1:0", "--proxy-upstream=" + upstream.URL, "--proxy-protocol-doors=proxy,http", "--trusted-peers=198.51.100.0/24"}
	p := startServer(t, append(args, "--proxy-protocol-peers=127.0.0.0/8")...)
	address, api := p.addr("proxy"), p.addr("http")
	for i := range 3 {
		for _, source := range []string{"192.0.2.1", "192.0.2.2"} {
			status, body := ask(t, clientOf(t, false, nil, proxied(address, source)), "GET", "http://shop/", "", "X-Forwarded-For", "203.0.113.9")
			if want := []int{200, 200, 429}[i]; status != want || status == 200 && body != source {
				t.Errorf("%s, request %d: %d %q", source, i, status, body)
			}
		}
	}
	for source, want := range map[string]int{"": 0, "192.0.2.1": 403, "198.51.100.1": 200} {
		if status, body := ask(t, clientOf(t, false, nil, proxied(api, source)), "GET", "http://weir/api/v1/limit?key=ada&hits=-1", ""); status != want {
			t.Errorf("a refund from %q: %d %s, want %d", source, status, body, want)
		}
	}
	if status, body := ask(t, http.DefaultClient, "GET", "http://"+p.addr("admin")+"/metrics", ""); status != 200 || !strings.Contains(body, `weir_connections_refused_total{door="http",reason="proxy_header"} 1`) {
		t.Errorf("a door without PROXY protocol, or its metrics: %d %s", status, body)
	}
	p.end()

	p = startServer(t, append(args, "--proxy-protocol-peers=192.0.2.0/24")...)
	if status, body := ask(t, clientOf(t, false, nil, proxied(p.addr("http"), "198.51.100.1")), "GET", "http://weir/api/v1/limit?key=ada&hits=-1", ""); status != 0 {
		t.Errorf("a forged header: %d %s", status, body)
	}
	p.stderr.await(t, "proxy_protocol.peers")
	p.end()
}

// TestTokenDoors: auth.doors closes doors to clients without a token.
func TestTokenDoors(t *testing.T) {
	t.Parallel()
	rules := rulesFile(t, hourly)
	tokens := filepath.Join(t.TempDir(), "tokens")
	writeRules(t, tokens, "sesame\n")
	p := startServer(t, "serve", "--rules="+rules, "--auth-tokens-file="+tokens, "--auth-doors=http,grpc")
	url := "http://" + p.addr("http") + "/api/v1/limit?key=ada"
	for _, c := range []struct {
		token string
		want  int
	}{{"", 401}, {"x", 401}, {"sesame", 200}} {
		if status, body := ask(t, http.DefaultClient, "GET", url, "", "Authorization", "Bearer "+c.token); status != c.want {
			t.Errorf("%q: %d %s", c.token, status, body)
		}
	}
	conn, err := grpc.NewClient(p.addr("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	question := &rlspb.RateLimitRequest{Domain: "shop", Descriptors: []*ratelimitv3.RateLimitDescriptor{{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "key", Value: "ada"}}}}}
	for token, want := range map[string]codes.Code{"x": codes.Unauthenticated, "sesame": codes.OK} {
		_, err := rlspb.NewRateLimitServiceClient(conn).ShouldRateLimit(metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token), question)
		if got := status.Code(err); got != want {
			t.Errorf("gRPC, %q: %v", token, err)
		}
	}
	p.end()
}

// TestLimits: the bounds on one client come from the configuration.
func TestLimits(t *testing.T) {
	t.Parallel()
	rules := rulesFile(t, "domain: shop\nlimits: [{ name: all, allow: 1000/min }]\n")
	given := make(chan struct{})
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, _ = io.Copy(io.Discard, r.Body); r.URL.Path == "/endless" {
			defer close(given)
			for {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}
	}))
	defer upstream.Close()
	p := startServer(t, "serve", "--rules="+rules, "--listen-proxy=127.0.0.1:0", "--proxy-upstream="+upstream.URL, "--limits-connections-per-address=12", "--limits-header-bytes=8KiB",
		"--limits-body-bytes=1KB", "--limits-idle=50ms", "--limits-header-timeout=1h", "--limits-stall=100ms")
	address := p.addr("proxy")
	for _, c := range []struct {
		name, body string
		headers    []string
		want       int
	}{
		{"small", strings.Repeat("x", 1000), nil, 200},
		{"a large header", "", []string{"X-Large", strings.Repeat("x", 20_000)}, 431},
		{"a large body", strings.Repeat("x", 1001), nil, 413},
	} {
		// On a connection of its own: one that has been idle for 50 ms may close as it is used.
		client := clientOf(t, false, nil, nil)
		if status, body := ask(t, client, "POST", "http://"+address, c.body, c.headers...); status != c.want {
			t.Errorf("%s: %d %s, want %d", c.name, status, body, c.want)
		}
		client.CloseIdleConnections()
	}
	chunked, err := http.NewRequest("POST", "http://"+address, io.MultiReader(strings.NewReader(strings.Repeat("x", 5000))))
	if err != nil {
		t.Fatal(err)
	}
	client := clientOf(t, false, nil, nil)
	if r, err := client.Do(chunked); err != nil || r.StatusCode != 413 {
		t.Errorf("a large body of unknown length: %v %v", r, err)
	} else {
		r.Body.Close()
	}
	client.CloseIdleConnections()
	// Idle connections are closed, and connections above the bound at once.
	idle, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer idle.Close()
	if _, err := io.WriteString(idle, "GET / HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	_ = idle.SetReadDeadline(patience.End(t))
	if b, err := io.ReadAll(idle); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 200 OK") {
		t.Errorf("%q %v", b, err)
	}
	// A client that does not read its answer is given up, and so is the upstream's part in it.
	deaf, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	if _, err := io.WriteString(deaf, "GET /endless HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-given:
	case <-time.After(patience.Left(t)):
		t.Error("the upstream writes for ever to a client that does not read")
	}
	api := p.addr("http")
	var open []net.Conn
	for range 15 {
		c, err := net.Dial("tcp", api)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(patience.End(t))
		open = append(open, c)
	}
	for i, c := range open[12:] {
		if _, err := c.Read(make([]byte, 1)); err != io.EOF && !strings.Contains(fmt.Sprint(err), "reset") {
			t.Errorf("connection %d: %v", i+13, err)
		}
	}
	if _, err := io.WriteString(open[11], "GET /healthcheck HTTP/1.1\r\nHost: a\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(open[11]).ReadString('\n'); err != nil || !strings.Contains(line, "200") {
		t.Errorf("the twelfth connection: %q %v", line, err)
	}
	if status, _ := ask(t, http.DefaultClient, "GET", "http://"+p.addr("admin")+"/healthz", ""); status != 200 {
		t.Errorf("the admin door: %d", status)
	}
	p.end()
}

// TestShareFiles: all doors together take no more files than there are, and each has some.
func TestShareFiles(t *testing.T) {
	for _, c := range []struct{ files, most, doors, want int }{
		{0, 10_000, 5, 10_000}, {1 << 20, 10_000, 5, 10_000}, {1024, 10_000, 4, 240}, {1024, 100, 4, 100}, {16, 10_000, 4, 2}, {1, 10_000, 9, 1},
	} {
		if got := shareFiles(c.files, c.most, c.doors); got != c.want {
			t.Errorf("%+v: got %d", c, got)
		}
	}
}

// TestAdminByBrowser: what a web page can make a browser send to the admin port does nothing, over
// TLS as without.
func TestAdminByBrowser(t *testing.T) {
	t.Parallel()
	rules := rulesFile(t, hourly)
	ca := certtest.New(t, "ca")
	cert, key := ca.Issue("weir", 0, "127.0.0.1")
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	certtest.Write(t, []string{certFile, keyFile}, cert, key)
	for _, overTLS := range []bool{false, true} {
		args, scheme, client := []string{"serve", "--rules=" + rules}, "http", clientOf(t, false, nil, nil)
		if overTLS {
			args, scheme, client = append(args, "--tls-cert="+certFile, "--tls-key="+keyFile, "--tls-doors=admin"), "https", clientOf(t, true, ca.Client(""), nil)
		}
		p := startServer(t, args...)
		base := scheme + "://" + p.addr("admin")
		const ban = `{"domain":"shop","rule":"api","key":"key=ada","for":"1h"}`
		for _, c := range []struct {
			name, method, path string
			headers            []string
			want               int
		}{
			{"DNS rebinding", "GET", "/api/v1/rules", []string{"Host", "evil.example"}, 403},
			{"DNS rebinding, a port", "GET", "/metrics", []string{"Host", "evil.example:6070"}, 403},
			{"DNS rebinding, of the same origin", "POST", "/api/v1/bans", []string{"Host", "evil.example", "Origin", scheme + "://evil.example", "Content-Type", "application/json"}, 403},
			{"a form", "POST", "/api/v1/bans", []string{"Content-Type", "text/plain", "Origin", "https://evil.example"}, 403},
			{"a form of a sandboxed page", "POST", "/api/v1/bans", []string{"Content-Type", "text/plain", "Origin", "null"}, 403},
			{"a form of an old browser", "POST", "/api/v1/bans", []string{"Content-Type", "application/x-www-form-urlencoded"}, 415},
			{"a form of text", "POST", "/api/v1/bans", []string{"Content-Type", "text/plain;application/json"}, 415},
			{"a script with JSON", "POST", "/api/v1/bans", []string{"Content-Type", "application/json", "Origin", "https://evil.example"}, 403},
			{"the question whether it may", "OPTIONS", "/api/v1/bans", []string{"Origin", "https://evil.example", "Access-Control-Request-Method", "POST"}, 403},
			{"an image", "GET", "/debug/pprof/heap", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "image", "Sec-Fetch-Mode", "no-cors"}, 403},
			{"a script element", "GET", "/api/v1/keys?limit=api", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Dest", "script"}, 403},
			{"the other scheme's origin", "POST", "/api/v1/bans", []string{"Content-Type", "application/json", "Origin", "https://127.0.0.1:1"}, 403},
		} {
			if status, body := ask(t, client, c.method, base+c.path, ban, c.headers...); status != c.want {
				t.Errorf("TLS %v, %s: %d %s, want %d", overTLS, c.name, status, body, c.want)
			}
		}
		if status, body := ask(t, client, "GET", base+"/api/v1/bans", ""); status != 200 || strings.Contains(body, "ada") {
			t.Errorf("a web page has set a ban: %d %s", status, body)
		}
		p.end()
	}
}
