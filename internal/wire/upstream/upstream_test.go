package upstream

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
)

// server answers each connection with serve, and closes it then.
func server(t testing.TB, serve func(conn net.Conn)) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	over := false
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			if open = append(open, conn); over {
				_ = conn.Close()
			}
			mu.Unlock()
			wg.Go(func() {
				defer conn.Close()
				serve(conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		over = true
		for _, conn := range open {
			_ = conn.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return l
}

// stillOpen is a connection that looks alive.
type stillOpen struct{ syscall.RawConn }

func (stillOpen) Control(func(uintptr)) error { return nil }

func newReader(from io.Reader) *bufio.Reader { return bufio.NewReaderSize(from, readBuffer) }

func clientOf(l net.Listener) *Client {
	return &Client{Address: l.Addr().String(), Dial: (&net.Dialer{}).DialContext, IdleTimeout: time.Hour}
}

// request is a request without a body.
func request(method string) *Request {
	q := NewRequest()
	q.Begin(method, "shop.example", "/a")
	q.End(0)
	return q
}

// answer is what came of a request.
type answer struct {
	status  int
	hints   []int
	header  http.Header
	body    string
	trailer http.Header
}

// ask sends a request, and reads its answer to the end.
func ask(ctx context.Context, c *Client, q *Request) (a answer, err error) {
	res, err := c.Send(ctx, q)
	if err != nil {
		return a, err
	}
	defer res.Close()
	for {
		h := http.Header{}
		if a.status, err = res.Header(h); err != nil {
			return a, err
		}
		if a.status >= 200 {
			a.header = h
			break
		}
		a.hints = append(a.hints, a.status)
	}
	var body strings.Builder
	err = res.Copy(&body, nil)
	a.body = body.String()
	a.trailer, _ = res.Trailer()
	return a, err
}

// Whatever could leave a doubt where an answer ends, the next request does not get the rest of it:
// the connection is closed. An answer that leaves none is read, and the connection kept.
func TestSmuggledResponses(t *testing.T) {
	if !Works {
		t.Skip("no connections are kept here")
	}
	const forged = "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
	for name, c := range map[string]struct {
		answer string
		want   string // its body; "-" is an error
		kept   bool
	}{
		"a length":                        {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", "ok", true},
		"chunks":                          {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "ok", true},
		"a length twice":                  {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok", "ok", true},
		"a folded field":                  {"HTTP/1.1 200 OK\r\nX-A: b\r\n\tContent-Length: 9\r\nContent-Length: 2\r\n\r\nok", "ok", true},
		"no body for 304":                 {"HTTP/1.1 304 Not Modified\r\nContent-Length: 40\r\n\r\n", "", true},
		"no body for 204, but one":        {"HTTP/1.1 204 No Content\r\n\r\n" + forged, "", false},
		"more than its length":            {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" + forged, "ok", false},
		"more than its chunks":            {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n" + forged, "ok", false},
		"a length beside chunks":          {"HTTP/1.1 200 OK\r\nContent-Length: 60\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", "ok", false},
		"the same, unusual":               {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-A\r\ncontent-LENGTH: 60\r\n\r\n2\r\nok\r\n0\r\n\r\n", "ok", false},
		"the same, in a large header":     {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX-A: " + strings.Repeat("a", 2*readBuffer) + "\r\nContent-Length: 60\r\n\r\n2\r\nok\r\n0\r\n\r\n", "ok", false},
		"the last on its connection":      {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok", "ok", false},
		"HTTP/1.0":                        {"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", "ok", false},
		"two lengths":                     {"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 40\r\n\r\nok", "-", false},
		"a length with a sign":            {"HTTP/1.1 200 OK\r\nContent-Length: +2\r\n\r\nok", "-", false},
		"a length in hexadecimal":         {"HTTP/1.1 200 OK\r\nContent-Length: 0x2\r\n\r\nok", "-", false},
		"a length beyond 2^63":            {"HTTP/1.1 200 OK\r\nContent-Length: 9223372036854775808\r\n\r\nok", "-", false},
		"two encodings":                   {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "-", false},
		"an encoding that is not known":   {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", "-", false},
		"a carriage return in a value":    {"HTTP/1.1 200 OK\r\nX-A: b\rContent-Length: 2\r\n\r\nok", "-", false},
		"a chunk with a sign":             {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n+2\r\nok\r\n0\r\n\r\n", "-", false},
		"a chunk of 2^64":                 {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000002\r\nok\r\n0\r\n\r\n", "-", false},
		"trailers larger than the buffer": {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-A: " + strings.Repeat("a", 2*readBuffer) + "\r\n\r\n", "-", false},
		"a switch of protocols":           {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", "-", false},
		"a header of 2 MiB":               {"HTTP/1.1 200 OK\r\nX-A: " + strings.Repeat("a", 2<<20) + "\r\n\r\n", "-", false},
	} {
		t.Run(name, func(t *testing.T) {
			l := server(t, func(conn net.Conn) {
				if _, err := conn.Read(make([]byte, 1<<10)); err == nil {
					_, _ = io.WriteString(conn, c.answer)
					_, _ = io.Copy(io.Discard, conn)
				}
			})
			client := clientOf(l)
			defer client.CloseIdle()
			q := request("GET")
			defer q.Free()
			got, err := ask(patience.Context(t), client, q)
			if (err != nil) != (c.want == "-") || err == nil && got.body != c.want {
				t.Errorf("%q, %v; want %q", got.body, err, c.want)
			}
			conn := client.idle(time.Now())
			if (conn != nil) != c.kept {
				t.Errorf("the connection may be used again: %v", conn != nil)
			}
			if conn != nil {
				conn.close()
			}
		})
	}
}

// What a server sends on an idle connection is not the answer to the next request.
func TestForgedAnswer(t *testing.T) {
	if !Works {
		t.Skip("no connections are kept here")
	}
	forge, forged := make(chan bool), make(chan bool)
	l := server(t, func(conn net.Conn) {
		buf := make([]byte, 1<<10)
		for {
			if _, err := conn.Read(buf); err != nil {
				return
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ntrue")
			if <-forge {
				_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
				forged <- true
			}
		}
	})
	client := clientOf(l)
	defer client.CloseIdle()
	for i := range 6 {
		q := request("GET")
		got, err := ask(patience.Context(t), client, q)
		if q.Free(); err != nil || got.body != "true" {
			t.Errorf("request %d: %q, %v", i, got.body, err)
		}
		if forge <- i%2 == 0; i%2 == 0 {
			<-forged // over loopback what is written is there at once
		}
	}
}

// Idle connections are bounded, and those that the server has closed, or that have been idle for
// long, are closed.
func TestIdleConnections(t *testing.T) {
	if !Works {
		t.Skip("no connections are kept here")
	}
	closing := make(chan bool)
	l := server(t, func(conn net.Conn) {
		if _, err := conn.Read(make([]byte, 1<<10)); err == nil {
			<-closing
		}
	})
	c := clientOf(l)
	var kept []*conn
	for range MaxIdle + 3 {
		conn, err := c.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		c.put(conn)
		kept = append(kept, conn)
	}
	// The sweeper runs beside the test when it takes long.
	idle := func() []*conn {
		c.mu.Lock()
		defer c.mu.Unlock()
		return slices.Clone(c.conns)
	}
	if n := len(idle()); n != MaxIdle {
		t.Errorf("%d idle connections, want %d", n, MaxIdle)
	}
	if _, err := kept[MaxIdle].Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the one too many is not closed: %v", err)
	}
	c.mu.Lock()
	kept[0].idle = time.Now().Add(-c.IdleTimeout)
	c.mu.Unlock()
	c.sweep()
	if all := idle(); len(all) != MaxIdle-1 || slices.Contains(all, kept[0]) {
		t.Errorf("%d idle connections after the time-out of one", len(all))
	}
	// The server closes one.
	gone := idle()[5]
	if _, err := io.WriteString(gone.Conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	closing <- false
	patience.Until(t, "the closed one is found", func() bool { c.sweep(); return !slices.Contains(idle(), gone) })
	all := idle()
	if len(all) != MaxIdle-2 {
		t.Errorf("%d idle connections after one was closed", len(all))
	}
	// The one used last is taken first.
	last := all[len(all)-1]
	if got := c.idle(time.Now()); got != last {
		t.Error("another than the last one was taken")
	}
	c.CloseIdle()
	last.close()
	c.sweep()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sweeps {
		t.Error("the sweeper runs on without connections")
	}
}

// A connection that has been idle for too long is not used, also before the sweeper has seen it.
func TestIdleForTooLong(t *testing.T) {
	if !Works {
		t.Skip("no connections are kept here")
	}
	synctest.Test(t, func(t *testing.T) {
		dialled := 0
		client := &Client{Dial: func(context.Context, string, string) (net.Conn, error) {
			dialled++
			near, far := net.Pipe()
			go func() {
				in := newReader(far)
				for {
					if _, err := http.ReadRequest(in); err != nil {
						_ = far.Close()
						return
					}
					_, _ = io.WriteString(far, "HTTP/1.1 204 No Content\r\n\r\n")
				}
			}()
			return piped{near}, nil
		}}
		for i, pause := range []time.Duration{0, DefaultIdle - 1, DefaultIdle, 1} {
			time.Sleep(pause)
			q := request("GET")
			got, err := ask(t.Context(), client, q)
			if q.Free(); err != nil || got.status != 204 {
				t.Errorf("request %d: %d, %v", i, got.status, err)
			}
			client.mu.Lock()
			for _, conn := range client.conns {
				conn.quiet = true // a pipe cannot be probed
			}
			client.mu.Unlock()
		}
		if dialled != 2 {
			t.Errorf("%d connections, want another one after a pause of DefaultIdle alone", dialled)
		}
		time.Sleep(3 * DefaultIdle)
		client.mu.Lock()
		if len(client.conns) > 0 || client.sweeps {
			t.Errorf("%d connections after a long pause; the sweeper runs: %v", len(client.conns), client.sweeps)
		}
		client.mu.Unlock()
	})
}

// piped is a pipe that is always alive.
type piped struct{ net.Conn }

// SyscallConn implements syscall.Conn.
func (piped) SyscallConn() (syscall.RawConn, error) { return stillOpen{}, nil }

// A request that meets a closed connection is sent once more if it can be, and only then.
func TestSentOnceMore(t *testing.T) {
	if !Works {
		t.Skip("no connections are kept here")
	}
	for _, c := range []struct {
		method, key string
		body        int
		again       bool
	}{
		{"GET", "", 0, true}, {"HEAD", "", 0, true}, {"TRACE", "", 0, true}, {"OPTIONS", "", 0, true},
		{"POST", "", 0, false}, {"PATCH", "", 4, false}, {"get", "", 0, false},
		{"DELETE", "", 0, true}, {"PUT", "", 4, true}, {"GET", "", 4, true},
		{"PUT", "", MaxRepeat, true}, {"PUT", "", MaxRepeat + 1, false},
		{"POST", "Idempotency-Key", 0, true}, {"POST", "x-idempotency-key", 4, true},
		{"POST", "Idempotency-Key", MaxRepeat, true}, {"POST", "Idempotency-Key", MaxRepeat + 1, false},
	} {
		var seen atomic.Int64
		client := &Client{IdleTimeout: time.Hour, Dial: func(context.Context, string, string) (net.Conn, error) {
			near, far := net.Pipe()
			go func() {
				defer far.Close()
				if r, err := http.ReadRequest(newReader(far)); err == nil {
					if n, err := io.Copy(io.Discard, r.Body); err != nil || int(n) != c.body {
						t.Errorf("%+v: %d bytes of the body, %v", c, n, err)
					}
					seen.Add(1)
					_, _ = io.WriteString(far, "HTTP/1.1 204 No Content\r\n\r\n")
				}
			}()
			return near, nil
		}}
		// A connection whose server reads the request, and hangs up.
		near, far := net.Pipe()
		old := &conn{client: client, Conn: near}
		old.in = newReader(old)
		old.raw, old.probe, old.quiet, old.idle = stillOpen{}, func(uintptr) {}, true, time.Now()
		client.conns = append(client.conns, old)
		go func() {
			if r, err := http.ReadRequest(newReader(far)); err == nil {
				_, _ = io.Copy(io.Discard, r.Body)
			}
			_ = far.Close()
		}()
		q := NewRequest()
		q.Begin(c.method, "x", "/")
		if c.key != "" {
			q.Field(c.key, "1")
		}
		if q.End(int64(c.body)); c.body > 0 {
			if err := q.ReadBody(strings.NewReader(strings.Repeat("b", c.body))); err != nil {
				t.Fatal(err)
			}
		}
		got, err := ask(patience.Context(t), client, q)
		q.Free()
		if (err == nil) != c.again || c.again && got.status != 204 || !c.again && seen.Load() != 0 {
			t.Errorf("%+v: %d, %v; seen %d times", c, got.status, err, seen.Load())
		}
		if n := client.Repeated(); (n == 1) != c.again || n > 1 {
			t.Errorf("%+v: %d counted", c, n)
		}
	}
}

// The wait for a header ends when it is over, or with the context, and informational responses do
// not prolong it.
func TestHeaderTimeout(t *testing.T) {
	for name, said := range map[string]string{"nothing": "", "half a header": "HTTP/1.1 200 OK\r\nX-",
		"hints": "HTTP/1.1 103 Early Hints\r\n\r\n"} {
		for _, hangUp := range []time.Duration{0, watchAfter / 2, 3 * time.Second} {
			synctest.Test(t, func(t *testing.T) {
				client := &Client{HeaderTimeout: time.Minute,
					Dial: func(context.Context, string, string) (net.Conn, error) {
						near, far := net.Pipe()
						go func() {
							_, _ = http.ReadRequest(newReader(far))
							if said != "" {
								_, _ = io.WriteString(far, said)
							}
							_, _ = io.Copy(io.Discard, far)
						}()
						return near, nil
					}}
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				want := time.Minute
				if hangUp > 0 {
					want = max(hangUp, watchAfter)
					time.AfterFunc(hangUp, cancel)
				}
				start := time.Now()
				_, err := ask(ctx, client, request("GET"))
				var late net.Error
				if took := time.Since(start); took != want ||
					hangUp == 0 && !(errors.As(err, &late) && late.Timeout()) ||
					hangUp > 0 && !errors.Is(err, context.Canceled) {
					t.Errorf("%s, hung up after %v: %v after %v", name, hangUp, err, took)
				}
			})
		}
	}
}

// A request that may not go over the wire, or is not complete, is not sent.
func TestRefusedRequests(t *testing.T) {
	client := &Client{Dial: func(context.Context, string, string) (net.Conn, error) {
		t.Error("a connection was opened")
		return nil, errors.New("no connections here")
	}}
	begun := func(more func(q *Request)) func(q *Request) {
		return func(q *Request) {
			q.Begin("POST", "x", "/")
			more(q)
		}
	}
	for name, write := range map[string]func(q *Request){
		"nothing":                  func(*Request) {},
		"a method with a space":    func(q *Request) { q.Begin("GET /x", "x", "/"); q.End(0) },
		"no method":                func(q *Request) { q.Begin("", "x", "/"); q.End(0) },
		"no target":                func(q *Request) { q.Begin("GET", "x"); q.End(0) },
		"a target with a space":    func(q *Request) { q.Begin("GET", "x", "/a", " HTTP/1.1"); q.End(0) },
		"a target with a line end": func(q *Request) { q.Begin("GET", "x", "/a\r\nX-A: b"); q.End(0) },
		"no host":                  func(q *Request) { q.Begin("GET", "", "/"); q.End(0) },
		"a host with a line end":   func(q *Request) { q.Begin("GET", "x\r\nX-A: b", "/"); q.End(0) },
		"a value with a line end":  begun(func(q *Request) { q.Field("X-A", "b\r\nX-B: c"); q.End(0) }),
		"a value with a line feed": begun(func(q *Request) { q.Field("X-A", "a", "b\n"); q.End(0) }),
		"a value with a zero":      begun(func(q *Request) { q.Field("X-A", "\x00"); q.End(0) }),
		"a name with a colon":      begun(func(q *Request) { q.Field("X:A", "b"); q.End(0) }),
		"a name with a line end":   begun(func(q *Request) { q.Field("X\r\nA", "b"); q.End(0) }),
		"no name":                  begun(func(q *Request) { q.Field("", "b"); q.End(0) }),
		"two beginnings":           begun(func(q *Request) { q.Begin("GET", "x", "/"); q.End(0) }),
		"two ends":                 begun(func(q *Request) { q.End(0); q.End(0) }),
		"a field after the end":    begun(func(q *Request) { q.End(0); q.Field("X-A", "b") }),
		"no end":                   begun(func(*Request) {}),
		"a length below 0":         begun(func(q *Request) { q.End(-1) }),
		"no body":                  begun(func(q *Request) { q.End(4) }),
		"no large body":            begun(func(q *Request) { q.End(MaxBody + 1) }),
		"a short large body": begun(func(q *Request) {
			q.End(MaxBody + 1)
			_ = q.ReadBody(strings.NewReader(strings.Repeat("x", MaxBody-1)))
		}),
		"a short body":              begun(func(q *Request) { q.End(9); _ = q.ReadBody(strings.NewReader("body")) }),
		"a long body":               begun(func(q *Request) { q.End(2); _ = q.ReadBody(strings.NewReader("body")) }),
		"a header beyond the bound": begun(func(q *Request) { q.Field("X-A", strings.Repeat("a", MaxHeader)); q.End(0) }),
		"its own length":            begun(func(q *Request) { q.Field("content-length", "4"); q.End(0) }),
		"its own encoding":          begun(func(q *Request) { q.Field("Transfer-Encoding", "chunked"); q.End(0) }),
		"its own host":              begun(func(q *Request) { q.Field("HOST", "y"); q.End(0) }),
		"its own connection":        begun(func(q *Request) { q.Field("Connection", "close"); q.End(0) }),
		"keep-alive":                begun(func(q *Request) { q.Field("Keep-Alive", "5"); q.End(0) }),
		"an upgrade":                begun(func(q *Request) { q.Field("Upgrade", "h2c"); q.End(0) }),
		"an expectation":            begun(func(q *Request) { q.Field("Expect", "100-continue"); q.End(0) }),
		"trailers":                  begun(func(q *Request) { q.Field("Trailer", "X-A"); q.End(0) }),
		"te":                        begun(func(q *Request) { q.Field("te", "trailers"); q.End(0) }),
		"a proxy's connection":      begun(func(q *Request) { q.Field("Proxy-Connection", "close"); q.End(0) }),
	} {
		q := NewRequest()
		write(q)
		if _, err := client.Send(t.Context(), q); !errors.Is(err, errRequest) {
			t.Errorf("%s: %v", name, err)
		}
		q.Free()
	}
	q := request("GET")
	if err := q.ReadBody(strings.NewReader("body")); err == nil || !bytes.HasSuffix(q.Bytes(), []byte("\r\n\r\n")) {
		t.Errorf("a body that was not announced: %v, %q", err, q.Bytes())
	}
	q.Free()
}

// Informational responses, fields and trailers come through; fields of the connection do not.
func TestAnswerComesThrough(t *testing.T) {
	l := server(t, func(conn net.Conn) {
		_, _ = conn.Read(make([]byte, 1<<10))
		_, _ = io.WriteString(conn,
			"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nConnection: X-Mine\r\nX-Mine: a\r\nX-A: b\r\nX-A: c\r\nTransfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n2\r\nok\r\n0\r\nX-T: t\r\n\r\n")
	})
	got, err := ask(patience.Context(t), clientOf(l), request("GET"))
	if err != nil || !slices.Equal(got.hints, []int{103}) || got.body != "ok" || len(got.header) != 2 ||
		!slices.Equal(got.header["X-A"], []string{"b", "c"}) || got.header.Get("Trailer") != "X-T" ||
		got.trailer.Get("X-T") != "t" {
		t.Errorf("%+v, %v", got, err)
	}
}
