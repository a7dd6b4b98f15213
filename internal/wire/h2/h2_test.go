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
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/internal/testkit/patience"
)

// serve starts a server, which ends with the test, and returns its address.
func serve(t testing.TB, o Options) (*Server, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, l, o), l.Addr().String()
}

func serveOn(t testing.TB, l net.Listener, o Options) *Server {
	return serveLingering(t, l, o, lingerTime)
}

// serveLingering serves with a lingerTime of its own.
func serveLingering(t testing.TB, l net.Listener, o Options, linger time.Duration) *Server {
	if o.Logger == nil {
		o.Logger = doortest.LogTo(func(m string) { t.Error(m) })
	}
	s := New(o)
	s.linger = linger
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
		checkIdle(t, s)
	})
	return s
}

// checkIdle holds that nothing is left of the calls of a server that was stopped.
func checkIdle(t testing.TB, s *Server) {
	t.Helper()
	eventually(t, "bytes are given back",
		func() bool { return s.Memory().Bytes == 0 && s.leaving.Load() == 0 && s.idle.Load() == 0 })
	if n := s.sessions.Len(); n > 0 {
		t.Errorf("%d connections are left", n)
	}
}

// eventually waits for a state that other goroutines are about to reach.
var eventually = patience.Until

const (
	echoPath  = "/test.Service/Echo"  // answers what it is asked
	sizePath  = "/test.Service/Size"  // answers as many bytes as the number that it is asked
	waitPath  = "/test.Service/Wait"  // waits for its context, or for service.release
	failPath  = "/test.Service/Fail"  // fails with the code and the text that it is asked
	panicPath = "/test.Service/Panic" // panics
	headPath  = "/test.Service/Head"  // answers the header field that it is asked for
)

// service are the calls that the tests make.
type service struct {
	waiting  atomic.Int64 // calls of Wait under way
	canceled atomic.Int64
	release  chan struct{}
}

func newService() *service { return &service{release: make(chan struct{})} }

// method is a call that is answered in one go.
type method func(ctx context.Context, call *Call, out []byte) ([]byte, Status)

// inline answers on the reader.
func (m method) inline(ctx context.Context, call *Call, out []byte) ([]byte, Status, Rest) {
	out, status := m(ctx, call, out)
	return out, status, nil
}

// waits answers on a worker.
func (m method) waits(_ context.Context, call *Call, out []byte) ([]byte, Status, Rest) {
	own := *call
	own.Message = bytes.Clone(own.Message)
	return out, Status{}, &rest{method: m, call: &own}
}

// rest is a call that waits.
type rest struct {
	method    method
	call      *Call
	abandoned chan<- struct{} // nil if nobody asks
}

func (r *rest) Answer(ctx context.Context, out []byte) ([]byte, Status) {
	return r.method(ctx, r.call, out)
}

func (r *rest) Abandon() {
	if r.abandoned != nil {
		r.abandoned <- struct{}{}
	}
}

// methods are the calls, on workers.
func (s *service) methods() map[string]Unary { return s.methodsAs(false) }

// methodsAs are the calls, on the reader or on workers.
func (s *service) methodsAs(inline bool) map[string]Unary {
	methods := map[string]Unary{}
	for path, m := range s.calls() {
		if methods[path] = m.waits; inline {
			methods[path] = m.inline
		}
	}
	return methods
}

func (s *service) calls() map[string]method {
	return map[string]method{
		echoPath: func(_ context.Context, call *Call, out []byte) ([]byte, Status) {
			return append(out, call.Message...), Status{}
		},
		sizePath: func(_ context.Context, call *Call, out []byte) ([]byte, Status) {
			n, err := strconv.Atoi(string(call.Message))
			if err != nil {
				return out, Status{3, err.Error()}
			}
			return append(out, bytes.Repeat([]byte("s"), n)...), Status{}
		},
		waitPath: func(ctx context.Context, call *Call, out []byte) ([]byte, Status) {
			s.waiting.Add(1)
			defer s.waiting.Add(-1)
			select {
			case <-ctx.Done():
				s.canceled.Add(1)
				if errors.Is(ctx.Err(), context.DeadlineExceeded) {
					return out, Status{4, "too late"}
				}
				return out, Status{1, "cancelled"}
			case <-s.release:
				return append(out, call.Message...), Status{}
			}
		},
		failPath: func(_ context.Context, call *Call, out []byte) ([]byte, Status) {
			return append(out, "not to be sent"...), Status{uint32(call.Message[0]), string(call.Message[1:])}
		},
		panicPath: func(context.Context, *Call, []byte) ([]byte, Status) { panic("a defect") },
		headPath: func(_ context.Context, call *Call, out []byte) ([]byte, Status) {
			return append(out, call.Header(string(call.Message))...), Status{}
		},
	}
}

// rawClient speaks HTTP/2 frame by frame.
type rawClient struct {
	t     testing.TB
	conn  net.Conn
	f     *http2.Framer
	enc   *hpack.Encoder
	block bytes.Buffer

	answers map[uint32]*rawAnswer // by stream
}

func dialRaw(t testing.TB, addr string) *rawClient {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	return newRaw(t, conn)
}

// newRaw says hello over conn.
func newRaw(t testing.TB, conn net.Conn, settings ...http2.Setting) *rawClient {
	t.Helper()
	t.Cleanup(func() { _ = conn.Close() })
	c := rawOver(t, conn)
	_, err := io.WriteString(conn, preface)
	c.must(err)
	c.must(c.f.WriteSettings(settings...))
	return c
}

func rawOver(t testing.TB, conn net.Conn) *rawClient {
	c := &rawClient{t: t, conn: conn, f: http2.NewFramer(conn, conn), answers: map[uint32]*rawAnswer{}}
	c.f.AllowIllegalWrites = true
	c.f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.enc = hpack.NewEncoder(&c.block)
	return c
}

func (c *rawClient) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// fields encodes a header; the fields of a call to path come first.
func (c *rawClient) fields(path string, more ...string) []byte {
	c.block.Reset()
	if path != "" {
		more = append([]string{":method", "POST", ":scheme", "http", ":path", path, ":authority", "test",
			"content-type", "application/grpc", "te", "trailers"}, more...)
	}
	for i := 0; i < len(more); i += 2 {
		c.must(c.enc.WriteField(hpack.HeaderField{Name: more[i], Value: more[i+1]}))
	}
	return c.block.Bytes()
}

// open opens a stream with a call to path.
func (c *rawClient) open(id uint32, path string, more ...string) {
	c.must(c.f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.fields(path, more...),
		EndHeaders: true}))
}

// call makes a whole call.
func (c *rawClient) call(id uint32, path string, message []byte, more ...string) {
	c.open(id, path, more...)
	c.must(c.f.WriteData(id, true, frameMessage(message)))
}

func frameMessage(message []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(message))), message...)
}

// next reads the next frame, except acknowledgements.
func (c *rawClient) next() http2.Frame {
	c.t.Helper()
	f, err := c.read()
	c.must(err)
	return f
}

func (c *rawClient) read() (http2.Frame, error) {
	_ = c.conn.SetReadDeadline(patience.End(c.t)) // a test that hangs
	for {
		f, err := c.f.ReadFrame()
		if s, ok := f.(*http2.SettingsFrame); ok {
			if !s.IsAck() {
				c.must(c.f.WriteSettingsAck())
			}
			continue
		}
		return f, err
	}
}

// rawAnswer is what came for a stream.
type rawAnswer struct {
	header   http.Header // of all header blocks
	blocks   int         // how many there were
	body     []byte
	reset    http2.ErrCode
	wasReset bool
	over     bool
}

// message is the one message of the body.
func (a *rawAnswer) message() string {
	if len(a.body) < prefixLen || int(binary.BigEndian.Uint32(a.body[1:])) != len(a.body)-prefixLen {
		return "no message"
	}
	return string(a.body[prefixLen:])
}

// answer reads until a stream is over. It opens no windows.
func (c *rawClient) answer(id uint32) *rawAnswer {
	c.t.Helper()
	for {
		if a := c.answers[id]; a != nil && a.over {
			return a
		}
		c.take(c.next())
	}
}

// take notes the state of its stream that a frame shows.
func (c *rawClient) take(f http2.Frame) {
	c.t.Helper()
	id := f.Header().StreamID
	a := c.answers[id]
	if a == nil {
		a = &rawAnswer{header: http.Header{}}
		c.answers[id] = a
	}
	switch f := f.(type) {
	case *http2.GoAwayFrame:
		c.t.Fatalf("GOAWAY %v: %s", f.ErrCode, f.DebugData())
	case *http2.MetaHeadersFrame:
		a.blocks++
		for _, field := range f.Fields {
			a.header.Add(field.Name, field.Value)
		}
		a.over = f.StreamEnded()
	case *http2.DataFrame:
		a.body = append(a.body, f.Data()...)
		a.over = f.StreamEnded()
	case *http2.RSTStreamFrame:
		if !a.over {
			a.reset, a.wasReset, a.over = f.ErrCode, true, true
		}
	}
}

// goAway reads until the server says goodbye and hangs up, and returns why.
func (c *rawClient) goAway() (code http2.ErrCode, reason string) {
	c.t.Helper()
	code = 255
	for {
		f, err := c.read()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			c.t.Fatal("the server holds on to the connection")
		}
		if err != nil {
			return code, reason
		}
		if g, ok := f.(*http2.GoAwayFrame); ok {
			code, reason = g.ErrCode, string(g.DebugData())
		}
	}
}

// alive holds that the connection serves calls.
func (c *rawClient) alive(id uint32) {
	c.t.Helper()
	c.call(id, echoPath, []byte("alive"))
	if a := c.answer(id); a.message() != "alive" || a.header.Get("grpc-status") != "0" {
		c.t.Fatalf("answered %+v", a)
	}
}

// ping holds that the connection is there, and that all has been taken that was sent.
func (c *rawClient) ping() {
	c.t.Helper()
	c.must(c.f.WritePing(false, [8]byte{'p'}))
	for {
		f := c.next()
		if p, ok := f.(*http2.PingFrame); ok && p.IsAck() {
			return
		}
		c.take(f)
	}
}

// checkServing holds that the server serves other connections.
func checkServing(t testing.TB, addr string) {
	t.Helper()
	dialRaw(t, addr).alive(1)
}
