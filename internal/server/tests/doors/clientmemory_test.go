package doors

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// beginsStream opens a connection over HTTP/2 and begins an upload on it, which does not end. It
// reports whether the server takes that.
func beginsStream(t *testing.T, addr string) (conn net.Conn, taken bool) {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(patience.End(t))
	var block strings.Builder
	enc := hpack.NewEncoder(&block)
	for _, f := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", "/"}, {":authority", "x"}} {
		_ = enc.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	f := http2.NewFramer(conn, conn)
	_, _ = io.WriteString(conn, http2.ClientPreface)
	_ = f.WriteSettings()
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte(block.String()), EndHeaders: true})
	_ = f.WritePing(false, [8]byte{1})
	for taken = true; ; {
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch frame := frame.(type) {
		case *http2.RSTStreamFrame:
			taken = false
		case *http2.PingFrame:
			if frame.IsAck() {
				return conn, taken
			}
		}
	}
}

// TestMemoryOfOneAddress: connections over HTTP/2 of one address, each of which keeps little, take
// half of limits.memory together; the connections of a trusted proxy count one by one.
func TestMemoryOfOneAddress(t *testing.T) {
	release := make(chan bool)
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer upstream.Close()
	defer close(release)
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	servertest.WriteRules(t, rules, "limits: [{ name: none, when: { path: /never }, allow: 1/min }]\n")
	for _, trusted := range []bool{false, true} {
		args := []string{"proxy", "--upstream=" + upstream.URL, "--rules=" + rules, "--listen-proxy=127.0.0.1:0",
			"--listen-admin=127.0.0.1:0",
			"--limits-memory=8MiB", "--proxy-body-rate=0", "--proxy-body-timeout=0s"}
		if trusted {
			args = append(args, "--client-ip-trusted-proxies=loopback")
		}
		p := servertest.Start(t, args...)
		const connections = 100
		taken := 0
		var conns []net.Conn
		for range connections {
			conn, ok := beginsStream(t, p.Addr("proxy"))
			if conns = append(conns, conn); ok {
				taken++
			}
		}
		t.Logf("trusted=%v: %d of %d requests are taken", trusted, taken, connections)
		_, _, metrics := servertest.Get(t, "http://"+p.Addr("admin")+"/metrics")
		counted := strings.Contains(metrics, `weir_connections_over_memory_total{door="proxy",what="request"} 0`)
		if trusted && taken != connections || !trusted && (taken < 10 || taken > 95) || counted != trusted {
			t.Errorf("trusted=%v: %d of %d requests are taken; none is counted: %v", trusted, taken, connections,
				counted)
		}
		if !strings.Contains(metrics, `weir_connections_over_memory_total{door="proxy",what="connection"} 0`) {
			t.Errorf("trusted=%v: connections were ended", trusted)
		}
		for _, conn := range conns { // or the program waits for their requests
			_ = conn.Close()
		}
		p.End()
	}
}
