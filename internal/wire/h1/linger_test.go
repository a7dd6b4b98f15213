package h1

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/wire/listen"
)

// refusing serves a handler over TCP that refuses all requests and reads none, and returns the
// server and its address.
func refusing(t *testing.T, bound func(*listen.Lingers)) (*Server, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := New(&http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "no", http.StatusTooManyRequests)
	})})
	bound(s.lingers)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = s.Shutdown(ctx) // cuts off what is open
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s, l.Addr().String()
}

// startUpload returns a connection on which a request is sent, without most of its body. sent is
// how much of the body was sent.
func startUpload(t *testing.T, addr, fields string) (c net.Conn, sent int) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(patience.End(t))
	// Without so much of a body net/http would wait for the rest of it.
	const begun = 3 * maxLeftOver
	body := fmt.Sprintf("%x\r\n%s\r\n", begun, strings.Repeat("x", begun))
	if _, err := io.WriteString(c, "PUT /large HTTP/1.1\r\nHost: x\r\n"+fields+"\r\n\r\n"+body); err != nil {
		t.Fatal(err)
	}
	return c, len(body)
}

// TestRefusedUpload: a client that sends all of a large body before it looks for an answer gets its
// refusal, with a length and in chunks, and the connection ends then.
func TestRefusedUpload(t *testing.T) {
	const size = 20 << 20
	_, addr := refusing(t, func(l *listen.Lingers) { l.Bound(0, time.Hour, time.Hour, 0) })
	part := []byte(strings.Repeat("x", 1<<20))
	for fields, chunked := range map[string]bool{fmt.Sprintf("Content-Length: %d", size): false,
		"Transfer-Encoding: chunked": true} {
		c, sent := startUpload(t, addr, fields)
		for sent < size {
			part := part[:min(len(part), size-sent)]
			if chunked {
				part = fmt.Appendf(nil, "%x\r\n%s\r\n", len(part), part)
			}
			n, err := c.Write(part)
			if sent += n; err != nil {
				t.Fatalf("%s, %d bytes: %v", fields, sent, err)
			}
		}
		if chunked {
			if _, err := io.WriteString(c, "0\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
		}
		in := bufio.NewReader(c)
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("%s: %v", fields, err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != 429 || string(body) != "no\n" || !resp.Close {
			t.Errorf("%s: %d %q, %v", fields, resp.StatusCode, body, err)
		}
		if _, err := in.ReadByte(); err != io.EOF {
			t.Errorf("%s: the connection ended with %v", fields, err)
		}
	}
}

// TestLingerBounds: a refused client is read on for as long as it sends, up to a bound of bytes,
// and of one address half of the connections that may be read on, so that none is held for longer.
func TestLingerBounds(t *testing.T) {
	const size = 64 << 20
	for _, fields := range []string{fmt.Sprintf("Content-Length: %d", size), "Transfer-Encoding: chunked"} {
		// It sends nothing more.
		_, addr := refusing(t, func(l *listen.Lingers) { l.Bound(0, time.Millisecond, time.Hour, 0) })
		silent, _ := startUpload(t, addr, fields)
		if _, err := io.Copy(io.Discard, silent); err != nil {
			t.Errorf("%s: a client that sends nothing: %v", fields, err)
		}
		// It sends without end.
		_, addr = refusing(t, func(l *listen.Lingers) { l.Bound(0, time.Hour, time.Hour, 1<<20) })
		endless, _ := startUpload(t, addr, fields)
		part := fmt.Appendf(nil, "%x\r\n%s\r\n", 1<<20, strings.Repeat("x", 1<<20))
		var err error
		for sent := 0; err == nil && sent < size/2; sent += len(part) {
			_, err = endless.Write(part)
		}
		if err == nil {
			t.Errorf("%s: 32 MiB of a client that may send 1 MiB more were read", fields)
		}
		// There are many of one address.
		s, addr := refusing(t, func(l *listen.Lingers) { l.Bound(4, time.Hour, time.Hour, 0) })
		var all []net.Conn
		for range 4 {
			c, _ := startUpload(t, addr, fields)
			all = append(all, c)
		}
		ended := make(chan error, len(all))
		for _, c := range all {
			go func() {
				_, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err == nil { // until the server has closed both its sides
					for err == nil {
						_, err = c.Write([]byte("1\r\nx\r\n"))
						time.Sleep(time.Millisecond)
					}
					err = nil
				}
				ended <- err
			}()
		}
		for range 2 {
			if err := patience.Receive(t, "the end of a connection", ended); err != nil {
				t.Errorf("%s: %v", fields, err)
			}
		}
		patience.Until(t, "two connections are read on", func() bool { return s.lingers.Len() == 2 })
		for _, c := range all {
			_ = c.Close()
		}
		patience.Until(t, "no connection is read on", func() bool { return s.lingers.Len() == 0 })
	}
}
