package proxy

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/wire/upstream"
)

// Bodies above upstream.MaxBody, whose length is known: they are sent on in parts.

// An answer comes back while the body that it is made of is still being sent, however large both
// are.
func TestUploadBothWays(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		w.Header().Set("X-Length", fmt.Sprint(r.ContentLength))
		_, _ = io.Copy(w, r.Body)
	})
	addr := newProxy(t, up.URL, noLimits)
	const size = 16 << 20 // more than what sockets hold
	for _, h2c := range []bool{false, true} {
		for _, step := range []bool{false, true} { // whether the client waits for the echo
			body, send := io.Pipe()
			r, err := http.NewRequest("POST", "http://"+addr+"/echo", body)
			if err != nil {
				t.Fatal(err)
			}
			r.ContentLength = size
			const first, part = upstream.MaxBody, "0123456789abcdef"
			go func() {
				_, _ = io.WriteString(send, strings.Repeat("f", first))
			}()
			more := func() {
				for sent := first; sent < size; sent += len(part) << 10 {
					if _, err := io.WriteString(send, strings.Repeat(part, 1<<10)); err != nil {
						t.Error(err)
						return
					}
				}
				_ = send.Close()
			}
			if !step {
				go more()
			}
			resp, err := client(t, h2c).Do(r)
			if err != nil {
				t.Fatal(err)
			}
			if step {
				if _, err := io.ReadFull(resp.Body, make([]byte, first)); err != nil {
					t.Fatal(err)
				}
				go more()
			}
			n, err := io.Copy(io.Discard, resp.Body)
			if step {
				n += first
			}
			if n != size || err != nil || resp.Header.Get("X-Length") != fmt.Sprint(size) {
				t.Errorf("h2c=%v step=%v: %d bytes of %s, %v", h2c, step, n, resp.Header.Get("X-Length"), err)
			}
			_ = resp.Body.Close()
		}
	}
}

// An answer that comes before the body was read reaches a client that is still sending, over
// HTTP/2 without the connection suffering from it.
func TestUploadAnsweredEarly(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]func(net.Conn){
		"and closes": func(conn net.Conn) {
			say(conn, "HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno")
			_ = conn.(*net.TCPConn).CloseWrite() // so that the answer is not lost with unread input
			_, _ = io.Copy(io.Discard, conn)
		},
		"and takes nothing": func(conn net.Conn) {
			say(conn, "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno")
			<-t.Context().Done()
		},
	} {
		addr := newProxy(t, answerHeads(t, answer), noLimits)
		for _, h2c := range []bool{false, true} {
			cl := client(t, h2c)
			for range effort.Of(1, 3) {
				source, send := io.Pipe()
				r, err := http.NewRequest("POST", "http://"+addr+"/", source)
				if err != nil {
					t.Fatal(err)
				}
				r.ContentLength = 100 << 20
				go func() { _, _ = io.WriteString(send, strings.Repeat("x", 2*upstream.MaxBody)) }() // and no more
				resp, err := cl.Do(r)
				if body := read(t, resp, err); resp.StatusCode != 403 || body != "no" {
					t.Errorf("%s, h2c=%v: %d %q", name, h2c, resp.StatusCode, body)
				}
				_ = source.Close()
			}
		}
	}
}

// answerHeads is an upstream that serves each connection with answer once a header has come.
func answerHeads(t testing.TB, answer func(conn net.Conn)) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err == nil {
					answer(conn)
				}
			}()
		}
	}()
	return "http://" + l.Addr().String()
}

// taken is what an upstream got of a body.
type taken struct {
	n   int64
	err error
}

// newTaker is an upstream that tells when it is asked for /take, and what it got then.
func newTaker(t *testing.T) (url string, begun chan bool, seen chan taken) {
	t.Helper()
	begun, seen = make(chan bool, 10), make(chan taken, 1)
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/take":
			begun <- true
			n, err := io.Copy(io.Discard, r.Body)
			seen <- taken{n, err}
		case "/break":
			_, _ = io.CopyN(io.Discard, r.Body, 2*upstream.MaxBody)
			panic(http.ErrAbortHandler)
		}
	})
	return up.URL, begun, seen
}

// Whoever breaks off in the middle, the other side learns of it, and takes no part for the whole.
func TestUploadBreaksOff(t *testing.T) {
	t.Parallel()
	up, begun, seen := newTaker(t)
	addr := newProxy(t, up, noLimits)
	const size = 20 * upstream.MaxBody
	head := fmt.Sprintf(" HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", size)
	for _, c := range []struct {
		path   string
		sent   int
		status int
	}{
		{"/take", upstream.MaxBody / 2, 400}, // which does not reach the upstream
		{"/take", size - 1, 400},
		{"/break", size, 502},
	} {
		what := fmt.Sprintf("%s after %d bytes", c.path, c.sent)
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(patience.End(t))
		say(conn, "POST "+c.path+head, strings.Repeat("GET / HTTP/1.1\r\nHost: x\r\n\r\n", size)[:c.sent])
		if c.sent < size {
			_ = conn.(*net.TCPConn).CloseWrite()
		}
		in := bufio.NewReader(conn)
		resp, err := http.ReadResponse(in, &http.Request{Method: "POST"})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if body := read(t, resp, err); resp.StatusCode != c.status {
			t.Errorf("%s: %d %q, want %d", what, resp.StatusCode, body, c.status)
		}
		// What is left of the body is taken for no request.
		if c.sent < size {
			if rest, _ := io.ReadAll(in); len(rest) > 0 {
				t.Errorf("%s: a further answer: %q", what, rest)
			}
		} else {
			say(conn, "GET /next HTTP/1.1\r\nHost: x\r\n\r\n")
			resp, err = http.ReadResponse(in, &http.Request{Method: "GET"})
			if err == nil && resp.StatusCode != 200 {
				t.Errorf("%s: the next request: %d", what, resp.StatusCode)
			}
		}
		_ = conn.Close()
		if c.path == "/take" && c.sent > upstream.MaxBody {
			patience.Receive(t, what+": the upstream is asked", begun)
			if got := patience.Receive(t, what+": the upstream ends", seen); got.err == nil || got.n >= size {
				t.Errorf("%s: the upstream took %d bytes for the whole: %v", what, got.n, got.err)
			}
		}
	}
	// A client of HTTP/2 that resets its stream.
	source, send := io.Pipe()
	r, err := http.NewRequest("POST", "http://"+addr+"/take", source)
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = size
	go func() {
		_, _ = io.WriteString(send, strings.Repeat("x", 5*upstream.MaxBody))
		<-begun // one that is reset before is not asked
		_ = send.CloseWithError(errors.New("enough"))
	}()
	if _, err := client(t, true).Do(r); err == nil {
		t.Error("an answer to a request that was reset")
	}
	if got := patience.Receive(t, "HTTP/2: the upstream ends", seen); got.err == nil || got.n >= size {
		t.Errorf("HTTP/2: the upstream took %d bytes for the whole: %v", got.n, got.err)
	}
}

// A client that sends no more than a part for too long is told so, and the upstream does not take
// that for the whole.
func TestUploadStops(t *testing.T) {
	t.Parallel()
	const size = 20 * upstream.MaxBody
	timeout := 50 * time.Millisecond
	patience.Until(t, "the upstream is asked before the client is too slow", func() bool {
		timeout *= 2
		up, begun, seen := newTaker(t)
		conn, err := net.Dial("tcp", newProxy(t, up, noLimits, func(o *Options) { o.BodyTimeout = timeout }))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(patience.End(t))
		say(conn, fmt.Sprintf("POST /take HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", size),
			strings.Repeat("GET / HTTP/1.1\r\nHost: x\r\n\r\n", size)[:3*upstream.MaxBody])
		answered := make(chan error, 1)
		go func() {
			in := bufio.NewReader(conn)
			resp, err := http.ReadResponse(in, &http.Request{Method: "POST"})
			if err != nil {
				answered <- err
				return
			}
			body, err := io.ReadAll(resp.Body)
			if resp.StatusCode != 408 || err != nil {
				err = fmt.Errorf("%d %q %v, want 408", resp.StatusCode, body, err)
			}
			if rest, _ := io.ReadAll(in); len(rest) > 0 {
				err = fmt.Errorf("a further answer: %q", rest)
			}
			answered <- err
		}()
		asked := false
		select {
		case <-begun:
			asked = true
			err = patience.Receive(t, "an answer", answered)
		case err = <-answered:
		}
		if err != nil {
			t.Fatal(err)
		}
		if asked {
			if got := patience.Receive(t, "the upstream ends", seen); got.err == nil || got.n >= size {
				t.Errorf("the upstream took %d bytes for the whole: %v", got.n, got.err)
			}
		}
		return asked
	})
}

// Uploads that follow one another share a connection to an upstream that takes all of them.
func TestUploadsKeepConnections(t *testing.T) {
	t.Parallel()
	if !directWorks {
		t.Skip("no connections of our own here")
	}
	up := newScripted(t, func(conn net.Conn, r *http.Request, body []byte) bool {
		say(conn, fmt.Sprintf("HTTP/1.1 200 OK\r\nX-Length: %d\r\nContent-Length: 0\r\n\r\n", len(body)))
		return true
	})
	addr := newProxy(t, up.url(), noLimits)
	for _, h2c := range []bool{false, true} {
		before, n := up.opened.Load(), int64(0)
		// One is given up if who sent the body is not seen to be done within 50 ms.
		patience.Until(t, "an upload goes over a connection of one before", func() bool {
			n++
			resp, err := client(t, h2c).Post("http://"+addr+"/", "text/plain",
				strings.NewReader(strings.Repeat("x", 5*upstream.MaxBody)))
			if read(t, resp, err); resp.Header.Get("X-Length") != fmt.Sprint(5*upstream.MaxBody) {
				t.Errorf("h2c=%v: %v", h2c, resp.Header)
			}
			return n >= 20 && up.opened.Load()-before < n
		})
	}
}

// An upstream that takes nothing makes the client wait, and is not waited for for ever.
func TestUploadBackpressure(t *testing.T) {
	if !directWorks {
		t.Skip("httputil.ReverseProxy waits for ever")
	}
	synctest.Test(t, func(t *testing.T) {
		network := newPipes()
		gone := make(chan bool)
		go func() {
			conn, err := network.Accept()
			if err != nil {
				return
			}
			_, _ = http.ReadRequest(bufio.NewReader(conn))
			<-gone
			_ = conn.Close()
		}()
		h, err := New(newLimiter(t, noLimits), Options{Upstream: &url.URL{Scheme: "http", Host: "upstream"},
			Timeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		h.direct.Dial = network.dial
		body := &endless{}
		r := httptest.NewRequest("POST", "/", body)
		r.ContentLength = 1 << 40
		go func() {
			synctest.Wait()
			if body.n > 256<<10 {
				t.Errorf("%d bytes were read for an upstream that took none", body.n)
			}
		}()
		began := time.Now()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if took := time.Since(began); w.Code != 504 || took != time.Minute {
			t.Errorf("%d after %v", w.Code, took)
		}
		close(gone)
		_ = network.Close()
	})
}

type endless struct{ n int64 }

// Read implements io.Reader.
func (e *endless) Read(p []byte) (int, error) { e.n += int64(len(p)); return len(p), nil }
