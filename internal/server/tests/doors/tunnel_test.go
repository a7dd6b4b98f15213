//go:build unix

package doors

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// tunneller is an application that opens any tunnel it is asked for.
type tunneller struct {
	opened     atomic.Int64 // those that carry HTTP
	tunneled   atomic.Int64 // requests that came out of these
	webSockets atomic.Int64
}

func (u *tunneller) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	protocol := r.Header.Get("Upgrade")
	if r.Method != http.MethodConnect && protocol == "" {
		fmt.Fprint(w, "hello")
		return
	}
	conn, in, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	webSocket := protocol == "websocket" && len(r.Header["Upgrade"]) == 1
	if webSocket { // before the client hears of it
		u.webSockets.Add(1)
	} else {
		u.opened.Add(1)
	}
	if r.Method == http.MethodConnect {
		fmt.Fprint(conn, "HTTP/1.1 200 Connected\r\n\r\n")
	} else {
		fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n"+
			// as RFC 6455 answers the key below
			"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n", protocol)
	}
	if webSocket {
		return
	}
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			return
		}
		if strings.HasPrefix(line, "GET ") {
			u.tunneled.Add(1)
			fmt.Fprint(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	}
}

// serveTunneller serves one at an address.
func serveTunneller(t *testing.T, address string) *tunneller {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	u := new(tunneller)
	s := &http.Server{Handler: u}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return u
}

// noTunnels checks that through the proxy at an address no tunnel opens in which requests would go
// unseen, and that a WebSocket does, where webSocket is true. Each attempt is charged at most once.
func noTunnels(t *testing.T, address string, u *tunneller, webSocket bool) {
	t.Helper()
	attempt := func(request string) string {
		t.Helper()
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(min(patience.Left(t), time.Minute)))
		fmt.Fprint(conn, request)
		in := bufio.NewReader(conn)
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			return err.Error()
		}
		webSocket := strings.EqualFold(resp.Header.Get("Upgrade"), "websocket")
		if resp.StatusCode == http.StatusSwitchingProtocols && !webSocket ||
			strings.HasPrefix(request, "CONNECT") && resp.StatusCode == http.StatusOK {
			for range 3 {
				fmt.Fprint(conn, "GET /api/orders HTTP/1.1\r\nHost: shop.example\r\n\r\n")
				inner, err := http.ReadResponse(in, nil)
				if err != nil {
					break
				}
				_, _ = io.Copy(io.Discard, inner.Body)
			}
		}
		return resp.Status
	}
	upgrade := func(offer string) string {
		return "GET /api/orders HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade, HTTP2-Settings\r\n" + offer +
			"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n"
	}
	for _, request := range []string{
		"CONNECT shop.example:443 HTTP/1.1\r\nHost: shop.example:443\r\n\r\n",
		"CONNECT " + address + " HTTP/1.1\r\nHost: " + address + "\r\n\r\n",
		upgrade("Upgrade: h2c\r\n"), upgrade("Upgrade: H2C\r\n"), upgrade("Upgrade: websocket, h2c\r\n"),
		upgrade("Upgrade: h2c\r\nUpgrade: websocket\r\n"),
		upgrade("Upgrade: websocket\r\nUpgrade: h2c\r\n"), upgrade("Upgrade: HTTP/2.0\r\n"),
		upgrade("Upgrade: TLS/1.3\r\n"),
	} {
		u.opened.Store(0)
		u.tunneled.Store(0)
		status := attempt(request)
		if opened, n := u.opened.Load(), u.tunneled.Load(); opened > 0 || n > 0 {
			t.Errorf("%.60q: %s; %d tunnels opened, and %d requests went through unseen", request, status, opened, n)
		}
	}
	before := u.webSockets.Load()
	request := "GET /api/orders HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
	if status := attempt(request); webSocket && (!strings.HasPrefix(status, "101") || u.webSockets.Load() != before+1) {
		t.Errorf("a WebSocket: %s", status)
	}
}

// TestTunnels: no example lets a client open a tunnel in which its requests are not asked about,
// nor does the proxy.
func TestTunnels(t *testing.T) {
	t.Parallel()
	many := "domain: shop\nlimits: [{name: all, per: [ip], allow: 1000/min}]\n"
	t.Run("haproxy", func(t *testing.T) {
		t.Parallel()
		b := newHAProxyBed(t)
		b.startWeir()
		u := serveTunneller(t, b.page.Address("3000"))
		open := b.page.Address("8000")
		b.startHAProxy("haproxy.cfg", open)
		noTunnels(t, open, u, true)
	})
	for name, startProxy := range map[string]func(*edge){"nginx": (*edge).startNginx, "caddy": (*edge).startCaddy} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEdge(t, servertest.BuiltProgram(t), name)
			u := new(tunneller)
			e.app.instead = u
			e.rules(many)
			e.startWeir()
			startProxy(e)
			noTunnels(t, "127.0.0.1:"+e.ports[edgePort], u, name == "caddy")
		})
	}
	t.Run("proxy", func(t *testing.T) {
		t.Parallel()
		port := servertest.FreePort(t)
		u := serveTunneller(t, "127.0.0.1:"+port)
		rules := servertest.RulesFile(t, many)
		p := servertest.Start(t, "proxy", "--rules="+rules, "--listen-proxy=127.0.0.1:0",
			"--upstream=http://127.0.0.1:"+port)
		noTunnels(t, p.Addr("proxy"), u, true)
		p.End()
	})
}
