package doors

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlspb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-rl/weir/internal/testkit/certtest"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

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
	rules := servertest.RulesFile(t, servertest.Hourly)
	upstream := httptest.NewServer(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("X-Forwarded-For")) }))
	defer upstream.Close()
	args := []string{"serve", "--rules=" + rules, "--listen-proxy=127.0.0.1:0", "--proxy-upstream=" + upstream.URL,
		"--proxy-protocol-doors=proxy,http", "--trusted-peers=198.51.100.0/24"}
	p := servertest.Start(t, append(args, "--proxy-protocol-peers=127.0.0.0/8")...)
	address, api := p.Addr("proxy"), p.Addr("http")
	for i := range 3 {
		for _, source := range []string{"192.0.2.1", "192.0.2.2"} {
			status, body := servertest.Ask(t, servertest.ClientOf(t, false, nil, proxied(address, source)), "GET",
				"http://shop/", "", "X-Forwarded-For", "203.0.113.9")
			if want := []int{200, 200, 429}[i]; status != want || status == 200 && body != source {
				t.Errorf("%s, request %d: %d %q", source, i, status, body)
			}
		}
	}
	for source, want := range map[string]int{"": 0, "192.0.2.1": 403, "198.51.100.1": 200} {
		if status, body := servertest.Ask(t, servertest.ClientOf(t, false, nil, proxied(api, source)), "GET", "http://weir/api/v1/limit?key=ada&hits=-1", ""); status != want {
			t.Errorf("a refund from %q: %d %s, want %d", source, status, body, want)
		}
	}
	if status, body := servertest.Ask(t, http.DefaultClient, "GET", "http://"+p.Addr("admin")+"/metrics", ""); status != 200 || !strings.Contains(body, `weir_connections_refused_total{door="http",reason="proxy_header"} 1`) {
		t.Errorf("a door without PROXY protocol, or its metrics: %d %s", status, body)
	}
	p.End()

	p = servertest.Start(t, append(args, "--proxy-protocol-peers=192.0.2.0/24")...)
	if status, body := servertest.Ask(t, servertest.ClientOf(t, false, nil, proxied(p.Addr("http"), "198.51.100.1")), "GET", "http://weir/api/v1/limit?key=ada&hits=-1", ""); status != 0 {
		t.Errorf("a forged header: %d %s", status, body)
	}
	p.Stderr.Await(t, "proxy_protocol.peers")
	p.End()
}

// TestTokenDoors: auth.doors closes doors to clients without a token.
func TestTokenDoors(t *testing.T) {
	t.Parallel()
	rules := servertest.RulesFile(t, servertest.Hourly)
	tokens := filepath.Join(t.TempDir(), "tokens")
	servertest.WriteRules(t, tokens, "sesame\n")
	p := servertest.Start(t, "serve", "--rules="+rules, "--auth-tokens-file="+tokens, "--auth-doors=http,grpc")
	url := "http://" + p.Addr("http") + "/api/v1/limit?key=ada"
	for _, c := range []struct {
		token string
		want  int
	}{{"", 401}, {"x", 401}, {"sesame", 200}} {
		if status, body := servertest.Ask(t, http.DefaultClient, "GET", url, "", "Authorization", "Bearer "+c.token); status != c.want {
			t.Errorf("%q: %d %s", c.token, status, body)
		}
	}
	conn, err := grpc.NewClient(p.Addr("grpc"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	question := &rlspb.RateLimitRequest{Domain: "shop",
		Descriptors: []*ratelimitv3.RateLimitDescriptor{{Entries: []*ratelimitv3.RateLimitDescriptor_Entry{{Key: "key",
			Value: "ada"}}}}}
	for token, want := range map[string]codes.Code{"x": codes.Unauthenticated, "sesame": codes.OK} {
		_, err := rlspb.NewRateLimitServiceClient(conn).ShouldRateLimit(
			metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+token), question)
		if got := status.Code(err); got != want {
			t.Errorf("gRPC, %q: %v", token, err)
		}
	}
	p.End()
}

// TestLimits: the bounds on one client come from the configuration.
func TestLimits(t *testing.T) {
	t.Parallel()
	rules := servertest.RulesFile(t, "domain: shop\nlimits: [{ name: all, allow: 1000/min }]\n")
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
	p := servertest.Start(t, "serve", "--rules="+rules, "--listen-proxy=127.0.0.1:0", "--proxy-upstream="+upstream.URL,
		"--limits-connections-per-address=12",
		"--limits-body-bytes=1KB", "--limits-idle=50ms", "--limits-header-timeout=1h", "--limits-stall=100ms")
	address := p.Addr("proxy")
	for _, c := range []struct {
		name, body string
		headers    []string
		want       int
	}{
		{"small", strings.Repeat("x", 1000), nil, 200},
		{"a large header", "", []string{"X-Large", strings.Repeat("x", 80_000)}, 431},
		{"a large body", strings.Repeat("x", 1001), nil, 413},
	} {
		// On a connection of its own: one that has been idle for 50 ms may close as it is used.
		client := servertest.ClientOf(t, false, nil, nil)
		if status, body := servertest.Ask(t, client, "POST", "http://"+address, c.body, c.headers...); status != c.want {
			t.Errorf("%s: %d %s, want %d", c.name, status, body, c.want)
		}
		client.CloseIdleConnections()
	}
	chunked, err := http.NewRequest("POST", "http://"+address,
		io.MultiReader(strings.NewReader(strings.Repeat("x", 5000))))
	if err != nil {
		t.Fatal(err)
	}
	client := servertest.ClientOf(t, false, nil, nil)
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
	api := p.Addr("http")
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
	if status, _ := servertest.Ask(t, http.DefaultClient, "GET", "http://"+p.Addr("admin")+"/healthz", ""); status != 200 {
		t.Errorf("the admin door: %d", status)
	}
	p.End()
}

// TestAdminByBrowser: what a web page can make a browser send to the admin port does nothing, over
// TLS as without.
func TestAdminByBrowser(t *testing.T) {
	t.Parallel()
	rules := servertest.RulesFile(t, servertest.Hourly)
	ca := certtest.New(t, "ca")
	cert, key := ca.Issue("weir", 0, "127.0.0.1")
	dir := t.TempDir()
	certFile, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	certtest.Write(t, []string{certFile, keyFile}, cert, key)
	for _, overTLS := range []bool{false, true} {
		args, scheme, client := []string{"serve", "--rules=" + rules}, "http", servertest.ClientOf(t, false, nil, nil)
		if overTLS {
			args, scheme, client = append(args, "--tls-cert="+certFile, "--tls-key="+keyFile, "--tls-doors=admin"),
				"https", servertest.ClientOf(t, true, ca.Client(""), nil)
		}
		p := servertest.Start(t, args...)
		base := scheme + "://" + p.Addr("admin")
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
			if status, body := servertest.Ask(t, client, c.method, base+c.path, ban, c.headers...); status != c.want {
				t.Errorf("TLS %v, %s: %d %s, want %d", overTLS, c.name, status, body, c.want)
			}
		}
		if status, body := servertest.Ask(t, client, "GET", base+"/api/v1/bans", ""); status != 200 ||
			strings.Contains(body, "ada") {
			t.Errorf("a web page has set a ban: %d %s", status, body)
		}
		p.End()
	}
}
