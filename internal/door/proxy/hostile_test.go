package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/weir-rl/weir/httplimit"
)

// What path tricks are made of one path: all count, and the upstream sees the path that was
// matched, in the case in which it came and with its final slash.
func TestPathEvasion(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, r.RequestURI)
	})
	rules := `limits: [{name: login, when: {path: /login}, allow: 6/min, algorithm: sliding_log}]`
	addr := newProxy(t, up.URL, rules, func(o *Options) { o.EncodedSlash = httplimit.KeepEncodedSlash })
	status := func(addr, target string) string {
		answer := raw(t, addr, "GET "+target+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		first, _, _ := strings.Cut(answer, "\r\n")
		return strings.TrimPrefix(first, "HTTP/1.1 ")[:3]
	}
	targets := []string{"/login?a=%zz&b=;c", "//login", "/%6cogin", "/./login", "/LOGIN", "/Log%69n/", "/x/../login",
		"/login/../login", "/%2e/login", "http://x/login", "http://other//login?x", "/lOGIN/", "/login%2F"}
	want := []string{"200", "200", "200", "200", "200", "200", "429", "429", "429", "429", "429", "429", "200"}
	for i, target := range targets {
		if got := status(addr, target); got != want[i] {
			t.Errorf("%s: %s, want %s", target, got, want[i])
		}
	}
	wantSeen := []string{"/login?a=%zz&b=;c", "/login", "/login", "/login", "/LOGIN", "/Login/", "/login%2F"}
	if !slices.Equal(seen, wantSeen) {
		t.Errorf("the upstream saw %q, want %q", seen, wantSeen)
	}

	seen = nil
	addr = newProxy(t, up.URL+"/base/", rules,
		func(o *Options) { o.PathAsIs, o.EncodedSlash = true, httplimit.KeepEncodedSlash })
	for i, target := range targets[:7] {
		if got := status(addr, target); got != want[i] {
			t.Errorf("as is: %s: %s, want %s", target, got, want[i])
		}
	}
	for _, target := range []string{`/a%2Fb"c`, "/x?", "/x%20y/%C3%A9", "/a;b=1/(c)!"} {
		if got := status(addr, target); got != "200" {
			t.Errorf("as is: %s: %s", target, got)
		}
	}
	wantSeen = []string{"/base/login?a=%zz&b=;c", "/base//login", "/base/%6cogin", "/base/./login", "/base/LOGIN",
		"/base/Log%69n/", "/base/a%2Fb%22c", "/base/x?", "/base/x%20y/%C3%A9", "/base/a;b=1/(c)!"}
	if !slices.Equal(seen, wantSeen) {
		t.Errorf("as is, the upstream saw %q, want %q", seen, wantSeen)
	}

	// What servers read in different ways does not get through; NUL and # not even where slashes
	// are kept.
	seen = nil
	for _, keep := range []httplimit.EncodedSlash{httplimit.RefuseEncodedSlash, httplimit.KeepEncodedSlash} {
		for _, asIs := range []bool{false, true} {
			addr = newProxy(t, up.URL, rules, func(o *Options) { o.PathAsIs, o.EncodedSlash = asIs, keep })
			targets := []string{"/login%0A", "/login%00", "/login%00.css", "/x/%00/../login",
				"/x#/../login", "/login#", "/#/../login?a", "http://x/x#/../login"}
			if keep == httplimit.RefuseEncodedSlash {
				targets = append(targets, "/%2Flogin", "/%2flogin", "/x%2F..%2Flogin", `/\login`, `/x\..\login`,
					"/%5Clogin", "/x%5c..%5clogin", "http://x/%2Flogin", "//%2F", "/%%2F")
			}
			for _, target := range targets {
				if got := status(addr, target); got != "400" {
					t.Errorf("%s: %s, want 400", target, got)
				}
			}
		}
	}
	if len(seen) > 0 {
		t.Errorf("the upstream saw %q", seen)
	}
	// In the query they are data.
	addr = newProxy(t, up.URL, rules)
	if got := status(addr, `/login?next=%2Fa%5Cb\c%00#`); got != "200" {
		t.Errorf("in the query: %s", got)
	}
}

func TestRequestTargets(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.RequestURI) })
	addr := newProxy(t, up.URL, noLimits)
	for target, want := range map[string]string{
		"GET x:opaque":          "400",
		"CONNECT x:443":         "405",
		"GET /a%zz":             "400",
		"GET http://x":          "200",
		"GET /a\x00b":           "400",
		"G\x00T /":              "400",
		"OPTIONS *":             "200",
		"GET /" + "%C3%A9" + "": "200",
	} {
		answer := raw(t, addr, target+" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		if !strings.HasPrefix(answer, "HTTP/1.1 "+want) {
			t.Errorf("%q: %.80q, want %s", target, answer, want)
		}
	}
}

// A client cannot escape its limit by claiming to be somebody else, unless a trusted proxy says so.
func TestSpoofedAddress(t *testing.T) {
	up := newUpstream(t, func(http.ResponseWriter, *http.Request) {})
	rules := `limits: [{name: a, per: [ip], allow: 1/min, algorithm: sliding_log}]`
	for _, trusted := range []bool{false, true} {
		addr := newProxy(t, up.URL, rules, func(o *Options) {
			if trusted {
				o.ClientIP.Trusted = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
			}
		})
		var codes []int
		for i := range 3 {
			r, err := http.NewRequest("GET", "http://"+addr+"/", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("X-Forwarded-For", fmt.Sprintf("198.51.100.%d", i))
			resp, err := client(t, false).Do(r)
			read(t, resp, err)
			codes = append(codes, resp.StatusCode)
		}
		want := []int{200, 429, 429}
		if trusted {
			want = []int{200, 200, 200}
		}
		if !slices.Equal(codes, want) {
			t.Errorf("trusted %v: %v, want %v", trusted, codes, want)
		}
	}
}

func TestHostileClients(t *testing.T) {
	var seen atomic.Int64
	up := newUpstream(t,
		func(w http.ResponseWriter, r *http.Request) { seen.Add(1); _, _ = io.Copy(io.Discard, r.Body) })
	addr := newProxy(t, up.URL, noLimits, func(o *Options) { o.BodyTimeout = 100 * time.Millisecond })
	big := strings.Repeat("x", 1<<20)
	for _, c := range []struct{ name, request, want string }{
		{"a header of 1 MB", "GET / HTTP/1.1\r\nHost: x\r\nX-Big: " + big + "\r\n\r\n", "431"},
		{"1 MB of headers", "GET / HTTP/1.1\r\nHost: x\r\n" + strings.Repeat("X-Many: y\r\n", 100_000) + "\r\n", "431"},
		{"no host", "GET / HTTP/1.1\r\n\r\n", "400"},
		{"two hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", "400"},
		{"nonsense", "\x16\x03\x01 hello, who is there?\r\n\r\n", "400"},
		{"a bad version", "GET / HTTP/9.9\r\nHost: x\r\n\r\n", "505"},
		{"two lengths", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello", "400"},
		{"a negative length", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\nhello", "400"},
		{"an unknown encoding", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\nhello", "501"},
		{"a bad chunk", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nhello", "400"},
		{"a body that stops", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhello", "408"},
		{"a header with a space", "GET / HTTP/1.1\r\nHost: x\r\nX Y: 1\r\n\r\n", "400"},
	} {
		answer := raw(t, addr, c.request)
		if !strings.HasPrefix(answer, "HTTP/1.1 "+c.want) && !strings.HasPrefix(answer, "HTTP/1.0 "+c.want) {
			t.Errorf("%s: %.120q, want %s", c.name, answer, c.want)
		}
	}
	before := seen.Load()
	resp, err := client(t, false).Get("http://" + addr)
	if read(t, resp, err); resp.StatusCode != 200 || seen.Load() != before+1 {
		t.Errorf("after all that: %d", resp.StatusCode)
	}
}

// What breaks the rules of HTTP/2, or sends headers without end, loses its connection or its
// stream; the server goes on.
func TestHostileHTTP2(t *testing.T) {
	var seen atomic.Int64
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) { seen.Add(1) })
	addr := newProxy(t, up.URL, noLimits)
	headers := func(more ...string) []byte {
		var b bytes.Buffer
		enc := hpack.NewEncoder(&b)
		for i, f := 0, append([]string{":method", "GET", ":scheme", "http", ":authority", "x", ":path", "/"}, more...); i < len(f); i += 2 {
			if err := enc.WriteField(hpack.HeaderField{Name: f[i], Value: f[i+1]}); err != nil {
				t.Fatal(err)
			}
		}
		return b.Bytes()
	}
	for _, c := range []struct {
		name string
		send func(*http2.Framer) error
	}{
		{"a frame of no known kind, then a length that lies", func(f *http2.Framer) error {
			if err := f.WriteRawFrame(0xbe, 0xff, 0, []byte("x")); err != nil {
				return err
			}
			return f.WriteRawFrame(http2.FrameSettings, 0, 0, []byte("five!"))
		}},
		{"data on a stream that nobody opened", func(f *http2.Framer) error { return f.WriteData(99, true, []byte("x")) }},
		{"no header compression at all", func(f *http2.Framer) error {
			return f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1,
				BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, EndHeaders: true, EndStream: true})
		}},
		{"headers without end", func(f *http2.Framer) error {
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: headers()}); err != nil {
				return err
			}
			block := headers("x-many", strings.Repeat("y", 8<<10))
			for range 10_000 { // 80 MB if nobody stops it
				if err := f.WriteContinuation(1, false, block[len(headers()):]); err != nil {
					return nil // it was stopped
				}
			}
			return errors.New("nobody stopped it")
		}},
	} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
			t.Fatal(err)
		}
		f := http2.NewFramer(conn, conn)
		f.AllowIllegalWrites = true
		if err := f.WriteSettings(); err != nil {
			t.Fatal(err)
		}
		if err := c.send(f); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		ended := false
		for !ended {
			frame, err := f.ReadFrame()
			if err != nil {
				ended = true
				break
			}
			switch frame.(type) {
			case *http2.GoAwayFrame, *http2.RSTStreamFrame:
				ended = true
			}
		}
		_ = conn.Close()
	}
	// A header above 64 KiB, but so little that the connection need not end: 431.
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	f := http2.NewFramer(conn, conn)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	var many []string
	for i := range 9 {
		many = append(many, fmt.Sprintf("x-%d", i), strings.Repeat("y", 8000))
	}
	block := headers(many...)
	if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block[:16_000], EndStream: true}); err != nil {
		t.Fatal(err)
	}
	for rest := block[16_000:]; len(rest) > 0; {
		n := min(len(rest), 16_000)
		if err := f.WriteContinuation(1, n == len(rest), rest[:n]); err != nil {
			t.Fatal(err)
		}
		rest = rest[n:]
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatalf("instead of a 431: %v", err)
		}
		if h, ok := frame.(*http2.MetaHeadersFrame); ok {
			if h.PseudoValue("status") != "431" {
				t.Errorf("status %s", h.PseudoValue("status"))
			}
			break
		}
	}
	if seen.Load() != 0 {
		t.Errorf("the upstream saw %d of all that", seen.Load())
	}
	resp, err := client(t, true).Get("http://" + addr)
	if read(t, resp, err); resp.StatusCode != 200 {
		t.Errorf("after all that: %d", resp.StatusCode)
	}
}

// A refused request whose body never comes does not keep its connection for ever.
func TestRefusedSlowBody(t *testing.T) {
	up := newUpstream(t, func(http.ResponseWriter, *http.Request) { t.Error("the upstream was reached") })
	addr := newProxy(t, up.URL, `limits: [{name: a, allow: 0/min}]`,
		func(o *Options) { o.BodyTimeout = 50 * time.Millisecond })
	if answer := raw(t, addr, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nhello"); !strings.HasPrefix(
		answer, "HTTP/1.1 429 ") {
		t.Errorf("got %q", answer)
	}
}

// A header that dribbles in is cut off.
func TestSlowHeader(t *testing.T) {
	up := newUpstream(t, func(http.ResponseWriter, *http.Request) { t.Error("the upstream was reached") })
	u, err := url.Parse(up.URL)
	if err != nil {
		t.Fatal(err)
	}
	h, err := New(newLimiter(t, noLimits), Options{Upstream: u})
	if err != nil {
		t.Fatal(err)
	}
	s := newServer(h)
	if s.ReadHeaderTimeout <= 0 || s.IdleTimeout <= 0 || s.MaxHeaderBytes <= 0 || s.HTTP2.MaxConcurrentStreams <= 0 {
		t.Fatal("a limit of the server is missing")
	}
	s.ReadHeaderTimeout = 50 * time.Millisecond
	addr, _ := serveDoor(t, s, nil)
	answer := raw(t, addr, "GET / HTTP/1.1\r\nHost: x\r\nX-Slow: ")
	if !strings.HasPrefix(answer, "HTTP/1.1 408") && answer != "" {
		t.Errorf("got %q", answer)
	}
}
