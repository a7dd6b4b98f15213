package httpapi

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/wire/h1"
	"github.com/weir-rl/weir/internal/wire/listen"
)

// serveTest serves s on a free port, as cmd/weir does, until the test ends, and returns its
// address.
func serveTest(t *testing.T, s *http.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	loop := h1.New(s)
	go func() { done <- loop.Serve(l) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = loop.Shutdown(ctx) // cuts off what is left
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return l.Addr().String()
}

func post(t *testing.T, client *http.Client, addr, body string) (int, string) {
	t.Helper()
	status, text, err := tryPost(client, addr, body)
	if err != nil {
		t.Fatal(err)
	}
	return status, text
}

func tryPost(client *http.Client, addr, body string) (status int, text string, err error) {
	r, err := client.Post("http://"+addr+"/api/v1/limit", "application/json", strings.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	return r.StatusCode, string(b), err
}

// beside asks until it is answered, and wants a pass. A server whose timeouts are short breaks off
// with clients of a busy machine, too.
func beside(t *testing.T, what, addr, body string) {
	t.Helper()
	patience.Until(t, "a client is answered beside "+what, func() bool {
		status, text, err := tryPost(http.DefaultClient, addr, body)
		if err == nil && status != 200 {
			t.Fatalf("beside %s: %d %s", what, status, text)
		}
		return err == nil
	})
}

// raw sends bytes on a connection of their own and returns what comes back until the server closes
// it, or until the first answer if that keeps it open.
func raw(t *testing.T, addr string, data []byte) string {
	t.Helper()
	got, err := tryRaw(patience.End(t), addr, data)
	if err != nil {
		t.Fatal(err)
	}
	return got
}

// tryRaw is raw for any goroutine.
func tryRaw(end time.Time, addr string, data []byte) (string, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(end); err != nil {
		return "", err
	}
	// A server that has seen enough closes before it has read all.
	_, _ = conn.Write(data)
	_ = conn.(*net.TCPConn).CloseWrite()
	var got bytes.Buffer
	_, _ = io.Copy(&got, io.LimitReader(conn, 1<<20))
	return got.String(), nil
}

// TestHostileHTTP sends what no honest client sends. Each gets an answer that is not a pass, or
// none, and the server goes on.
func TestHostileHTTP(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, doortest.LoginRules)
	addr := serveTest(t, listen.NewHTTPServer(New(l, Options{}), listen.HTTPOptions{}))
	frame := func(length int, kind, flags byte, stream uint32, payload string) string {
		b := []byte{byte(length >> 16), byte(length >> 8), byte(length), kind, flags}
		return string(binary.BigEndian.AppendUint32(b, stream)) + payload
	}
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	get := "GET /api/v1/limit?path=/login HTTP/1.1\r\nHost: a\r\n"
	body := `{"attributes":{"path":"/login"}}`
	cases := map[string]struct{ data, want string }{
		"1 MB header value":        {get + "X-Big: " + strings.Repeat("a", 1<<20) + "\r\n\r\n", "HTTP/1.1 431 "},
		"1 MB header name":         {get + strings.Repeat("a", 1<<20) + ": 1\r\n\r\n", "HTTP/1.1 431 "},
		"a million headers":        {get + strings.Repeat("a: b\r\n", 1<<18) + "\r\n", "HTTP/1.1 431 "},
		"1 MB query":               {"GET /api/v1/limit?path=/login&a=" + strings.Repeat("a", 1<<20) + " HTTP/1.1\r\nHost: a\r\n\r\n", "HTTP/1.1 431 "},
		"no host":                  {"GET /api/v1/limit?path=/login HTTP/1.1\r\n\r\n", "HTTP/1.1 400 "},
		"garbage":                  {"\x00\x01\x02\x03\r\n\r\n", "HTTP/1.1 400 "},
		"TLS":                      {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "HTTP/1.1 400 "},
		"two lengths":              {"POST /api/v1/limit HTTP/1.1\r\nHost: a\r\nContent-Length: 32\r\nContent-Length: 1\r\n\r\n" + body, "HTTP/1.1 400 "},
		"a negative length":        {"POST /api/v1/limit HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n" + body, "HTTP/1.1 400 "},
		"a length of 10^18":        {"POST /api/v1/limit HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000000000000\r\n\r\n" + body, "HTTP/1.1 413 "},
		"a body cut short":         {"POST /api/v1/limit HTTP/1.1\r\nHost: a\r\nContent-Length: 99\r\n\r\n" + body, "HTTP/1.1 400 "},
		"bad chunks":               {"POST /api/v1/limit HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n" + body, "HTTP/1.1 400 "},
		"an unknown encoding":      {"POST /api/v1/limit HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n" + body, "HTTP/1.1 501 "},
		"deep nesting":             {fmt.Sprintf("POST /api/v1/limit HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", 1<<19, strings.Repeat("[", 1<<19)), "HTTP/1.1 400 "},
		"a bad HTTP/2 preface":     {"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", ""},
		"half a preface":           {"PRI * HTTP/2.0\r\n\r\nSM", ""},
		"no settings":              {preface + frame(8, 6, 0, 0, "12345678"), ""},
		"a frame of 16 MB":         {preface + frame(0, 4, 0, 0, "") + frame(1<<24-1, 0, 0, 1, strings.Repeat("a", 1<<16)), ""},
		"headers on stream 0":      {preface + frame(0, 4, 0, 0, "") + frame(1, 1, 5, 0, "\x82"), ""},
		"a broken header block":    {preface + frame(0, 4, 0, 0, "") + frame(4, 1, 5, 1, "\xff\xff\xff\xff"), ""},
		"continuation for ever":    {preface + frame(0, 4, 0, 0, "") + frame(1, 1, 1, 1, "\x82") + strings.Repeat(frame(1<<14, 9, 0, 1, strings.Repeat("\x00\x01a\x01b@", 1<<12)[:1<<14]), 64), ""},
		"settings without an end":  {preface + strings.Repeat(frame(6, 4, 0, 0, "\x00\x03\x00\x00\x00\x64"), 20_000), ""},
		"pings without an end":     {preface + frame(0, 4, 0, 0, "") + strings.Repeat(frame(8, 6, 0, 0, "12345678"), 20_000), ""},
		"streams that are dropped": {preface + frame(0, 4, 0, 0, "") + rapidReset(frame, 20_000), ""},
	}
	end := patience.End(t)
	var all sync.WaitGroup // beside each other, since some connections are closed only after a second
	for name, c := range cases {
		all.Go(func() {
			got, err := tryRaw(end, addr, []byte(c.data))
			if err != nil || c.want != "" && !strings.HasPrefix(got, c.want) {
				t.Errorf("%s: got %.200q, %v, want %q", name, got, err, c.want)
			}
			if strings.Contains(got, "200 OK") || strings.Contains(got, " 500 ") {
				t.Errorf("%s: got %.200q", name, got)
			}
		})
	}
	all.Wait()
	// Nothing of all that was a pass, or was charged.
	for i := range 4 {
		status, text := post(t, http.DefaultClient, addr, body)
		if want := []int{200, 200, 200, 429}[i]; status != want {
			t.Errorf("request %d after all that: got %d %s, want %d", i, status, text, want)
		}
	}
}

// rapidReset opens streams and drops them at once, for paths that decide nothing.
func rapidReset(frame func(int, byte, byte, uint32, string) string, n int) string {
	var b strings.Builder
	for i := range n {
		stream := uint32(2*i + 1)
		// an incomplete block: the connection fails
		b.WriteString(frame(4, 1, 5, stream, "\x82\x84\x86\x41"))
		b.WriteString(frame(4, 3, 0, stream, "\x00\x00\x00\x08"))
	}
	return b.String()
}

// TestPathTricks: ways to write a path that a careless limiter would count apart.
func TestPathTricks(t *testing.T) {
	for _, path := range []string{"/login", "//login", "/%6cogin", "/%6Cogin", "/./login", "/a/../login", "/login?x=1",
		"/login#x", "/a/b/../../login", "/%2e/login", "///./login"} {
		l, _, _ := doortest.NewLimiter(t, doortest.LoginRules)
		addr := serveTest(t, listen.NewHTTPServer(New(l, Options{}), listen.HTTPOptions{}))
		for i := range 4 {
			status, text := post(t, http.DefaultClient, addr, `{"attributes":{"path":"`+path+`"}}`)
			if want := []int{200, 200, 200, 429}[i]; status != want {
				t.Errorf("%s, request %d: got %d %s, want %d", path, i, status, text, want)
			}
		}
	}
}

// TestSlowClients: hundreds of connections that never finish their request take nothing from
// others, and are closed.
func TestSlowClients(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, doortest.ShopRules)
	s := listen.NewHTTPServer(New(l, Options{}), listen.HTTPOptions{})
	if s.ReadHeaderTimeout <= 0 || s.ReadHeaderTimeout > 30*time.Second || s.ReadTimeout <= 0 || s.WriteTimeout <= 0 ||
		s.IdleTimeout <= 0 || s.MaxHeaderBytes <= 0 {
		t.Fatalf("bounds are missing: %v %v %v %v %v", s.ReadHeaderTimeout, s.ReadTimeout, s.WriteTimeout,
			s.IdleTimeout, s.MaxHeaderBytes)
	}
	s.ReadHeaderTimeout, s.ReadTimeout, s.IdleTimeout = 200*time.Millisecond, 200*time.Millisecond, 200*time.Millisecond
	addr := serveTest(t, s)
	starts := []string{
		"", "G", "GET / HTTP/1.1\r\nHost: a\r\nX: ", "POST /api/v1/limit HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{",
		"POST /api/v1/limit HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "PRI * HTTP/2.0\r\n",
	}
	var conns []net.Conn
	for i := range 350 {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := conn.Write([]byte(starts[i%len(starts)])); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	for range 50 {
		beside(t, "slow clients", addr, `{}`)
	}
	for i, conn := range conns {
		if err := conn.SetReadDeadline(patience.End(t)); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(conn)
		if e, ok := err.(net.Error); ok && e.Timeout() {
			t.Fatalf("the connection that began with %q is open for ever", starts[i%len(starts)])
		}
		if strings.Contains(string(got), "200 OK") {
			t.Errorf("the connection that began with %q got a pass", starts[i%len(starts)])
		}
	}
}

// TestHTTP2: the door speaks HTTP/2 by prior knowledge, with the same answers.
func TestHTTP2(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, doortest.LoginRules)
	addr := serveTest(t, listen.NewHTTPServer(New(l, Options{}), listen.HTTPOptions{}))
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport}
	var mu sync.Mutex
	statuses := map[int]int{}
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			r, err := client.Get("http://" + addr + "/api/v1/limit?path=/login")
			if err != nil {
				t.Error(err)
				return
			}
			defer r.Body.Close()
			mu.Lock()
			defer mu.Unlock()
			statuses[r.StatusCode]++
			if r.ProtoMajor != 2 || r.StatusCode == 429 && r.Header.Get("Retry-After") == "" {
				t.Errorf("%s %v", r.Proto, r.Header)
			}
		})
	}
	all.Wait()
	if statuses[200] != 3 || statuses[429] != 17 {
		t.Errorf("got %v", statuses)
	}
}

// TestMemoryOfHostileBodies: what large and broken requests take is given back.
func TestMemoryOfHostileBodies(t *testing.T) {
	l, store, _ := doortest.NewLimiter(t, doortest.ShopRules)
	addr := serveTest(t, listen.NewHTTPServer(New(l, Options{}), listen.HTTPOptions{}))
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	bodies := []string{
		`{"attributes":{"user":"` + strings.Repeat("a", maxBody-100) + `","path":"/api/x"}}`,
		`{"attributes":{` + strings.TrimSuffix(strings.Repeat(`"k":"v",`, 100_000), ",") + `}}`,
		strings.Repeat(`{"attributes":`, 50_000),
		`{"hits":` + strings.Repeat("9", 900_000) + `}`,
	}
	if status, text := post(t, http.DefaultClient, addr, bodies[0]); status != 200 ||
		!strings.Contains(text, `"remaining":9`) {
		t.Fatalf("a long value: %d %.300s", status, text)
	}
	before := heap()
	for i := range effort.Of(40, 200) {
		status, text := post(t, http.DefaultClient, addr, bodies[i%len(bodies)])
		if status >= 500 {
			t.Fatalf("%d %s", status, text)
		}
	}
	if grown := heap() - before; grown > 16<<20 {
		t.Errorf("requests of 1 MB left %d MB behind", grown>>20)
	}
	if s := store.Stats(); s.Keys > 2 || s.Bytes > 1<<16 {
		t.Errorf("the store holds %d keys, %d bytes", s.Keys, s.Bytes)
	}
}

// TestPipelining: requests that are sent without waiting are answered in order.
func TestPipelining(t *testing.T) {
	l, _, _ := doortest.NewLimiter(t, doortest.LoginRules)
	addr := serveTest(t, listen.NewHTTPServer(New(l, Options{}), listen.HTTPOptions{}))
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const n = 50
	if _, err := io.WriteString(conn, strings.Repeat("GET /api/v1/limit?path=/login HTTP/1.1\r\nHost: a\r\nAccept: text/plain\r\n\r\n", n)); err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(conn)
	for i := range n {
		r, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r.Body)
		if want := fmt.Sprint(i < 3); err != nil || string(b) != want {
			t.Errorf("answer %d: %q %v, want %s", i, b, err, want)
		}
	}
}

// Who asks for true or false is told false when the store fails, with the status that says why.
func TestStoreErrorAsText(t *testing.T) {
	l, err := weir.New(doortest.FailingStore{Err: doortest.ErrStore},
		weir.WithRules(doortest.Load(t, doortest.ShopRules)))
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("GET", "/api/v1/limit?user=a&path=/api/x", nil)
	r.Header.Set("Accept", "text/plain")
	w := httptest.NewRecorder()
	New(l, Options{}).ServeHTTP(w, r)
	h := w.Header()
	if w.Code != 503 || w.Body.String() != "false" || !strings.HasPrefix(h.Get("Content-Type"), "text/plain") ||
		h.Get("Retry-After") != "1" || h.Get("Cache-Control") != "no-store" {
		t.Errorf("got %d %v %q", w.Code, h, w.Body)
	}
}

func TestStoreError(t *testing.T) {
	rules := doortest.ShopRules + "  - { name: open, when: { kind: open }, allow: 1/min, on_store_error: allow }\n"
	l, err := weir.New(doortest.FailingStore{Err: doortest.ErrStore}, weir.WithRules(doortest.Load(t, rules)))
	if err != nil {
		t.Fatal(err)
	}
	h := New(l, Options{Trust: auth.Trust{Peers: doortest.Loopback}})
	for _, c := range []struct {
		path, body string
		status     int
	}{
		{"limit", `{"attributes":{"user":"a","path":"/api/x"}}`, 503},
		{"limit", `{"attributes":{"kind":"open"}}`, 200},
		{"limit", `{"attributes":{"user":"a","path":"/api/x","kind":"open"}}`, 503},
		{"limit", `{}`, 200},
		{"limit/batch", `{"requests":[{"attributes":{"kind":"open"}}]}`, 200},
		{"limit/batch", `{"requests":[{},{"attributes":{"user":"a","path":"/api/x"}}]}`, 503},
	} {
		a := doortest.Ask(h, doortest.Friend, "POST", "/api/v1/"+c.path, c.body)
		if a.Status != c.status || a.Header.Get("Cache-Control") != "no-store" ||
			strings.Contains(a.Body, doortest.ErrStore.Error()) {
			t.Errorf("%s %s: got %d %v %s", c.path, c.body, a.Status, a.Header, a.Body)
		}
		if c.status == 503 && a.Header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s: Content-Type %q", c.path, a.Header.Get("Content-Type"))
		}
	}
}
