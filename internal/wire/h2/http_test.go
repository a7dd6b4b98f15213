package h2

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// httpServer serves h until the test ends, with TLS if config is not nil, and returns its URL.
func httpServer(t testing.TB, h http.Handler, config *tls.Config, change ...func(*http.Server)) string {
	t.Helper()
	_, base := startHTTP(t, h, config, change...)
	return base
}

func startHTTP(t testing.TB, h http.Handler, config *tls.Config, change ...func(*http.Server)) (*http.Server, string) {
	t.Helper()
	s := &http.Server{Handler: h, Protocols: new(http.Protocols), ErrorLog: log.New(failing{t}, "", 0)}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	for _, f := range change {
		f(s)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	scheme := "http://"
	if config != nil {
		scheme, s.TLSConfig = "https://", config
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if config != nil {
			_ = s.ServeTLS(l, "", "")
		} else {
			_ = s.Serve(l)
		}
	}()
	t.Cleanup(func() { _ = s.Close(); <-done })
	return s, scheme + l.Addr().String()
}

// failing takes the log of a server, which holds no panic.
type failing struct{ t testing.TB }

func (f failing) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("panic")) {
		f.t.Errorf("%s", line)
	}
	return len(line), nil
}

func serverTLS(t testing.TB) *tls.Config {
	own, _ := certificate(t)
	return &tls.Config{Certificates: []tls.Certificate{own}}
}

func address(base string) string {
	_, addr, _ := strings.Cut(base, "://")
	return addr
}

// TestConfigureTLS: ALPN decides who serves, and a handler learns of TLS and of the server.
func TestConfigureTLS(t *testing.T) {
	type key struct{}
	base := httpServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		local, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		_, ours := w.(*response)
		fmt.Fprint(w, r.Proto, " ", r.TLS.NegotiatedProtocol, " ", local != nil,
			r.Context().Value(http.ServerContextKey) != nil, r.Context().Value(key{}), ours)
	}), serverTLS(t), configure, func(s *http.Server) {
		s.ConnContext = func(ctx context.Context,
			_ net.Conn) context.Context {
			return context.WithValue(ctx, key{}, "kept")
		}
	})
	for proto, want := range map[string]string{"h2": "HTTP/2.0 h2 true truekepttrue",
		"http/1.1": "HTTP/1.1  true truekeptfalse"} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
			Protocols: new(http.Protocols)}
		transport.Protocols.SetHTTP1(proto != "h2")
		transport.Protocols.SetHTTP2(proto == "h2")
		answer, err := (&http.Client{Transport: transport}).Get(base)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		transport.CloseIdleConnections()
		if string(text) != want || err != nil {
			t.Errorf("%s: %q, %v", proto, text, err)
		}
	}
}

// TestCurl: a client that is not of Go sends and gets bodies of any size, over HTTP/1.1 as well.
func TestCurl(t *testing.T) {
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("curl is not installed; on Debian: apt-get install curl")
	}
	echo := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Proto", r.Proto)
		_, _ = io.Copy(w, r.Body)
	})
	plain, encrypted := httpServer(t, echo, nil, configure), httpServer(t, echo, serverTLS(t), configure)
	body := strings.Repeat("0123456789", 300_000)
	for _, c := range []struct {
		base, option, proto string
	}{{plain, "--http2-prior-knowledge", "HTTP/2.0"}, {plain, "--http1.1", "HTTP/1.1"},
		{encrypted, "--http2", "HTTP/2.0"}, {encrypted, "--http1.1", "HTTP/1.1"}} {
		cmd := exec.Command(curl, "-sSk", c.option, "--data-binary", "@-", "-H", "Expect:", "-D", "/dev/stderr", c.base)
		cmd.Stdin = strings.NewReader(body)
		var head, got bytes.Buffer
		cmd.Stdout, cmd.Stderr = &got, &head
		if err := cmd.Run(); err != nil || got.String() != body ||
			!strings.Contains(strings.ToLower(head.String()), "x-proto: "+strings.ToLower(c.proto)) {
			t.Errorf("%s, %s: %v, %d bytes, %s", c.base, c.option, err, got.Len(), head.String())
		}
	}
}

// TestBackPressure: of a body that nobody reads a client can send no more than the window, and
// other requests on the connection are served; once it is read all of it comes.
func TestBackPressure(t *testing.T) {
	reading, total := make(chan struct{}), make(chan int64, 1)
	base := httpServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/upload" {
			<-reading
			n, err := io.Copy(io.Discard, r.Body)
			if err != nil {
				t.Error(err)
			}
			total <- n
		}
	}), nil, configure)
	const size = 8 << 20
	var sent atomic.Int64
	client := plainClient(t)
	var all sync.WaitGroup
	all.Go(func() {
		r, _ := http.NewRequest("POST", base+"/upload", io.TeeReader(io.LimitReader(zeros{}, size), counter{&sent}))
		answer, err := client.Do(r)
		if err != nil {
			t.Error(err)
			return
		}
		_ = answer.Body.Close()
	})
	patience.Until(t, "the window is used up", func() bool { return sent.Load() >= 256<<10 })
	for range 20 {
		answer, err := client.Get(base)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
	}
	if n := sent.Load(); n > 1<<20 {
		t.Errorf("%d bytes were taken", n)
	}
	close(reading)
	if n := <-total; n != size {
		t.Errorf("%d bytes", n)
	}
	all.Wait()
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) { c.n.Add(int64(len(p))); return len(p), nil }

// TestUnreadBodies: bodies that no handler reads are no more than 1 MiB on a connection, and a
// sixteenth of the memory, and give the connection's window back when their streams end.
func TestUnreadBodies(t *testing.T) {
	release := make(chan struct{})
	base := httpServer(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}), nil, func(s *http.Server) { Configure(s, HTTPOptions{MaxMemory: 16 << 20}) })
	c := dialRaw(t, address(base))
	window := 0
	for window < connWindow { // until the server's first frames are here
		if f, ok := c.next().(*http2.WindowUpdateFrame); ok {
			window = 65_535 + int(f.Increment)
		}
	}
	const streams = 8
	sent := 0
	for i := range uint32(streams + 1) {
		c.must(c.f.WritePing(false, [8]byte{2}))
		for {
			f := c.next()
			if w, ok := f.(*http2.WindowUpdateFrame); ok {
				window += int(w.Increment)
			}
			if p, ok := f.(*http2.PingFrame); ok && p.Data[0] == 2 {
				break
			}
		}
		if i == streams {
			break
		}
		c.open(2*i+1, "/")
		for range 256 >> 4 {
			c.must(c.f.WriteData(2*i+1, false, make([]byte, 16<<10)))
			sent += 16 << 10
		}
	}
	if sent != 2<<20 || window != sent {
		t.Errorf("of %d bytes that nobody reads the window is %d", sent, window)
	}
	for i := range uint32(streams) {
		c.must(c.f.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
	}
	for got := 0; got < connWindow/2; {
		if f, ok := c.next().(*http2.WindowUpdateFrame); ok && f.StreamID == 0 {
			got += int(f.Increment)
		}
	}
	close(release)
}

// TestManyWindowUpdates: a client may open its windows as often as large answers need it.
func TestManyWindowUpdates(t *testing.T) {
	size := effort.Of(8, 32) << 20
	base := httpServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, io.LimitReader(zeros{}, int64(size)))
	}), nil, configure)
	c := dialRaw(t, address(base))
	c.must(c.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true, EndStream: true,
		BlockFragment: c.fields("", ":method", "GET", ":scheme", "http", ":path", "/", ":authority", "x")}))
	got, returned := 0, 0
	for over := false; !over; {
		next := c.next()
		if away, ok := next.(*http2.GoAwayFrame); ok {
			t.Fatalf("after %d bytes: %v %s", got, away, away.DebugData())
		}
		f, ok := next.(*http2.DataFrame)
		if !ok {
			continue
		}
		got, over = got+len(f.Data()), f.StreamEnded()
		for ; returned+(1<<10) <= got; returned += 1 << 10 {
			c.must(c.f.WriteWindowUpdate(0, 1<<10))
			c.must(c.f.WriteWindowUpdate(1, 1<<10))
		}
	}
	if got != size {
		t.Errorf("%d bytes", got)
	}
}

// TestShutdownConfigured: Shutdown asks clients to go, lets what is under way end, and waits for
// it; Close cuts it off.
func TestShutdownConfigured(t *testing.T) {
	for _, cut := range []bool{false, true} {
		began, release, cancelled := make(chan struct{}), make(chan struct{}), make(chan struct{})
		s, base := startHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			close(began)
			select {
			case <-release:
				_, _ = io.WriteString(w, "whole")
			case <-r.Context().Done():
				close(cancelled)
			}
		}), nil, configure)
		type result struct {
			text string
			err  error
		}
		results := make(chan result, 1)
		go func() {
			answer, err := plainClient(t).Get(base)
			if err != nil {
				results <- result{"", err}
				return
			}
			defer answer.Body.Close()
			text, err := io.ReadAll(answer.Body)
			results <- result{string(text), err}
		}()
		<-began
		if cut {
			_ = s.Close()
			<-cancelled
			if r := <-results; r.err == nil {
				t.Errorf("%+v", r)
			}
			continue
		}
		idle := dialRaw(t, address(base))
		c := dialRaw(t, address(base))
		_, _ = c.next(), idle.next()
		ended := make(chan error, 1)
		go func() { ended <- s.Shutdown(context.Background()) }()
		for { // a client that sends nothing is asked to go
			if f, ok := idle.next().(*http2.GoAwayFrame); ok {
				if f.ErrCode != http2.ErrCodeNo {
					t.Errorf("%v", f)
				}
				break
			}
		}
		select {
		case err := <-ended:
			t.Fatalf("Shutdown returned while a request was under way: %v", err)
		default:
		}
		close(release)
		if r := <-results; r.text != "whole" || r.err != nil {
			t.Errorf("%+v", r)
		}
		_, _ = idle.conn.Close(), c.conn.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// TestConnectionClose: an answer with Connection: close asks the client to open a new connection.
func TestConnectionClose(t *testing.T) {
	base := httpServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")
		_, _ = io.WriteString(w, r.RemoteAddr)
	}), nil, configure)
	client, seen := plainClient(t), map[string]bool{}
	for range 3 {
		answer, err := client.Get(base)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if err != nil || answer.Header.Get("Connection") != "" {
			t.Errorf("%v, %v", err, answer.Header)
		}
		seen[string(text)] = true
	}
	if len(seen) < 2 {
		t.Errorf("all on one connection")
	}
}

// TestDeadlines: what passes its deadline, or waits for a window for longer than it may, is over,
// and its connection is not.
func TestDeadlines(t *testing.T) {
	failed := make(chan error, 1)
	base := httpServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		control := http.NewResponseController(w)
		var err error
		switch r.URL.Path {
		case "/read":
			_ = control.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, err = io.Copy(io.Discard, r.Body)
		case "/write":
			_ = control.SetWriteDeadline(time.Now().Add(time.Millisecond))
			for err == nil {
				_, err = w.Write(make([]byte, 10_000))
			}
			<-r.Context().Done()
		case "/stall":
			w.(interface{ SetStall(time.Duration) }).SetStall(time.Millisecond)
			for err == nil {
				_, err = w.Write(make([]byte, 10_000))
			}
			<-r.Context().Done()
		case "/rest":
			w.(interface{ SetStall(time.Duration) }).SetStall(time.Millisecond)
			_, _ = io.WriteString(w, "a few bytes")
			err = io.EOF
		case "/after":
			_ = control.SetWriteDeadline(time.Now().Add(20 * time.Millisecond))
			_, _ = io.WriteString(w, "a few bytes")
			err = io.EOF
		case "/moved":
			_ = control.SetReadDeadline(time.Now().Add(time.Hour))
			_ = control.SetReadDeadline(time.Time{})
			_ = control.SetWriteDeadline(time.Now().Add(time.Hour))
			_ = control.SetWriteDeadline(time.Now().Add(2 * time.Hour))
			return
		}
		failed <- err
	}), nil, configure)
	c := dialRaw(t, address(base))
	c.must(c.f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}))
	for i, path := range []string{"/read", "/write", "/stall", "/rest", "/after"} {
		id := uint32(2*i + 1)
		c.open(id, path)
		a := c.answer(id)
		if path == "/read" {
			if a.wasReset && a.reset != http2.ErrCodeNo || a.header.Get(":status") != "200" {
				t.Errorf("%s: %+v", path, a)
			}
		} else if a.reset != http2.ErrCodeInternal {
			t.Errorf("%s: %+v", path, a)
		}
		if err := <-failed; err == nil {
			t.Errorf("%s: no error", path)
		}
	}
	c.open(11, "/moved")
	if a := c.answer(11); a.header.Get(":status") != "200" {
		t.Errorf("%+v", a)
	}
}

// TestHTTPAttacks: what TestAttacks holds for gRPC.
func TestHTTPAttacks(t *testing.T) {
	var running atomic.Int64
	base := httpServer(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		running.Add(1)
		defer running.Add(-1)
		if r.URL.Path == waitPath {
			<-r.Context().Done()
		}
		_, _ = io.Copy(io.Discard, r.Body)
	}), nil, configure)
	empty := func(*rawClient) {}
	for _, a := range []struct {
		name   string
		before func(*rawClient)
		send   func(*rawClient, uint32)
	}{
		{"rapid reset", empty, func(c *rawClient, i uint32) {
			c.open(2*i+1, waitPath)
			_ = c.f.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
		}},
		{"malformed requests", empty, func(c *rawClient, i uint32) { c.open(2*i+1, "/", "connection", "close") }},
		{"streams that make the server reset them", empty, func(c *rawClient, i uint32) {
			c.open(2*i+1, waitPath)
			_ = c.f.WriteWindowUpdate(2*i+1, 0)
		}},
		{"a CONTINUATION flood", func(c *rawClient) {
			_ = c.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.fields("/")})
		}, func(c *rawClient, _ uint32) {
			_ = c.f.WriteContinuation(1, false, bytes.Repeat([]byte{0x40, 1, 'x', 1, 'y'}, 1000))
		}},
		{"pings", empty, func(c *rawClient, _ uint32) { _ = c.f.WritePing(false, [8]byte{}) }},
		{"settings", empty, func(c *rawClient, i uint32) {
			_ = c.f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: i})
		}},
		{"many settings", empty, func(c *rawClient, i uint32) {
			if i == 1 {
				_ = c.f.WriteSettings(slices.Repeat([]http2.Setting{{ID: http2.SettingInitialWindowSize, Val: i}},
					2_000)...)
			}
		}},
		{"empty DATA", func(c *rawClient) { c.open(1, "/") }, func(c *rawClient, _ uint32) { _ = c.f.WriteData(1, false, nil) }},
		{"windows for nothing", empty, func(c *rawClient, _ uint32) { _ = c.f.WriteWindowUpdate(0, minReturn) }},
	} {
		t.Run(a.name, func(t *testing.T) {
			c := dialRaw(t, address(base))
			c.f.ReadMetaHeaders = nil
			var out bytes.Buffer
			c.f = http2.NewFramer(&out, c.conn)
			c.f.AllowIllegalWrites = true
			a.before(c)
			first := uint32(0)
			if out.Len() > 0 {
				first = 1
			}
			for i := first; i < effort.Of[uint32](6_000, 10_000); i++ {
				a.send(c, i)
			}
			attack := bytes.Clone(out.Bytes())
			go func() { _, _ = c.conn.Write(attack) }()
			if code, reason := c.goAway(); code != http2.ErrCodeEnhanceYourCalm || reason == "" {
				t.Errorf("%v, %q", code, reason)
			}
			eventually(t, "its requests end", func() bool { return running.Load() == 0 })
			answer, err := plainClient(t).Get(base)
			if err != nil {
				t.Fatal(err)
			}
			_ = answer.Body.Close()
		})
	}
}

// TestStreamsBounded: no more requests of one connection run than it is told, also where it resets
// them and their handlers go on; others are refused, to be sent again.
func TestStreamsBounded(t *testing.T) {
	release := make(chan struct{})
	var running, most atomic.Int64
	base := httpServer(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		n := running.Add(1)
		defer running.Add(-1)
		most.Store(max(most.Load(), n))
		<-release
	}), nil, configure, func(s *http.Server) { s.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 5} })
	c := dialRaw(t, address(base))
	for i := range uint32(20) {
		c.open(2*i+1, "/")
		if i%2 == 0 {
			c.must(c.f.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
		}
	}
	for refused := 0; refused < 15; {
		if f, ok := c.next().(*http2.RSTStreamFrame); ok && f.ErrCode == http2.ErrCodeRefusedStream {
			refused++
		}
	}
	close(release)
	c.open(101, "/")
	eventually(t, "they end", func() bool { return running.Load() == 0 })
	if most.Load() > 5 {
		t.Errorf("%d ran at a time", most.Load())
	}
}

func configure(s *http.Server) { Configure(s, HTTPOptions{}) }
