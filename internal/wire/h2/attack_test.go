package h2

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// TestAttacks: what costs a client little and the server much, or brings nothing, ends the
// connection, and others are served.
func TestAttacks(t *testing.T) {
	empty := func(*rawClient, uint32) {}
	for _, c := range []struct {
		name   string
		before func(c *rawClient, id uint32) // once
		send   func(c *rawClient, i uint32)  // again and again
		want   http2.ErrCode
	}{
		{"rapid reset", empty, func(c *rawClient, i uint32) {
			_ = c.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: c.fields(waitPath),
				EndHeaders: true})
			_ = c.f.WriteData(2*i+1, true, frameMessage(nil))
			_ = c.f.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
		}, http2.ErrCodeEnhanceYourCalm},
		{"rapid reset of what has only begun", empty, func(c *rawClient, i uint32) {
			_ = c.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: c.fields(echoPath),
				EndHeaders: true})
			_ = c.f.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
		}, http2.ErrCodeEnhanceYourCalm},
		{"rapid reset of requests for the handler", empty, func(c *rawClient, i uint32) {
			_ = c.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: c.fields("/handler"),
				EndHeaders: true})
			_ = c.f.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
		}, http2.ErrCodeEnhanceYourCalm},
		// MadeYouReset
		{"streams that make the server reset them", empty, func(c *rawClient, i uint32) {
			_ = c.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: c.fields(waitPath),
				EndHeaders: true})
			_ = c.f.WriteData(2*i+1, true, frameMessage(nil))
			_ = c.f.WriteWindowUpdate(2*i+1, 0)
		}, http2.ErrCodeEnhanceYourCalm},
		{"malformed requests", empty, func(c *rawClient, i uint32) {
			_ = c.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1,
				BlockFragment: c.fields("", "connection", "close"), EndHeaders: true, EndStream: true})
		}, http2.ErrCodeEnhanceYourCalm},
		{"requests with too large a header", empty, func(c *rawClient, i uint32) {
			_ = c.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1,
				BlockFragment: c.fields(echoPath, "x", strings.Repeat("\x00",
					12_000)), EndHeaders: true, EndStream: true})
		}, http2.ErrCodeEnhanceYourCalm},
		{"a CONTINUATION flood", func(c *rawClient, id uint32) {
			_ = c.f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.fields(echoPath)})
		}, func(c *rawClient, _ uint32) {
			_ = c.f.WriteContinuation(1, false, bytes.Repeat([]byte{0x40, 1, 'x', 1, 'y'}, 1000))
		}, http2.ErrCodeEnhanceYourCalm},
		{"a flood of empty CONTINUATIONs", func(c *rawClient, id uint32) {
			_ = c.f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.fields(echoPath)})
		}, func(c *rawClient, _ uint32) { _ = c.f.WriteContinuation(1, false, nil) }, http2.ErrCodeEnhanceYourCalm},
		{"pings", empty, func(c *rawClient, _ uint32) { _ = c.f.WritePing(false, [8]byte{}) }, http2.ErrCodeEnhanceYourCalm},
		{"acknowledgements of pings", empty, func(c *rawClient, _ uint32) { _ = c.f.WritePing(true, [8]byte{}) }, http2.ErrCodeEnhanceYourCalm},
		{"settings", empty, func(c *rawClient, i uint32) {
			_ = c.f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: i})
		}, http2.ErrCodeEnhanceYourCalm},
		{"acknowledgements of settings", empty, func(c *rawClient, _ uint32) { _ = c.f.WriteSettingsAck() }, http2.ErrCodeEnhanceYourCalm},
		{"empty DATA", func(c *rawClient, id uint32) { c.open(id, echoPath) }, func(c *rawClient, _ uint32) { _ = c.f.WriteData(1, false, nil) }, http2.ErrCodeEnhanceYourCalm},
		{"padding", func(c *rawClient, id uint32) { c.open(id, "/handler") }, func(c *rawClient, _ uint32) {
			_ = c.f.WriteDataPadded(1, false, nil, make([]byte, 200))
		}, http2.ErrCodeEnhanceYourCalm},
		{"priorities", empty, func(c *rawClient, i uint32) {
			_ = c.f.WritePriority(2*i+1, http2.PriorityParam{StreamDep: 2*i + 3})
		}, http2.ErrCodeEnhanceYourCalm},
		{"small windows", func(c *rawClient, id uint32) {
			_ = c.f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
		}, func(c *rawClient, i uint32) { _ = c.f.WriteWindowUpdate(0, 1) }, http2.ErrCodeEnhanceYourCalm},
		{"unknown frames", empty, func(c *rawClient, _ uint32) { _ = c.f.WriteRawFrame(0xbe, 0, 0, []byte("x")) }, http2.ErrCodeEnhanceYourCalm},
		{"DATA on closed streams", func(c *rawClient, id uint32) { c.call(id, echoPath, nil) }, func(c *rawClient, _ uint32) { _ = c.f.WriteData(1, false, make([]byte, 100)) },
			http2.ErrCodeEnhanceYourCalm},
		{"bad HPACK", empty, func(c *rawClient, i uint32) {
			_ = c.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1,
				BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, EndHeaders: true})
		}, http2.ErrCodeCompression},
		{"a push", empty, func(c *rawClient, _ uint32) {
			_ = c.f.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, BlockFragment: []byte{0x82},
				EndHeaders: true})
		}, http2.ErrCodeProtocol},
		{"a huge frame", empty, func(c *rawClient, _ uint32) { _ = c.f.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, 20_000)) }, http2.ErrCodeFrameSize},
	} {
		t.Run(c.name, func(t *testing.T) {
			svc := newService()
			l, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			discard := http.HandlerFunc(
				func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) })
			// A client that does not get the processor in time is to hear why it is sent away.
			serveLingering(t, l, Options{Methods: svc.methods(), Handler: discard}, patience.Left(t))
			addr := l.Addr().String()
			client := dialRaw(t, addr)
			client.f.ReadMetaHeaders = nil // nothing that matters here is in them
			var out bytes.Buffer
			client.f = http2.NewFramer(&out, client.conn)
			client.f.AllowIllegalWrites = true
			c.before(client, 1)
			first := uint32(0)
			if out.Len() > 0 {
				first = 1
			}
			for i := first; i < effort.Of[uint32](6_000, 20_000) && out.Len() < 30<<20; i++ {
				c.send(client, i)
			}
			attack := bytes.Clone(out.Bytes())
			go func() { _, _ = client.conn.Write(attack) }()
			if code, reason := client.goAway(); code != c.want || reason == "" {
				t.Errorf("%v, %q; want %v", code, reason, c.want)
			}
			eventually(t, "its calls are cancelled", func() bool { return svc.waiting.Load() == 0 })
			checkServing(t, addr)
		})
	}
}

// TestResetsAreBounded: however fast a client resets its calls, no more of them run than it may
// have under way.
func TestResetsAreBounded(t *testing.T) {
	stuck := make(chan struct{})
	svc := newService()
	methods := svc.methods()
	methods[waitPath] = method(func(_ context.Context, call *Call, out []byte) ([]byte, Status) {
		svc.waiting.Add(1)
		defer svc.waiting.Add(-1)
		<-stuck // it does not heed that it is cancelled
		return out, Status{}
	}).waits
	_, addr := serve(t, Options{Methods: methods, MaxStreams: 10})
	c := dialRaw(t, addr)
	refused := 0
	for i := range uint32(50) {
		c.call(2*i+1, waitPath, nil)
		c.must(c.f.WriteRSTStream(2*i+1, http2.ErrCodeCancel))
	}
	for refused < 40 {
		if f, ok := c.next().(*http2.RSTStreamFrame); ok {
			if f.ErrCode != http2.ErrCodeRefusedStream {
				t.Fatalf("%v", f)
			}
			refused++
		}
	}
	eventually(t, "ten calls run", func() bool { return svc.waiting.Load() == 10 })
	close(stuck)
	eventually(t, "they end", func() bool { return svc.waiting.Load() == 0 })
	c.alive(101)
}

// TestHeaderBomb: a few bytes that stand for a large header are not expanded.
func TestHeaderBomb(t *testing.T) {
	_, addr := serve(t, Options{Methods: newService().methods()})
	c := dialRaw(t, addr)
	c.must(c.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1,
		BlockFragment: c.fields(echoPath, "bomb", strings.Repeat("b", 3900)), EndHeaders: true, EndStream: true}))
	c.answer(1)
	block := append(c.fields(echoPath), bytes.Repeat([]byte{0x80 | 62}, 16_000)...) // 64 MB
	c.must(c.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 3, BlockFragment: block, EndHeaders: true,
		EndStream: true}))
	if a := c.answer(3); a.header.Get("grpc-status") != "8" {
		t.Errorf("%+v", a)
	}
	c.alive(5)
}

// TestHalfOpen: a client that sends only a part of a message is disconnected, and others are served
// in the meantime.
func TestHalfOpen(t *testing.T) {
	for name, said := range map[string]string{
		"nothing": "", "half a preface": preface[:10], "no SETTINGS": preface, "half of SETTINGS": preface + "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00",
		"TLS": "\x16\x03\x01\x00\x05\x01\x02\x03\x04\x05", "HTTP/1.1": "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "random": "\x00\xff\x12",
	} {
		t.Run(name, func(t *testing.T) {
			_, addr := serve(t, Options{Methods: newService().methods(), HandshakeTimeout: 20 * time.Millisecond})
			conn, err := net.Dial("tcp", addr)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_, _ = io.WriteString(conn, said)
			_ = conn.SetDeadline(patience.End(t)) // a test that hangs
			got, err := io.ReadAll(conn)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				t.Error("the connection is still open")
			}
			if name == "HTTP/1.1" && !strings.HasPrefix(string(got), "HTTP/1.1 505 ") {
				t.Errorf("%q", got)
			}
		})
	}
}

// TestSlowReader: a client that calls without reading the answers is not read any further, the
// memory for its answers is bounded, and others are served in the meantime.
func TestSlowReader(t *testing.T) {
	both(t, func(t *testing.T, o Options) {
		o.WriteTimeout, o.MaxBuffered = 200*time.Millisecond, 128<<20
		s, addr := serve(t, o)
		c := dialRaw(t, addr)
		_ = c.conn.(*net.TCPConn).SetReadBuffer(4096)
		c.must(c.f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1<<31 - 1}))
		c.must(c.f.WriteWindowUpdate(0, 1<<30))
		_ = c.conn.SetWriteDeadline(patience.End(t))
		var err error
		for i := uint32(0); err == nil; i++ { // until the server closes the connection
			err = errors.Join(
				c.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*i + 1, BlockFragment: c.fields(sizePath),
					EndHeaders: true}),
				c.f.WriteData(2*i+1, true, frameMessage([]byte("50000"))))
			if i%100 == 0 {
				checkServing(t, addr)
			}
			if held := s.held.Load(); held > 32<<20+1<<16 { // a quarter, and what checkServing needs
				t.Fatalf("%d bytes are held", held)
			}
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error("the server holds on to the connection")
		}
		checkServing(t, addr)
	})
}

// TestManyHalves: calls that never come in whole cost a bounded amount of memory over all
// connections.
func TestManyHalves(t *testing.T) {
	s, addr := serve(t, Options{Methods: newService().methods(), MaxBuffered: 1 << 20})
	part := make([]byte, 8_000)
	binary.BigEndian.PutUint32(part[1:], 1<<20)
	for range 8 {
		c := dialRaw(t, addr)
		for i := range uint32(40) {
			c.open(2*i+1, echoPath)
			c.must(c.f.WriteData(2*i+1, false, part))
		}
		c.must(c.f.WritePing(false, [8]byte{1}))
		for {
			if f, ok := c.next().(*http2.PingFrame); ok && f.IsAck() {
				break
			}
		}
	}
	if held := s.held.Load(); held > 1<<20 || held < 1<<19 {
		t.Errorf("%d bytes are held", held)
	}
	checkServing(t, addr)
}

// TestPaddingCost: padding is dear where there is more of it than data.
func TestPaddingCost(t *testing.T) {
	for _, c := range []struct{ data, padding, cost int }{{16 << 10, 255, 1}, {255, 255, 1}, {1, 1, 1}, {0, 1, 1},
		{1, 255, 4}, {0, 256, 5}} {
		if got := paddingCost(c.data, c.padding); got != c.cost {
			t.Errorf("%d bytes and %d of padding cost %d, want %d", c.data, c.padding, got, c.cost)
		}
	}
}
