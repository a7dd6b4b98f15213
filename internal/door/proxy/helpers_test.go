package proxy

import (
	"context"
	"crypto/tls"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/wire/h1"
	"github.com/weir-rl/weir/internal/wire/h2"
	"github.com/weir-rl/weir/internal/wire/listen"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

const noLimits = `limits: [{name: none, when: {path: /never}, allow: 1/min}]`

func newLimiter(t testing.TB, yaml string, options ...weir.Option) *weir.Limiter {
	t.Helper()
	set, _, err := file.Load([]file.Source{{Name: "test.yaml", Data: []byte(yaml)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	l, err := weir.New(store, append(options, weir.WithRules(set))...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// newProxy serves a proxy in front of upstream, over plain TCP, and returns its address.
func newProxy(t testing.TB, upstream string, yaml string, change ...func(*Options)) string {
	t.Helper()
	addr, _ := serveProxy(t, upstream, newLimiter(t, yaml), nil, change...)
	return addr
}

// serveProxy serves with TLS if config is not nil.
func serveProxy(t testing.TB, upstream string, limiter *weir.Limiter, config *tls.Config,
	change ...func(*Options)) (addr string, h *Proxy) {
	t.Helper()
	u, err := url.Parse(upstream)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Upstream: u, Logf: logf(t), UpstreamIdle: time.Hour} // a busy machine may be slow
	for _, f := range change {
		f(&o)
	}
	if h, err = New(limiter, o); err != nil {
		t.Fatal(err)
	}
	addr, _ = serveDoor(t, newServer(h), config)
	return addr, h
}

// serveDoor has s served as the door of weir does it, with TLS if config is not nil.
func serveDoor(t testing.TB, s *http.Server, config *tls.Config) (addr string, server *h1.Server) {
	t.Helper()
	s.ErrorLog = log.New(noPanic{t}, "", 0)
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	o := listen.Options{Stall: time.Minute}
	if config != nil {
		config.NextProtos = []string{"h2", "http/1.1"}
		o.TLS = func() *tls.Config { return config }
	}
	server = h1.New(s)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listen.New(raw, o)) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = server.Shutdown(ctx) // cuts off what is open
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return raw.Addr().String(), server
}

// logf logs to t, until the test has ended.
func logf(t testing.TB) func(string, ...any) {
	var mu sync.Mutex
	over := false
	t.Cleanup(func() { mu.Lock(); over = true; mu.Unlock() })
	return func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		if !over {
			t.Logf(format, args...)
		}
	}
}

func newUpstream(t testing.TB, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// h2cServer serves HTTP/2 without TLS only.
func h2cServer(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h, Protocols: new(http.Protocols)}
	s.Protocols.SetUnencryptedHTTP2(true)
	s.Protocols.SetHTTP1(true)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); <-done })
	return "h2c://" + l.Addr().String()
}

// client returns a client of its own connections, over HTTP/2 without TLS if h2c.
func client(t testing.TB, h2c bool) *http.Client {
	t.Helper()
	tr := &http.Transport{Protocols: new(http.Protocols), DisableCompression: true}
	tr.Protocols.SetHTTP1(!h2c)
	tr.Protocols.SetUnencryptedHTTP2(h2c)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// raw sends bytes to addr and returns all of the answer until the other side closes.
func raw(t testing.TB, addr, request string) string {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	go func() { _, _ = conn.Write([]byte(request)) }() // a server may answer before it has read all
	var b strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := conn.Read(buf)
		b.Write(buf[:n])
		if err != nil {
			return b.String()
		}
	}
}

// noPanic takes the server's log, which is full of hostile clients' deeds, and fails the test if
// the server panicked.
type noPanic struct{ t testing.TB }

// Write implements io.Writer.
func (n noPanic) Write(line []byte) (int, error) {
	if strings.Contains(string(line), "panic") {
		n.t.Errorf("%s", line)
	}
	return len(line), nil
}

func newServer(h http.Handler) *http.Server {
	s, _ := NewServer(h, h2.HTTPOptions{})
	return s
}
