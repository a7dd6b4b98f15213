package proxy

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/wire/upstream"
)

// scripted is an upstream that answers in bytes of its own.
type scripted struct {
	net.Listener
	opened atomic.Int64 // connections
	asked  atomic.Int64 // requests
}

// newScripted serves each request with answer, which returns false to have the connection closed.
func newScripted(t testing.TB, answer func(conn net.Conn, r *http.Request, body []byte) bool) *scripted {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &scripted{Listener: l}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	over := false
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.opened.Add(1)
			mu.Lock()
			if conns = append(conns, conn); over {
				_ = conn.Close()
			}
			mu.Unlock()
			wg.Go(func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				for {
					r, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					body, err := io.ReadAll(r.Body)
					if err != nil {
						return
					}
					s.asked.Add(1)
					if !answer(conn, r, body) {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		over = true
		for _, c := range conns {
			_ = c.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return s
}

func (s *scripted) url() string { return "http://" + s.Addr().String() }

// say writes the parts of an answer one after the other.
func say(conn net.Conn, parts ...string) {
	for _, part := range parts {
		if _, err := io.WriteString(conn, part); err != nil {
			return
		}
	}
}

// Both ways are one proxy: what the other tests say of it holds where all goes through
// httputil.ReverseProxy as well.
func TestThroughReverseProxy(t *testing.T) {
	if !directWorks {
		t.Skip("all requests go that way here anyway")
	}
	directWorks = false
	t.Cleanup(func() { directWorks = true })
	for name, test := range map[string]func(*testing.T){
		"TestWebSocket": TestWebSocket, "TestStreamingResponse": TestStreamingResponse, "TestStreamingKnownLength": TestStreamingKnownLength, "TestTrailers": TestTrailers, "TestHangUp": TestHangUp,
		"TestHangUpInBody": TestHangUpInBody, "TestConcurrencySpansTheBody": TestConcurrencySpansTheBody, "TestUpstreamBreaksOff": TestUpstreamBreaksOff,
		"TestEarlyAnswer": TestEarlyAnswer, "TestExpectContinue": TestExpectContinue, "TestUpstreamSeesOnlyWhatPassed": TestUpstreamSeesOnlyWhatPassed,
		"TestForwardedHeaders": TestForwardedHeaders, "TestHeadersOfTheUpstream": TestHeadersOfTheUpstream, "TestUpstreamFailures": TestUpstreamFailures,
		"TestConcurrentClients": TestConcurrentClients, "TestHostEvasion": TestHostEvasion, "TestQueryStaysOne": TestQueryStaysOne,
		"TestPathEvasion": TestPathEvasion, "TestRequestTargets": TestRequestTargets, "TestHostileClients": TestHostileClients,
		"TestQueueDrainsAtItsRate": TestQueueDrainsAtItsRate, "TestHostileUpstreams": TestHostileUpstreams, "TestConnectionsAreKept": TestConnectionsAreKept,
		"TestRetries": TestRetries, "TestSmallBodies": TestSmallBodies, "TestUploadBothWays": TestUploadBothWays, "TestUploadAnsweredEarly": TestUploadAnsweredEarly,
		"TestUploadBreaksOff": TestUploadBreaksOff, "TestUploadStops": TestUploadStops, "TestPipeline": TestPipeline, "TestNoGuessedType": TestNoGuessedType, "TestWaitEnds": TestWaitEnds,
	} {
		t.Run(name, func(t *testing.T) {
			switch name {
			case "TestEarlyAnswer", "TestHostileUpstreams", "TestUploadBothWays", "TestUploadAnsweredEarly",
				"TestHostileClients", "TestConnectionsAreKept", "TestRequestTargets",
				"TestUploadBreaksOff", "TestUploadStops":
				effort.Long(t, "asks again what was asked directly")
			}
			test(t)
		})
	}
}

// Requests that follow one another share a connection, unless the upstream's answer says that it is
// the last on it or leaves open where it ends.
func TestConnectionsAreKept(t *testing.T) {
	for name, c := range map[string]struct {
		answer string
		shared bool
		method string
	}{
		"a length":                    {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", true, "GET"},
		"a length, twice":             {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok", true, "GET"},
		"chunks":                      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", true, "GET"},
		"chunks and trailers":         {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-T: 1\r\n\r\n", true, "GET"},
		"chunks, announced trailers":  {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n2\r\nok\r\n0\r\nX-T: 1\r\n\r\n", true, "GET"},
		"a folded field":              {"HTTP/1.1 200 OK\r\nX-A: b\r\n c\r\nContent-Length: 2\r\n\r\nok", true, "GET"},
		"line feeds alone":            {"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", true, "GET"},
		"no content":                  {"HTTP/1.1 204 No Content\r\n\r\n", true, "GET"},
		"not modified, with a length": {"HTTP/1.1 304 Not Modified\r\nContent-Length: 100\r\n\r\n", true, "GET"},
		"HEAD, with a length":         {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", true, "HEAD"},
		"HEAD, without":               {"HTTP/1.1 200 OK\r\n\r\n", true, "HEAD"},
		"keep-alive in so many words": {"HTTP/1.1 200 OK\r\nConnection: Keep-Alive\r\nKeep-Alive: timeout=5\r\nContent-Length: 2\r\n\r\nok", true, "GET"},
		"hints first":                 {"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", true, "GET"},
		"close":                       {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", false, "GET"},
		"close, among others":         {"HTTP/1.1 200 OK\r\nConnection: x-a, close\r\nContent-Length: 2\r\n\r\nok", false, "GET"},
		"HTTP/1.0":                    {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", false, "GET"},
		"bytes too many":              {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nbad", false, "GET"},
	} {
		if name == "bytes too many" && !directWorks {
			continue // http.Transport may put the connection back before it sees them
		}
		up := newScripted(t, func(conn net.Conn, r *http.Request, _ []byte) bool { say(conn, c.answer); return true })
		addr := newProxy(t, up.url(), noLimits)
		cl := client(t, false)
		const n = 5
		for range n {
			r, err := http.NewRequest(c.method, "http://"+addr+"/", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := cl.Do(r)
			if body := read(t, resp, err); resp.StatusCode/100 == 2 && resp.StatusCode != 204 && c.method == "GET" &&
				body != "ok" {
				t.Errorf("%s: %d %q", name, resp.StatusCode, body)
			}
		}
		want := int64(n)
		if c.shared {
			want = 1
		}
		// http.Transport gives up a connection whose writer is not done within 50 ms, so that on a
		// busy machine it shares fewer.
		got := up.opened.Load()
		if got != want && (directWorks || !c.shared || got > n) {
			t.Errorf("%s: %d connections, want %d", name, got, want)
		}
	}
	// Both a length and chunks: the chunks count (RFC 9112 6.3), and the direct way does not trust
	// the connection any more, whatever else the header holds.
	for name, more := range map[string]string{
		"plain": "", "trailer": "Trailer: X-A\r\n", "option": "Connection: X-B\r\n", "large": "X-Large: " + strings.Repeat("x", 8<<10) + "\r\n",
		"other case": "Trailer: X-A\r\ncontent-LENGTH: 50\r\n",
	} {
		up := newScripted(t, func(conn net.Conn, r *http.Request, _ []byte) bool {
			say(conn, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"+more+
				"Content-Length: 50\r\n\r\n2\r\nok\r\n0\r\n\r\n")
			return true
		})
		addr := newProxy(t, up.url(), noLimits)
		for range 2 {
			resp, err := client(t, false).Get("http://" + addr)
			if body := read(t, resp, err); body != "ok" || resp.Header.Get("Content-Length") == "50" {
				t.Errorf("%s: %v %q", name, resp.Header, body)
			}
		}
		if got := up.opened.Load(); directWorks && got != 2 {
			t.Errorf("%s: a length and chunks: %d connections, want 2", name, got)
		}
	}
}

// What an upstream says that nobody asked for is not taken for the answer to the next request.
// (http.Transport has a goroutine that looks for it, which may come too late.)
func TestNoAnswerOfAnother(t *testing.T) {
	if !directWorks {
		t.Skip("no connections of our own here")
	}
	said := make(chan bool)
	up := newScripted(t, func(conn net.Conn, r *http.Request, _ []byte) bool {
		if r.URL.Path == "/first" {
			say(conn, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfirst")
			<-said // the proxy has it all
			say(conn, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
			said <- true
			return true
		}
		say(conn, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue")
		return true
	})
	addr := newProxy(t, up.url(), noLimits)
	c := client(t, false)
	for range 3 {
		resp, err := c.Get("http://" + addr + "/first")
		if body := read(t, resp, err); body != "first" {
			t.Fatalf("%q", body)
		}
		said <- true
		<-said
		// Over loopback what is written is there at once.
		resp, err = c.Get("http://" + addr + "/second")
		if body := read(t, resp, err); body != "true" {
			t.Errorf("the second request got %q", body)
		}
	}
}

// A request whose kept connection is closed under it is sent once more if it can be, and only then.
func TestRetries(t *testing.T) {
	var mu sync.Mutex
	seen := map[string]int{}
	up := newScripted(t, func(conn net.Conn, r *http.Request, body []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		key := r.Method + r.Header.Get("Idempotency-Key") + string(body)
		seen[key]++
		if r.URL.Path == "/close" && seen[key] == 1 || r.URL.Path == "/always" {
			return false // it has the request, and hangs up
		}
		say(conn, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		return true
	})
	for _, c := range []struct {
		method, path, key, body string
		status, seen            int
	}{
		{"GET", "/close", "", "", 200, 2},
		{"HEAD", "/close", "", "", 200, 2},
		{"OPTIONS", "/close", "", "", 200, 2},
		{"POST", "/close", "a", "body", 200, 2},
		{"POST", "/close", "", "", 502, 1},
		{"POST", "/close", "", "body", 502, 1},
		{"PUT", "/close", "", "body", 200, 2},
		{"POST", "/close", "", strings.Repeat("b", 3*upstream.MaxBody), 502, 1},
		{"POST", "/close", "b", strings.Repeat("b", 3*upstream.MaxBody), 502, 1},
		{"DELETE", "/close", "", "", 200, 2},
		{"PATCH", "/close", "", "body", 502, 1},
		{"GET", "/always", "", "", 502, 2},
	} {
		addr := newProxy(t, up.url(), noLimits) // without any connection to the upstream
		mu.Lock()
		clear(seen)
		mu.Unlock()
		cl := client(t, false)
		resp, err := cl.Get("http://" + addr + "/warm")
		read(t, resp, err)
		mu.Lock()
		clear(seen)
		mu.Unlock()
		r, err := http.NewRequest(c.method, "http://"+addr+c.path, strings.NewReader(c.body))
		if err != nil {
			t.Fatal(err)
		}
		if c.key != "" {
			r.Header.Set("Idempotency-Key", c.key)
		}
		resp, err = cl.Do(r)
		read(t, resp, err)
		mu.Lock()
		if got := seen[c.method+c.key+c.body]; resp.StatusCode != c.status || got != c.seen {
			t.Errorf("%s %s %q: %d, the upstream saw it %d times; want %d, %d", c.method, c.path, c.body,
				resp.StatusCode, got, c.status, c.seen)
		}
		mu.Unlock()
	}
}

// An upstream whose body stalls is let go when the client hangs up.
func TestHangUpInBody(t *testing.T) {
	for _, h2c := range []bool{false, true} {
		for _, header := range []string{"Content-Length: 100", "Transfer-Encoding: chunked", "X-A: until it closes"} {
			gone := make(chan bool)
			up := newScripted(t, func(conn net.Conn, r *http.Request, _ []byte) bool {
				say(conn, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"+header+"\r\n\r\n", "2\r\nhi\r\n")
				_, err := conn.Read(make([]byte, 1))
				gone <- err != nil
				return false
			})
			addr := newProxy(t, up.url(), noLimits)
			resp, err := client(t, h2c).Get("http://" + addr)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(resp.Body, make([]byte, 2)); err != nil {
				t.Error(err)
			}
			_ = resp.Body.Close()
			if !<-gone {
				t.Errorf("%s: the upstream got more bytes", header)
			}
		}
	}
}

// The type of a body is the upstream's to tell.
func TestNoGuessedType(t *testing.T) {
	up := newScripted(t, func(conn net.Conn, r *http.Request, _ []byte) bool {
		say(conn, "HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n<html></html>")
		return true
	})
	addr := newProxy(t, up.url(), noLimits)
	for _, h2c := range []bool{false, true} {
		for _, te := range []string{"", "trailers"} { // with which it goes through ReverseProxy
			r, err := http.NewRequest("GET", "http://"+addr, nil)
			if err != nil {
				t.Fatal(err)
			}
			if te != "" {
				r.Header.Set("Te", te)
			}
			resp, err := client(t, h2c).Do(r)
			if body := read(t, resp, err); body != "<html></html>" || len(resp.Header["Content-Type"]) > 0 {
				t.Errorf("h2c=%v: %q, of type %q", h2c, body, resp.Header["Content-Type"])
			}
		}
	}
}

// The wait for an upstream ends when the time is over, to the moment, or when the client hangs up,
// however long after it began.
func TestWaitEnds(t *testing.T) {
	const watched = 50 * time.Millisecond // after which package upstream looks at the context
	for _, hangUp := range []time.Duration{0, watched / 2, 10 * watched, 30 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			network := newPipes()
			released := 0
			upstream := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.URL.Path == "/slow" {
					<-r.Context().Done()
					released++
				}
			})}
			go func() { _ = upstream.Serve(network) }()
			h, err := New(newLimiter(t, noLimits), Options{Upstream: &url.URL{Scheme: "http", Host: "upstream"},
				Timeout: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			transport := h.reverse.Transport.(*again).kept
			transport.DialContext = network.dial
			if h.direct != nil {
				h.direct.Dial = network.dial
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			want, status := time.Minute, http.StatusGatewayTimeout
			if hangUp > 0 {
				time.AfterFunc(hangUp, cancel)
				want, status = max(hangUp, watched), 499
			}
			start := time.Now()
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", "/slow", nil).WithContext(ctx))
			if took := time.Since(start); took > want || hangUp == 0 && took != want || w.Code != status {
				t.Errorf("hung up after %v: %d after %v, want %d after %v", hangUp, w.Code, took, status, want)
			}
			synctest.Wait()
			if released != 1 {
				t.Errorf("hung up after %v: the upstream still works at it", hangUp)
			}
			transport.CloseIdleConnections()
			_ = upstream.Close()
		})
	}
}

// Bodies up to the bound go the direct way whole, and reach the upstream in one piece with their
// header; a client that does not send all of it does not reach the upstream at all.
func TestSmallBodies(t *testing.T) {
	up := newScripted(t, func(conn net.Conn, r *http.Request, body []byte) bool {
		say(conn, fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n", len(body)), string(body))
		return true
	})
	addr := newProxy(t, up.url(), noLimits)
	for _, h2c := range []bool{false, true} {
		for _, size := range []int{0, 1, 2000, 4096, 10 << 10, upstream.MaxBody - 1, upstream.MaxBody,
			upstream.MaxBody + 1, 3 * upstream.MaxBody} {
			want := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
			resp, err := client(t, h2c).Post("http://"+addr+"/", "text/plain", bytes.NewReader(want))
			if body := read(t, resp, err); body != string(want) {
				t.Errorf("h2c=%v, %d bytes: got %d bytes", h2c, size, len(body))
			}
		}
	}
	if !directWorks {
		return
	}
	before := up.asked.Load()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	say(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf")
	_ = conn.(*net.TCPConn).CloseWrite()
	_, _ = io.Copy(io.Discard, conn)
	_ = conn.Close()
	resp, err := client(t, false).Get("http://" + addr)
	read(t, resp, err)
	if got := up.asked.Load(); got != before+1 {
		t.Errorf("the upstream saw %d requests, want 1", got-before)
	}
}

// A pipeline of requests from one client gets its answers in order, no matter which way each of
// them goes.
func TestPipeline(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Fprintf(w, "[%s %s %s]", r.Method, r.URL.Path, body)
	})
	addr := newProxy(t, up.URL, noLimits)
	got := raw(t, addr, "GET /1 HTTP/1.1\r\nHost: x\r\n\r\n"+
		"POST /2 HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\ntwo"+
		"POST /3 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nthree\r\n0\r\n\r\n"+
		"GET /4 HTTP/1.1\r\nHost: x\r\nTE: trailers\r\n\r\n"+
		"GET /5 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
	at := 0
	for _, want := range []string{"[GET /1 ]", "[POST /2 two]", "[POST /3 three]", "[GET /4 ]", "[GET /5 ]"} {
		i := strings.Index(got[at:], want)
		if i < 0 {
			t.Fatalf("%s is missing, or out of order: %q", want, got)
		}
		at += i
	}
}
