package proxy

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// dying is an upstream over HTTP/1.1 that answers the first request of a connection, and closes the
// connection when it has read the second one, or when it has begun to answer that.
type dying struct {
	first string // of the answer to the second request

	warming sync.WaitGroup // which answers to /warm wait for

	mu   sync.Mutex
	seen map[string][]string // the bodies that came, by path
}

func (d *dying) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	for n := 0; ; n++ {
		r, err := http.ReadRequest(in)
		if err != nil {
			return
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		d.mu.Lock()
		d.seen[r.URL.Path] = append(d.seen[r.URL.Path], string(body))
		d.mu.Unlock()
		if n > 0 {
			_, _ = io.WriteString(conn, d.first)
			return
		}
		if r.URL.Path == "/warm" {
			d.warming.Done()
			d.warming.Wait()
		}
		_, _ = io.WriteString(conn, "HTTP/1.1 204 No Content\r\n\r\n")
	}
}

func (d *dying) came(path string) []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.seen[path]
}

// startDying serves d, with TLS if config is not nil.
func startDying(t *testing.T, d *dying, config *tls.Config) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	d.seen = map[string][]string{}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if config != nil {
				conn = tls.Server(conn, config)
			}
			go d.serve(conn)
		}
	}()
	return l.Addr().String()
}

// A request whose kept connection the upstream closes before any byte of an answer is sent once
// more, on a new connection, if that can do no harm. It is charged once.
func TestSentAgain(t *testing.T) {
	certificate := httptest.NewTLSServer(nil)
	t.Cleanup(certificate.Close)
	roots := x509.NewCertPool()
	roots.AddCert(certificate.Certificate())
	secure := &tls.Config{Certificates: certificate.TLS.Certificates, NextProtos: []string{"http/1.1"}}
	for _, c := range []struct {
		name, method, key string
		body              int
		expect            bool
		first             string // of an answer, before the connection ends
		sent              int    // how often it is sent
	}{
		{name: "GET", method: "GET", sent: 2},
		{name: "HEAD", method: "HEAD", sent: 2},
		{name: "OPTIONS", method: "OPTIONS", sent: 2},
		{name: "DELETE", method: "DELETE", sent: 2},
		{name: "DELETE with a body", method: "DELETE", body: 5, sent: 2},
		{name: "PUT of 1 KiB", method: "PUT", body: 1 << 10, sent: 2},
		{name: "PUT of 64 KiB", method: "PUT", body: 64 << 10, sent: 2},
		{name: "PUT of more", method: "PUT", body: 64<<10 + 1, sent: 1},
		{name: "POST", method: "POST", sent: 1},
		{name: "POST with a body", method: "POST", body: 5, sent: 1},
		{name: "PATCH", method: "PATCH", body: 5, sent: 1},
		{name: "POST with a key", method: "POST", key: "Idempotency-Key", body: 5, sent: 2},
		{name: "PATCH with a key", method: "PATCH", key: "X-Idempotency-Key", body: 40 << 10, sent: 2},
		{name: "POST of much with a key", method: "POST", key: "Idempotency-Key", body: 100 << 10, sent: 1},
		{name: "GET that is answered in part", method: "GET", first: "H", sent: 1},
		{name: "PUT after a hint", method: "PUT", body: 5, first: "HTTP/1.1 103 Early Hints\r\n\r\n", sent: 1},
	} {
		for _, way := range []string{"direct", "through httputil", "TLS"} {
			t.Run(c.name+"/"+way, func(t *testing.T) {
				if way == "direct" && !directWorks {
					t.Skip("no connections are kept here")
				}
				d := &dying{first: c.first}
				upstream, config := "http://", (*tls.Config)(nil)
				if way == "TLS" {
					upstream, config = "https://", secure
				}
				upstream += startDying(t, d, config)
				defer func(before bool) { directWorks = before }(directWorks)
				directWorks = directWorks && way == "direct"
				addr, p := serveProxy(t, upstream, newLimiter(t,
					`limits: [{name: all, per: [host], allow: 1000/h, algorithm: fixed_window}]`), nil,
					func(o *Options) {
						o.TLS, o.UpstreamIdle = &tls.Config{RootCAs: roots}, time.Hour
					})
				// Two connections are kept, so that there is another one that must not be used.
				user := client(t, false)
				d.warming.Add(2)
				var wg sync.WaitGroup
				for range 2 {
					wg.Go(func() {
						resp, err := user.Post("http://"+addr+"/warm", "", nil)
						read(t, resp, err)
					})
				}
				wg.Wait()
				body := strings.Repeat("b", c.body)
				r, err := http.NewRequestWithContext(patience.Context(t), c.method, "http://"+addr+"/x",
					strings.NewReader(body))
				if err != nil {
					t.Fatal(err)
				}
				if c.key != "" {
					r.Header.Set(c.key, "1")
				}
				resp, err := user.Do(r)
				read(t, resp, err)
				want, again := 502, uint64(0)
				if c.sent == 2 {
					want, again = 204, 1
				}
				if c.first != "" && c.method == "PUT" {
					want = resp.StatusCode // the hint has been passed on
				}
				if resp.StatusCode != want || resp.Header.Get("X-RateLimit-Remaining") != "997" {
					t.Errorf("%d with %s of 1000 left, want %d with 997", resp.StatusCode,
						resp.Header.Get("X-RateLimit-Remaining"), want)
				}
				came := d.came("/x")
				if len(came) != c.sent || p.Stats().SentAgain != again {
					t.Errorf("sent %d times, want %d; %d counted", len(came), c.sent, p.Stats().SentAgain)
				}
				for _, got := range came {
					if got != body {
						t.Errorf("a body of %d bytes came, want %d", len(got), c.body)
					}
				}
			})
		}
	}
}

// Nothing that a connection carried is kept for longer than Options.UpstreamIdle, which is by
// default less than what common servers allow.
func TestUpstreamIdle(t *testing.T) {
	for scheme, want := range map[string]time.Duration{"http": 1500 * time.Millisecond, "https": 50 * time.Second,
		"h2c": 50 * time.Second} {
		_, p := serveProxy(t, scheme+"://127.0.0.1:9", newLimiter(t, noLimits), nil,
			func(o *Options) { o.UpstreamIdle = 0 })
		if p.o.UpstreamIdle != want {
			t.Errorf("%s: %v, want %v", scheme, p.o.UpstreamIdle, want)
		}
		for _, transport := range p.transports {
			if transport.IdleConnTimeout != want {
				t.Errorf("%s: a transport keeps connections for %v, want %v", scheme, transport.IdleConnTimeout, want)
			}
		}
		if p.direct != nil && p.direct.IdleTimeout != want {
			t.Errorf("%s: the direct way keeps connections for %v, want %v", scheme, p.direct.IdleTimeout, want)
		}
	}
	for _, scheme := range []string{"http", "https", "h2c"} {
		connections := map[string]bool{}
		handler := func(_ http.ResponseWriter, r *http.Request) { connections[r.RemoteAddr] = true }
		url := ""
		var roots *x509.CertPool
		switch scheme {
		case "http":
			url = newUpstream(t, handler).URL
		case "https":
			s := httptest.NewTLSServer(http.HandlerFunc(handler))
			t.Cleanup(s.Close)
			url, roots = s.URL, x509.NewCertPool()
			roots.AddCert(s.Certificate())
		case "h2c":
			url = h2cServer(t, handler)
		}
		addr, _ := serveProxy(t, url, newLimiter(t, noLimits), nil, func(o *Options) {
			o.UpstreamIdle, o.TLS = -1, &tls.Config{RootCAs: roots}
		})
		for _, method := range []string{"GET", "POST", "GET"} {
			r, err := http.NewRequestWithContext(patience.Context(t), method, "http://"+addr, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client(t, false).Do(r)
			if read(t, resp, err); resp.StatusCode != 200 {
				t.Errorf("%s: %d", scheme, resp.StatusCode)
			}
		}
		if len(connections) != 3 {
			t.Errorf("%s: %d connections for 3 requests where none is kept", scheme, len(connections))
		}
	}
}
