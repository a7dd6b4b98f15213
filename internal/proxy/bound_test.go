package proxy

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-rl/weir/internal/patience"
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
	s := NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handling.Add(1)
		defer handling.Add(-1)
		bound.ServeHTTP(w, r)
	}))
	addr, _ = serveDoor(t, s, nil)
	return addr, handling
}

// TestBodyBound: a body above the bound is refused, and does not reach the upstream whole.
func TestBodyBound(t *testing.T) {
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
		}{{1000, true, 200}, {1000, false, 200}, {1001, true, 413}, {1001, false, 413}, {10 << 20, true, 413}, {10 << 20, false, 413}} {
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

// TestStalledStreams: HTTP/2 clients that open no window for what they asked hold neither the proxy
// nor its upstream, while their connection is in good order; whoever takes what is sent gets all of
// it, however long it takes.
func TestStalledStreams(t *testing.T) {
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
			for _, h := range []hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: "x"}, {Name: ":path", Value: path}} {
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
	// On a busy machine this client may take nothing for so long that it is taken for one of those.
	patience.Until(t, "all is taken without a break", func() bool {
		resp, err := client(t, true).Get("http://" + addr + "/large")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		n, longest, last := 0, time.Duration(0), time.Now()
		for buf := make([]byte, 256<<10); ; time.Sleep(5 * time.Millisecond) {
			// slower in all than one stall
			m, err := resp.Body.Read(buf)
			n += m
			now := time.Now()
			longest, last = max(longest, now.Sub(last)), now
			switch {
			case err == io.EOF:
				if n != 64*64<<10 {
					t.Errorf("got %d bytes", n)
				}
				return true
			case err != nil && longest < stall/2:
				t.Fatalf("after %d bytes: %v", n, err)
			case err != nil:
				t.Logf("after %d bytes, and %v without one: %v", n, longest, err)
				return false
			}
		}
	})
}
