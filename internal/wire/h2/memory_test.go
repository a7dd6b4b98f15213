package h2

import (
	"bytes"
	"encoding/binary"
	"io"
	"log/slog"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// flood writes what a connection sends that wants the server to keep much.
type flood struct {
	f     *http2.Framer
	out   bytes.Buffer
	block bytes.Buffer
	enc   *hpack.Encoder
}

func newFlood() *flood {
	a := &flood{}
	a.out.WriteString(preface)
	a.f = http2.NewFramer(&a.out, nil)
	a.f.AllowIllegalWrites = true
	a.enc = hpack.NewEncoder(&a.block)
	_ = a.f.WriteSettings()
	return a
}

// field adds a field to the header to come, n times. All but the first take a byte.
func (a *flood) field(n int, name, value string) {
	for range n {
		_ = a.enc.WriteField(hpack.HeaderField{Name: name, Value: value})
	}
}

// begin adds what every request has.
func (a *flood) begin(path string) {
	for _, f := range []hpack.HeaderField{{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "http"},
		{Name: ":path", Value: path},
		{Name: ":authority", Value: "test"}, {Name: "content-type", Value: "application/grpc"}} {
		_ = a.enc.WriteField(f)
	}
}

// header sends the header, in as many frames as it needs.
func (a *flood) header(id uint32, end, whole bool) {
	b := bytes.Clone(a.block.Bytes())
	a.block.Reset()
	n := min(len(b), 1000)
	_ = a.f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b[:n], EndHeaders: whole && n == len(b),
		EndStream: end})
	for b = b[n:]; len(b) > 0; b = b[n:] {
		n = min(len(b), 1000)
		_ = a.f.WriteContinuation(id, whole && n == len(b), b[:n])
	}
}

// TestMemory: whatever connections make the server keep, it stays within the budget, the greedy
// ones are refused more, or told to calm down, and those that keep little are served all the while.
func TestMemory(t *testing.T) {
	const budget, streams = 8 << 20, 25
	each := func(path string, what func(a *flood, id uint32)) func(a *flood) {
		return func(a *flood) {
			for i := range uint32(streams) {
				a.begin(path)
				what(a, 2*i+1)
			}
		}
	}
	for _, c := range []struct {
		name  string
		conns int
		send  func(path string) func(a *flood)
	}{
		{"indexed fields", 12, func(path string) func(a *flood) {
			return each(path, func(a *flood, id uint32) { a.field(460, "x", ""); a.header(id, false, true) })
		}},
		{"long values", 12, func(path string) func(a *flood) {
			return each(path, func(a *flood, id uint32) {
				for i := range 4 {
					a.field(1, "x", strings.Repeat(string(rune('a'+int(id)%26)), 3500)+string(rune('a'+i)))
				}
				a.header(id, false, true)
			})
		}},
		{"split cookies", 12, func(path string) func(a *flood) {
			return each(path, func(a *flood, id uint32) { a.field(400, "cookie", "a"); a.header(id, false, true) })
		}},
		{"many names", 12, func(path string) func(a *flood) {
			return each(path, func(a *flood, id uint32) {
				for i := range 400 {
					_ = a.enc.WriteField(
						hpack.HeaderField{Name: string([]byte{'x', byte('a' + i/26), byte('a' + i%26)}), Value: "",
							Sensitive: true})
				}
				a.header(id, false, true)
			})
		}},
		{"trailers", 12, func(path string) func(a *flood) {
			return each(path, func(a *flood, id uint32) {
				a.header(id, false, true)
				a.field(460, "x", "")
				a.header(id, true, true)
			})
		}},
		{"headers without end", 250, func(path string) func(a *flood) {
			return func(a *flood) {
				a.begin(path)
				for i := range 30 {
					a.field(1, "x", strings.Repeat("v", 900)+string(rune('a'+i)))
				}
				a.header(1, false, false)
			}
		}},
		{"bodies", 30, func(path string) func(a *flood) {
			return each(path, func(a *flood, id uint32) {
				a.header(id, false, true)
				_ = a.f.WriteData(id, false, frameMessage(make([]byte, 16_000))[:15_000])
				_ = a.f.WriteData(id, false, make([]byte, 900))
			})
		}},
	} {
		for door, path := range map[string]string{"calls": waitPath, "requests": "/wait"} {
			if c.name == "trailers" && door == "calls" {
				continue // gRPC has none: they are not kept
			}
			t.Run(c.name+" of "+door, func(t *testing.T) {
				svc := newService()
				o := Options{MaxMemory: budget, MaxStreams: 250, Window: 256 << 10}
				o.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if r.URL.Path == "/wait" {
						<-r.Context().Done()
					}
					runtime.KeepAlive(r)
				})
				if door == "calls" {
					o.Methods = svc.methods()
				}
				o.Logger = nil
				s := New(o)
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Fatal(err)
				}
				go func() { _ = s.Serve(l) }()
				t.Cleanup(s.Stop)

				good := dialRaw(t, l.Addr().String())
				if c.conns < 100 {
					good.open(1, path) // keeps little, and is to keep it
				}
				next := uint32(1)
				answered := func() {
					t.Helper()
					// What others kept is given back within a second, or on a busy machine later:
					// then a request is refused, and may come again.
					patience.Until(t, "a request beside that is answered", func() bool {
						next += 2
						if door == "calls" {
							good.call(next, "/other", nil)
						} else {
							good.must(good.f.WriteHeaders(http2.HeadersFrameParam{StreamID: next,
								BlockFragment: good.fields("/other"), EndHeaders: true, EndStream: true}))
						}
						a := good.answer(next)
						if a.header.Get(":status") == "" && (!a.wasReset || a.reset != http2.ErrCodeRefusedStream) {
							t.Fatalf("a request beside that got %+v", a)
						}
						return a.header.Get(":status") != ""
					})
				}
				answered()

				a := newFlood()
				c.send(path)(a)
				if c.conns < 100 {
					_ = a.f.WritePing(false, [8]byte{1})
				}
				before := heap()
				calm := 0
				conns := make([]net.Conn, c.conns)
				for i := range conns {
					if conns[i], err = net.Dial("tcp", l.Addr().String()); err != nil {
						t.Fatal(err)
					}
					defer conns[i].Close()
					go func() { _, _ = conns[i].Write(a.out.Bytes()) }() // which may be cut short
					if c.conns < 100 {
						calm += told(t, conns[i])
					}
					answered()
				}
				if c.conns >= 100 { // nothing answers what has no end
					patience.Until(t, "headers are kept, or connections ended",
						func() bool { return s.Memory().Connections > 0 })
				}
				grown := heap() - before
				m := s.Memory()
				t.Logf(
					"%d bytes sent: %d KiB of heap, of which %d KiB are counted; %d connections ended, %d requests refused",
					a.out.Len()*c.conns, grown>>10, m.Bytes>>10, m.Connections, m.Requests)
				if grown > budget+3<<20+c.conns*20<<10 || m.Bytes > budget {
					t.Errorf("the heap has grown by %d KiB, of which %d are counted; the budget is %d", grown>>10,
						m.Bytes>>10, budget>>10)
				}
				if m.Connections == 0 && (m.Requests == 0 || c.conns >= 100) {
					t.Error("no connection was ended, and none was refused anything")
				}
				if c.conns < 100 {
					for i := 0; calm == 0 && i < len(conns); i++ { // those that were ended later
						calm += ended(t, conns[i])
					}
				}
				if calm == 0 && m.Connections > 0 && c.conns < 100 {
					t.Error("no connection was told to calm down")
				}
				answered()
				if good.answers[1] != nil {
					t.Errorf("who keeps little was cut off: %+v", good.answers[1])
				}
				_ = good.conn.Close()
				for _, conn := range conns {
					_ = conn.Close()
				}
				patience.Until(t, "all is given back",
					func() bool { return s.Memory().Bytes == 0 && s.leaving.Load() == 0 })
			})
		}
	}
}

// heap is what the heap holds.
func heap() int {
	runtime.GC()
	runtime.GC() // what pools held is gone after a second one
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// told reads until the server has taken all, or ended the connection; 1 if it was told to calm
// down.
func told(t *testing.T, conn net.Conn) int {
	t.Helper()
	_ = conn.SetReadDeadline(patience.End(t))
	f := http2.NewFramer(io.Discard, conn)
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return 0
		}
		switch frame := frame.(type) {
		case *http2.PingFrame:
			return 0
		case *http2.GoAwayFrame:
			if frame.ErrCode == http2.ErrCodeEnhanceYourCalm {
				return 1
			}
		}
	}
}

// ended reads what is left to read, until the server ends the connection; 1 if that was told to
// calm down. One that it does not end answers a ping.
func ended(t *testing.T, conn net.Conn) int {
	_, _ = conn.Write(appendPing(nil, 0, make([]byte, 8)))
	return told(t, conn)
}

// discard is a log that nobody reads.
func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// TestGreediestFirst: of those that keep something, the one that keeps most is ended first.
func TestGreediestFirst(t *testing.T) {
	// 3 MiB may be kept in the long run.
	s, addr := serve(t, Options{Methods: newService().methods(), MaxMemory: 4 << 20, Window: 256 << 10,
		Logger: discard()})
	part := make([]byte, 10<<10)
	keep := func(streams uint32) *rawClient { // 100 KiB each, and some buffers
		c := dialRaw(t, addr)
		for i := range streams {
			c.open(2*i+1, echoPath)
		}
		for i := range streams {
			c.must(c.f.WriteData(2*i+1, false, binary.BigEndian.AppendUint32([]byte{0}, 200<<10)))
			for range 10 {
				c.must(c.f.WriteData(2*i+1, false, part))
			}
		}
		return c
	}
	var modest []*rawClient
	for range 5 {
		c := keep(4)
		c.ping()
		modest = append(modest, c)
	}
	if n := s.Memory().Connections; n > 0 {
		t.Fatalf("%d connections were ended too early", n)
	}
	if code, reason := keep(9).goAway(); code != http2.ErrCodeEnhanceYourCalm || reason == "" {
		t.Errorf("the greediest was told %v, %q", code, reason)
	}
	for _, c := range modest {
		c.ping()
	}
	if m := s.Memory(); m.Connections != 1 || m.Bytes > 3<<20 {
		t.Errorf("%+v", m)
	}
}

// TestUnfinishedHeader: the header of a request has to come in within its time, however busy its
// connection is otherwise.
func TestUnfinishedHeader(t *testing.T) {
	for name, half := range map[string][]byte{
		"CONTINUATION is awaited": append(appendFrameHeader(nil, 1, frameHeaders, 0, 3), 0x82),
		"half a frame":            append(appendFrameHeader(nil, 9, frameHeaders, flagEndHeaders, 3), 0x82),
	} {
		t.Run(name, func(t *testing.T) {
			timed(t, Options{HandshakeTimeout: 30 * time.Second, KeepaliveTime: time.Hour},
				func(t *testing.T, s *Server, svc *service, c *timedClient) {
					c.do(func() {
						c.call(1, waitPath, nil)
						_, _ = c.conn.Write(half)
					})
					time.Sleep(28 * time.Second)
					synctest.Wait()
					c.mu.Lock()
					early := c.closed
					c.mu.Unlock()
					time.Sleep(10 * time.Second)
					synctest.Wait()
					c.mu.Lock()
					defer c.mu.Unlock()
					if early != 0 || c.closed == 0 {
						t.Errorf("closed at %v", c.closed)
					}
				})
		})
	}
}

// TestEndedMeanwhile: no handler begins for a stream of a connection that was ended after the
// stream was opened.
func TestEndedMeanwhile(t *testing.T) {
	s := New(
		Options{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a handler began") })})
	c := &conn{s: s}
	if err := c.startHandler(&stream{request: &request{}, closed: true}); err != nil || c.handlers != 0 ||
		s.handlers.Load() != 0 {
		t.Errorf("%v, %d handlers", err, c.handlers)
	}
}
