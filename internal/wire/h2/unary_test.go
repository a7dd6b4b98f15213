package h2

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/net/http2"

	"github.com/weir-rl/weir/internal/testkit/doortest"
)

// both runs a test with calls inline and on workers.
func both(t *testing.T, test func(t *testing.T, o Options)) {
	for _, inline := range []bool{true, false} {
		t.Run(fmt.Sprintf("inline=%t", inline),
			func(t *testing.T) { test(t, Options{Methods: newService().methodsAs(inline)}) })
	}
}

func gzipped(b []byte) []byte {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, _ = z.Write(b)
	_ = z.Close()
	return out.Bytes()
}

func compressed(b []byte) []byte {
	framed := frameMessage(b)
	framed[0] = 1
	return framed
}

// TestUnaryCases: what a client may send for a call, and what it gets.
func TestUnaryCases(t *testing.T) {
	grpc := []string{":method", "POST", ":scheme", "http", ":path", echoPath, ":authority", "test", "content-type",
		"application/grpc"}
	with := func(more ...string) []string { return append(append([]string(nil), grpc...), more...) }
	hi := frameMessage([]byte("hi"))
	cases := []struct {
		name   string
		header []string
		data   []byte // nil: END_STREAM is on HEADERS
		want   string // status, message or text; or the reset
	}{
		{"a call", grpc, hi, "0 hi"},
		{"an empty message", grpc, frameMessage(nil), "0 "},
		{"proto", []string{":method", "POST", ":scheme", "https", ":path", echoPath, "content-type", "application/grpc+proto"}, hi, "0 hi"},
		{"no message", grpc, nil, "13 the request of a unary call ends before its message"},
		{"an empty body", grpc, []byte{}, "13 the request of a unary call ends before its message"},
		{"half a prefix", grpc, hi[:3], "13 the request of a unary call ends before its message"},
		{"half a message", grpc, hi[:6], "13 the request of a unary call ends before its message"},
		{"two messages", grpc, append(append([]byte(nil), hi...), hi...), "13 the request of a unary call holds more than one message"},
		{"too large", grpc, []byte{0, 0, 0x10, 0, 1, 'x'}, "8 received message larger than max (1048577 vs. 1048576)"},
		{"far too large", grpc, []byte{0, 0xff, 0xff, 0xff, 0xff, 'x'}, "8 received message larger than max (4294967295 vs. 1048576)"},
		{"gzip", with("grpc-encoding", "gzip"), compressed(gzipped([]byte("zipped"))), "0 zipped"},
		{"gzip announced but not used", with("grpc-encoding", "gzip"), hi, "0 hi"},
		{"gzip that is none", with("grpc-encoding", "gzip"), compressed([]byte("zipped")), "13 the message cannot be decompressed: unexpected EOF"},
		{"gzip that is cut", with("grpc-encoding", "gzip"), compressed(gzipped([]byte("zipped"))[:20]), "13 the message cannot be decompressed: unexpected EOF"},
		{"a gzip bomb", with("grpc-encoding", "gzip"), compressed(gzipped(make([]byte, 2<<20))), "8 received message after decompression larger than max 1048576"},
		{"compressed without an encoding", grpc, compressed([]byte("x")), "13 compressed flag set with identity or empty encoding"},
		{"compressed with identity", with("grpc-encoding", "identity"), compressed([]byte("x")), "13 compressed flag set with identity or empty encoding"},
		{"an unknown encoding", with("grpc-encoding", "br"), compressed([]byte("x")), `12 messages cannot be compressed with "br", but with gzip`},
		{"an unknown flag", grpc, append([]byte{2}, hi[1:]...), "13 received unexpected payload format 2"},
		{"a timeout", with("grpc-timeout", "5S"), hi, "0 hi"},
		{"a bad timeout", with("grpc-timeout", "5"), hi, "13 malformed grpc-timeout"},
		{"another bad timeout", with("grpc-timeout", "5x"), hi, "13 malformed grpc-timeout"},
		{"a negative timeout", with("grpc-timeout", "-5S"), hi, "13 malformed grpc-timeout"},
		{"a length that is right", with("content-length", "7"), hi, "0 hi"},
		{"a length that is wrong", with("content-length", "8"), hi, "reset PROTOCOL_ERROR"},
		{"a length that is exceeded", with("content-length", "3"), hi, "reset PROTOCOL_ERROR"},
		{"a length without a body", with("content-length", "3"), nil, "reset PROTOCOL_ERROR"},
		{"a length that is none", with("content-length", "x"), hi, "reset PROTOCOL_ERROR"},
		{"two lengths", with("content-length", "7", "content-length", "8"), hi, "reset PROTOCOL_ERROR"},
		{"te", with("te", "gzip"), hi, "reset PROTOCOL_ERROR"},
		{"connection", with("connection", "close"), hi, "reset PROTOCOL_ERROR"},
		{"a name in capitals", with("X-Big", "1"), hi, "reset PROTOCOL_ERROR"},
		{"no name", with("", "1"), hi, "reset PROTOCOL_ERROR"},
		{"a line feed", with("x", "a\nb"), hi, "reset PROTOCOL_ERROR"},
		{"a pseudo-header field behind", with(":path", "/x"), hi, "reset PROTOCOL_ERROR"},
		{"an unknown pseudo-header field", append([]string{":x", "y"}, grpc...), hi, "reset PROTOCOL_ERROR"},
		{"no path", grpc[:4], hi, "reset PROTOCOL_ERROR"},
		{"a large header", with("x", strings.Repeat("x", 16<<10)), hi, "8 the header of the request is too large"},
		{"not gRPC", []string{":method", "POST", ":scheme", "http", ":path", echoPath, "content-type", "application/json"}, hi, "404"},
		{"nearly gRPC", []string{":method", "POST", ":scheme", "http", ":path", echoPath, "content-type", "application/grpcx"}, hi, "404"},
		{"GET", []string{":method", "GET", ":scheme", "http", ":path", echoPath, "content-type", "application/grpc"}, nil, "404"},
		{"an unknown path", []string{":method", "POST", ":scheme", "http", ":path", "/x", "content-type", "application/grpc"}, hi, "404"},
	}
	both(t, func(t *testing.T, o Options) {
		_, addr := serve(t, o)
		c := dialRaw(t, addr)
		id := uint32(1)
		for _, test := range cases {
			block := c.fields("", test.header...)
			for first := true; first || len(block) > 0; first = false {
				// in frames of a size that is taken
				n := min(len(block), 10_000)
				if first {
					c.must(c.f.WriteHeaders(http2.HeadersFrameParam{
						StreamID: id, BlockFragment: block[:n], EndHeaders: n == len(block),
						EndStream: test.data == nil}))
				} else {
					c.must(c.f.WriteContinuation(id, n == len(block), block[:n]))
				}
				block = block[n:]
			}
			if test.data != nil {
				c.must(c.f.WriteData(id, true, test.data))
			}
			a := c.answer(id)
			got := ""
			switch status := a.header.Get("grpc-status"); {
			case a.wasReset:
				got = "reset " + a.reset.String()
			case status == "0":
				got = "0 " + a.message()
				if a.blocks != 2 || a.header.Get(":status") != "200" {
					t.Errorf("%s: %+v", test.name, a)
				}
			case status != "":
				got = status + " " + a.header.Get("grpc-message")
				if a.blocks != 1 || len(a.body) > 0 {
					t.Errorf("%s: an error with more than a header: %+v", test.name, a)
				}
				if (status == "12") != (a.header.Get("grpc-accept-encoding") != "") {
					t.Errorf("%s: %v", test.name, a.header)
				}
			default:
				got = a.header.Get(":status")
			}
			if got != test.want {
				t.Errorf("%s: %s, want %s", test.name, got, test.want)
			}
			id += 2
		}
		c.alive(id)
	})
}

// TestPieces: a message may come in frames of any size, with padding, and with others in between.
func TestPieces(t *testing.T) {
	both(t, func(t *testing.T, o Options) {
		_, addr := serve(t, o)
		c := dialRaw(t, addr)
		text := strings.Repeat("weir ", 100)
		framed := frameMessage([]byte(text))
		c.open(1, echoPath)
		c.open(3, echoPath, "x", "y")
		for i, b := range framed {
			c.must(c.f.WriteDataPadded(1, false, []byte{b}, make([]byte, i%7)))
			c.must(c.f.WriteDataPadded(3, i == len(framed)-1, framed[i:i+1], make([]byte, i%256)))
		}
		if a := c.answer(3); a.message() != text {
			t.Errorf("%+v", a)
		}
		c.must(c.f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: c.fields("", "a-trailer", "z"),
			EndHeaders: true, EndStream: true}))
		if a := c.answer(1); a.message() != text {
			t.Errorf("%+v", a)
		}
		c.alive(5)
	})
}

// TestBadTrailers: a trailer ends its stream, and is no header.
func TestBadTrailers(t *testing.T) {
	_, addr := serve(t, Options{Methods: newService().methods()})
	c := dialRaw(t, addr)
	for i, end := range []bool{false, true} {
		id := uint32(2*i + 1)
		c.open(id, echoPath)
		c.must(c.f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: c.fields("", ":path", "/x"),
			EndHeaders: true, EndStream: end}))
		if a := c.answer(id); a.reset != http2.ErrCodeProtocol {
			t.Errorf("end %t: %+v", end, a)
		}
	}
	c.alive(5)
}

// TestHeaderAccess: calls see the fields of their own header, also when the block is one that was
// seen before.
func TestHeaderAccess(t *testing.T) {
	both(t, func(t *testing.T, o Options) {
		_, addr := serve(t, o)
		c := dialRaw(t, addr)
		for i := range uint32(60) {
			value := fmt.Sprint("v", i/3%7)
			c.call(2*i+1, headPath, []byte("who"), "who", value, "grpc-timeout", fmt.Sprintf("%dS", 100+i/10))
			if a := c.answer(2*i + 1); a.message() != value {
				t.Fatalf("call %d: %q, want %q", i, a.message(), value)
			}
		}
		c.call(121, headPath, []byte("absent"))
		if a := c.answer(121); a.message() != "" {
			t.Errorf("%+v", a)
		}
	})
}

// TestStatus: codes and texts arrive as they are.
func TestStatus(t *testing.T) {
	both(t, func(t *testing.T, o Options) {
		_, addr := serve(t, o)
		c := dialRaw(t, addr)
		c.call(1, failPath, append([]byte{16}, "100 % of ü\n~"...))
		a := c.answer(1)
		if a.header.Get("grpc-status") != "16" || a.header.Get("grpc-message") != "100 %25 of %C3%BC%0A~" ||
			a.blocks != 1 {
			t.Errorf("%+v", a)
		}
		c.call(3, failPath, []byte{255})
		if a := c.answer(3); a.header.Get("grpc-status") != "255" || a.header.Get("grpc-message") != "" {
			t.Errorf("%+v", a)
		}
	})
}

// TestPanic: a defect fails its call, and is logged.
func TestPanic(t *testing.T) {
	both(t, func(t *testing.T, o Options) {
		logged := make(chan string, 1)
		o.Logger = doortest.LogTo(func(m string) { logged <- m })
		_, addr := serve(t, o)
		c := dialRaw(t, addr)
		c.call(1, panicPath, nil)
		if a := c.answer(1); a.header.Get("grpc-status") != "13" || a.header.Get("grpc-message") != "internal error" {
			t.Errorf("%+v", a)
		}
		if text := <-logged; !strings.Contains(text, "a defect") || !strings.Contains(text, "h2_test.go") {
			t.Errorf("logged %s", text)
		}
		c.alive(3)
	})
}

// TestTableSize: a client that has no room for a dynamic table gets none, and one that changes its
// mind does not notice.
func TestTableSize(t *testing.T) {
	_, addr := serve(t, Options{Methods: newService().methodsAs(true)})
	c := dialRaw(t, addr)
	c.alive(1)
	c.alive(3)
	c.must(c.f.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0}))
	c.f.ReadMetaHeaders.SetAllowedMaxDynamicTableSize(0)
	c.alive(5)
	c.alive(7)
	c.must(c.f.WriteSettings(http2.Setting{ID: http2.SettingHeaderTableSize, Val: 8192}))
	c.alive(9)
}

// TestHasToWait: a call that has to wait holds up none behind it, and one for which there is no
// room is abandoned.
func TestHasToWait(t *testing.T) {
	svc := newService()
	abandoned := make(chan struct{}, 1)
	methods := svc.methodsAs(true)
	methods[waitPath] = func(_ context.Context, call *Call, out []byte) ([]byte, Status, Rest) {
		own := *call
		own.Message = bytes.Clone(own.Message)
		return append(out, "not to be sent"...), Status{3, "nor this"}, &rest{svc.calls()[waitPath], &own, abandoned}
	}
	s, addr := serve(t, Options{Methods: methods, MaxBuffered: 4 * 1000})
	c := dialRaw(t, addr)
	message := bytes.Repeat([]byte("m"), 300)
	for i := range uint32(3) {
		c.call(4*i+1, waitPath, message)
		c.call(4*i+3, echoPath, []byte("hi"))
	}
	c.call(13, waitPath, message)
	for _, id := range []uint32{3, 7, 11} {
		if a := c.answer(id); a.message() != "hi" {
			t.Errorf("%d: %+v", id, a)
		}
	}
	if a := c.answer(13); a.header.Get("grpc-status") != "8" {
		t.Errorf("beyond the memory: %+v", a)
	}
	<-abandoned
	eventually(t, "three wait", func() bool { return svc.waiting.Load() == 3 })
	close(svc.release)
	for _, id := range []uint32{1, 5, 9} {
		if a := c.answer(id); a.message() != string(message) || a.header.Get("grpc-status") != "0" {
			t.Errorf("%d: %+v", id, a)
		}
	}
	c.alive(15)
	if n := s.held.Load(); n != 0 {
		t.Errorf("%d bytes are held", n)
	}
}

// TestAnswersTogether: calls that a store answers at once are written at once, and a last one for
// which no other is under way is written, too.
func TestAnswersTogether(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // all are answered before the first has its next turn
	svc := newService()
	s, addr := serve(t, Options{Methods: svc.methods()})
	c := dialRaw(t, addr)
	const calls = 24 // fewer than maxReady
	for i := range uint32(calls) {
		c.call(2*i+1, waitPath, []byte("m"))
	}
	eventually(t, "all wait", func() bool { return svc.waiting.Load() == calls })
	served := s.sessions.AppendConns(nil)[0].open()
	writes := func() uint64 {
		served.mu.Lock()
		defer served.mu.Unlock()
		return served.writes
	}
	before := writes()
	close(svc.release)
	for i := range uint32(calls) {
		if a := c.answer(2*i + 1); a.message() != "m" || a.header.Get("grpc-status") != "0" {
			t.Errorf("%d: %+v", i, a)
		}
	}
	if n := writes() - before; n > calls/4 {
		t.Errorf("%d answers took %d writes", calls, n)
	}
	c.call(99, waitPath, []byte("last"))
	if a := c.answer(99); a.message() != "last" {
		t.Errorf("%+v", a)
	}
}
