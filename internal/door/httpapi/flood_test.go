package httpapi

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/wire/listen"
)

// flooder is one hostile connection of HTTP/2. It keeps to the protocol; only what it asks for is
// too much.
type flooder struct {
	*http2.Framer
	conn  net.Conn
	block bytes.Buffer
	enc   *hpack.Encoder
	ended chan struct{} // closed when the server has closed
}

// flood connects. Answers are taken and thrown away, unless the attack is not to read.
func flood(t *testing.T, addr string, read bool, settings ...http2.Setting) *flooder {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	f := &flooder{Framer: http2.NewFramer(conn, conn), conn: conn, ended: make(chan struct{})}
	f.enc = hpack.NewEncoder(&f.block)
	_ = conn.SetDeadline(patience.End(t))
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := f.WriteSettings(settings...); err != nil {
		t.Fatal(err)
	}
	if read {
		go func() {
			defer close(f.ended)
			_, _ = io.Copy(io.Discard, conn)
		}()
	}
	t.Cleanup(func() { _ = conn.Close() })
	return f
}

// headers encodes a GET of path.
func (f *flooder) headers(path string, more ...string) []byte {
	f.block.Reset()
	for i, h := 0, append([]string{":method", "GET", ":scheme", "http", ":authority", "weir", ":path", path}, more...); i < len(h); i += 2 {
		_ = f.enc.WriteField(hpack.HeaderField{Name: h[i], Value: h[i+1]})
	}
	return f.block.Bytes()
}

func heapNow() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestFloods: what well-formed HTTP/2 can ask too much of takes a bounded amount of memory, nobody
// else is kept waiting for long, and no more passes than the limit allows.
func TestFloods(t *testing.T) {
	for name, attack := range map[string]func(t *testing.T, addr string) error{
		// CVE-2023-44487: streams are opened and dropped, so that no bound on those that are open
		// is met.
		"rapid reset": func(t *testing.T, addr string) error {
			f := flood(t, addr, true)
			for i := range effort.Of(1_500, 6_000) {
				stream := uint32(2*i + 1)
				if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: f.headers("/api/v1/limit?path=/login"), EndHeaders: true, EndStream: true}); err != nil {
					return nil // the server has seen enough
				}
				if err := f.WriteRSTStream(stream, http2.ErrCodeCancel); err != nil {
					return nil
				}
			}
			return nil
		},
		// A few bytes on the wire that stand for megabytes of headers.
		"header bomb": func(t *testing.T, addr string) error {
			f := flood(t, addr, true)
			big := strings.Repeat("x", 3000)
			for i := range effort.Of(50, 200) {
				block := bytes.Clone(f.headers("/api/v1/limit?path=/other", "x-bomb", big))
				if i > 0 { // the header is in the table now, and its index is the last byte
					if len(block) > 100 {
						return fmt.Errorf("the header is not in the table: %d bytes", len(block))
					}
					// 24 MB once it is unpacked
					block = append(block, bytes.Repeat(block[len(block)-1:], 8000)...)
				}
				if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: block, EndHeaders: true, EndStream: true}); err != nil {
					return nil
				}
			}
			return nil
		},
		// Frames that hold nothing cost nothing but the time to read them.
		"empty continuation": func(t *testing.T, addr string) error {
			f := flood(t, addr, true)
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: f.headers("/api/v1/limit?path=/login"), EndStream: true}); err != nil {
				return err
			}
			for range effort.Of(5_000, 20_000) {
				if err := f.WriteContinuation(1, false, nil); err != nil {
					return nil
				}
			}
			return nil
		},
		"pings whose answers nobody reads": func(t *testing.T, addr string) error {
			f := flood(t, addr, false)
			for range effort.Of(15_000, 60_000) {
				if err := f.WritePing(false, [8]byte{}); err != nil {
					return nil
				}
			}
			return nil
		},
		"window updates and priorities": func(t *testing.T, addr string) error {
			f := flood(t, addr, true)
			for i := range effort.Of(4_000, 15_000) {
				if err := f.WritePriority(uint32(2*i+1), http2.PriorityParam{StreamDep: uint32(2*i + 3)}); err != nil {
					return nil
				}
				if err := f.WriteWindowUpdate(0, 1); err != nil {
					return nil
				}
			}
			return nil
		},
		"streams beyond the bound": func(t *testing.T, addr string) error {
			f := flood(t, addr, true)
			for i := range effort.Of(1_500, 6_000) { // bodies that never end
				if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: f.headers("/api/v1/limit?path=/login", "content-length", "9"), EndHeaders: true}); err != nil {
					return nil
				}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			l, _, _ := doortest.NewLimiter(t, doortest.LoginRules)
			s := listen.NewHTTPServer(New(l, Options{}), listen.HTTPOptions{})
			s.WriteTimeout, s.HTTP2.WriteByteTimeout = 200*time.Millisecond, 200*time.Millisecond
			addr := serveTest(t, s)
			var attacks sync.WaitGroup
			var over atomic.Bool
			before := heapNow()
			for range 3 {
				attacks.Go(func() {
					if err := attack(t, addr); err != nil {
						t.Error(err)
					}
				})
			}
			go func() { attacks.Wait(); over.Store(true) }()
			most := int64(0)
			for asked := 0; asked < 20 || !over.Load(); asked++ {
				beside(t, "the flood", addr, `{"attributes":{"path":"/other"}}`)
				if asked%10 == 0 {
					most = max(most, heapNow()-before)
				}
			}
			attacks.Wait()
			if most > 64<<20 {
				t.Errorf("it took %d MB", most>>20)
			}
			passed := 0
			for range 4 {
				if status, _, _ := tryPost(http.DefaultClient, addr, `{"attributes":{"path":"/login"}}`); status == 200 {
					passed++
				}
			}
			if passed > 3 {
				t.Errorf("%d passed", passed)
			}
		})
	}
}

// TestSlowReaders: clients that take none of their answers, or open no window for them, are given
// up, and what they held is free.
func TestSlowReaders(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, doortest.ShopRules)
	s := listen.NewHTTPServer(New(l, Options{}), listen.HTTPOptions{})
	if s.WriteTimeout <= 0 || s.HTTP2.WriteByteTimeout <= 0 {
		t.Fatal("a bound is missing")
	}
	s.WriteTimeout, s.HTTP2.WriteByteTimeout = 200*time.Millisecond, 200*time.Millisecond
	s.HTTP2.SendPingTimeout, s.HTTP2.PingTimeout = 200*time.Millisecond, 200*time.Millisecond
	var handling atomic.Int64
	inner := s.Handler
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handling.Add(1)
		defer handling.Add(-1)
		inner.ServeHTTP(w, r)
	})
	addr := serveTest(t, s)
	goroutines := runtime.NumGoroutine()
	var conns []net.Conn
	for range 20 {
		// Requests one after the other, whose answers (the description of the API) are more than
		// the buffers hold.
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.(*net.TCPConn).SetReadBuffer(4096)
		go func() {
			_, _ = io.WriteString(c, strings.Repeat("GET /api/v1/openapi.yaml HTTP/1.1\r\nHost: a\r\n\r\n", 2000))
		}()
		conns = append(conns, c)
		f := flood(t, addr, true, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		for i := range 100 {
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*i + 1), BlockFragment: f.headers("/api/v1/openapi.yaml"), EndHeaders: true, EndStream: true}); err != nil {
				break
			}
		}
	}
	for range 20 {
		beside(t, "slow readers", addr, `{}`)
	}
	http.DefaultClient.CloseIdleConnections()
	patience.Until(t, "no request is answered, and as many goroutines run as did before", func() bool {
		return handling.Load() == 0 && runtime.NumGoroutine() <= goroutines+5*20+50
	})
	for _, c := range conns {
		_ = c.SetReadDeadline(patience.End(t))
		if _, err := io.Copy(io.Discard, c); err != nil {
			if e, ok := err.(net.Error); ok && e.Timeout() {
				t.Fatal("a connection whose answers nobody takes is open for ever")
			}
		}
	}
}
