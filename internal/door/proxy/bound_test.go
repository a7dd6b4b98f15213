package proxy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/test/bufconn"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/wire/h1"
)

// boundProxy serves a proxy within Bound.
func boundProxy(t *testing.T, upstream string, body int64, stall time.Duration) (addr string, handling *atomic.Int64) {
	t.Helper()
	u, err := url.Parse(upstream)
	if err != nil {
		t.Fatal(err)
	}
	h, err := New(newLimiter(t, noLimits), Options{Upstream: u, Logf: logf(t)})
	if err != nil {
		t.Fatal(err)
	}
	bound := Bound(h, body, stall)
	handling = new(atomic.Int64)
	s := newServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handling.Add(1)
		defer handling.Add(-1)
		bound.ServeHTTP(w, r)
	}))
	addr, _ = serveDoor(t, s, nil)
	return addr, handling
}

// TestBodyBound: a body above the bound is refused, and does not reach the upstream whole.
func TestBodyBound(t *testing.T) {
	t.Parallel()
	var most atomic.Int64
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		n, _ := io.Copy(io.Discard, r.Body)
		most.Store(max(most.Load(), n))
		fmt.Fprint(w, n)
	})
	addr, _ := boundProxy(t, up.URL, 1000, time.Minute)
	for _, h2 := range []bool{false, true} {
		for _, c := range []struct {
			size   int
			length bool
			want   int
		}{{1000, true, 200}, {1000, false, 200}, {1001, true, 413}, {1001, false, 413}, {10 << 20, true, 413},
			{10 << 20, false, 413}} {
			var body io.Reader = strings.NewReader(strings.Repeat("x", c.size))
			if !c.length {
				body = io.MultiReader(body)
			}
			r, err := http.NewRequest("POST", "http://"+addr, body)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client(t, h2).Do(r)
			if err != nil && c.size > 1001 { // the answer may be lost while so much is being sent
				continue
			}
			text := read(t, resp, err)
			if resp.StatusCode != c.want || c.want == 200 && text != fmt.Sprint(c.size) {
				t.Errorf("HTTP/2 %v, %+v: %d %s", h2, c, resp.StatusCode, text)
			}
		}
	}
	if n := most.Load(); n > 1000 {
		t.Errorf("the upstream got %d bytes", n)
	}
}

// TestStalledStreams: HTTP/2 clients that open no window for the answers they asked for hold
// neither the proxy nor its upstream, while their connection is in good order.
func TestStalledStreams(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/small" {
			_, _ = io.WriteString(w, "small")
			return
		}
		for range 64 {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})
	const stall = 100 * time.Millisecond
	addr, handling := boundProxy(t, up.URL, 0, stall)
	for _, path := range []string{"/large", "/small"} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(patience.End(t))
		if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		f := http2.NewFramer(conn, conn)
		if err := f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0}); err != nil {
			t.Fatal(err)
		}
		var block bytes.Buffer
		enc := hpack.NewEncoder(&block)
		const streams = 20
		for i := range streams {
			block.Reset()
			for _, h := range []hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "http"},
				{Name: ":authority", Value: "x"}, {Name: ":path", Value: path}} {
				_ = enc.WriteField(h)
			}
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: block.Bytes(), EndHeaders: true, EndStream: true}); err != nil {
				t.Fatal(err)
			}
		}
		for resets := 0; resets < streams; {
			frame, err := f.ReadFrame()
			if err != nil {
				t.Fatalf("%s: %d of %d streams were ended: %v", path, resets, streams, err)
			}
			switch frame := frame.(type) {
			case *http2.RSTStreamFrame:
				resets++
			case *http2.SettingsFrame:
				if !frame.IsAck() {
					_ = f.WriteSettingsAck()
				}
			case *http2.PingFrame:
				if !frame.IsAck() {
					_ = f.WritePing(true, frame.Data)
				}
			case *http2.GoAwayFrame:
				t.Fatalf("%s: the connection is ended: %v", path, frame)
			}
		}
		patience.Until(t, "no request of "+path+" is held", func() bool { return handling.Load() == 0 })
	}
}

// TestSlowStreams: whoever takes what is sent gets all of it, however long it takes.
func TestSlowStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const stall, parts, part = 100 * time.Millisecond, 128, 64 << 10 // more than the window of the client
		behind, front := newPipes(), bufconn.Listen(64<<10)
		up := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			for range parts {
				if _, err := w.Write(make([]byte, part)); err != nil {
					return
				}
			}
		})}
		go func() { _ = up.Serve(behind) }()
		h, err := New(newLimiter(t, noLimits), Options{Upstream: &url.URL{Scheme: "http", Host: "upstream"},
			Logf: logf(t)})
		if err != nil {
			t.Fatal(err)
		}
		transport := h.reverse.Transport.(*again).kept
		transport.DialContext = behind.dial
		if h.direct != nil {
			h.direct.Dial = behind.dial
		}
		server := h1.New(newServer(Bound(h, 0, stall)))
		go func() { _ = server.Serve(front) }()
		c := client(t, true)
		c.Transport.(*http.Transport).DialContext = func(ctx context.Context, _, _ string) (net.Conn,
			error) {
			return front.DialContext(ctx)
		}
		begun := time.Now()
		resp, err := c.Get("http://weir/")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for buf := make([]byte, 32<<10); err == nil; time.Sleep(stall / 20) {
			var m int
			m, err = resp.Body.Read(buf)
			n += m
		}
		if n != parts*part || err != io.EOF {
			t.Errorf("after %d bytes: %v", n, err)
		}
		if took := time.Since(begun); took < 5*stall {
			t.Errorf("it took %v, no longer than a stall may", took)
		}
		_ = resp.Body.Close()
		c.CloseIdleConnections()
		transport.CloseIdleConnections()
		if h.direct != nil {
			h.direct.CloseIdle()
		}
		_ = front.Close()
		_ = server.Shutdown(t.Context())
		_ = behind.Close()
		_ = up.Close()
		time.Sleep(2 * time.Second) // then the server looks for connections, and finds none
	})
}
