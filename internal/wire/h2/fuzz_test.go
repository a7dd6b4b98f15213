package h2

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// FuzzFrames: any bytes behind the preface leave the server whole, nothing of them is held after,
// and others are served. The input is frames in a shorter form: kind, flags, stream, length, and
// that many bytes.
func FuzzFrames(f *testing.F) {
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	header := func(path string) []byte {
		block.Reset()
		for _, field := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", path},
			{"content-type", "application/grpc"}} {
			_ = enc.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]})
		}
		return bytes.Clone(block.Bytes())
	}
	frame := func(kind, flags, stream byte, payload []byte) []byte {
		return append([]byte{kind, flags, stream, byte(len(payload))}, payload...)
	}
	for _, path := range []string{echoPath, waitPath, sizePath, "/handler"} {
		head := header(path)
		f.Add(bytes.Join([][]byte{
			frame(frameHeaders, flagEndHeaders, 1, head),
			frame(frameData, flagEndStream, 1, frameMessage([]byte("70000"))),
			frame(frameHeaders, 0, 3, head[:2]), frame(frameContinuation, flagEndHeaders, 3, head[2:]),
			frame(frameData, flagPadded, 3, []byte{2, 0, 0, 0, 0}),
			frame(frameWindowUpdate, 0, 1, []byte{0, 1, 0, 0}), frame(frameWindowUpdate, 0, 0, []byte{0, 0, 1, 0}),
			frame(frameReset, 0, 3, make([]byte, 4)),
			frame(frameSettings, 0, 0, []byte{0, 4, 0, 0, 0, 1}), frame(frameSettings, flagAck, 0, nil),
			frame(framePing, 0, 0, make([]byte, 8)),
			frame(framePriority, 0, 5, make([]byte, 5)), frame(frameHeaders, flagEndHeaders|flagEndStream, 1, nil),
		}, nil))
	}
	folder := testproc.SocketDir(f) // sockets in it, since ports of TCP would run out
	var sockets atomic.Uint64
	f.Fuzz(func(t *testing.T, input []byte) {
		if len(input) > 4096 {
			return
		}
		for _, methods := range []map[string]Unary{newService().methodsAs(true), newService().methods(), nil} {
			name := filepath.Join(folder, strconv.FormatUint(sockets.Add(1), 36))
			l, err := net.Listen("unix", name)
			if err != nil {
				t.Fatal(err)
			}
			s := New(Options{Methods: methods, MaxStreams: 4, Logger: doortest.LogTo(func(m string) { t.Error(m) }),
				WriteTimeout: time.Minute,
				Handler: http.HandlerFunc(
					func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) })})
			done := make(chan error, 1)
			go func() { done <- s.Serve(l) }()
			conn, err := net.Dial("unix", name)
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_, _ = io.Copy(io.Discard, conn)
			}()
			data := append([]byte(preface), 0, 0, 0, frameSettings, 0, 0, 0, 0, 0)
			for rest := input; len(rest) >= 4; {
				n := min(int(rest[3]), len(rest)-4)
				data = appendFrameHeader(data, n, rest[0]%12, rest[1], uint32(rest[2]))
				data = append(data, rest[4:4+n]...)
				rest = rest[4+n:]
			}
			_, _ = conn.Write(data)
			other, err := net.Dial("unix", name)
			if err != nil {
				t.Fatal(err)
			}
			if c := newRaw(t, other); methods != nil {
				c.alive(1)
			} else if c.call(1, "/", []byte("alive")); c.answer(1).message() != "alive" {
				t.Fatalf("answered %+v", c.answer(1))
			}
			_ = other.Close()
			_ = conn.(*net.UnixConn).CloseWrite()
			<-ended
			s.Stop()
			if err := <-done; err != nil {
				t.Errorf("Serve: %v", err)
			}
			checkIdle(t, s)
		}
	})
}

// FuzzHeaders: header blocks are read alike whether or not blocks that were seen before are
// remembered.
func FuzzHeaders(f *testing.F) {
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	var seed []byte
	for i := range 6 {
		block.Reset()
		for _, field := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":path", echoPath},
			{"content-type", "application/grpc"},
			{"grpc-timeout", string(rune('1'+i/2)) + "S"}, {"x", "y"}} {
			_ = enc.WriteField(hpack.HeaderField{Name: field[0], Value: field[1], Sensitive: i == 4})
		}
		seed = append(append(seed, byte(block.Len())), block.Bytes()...)
	}
	f.Add(seed)
	s := New(Options{Methods: newService().methods()})
	f.Fuzz(func(t *testing.T, input []byte) {
		var blocks [][]byte
		for len(input) > 0 {
			n := min(int(input[0]), len(input)-1)
			blocks = append(blocks, input[1:1+n])
			input = input[1+n:]
		}
		remembers, forgets := newHeaderReader(s), newHeaderReader(s)
		for i, b := range blocks {
			for range 2 { // an equal block follows often
				forgets.forget()
				got, err := remembers.read(b)
				want, wrong := forgets.read(b)
				if (err != nil) != (wrong != nil) {
					t.Fatalf("block %d: %v, want %v", i, err, wrong)
				}
				if err != nil {
					return
				}
				if got.method != want.method || got.path != want.path || got.scheme != want.scheme ||
					got.authority != want.authority ||
					got.contentType != want.contentType || got.timeout != want.timeout ||
					got.hasTimeout != want.hasTimeout || got.badTimeout != want.badTimeout ||
					got.encoding != want.encoding || got.malformed != want.malformed || got.tooLarge != want.tooLarge ||
					got.length != want.length ||
					(got.unary == nil) != (want.unary == nil) || len(got.fields) != len(want.fields) {
					t.Fatalf("block %d: %+v, want %+v", i, got, want)
				}
				for k := range got.fields {
					if got.fields[k].Name != want.fields[k].Name || got.fields[k].Value != want.fields[k].Value {
						t.Fatalf("block %d: field %d is %v, want %v", i, k, got.fields[k], want.fields[k])
					}
				}
				remembers.release(got)
			}
		}
	})
}

// FuzzMessage: the body of a call is refused or read, whatever it holds.
func FuzzMessage(f *testing.F) {
	f.Add(frameMessage([]byte("x")), "")
	f.Add(compressed(gzipped([]byte("zipped"))), "gzip")
	s := New(Options{MaxMessage: 1000})
	f.Fuzz(func(t *testing.T, body []byte, encoding string) {
		c := &conn{s: s}
		message, refused := c.message(&request{encoding: encoding}, body)
		if refused != nil {
			if refused.Code == codeOK || refused.Message == "" {
				t.Fatalf("refused with %+v", refused)
			}
			return
		}
		if len(message) > 1000 {
			t.Fatalf("a message of %d bytes", len(message))
		}
		if body[0] == 0 && (int(binary.BigEndian.Uint32(body[1:])) != len(message) ||
			!bytes.Equal(body[prefixLen:], message)) {
			t.Fatalf("%q became %q", body, message)
		}
	})
}
