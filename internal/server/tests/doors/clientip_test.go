package doors

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestClientIPFields: at the proxy and at forward auth the client is who a listed proxy says it is,
// in the field that is named; at the proxy the upstream is told the same, and no stranger's word.
func TestClientIPFields(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s|%s|%s", r.Header.Get("X-Forwarded-For"), r.Header.Get("Cf-Connecting-Ip"),
			r.Header.Get("Forwarded"))
	}))
	defer upstream.Close()
	rules := servertest.RulesFile(t, servertest.Hourly)
	serve := func(args ...string) *servertest.Running {
		return servertest.Start(t,
			append([]string{"serve", "--rules=" + rules, "--listen-proxy=127.0.0.1:0",
				"--proxy-upstream=" + upstream.URL}, args...)...)
	}
	client := servertest.ClientOf(t, false, nil, nil)
	for _, c := range []struct {
		name string
		args []string
		sent func(client string) []string // what a proxy sends along
		told string                       // the upstream, of 192.0.2.1
	}{
		{"Forwarded", []string{"--client-ip-trusted-proxies=loopback", "--client-ip-header=forwarded"},
			func(client string) []string {
				return []string{"Forwarded", `for="1.2.3.4, for="` + client + `:80";proto=https`, "X-Forwarded-For",
					"203.0.113.9"}
			}, "192.0.2.1, 127.0.0.1||"},
		{"a named field", []string{"--client-ip-trusted-proxies=private,loopback", "--client-ip-header=CF-Connecting-IP"},
			func(client string) []string {
				return []string{"CF-Connecting-IP", client, "X-Forwarded-For", "203.0.113.9"}
			}, "192.0.2.1, 127.0.0.1|192.0.2.1|"},
		{"hops", []string{"--client-ip-trusted-proxies=loopback", "--client-ip-hops=2"},
			func(client string) []string {
				return []string{"X-Forwarded-For", "1.2.3.4, " + client + ", 203.0.113.9"}
			}, "1.2.3.4, 192.0.2.1, 203.0.113.9, 127.0.0.1||"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := serve(c.args...)
			proxy, api := "http://"+p.Addr("proxy")+"/", "http://"+p.Addr("http")+"/api/v1/forward-auth"
			for _, want := range []int{200, 200, 429} {
				if status, body := servertest.Ask(t, client, "GET", proxy, "", c.sent("192.0.2.1")...); status != want || want == 200 && body != c.told {
					t.Errorf("at the proxy: %d %s, want %d %s", status, body, want, c.told)
				}
			}
			check := func(client string) []string {
				return append(c.sent(client), "X-Forwarded-Uri", "/", "X-Forwarded-Host", "shop.example",
					"X-Forwarded-Method", "GET")
			}
			for ip, want := range map[string]int{"192.0.2.1": 429, "192.0.2.2": 200} {
				if status, body := servertest.Ask(t, client, "GET", api, "", check(ip)...); status != want {
					t.Errorf("at forward auth, %s: %d %s, want %d", ip, status, body, want)
				}
			}
			p.End()
		})
	}
	// This machine is not listed.
	p := serve("--client-ip-trusted-proxies=192.0.2.0/24", "--client-ip-header=CF-Connecting-IP")
	if status, body := servertest.Ask(t, client, "GET", "http://"+p.Addr("proxy")+"/", "", "CF-Connecting-IP", "192.0.2.1", "X-Forwarded-For", "192.0.2.1"); status != 200 || body != "127.0.0.1||" {
		t.Errorf("of a stranger: %d %s", status, body)
	}
	r, err := http.NewRequest("POST", "http://"+p.Addr("proxy")+"/", io.MultiReader(strings.NewReader("chunks"))) // by net/http
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("CF-Connecting-IP", "192.0.2.1")
	if res, err := client.Do(r); err != nil {
		t.Error(err)
	} else if body, err := io.ReadAll(res.Body); err != nil || string(body) != "127.0.0.1||" {
		t.Errorf("of a stranger, in chunks: %d %s, %v", res.StatusCode, body, err)
	}
	p.End()
	for _, c := range []struct{ args, want string }{
		{"--client-ip-header=X-Real-IP", "client_ip: no proxy is trusted"},
		{"--client-ip-hops=1", "client_ip: no proxy is trusted"},
		{"--client-ip-header=X-Real-IP --client-ip-hops=1 --client-ip-trusted-proxies=private", "client_ip: hops count the entries of a list, and X-Real-Ip holds one address"},
		{"--client-ip-header=X:Y --client-ip-trusted-proxies=private", "client_ip: \\\"X:Y\\\" is no name of a header field"},
		{"--client-ip-trusted-proxies=64:ff9b::/96", "write the IPv4 networks"},
	} {
		p := serve(strings.Fields(c.args)...)
		p.Exits(78)
		if !strings.Contains(strings.ReplaceAll(p.Stderr.String(), `"`, `\"`), c.want) {
			t.Errorf("%s: it wrote\n%s\nwant %q", c.args, p.Stderr, c.want)
		}
	}
}

// TestNAT64Doors: clients behind NAT64 are told apart at the doors that see addresses, and are the
// same as those that come by IPv4.
func TestNAT64Doors(t *testing.T) {
	t.Parallel()
	p := servertest.Start(t, "serve", "--rules="+servertest.RulesFile(t, servertest.Hourly),
		"--client-ip-trusted-proxies=127.0.0.0/8", "--proxy-protocol-doors=proxy", "--proxy-protocol-peers=loopback",
		"--listen-proxy=127.0.0.1:0", "--proxy-upstream=http://127.0.0.1:1")
	address, api, admin := p.Addr("proxy"), "http://"+p.Addr("http"), "http://"+p.Addr("admin")
	client := servertest.ClientOf(t, false, nil, nil)
	for i, want := range []int{502, 502, 429} { // no upstream is there
		behind := servertest.ClientOf(t, false, nil, proxiedBy6(address, "64:ff9b::c000:201"))
		if status, body := servertest.Ask(t, behind, "GET", "http://"+address+"/", ""); status != want {
			t.Errorf("PROXY protocol, request %d: %d %s, want %d", i, status, body, want)
		}
		behind.CloseIdleConnections()
	}
	for target, want := range map[string]int{"64:ff9b::c000:201": 429, "192.0.2.1": 429, "64:ff9b::c000:202": 200,
		"64:ff9b::198.51.100.7": 200} {
		if status, body := servertest.Ask(t, client, "GET", api+"/api/v1/limit?ip="+target, ""); status != want {
			t.Errorf("decision API, %s: %d %s, want %d", target, status, body, want)
		}
		if status, body := servertest.Ask(t, client, "GET", api+"/api/v1/forward-auth", "", "X-Forwarded-For", target, "X-Forwarded-Uri", "/", "X-Forwarded-Host", "shop.example", "X-Forwarded-Method", "GET"); status != want {
			t.Errorf("forward auth, %s: %d %s, want %d", target, status, body, want)
		}
	}
	if status, body := servertest.Ask(t, client, "POST", admin+"/api/v1/bans", `{"domain":"shop","limit":"api","key":["ip=64:ff9b::c000:209"],"for":"1h","reason":"x"}`, "Content-Type", "application/json"); status != 200 || !strings.Contains(body, "ip=192.0.2.9") {
		t.Errorf("a ban: %d %s", status, body)
	}
	if status, body := servertest.Ask(t, client, "GET", api+"/api/v1/limit?ip=192.0.2.9", ""); status != 429 {
		t.Errorf("a banned client: %d %s", status, body)
	}
	p.End()
}

// proxiedBy6 is proxied for a client with IPv6.
func proxiedBy6(address, source string) func() (net.Conn, error) {
	return func() (net.Conn, error) {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_, err = fmt.Fprintf(c, "PROXY TCP6 %s 2001:db8::1 1234 443\r\n", source)
		}
		return c, err
	}
}
