package h1

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/testproc"
)

// side is one of the two servers that are held against each other.
type side struct {
	network, addr string

	handed atomic.Int64 // connections that net/http served
}

// newHTTPServer is a server for h, with bounds as a door has them.
func newHTTPServer(h http.Handler) *http.Server {
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: 30 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10, ErrorLog: log.New(io.Discard, "", 0),
	}
	s.Protocols = new(http.Protocols)
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	return s
}

// newSides starts both servers for h on loopback; for fuzzing on unix sockets, since ports run out.
func newSides(t testing.TB, h http.Handler) (loop, plain *side) {
	t.Helper()
	listen := func() (net.Listener, error) { return net.Listen("tcp", "127.0.0.1:0") }
	if _, fuzzing := t.(*testing.F); fuzzing {
		listen = func() (net.Listener, error) {
			return net.Listen("unix", filepath.Join(testproc.SocketDir(t), "s"))
		}
	}
	start := func(s *http.Server, serve func(net.Listener) error, shutdown func(context.Context) error) *side {
		l, err := listen()
		if err != nil {
			t.Fatal(err)
		}
		side := &side{network: l.Addr().Network(), addr: l.Addr().String()}
		s.ConnState = func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				side.handed.Add(1)
			}
		}
		ended := make(chan error, 1)
		go func() { ended <- serve(l) }()
		t.Cleanup(func() {
			ctx, cancel := context.WithCancel(context.Background())
			cancel()
			_ = shutdown(ctx)
			if err := <-ended; err != nil && err != http.ErrServerClosed {
				t.Error(err)
			}
		})
		return side
	}
	a, b := newHTTPServer(h), newHTTPServer(h)
	s := New(a)
	return start(a, s.Serve, s.Shutdown), start(b, b.Serve, func(ctx context.Context) error { return b.Close() })
}

// exchange sends the parts one after the other, ends the sending, and returns all that comes back.
func (s *side) exchange(t testing.TB, parts ...string) string {
	t.Helper()
	c, err := net.Dial(s.network, s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	go func() {
		for _, p := range parts {
			if _, err := io.WriteString(c, p); err != nil {
				return // the server has had enough
			}
		}
		_ = c.(interface{ CloseWrite() error }).CloseWrite()
	}()
	got, _ := io.ReadAll(c) // a server that refuses may break the connection
	return string(got)
}

var date = regexp.MustCompile(
	`\r\nDate: (Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d [A-Z][a-z][a-z] \d{4} \d\d:\d\d:\d\d GMT\r\n`)

// undated returns answers without what depends on the time and on the connection.
func undated(s string) string { return date.ReplaceAllString(s, "\r\nDate: now\r\n") }

// same holds the answers of both servers to each other, and returns them.
func same(t testing.TB, loop, plain *side, parts ...string) string {
	t.Helper()
	got, want := undated(loop.exchange(t, parts...)), undated(plain.exchange(t, parts...))
	if got != want {
		from := 0
		for from < min(len(got), len(want)) && got[from] == want[from] {
			from++
		}
		from = max(0, from-60)
		t.Errorf("to %.300q\nthe loop answers    %.300q\nand net/http answers %.300q", parts, got[from:], want[from:])
	}
	return got
}

// tell is a handler that answers with all that it sees of the request, in the way that the request
// asks for.
func tell(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	var b bytes.Buffer
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	fmt.Fprintf(&b, "%s %q %q %s %d.%d host %q length %d close %v from %s %v\n", r.Method, r.RequestURI, r.URL, r.Proto,
		r.ProtoMajor, r.ProtoMinor,
		r.Host, r.ContentLength, r.Close, host, err)
	u := *r.URL
	u.User = nil
	fmt.Fprintf(&b, "url %#v of %q\n", u, r.URL.User)
	fmt.Fprintf(&b, "te %v trailer %v tls %v nobody %v\n", r.TransferEncoding, r.Trailer, r.TLS != nil,
		r.Body == http.NoBody)
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		fmt.Fprintf(&b, "%s: %q\n", name, r.Header[name])
	}
	if q.Get("duplex") == "yes" {
		fmt.Fprintln(&b, http.NewResponseController(w).EnableFullDuplex())
	}
	switch q.Get("read") {
	case "no":
	case "close":
		fmt.Fprintln(&b, r.Body.Close())
		_, err := r.Body.Read(make([]byte, 1))
		fmt.Fprintln(&b, err)
	case "some":
		n, err := io.CopyN(io.Discard, r.Body, 5)
		fmt.Fprintln(&b, n, err)
	default:
		n := b.Len()
		if _, err = io.Copy(&b, r.Body); b.Len() > n+1000 {
			sum := sha256.Sum256(b.Bytes()[n:])
			n, _ = b.Len(), 0
			b.Truncate(b.Len() - 1)
			fmt.Fprintf(&b, "%x", sum)
		}
		fmt.Fprintf(&b, "\nbody of %d %v\n", b.Len()-n, err)
	}
	for _, f := range q["set"] {
		name, value, _ := strings.Cut(f, ":")
		w.Header()[name] = append(w.Header()[name], value)
	}
	if q.Get("inform") != "" {
		w.WriteHeader(http.StatusEarlyHints)
	}
	if n, _ := strconv.Atoi(q.Get("pad")); n > 0 {
		b.WriteString(strings.Repeat("x", min(n, 200_000)))
	}
	if q.Get("length") == "yes" {
		w.Header().Set("Content-Length", strconv.Itoa(b.Len()))
	}
	if q.Get("length") == "wrong" {
		w.Header().Set("Content-Length", strconv.Itoa(b.Len()+1))
	}
	if n, _ := strconv.Atoi(q.Get("status")); n >= 200 && n < 1000 {
		w.WriteHeader(n)
		w.Header().Set("X-Late", "is not sent")
	}
	switch q.Get("write") {
	case "none":
	case "panic":
		panic(http.ErrAbortHandler)
	case "pieces":
		for b.Len() > 0 {
			_, _ = w.Write(b.Next(700))
		}
	case "flush":
		for b.Len() > 0 {
			_, _ = w.Write(b.Next(700))
			if err := http.NewResponseController(w).Flush(); err != nil {
				panic(err)
			}
		}
	case "broken":
		_, _ = w.Write(b.Bytes())
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	case "string":
		_, _ = io.WriteString(w, b.String())
	default:
		_, _ = w.Write(b.Bytes())
	}
	for _, f := range q["after"] {
		name, value, _ := strings.Cut(f, ":")
		w.Header().Add(name, value)
	}
}

// get is a request that the loop serves.
func get(target string, fields ...string) string {
	return "GET " + target + " HTTP/1.1\r\nHost: shop.example\r\n" + lines(fields) + "\r\n"
}

func post(target, body string, fields ...string) string {
	return "POST " + target + " HTTP/1.1\r\nHost: shop.example\r\nContent-Length: " + strconv.Itoa(len(body)) + "\r\n" +
		lines(fields) + "\r\n" + body
}

// ask is a request with another method.
func ask(method, target string, fields ...string) string {
	return method + strings.TrimPrefix(get(target, fields...), "GET")
}

func lines(fields []string) (s string) {
	for _, f := range fields {
		s += f + "\r\n"
	}
	return s
}

// TestServes has the loop answer as net/http does, without asking it.
func TestServes(t *testing.T) {
	loop, plain := newSides(t, http.HandlerFunc(tell))
	var all []string
	for _, request := range []string{
		get("/"), get("/a/b.c-d_e~f?x=1&y=%20z"), get("//a"), get("/a%2Fb"), get("/a%62"), get("/ä?"[:1] + "a?"),
		get("/a??"), get("/a:b@c/*'()"), get("/?a?b#"[:5]),
		get("/", "x-a:1", "X-A:\t2 ", "x-B:", "X-c: a\tb", "x-utf: \u00e4\xff", "a!#$%&'*+-.^_`|~9: x"),
		get("/", "Connection: keep-alive"), get("/", "connection:KEEP-ALIVE"),
		get("/", "Pragma: no-cache"), get("/", "Pragma: no-cache", "Cache-Control: max-age=0"),
		get("/", "pragma: No-Cache"), get("/", "Pragma: x", "Pragma: no-cache"),
		get("/", "Cookie: a=1", "Cookie: b=2"), get("/", "Keep-Alive: 5", "TE: trailers", "Proxy-Connection: close",
			"Range: bytes=0-1"),
		get("/", "Content-Length: 0"), get("/", "Content-Length: 003") + "abc", post("/", ""), post("/", "{}"),
		post("/", strings.Repeat("b", 20_000)), post("/", strings.Repeat("b", 65536)),
		get("/", "X-Long: "+strings.Repeat("y", 12_000)), get("/?" + strings.Repeat("y", 9000)),
		get("/", strings.Fields(strings.Repeat("a: ", maxFields-1))...),
		"GET / HTTP/1.1\r\nHost:\r\n\r\n", "GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "POST / HTTP/1.1\r\nHost: a\r\n\r\n",
		get("/?status=404"), get("/?status=429&set=Retry-After:1"), get("/?status=204"),
		get("/?status=204&set=Content-Length:9&set=Content-Type:a/b"),
		get("/?status=304&set=Content-Type:a/b&set=Etag:x"), get("/?status=599"), get("/?status=999"),
		get("/?status=200&write=none"),
		get("/?write=none"), get("/?write=none&set=X-A:1&set=X-A:2&set=A-B:c"),
		get("/?set=Content-Type:a/b"), get("/?set=Content-Encoding:gzip"), get("/?set=Content-Type:"),
		get("/?set=Date:never"), get("/?set=X-A:a%0d%0ab%0ac"), get("/?set=x-small:+a+"), get("/?set=a%20b:c"),
		get("/?set=X-Empty:"), get("/?set=Content-Length:bad"),
		get("/?length=yes"), get("/?length=yes&pad=5000"), get("/?pad=1000&write=pieces"), get("/?pad=1400"),
		get("/?pad=3000"), get("/?pad=3000&write=string"), get("/?pad=150000"), get("/?pad=50000&write=pieces"),
		ask("PUT", "/"), ask("DELETE", "/a?b=c", "X: y"), ask("OPTIONS", "/"), ask("PATCH", "/"),
		ask("HEAD", "/"), ask("HEAD", "/?write=none"), ask("HEAD", "/?length=yes"),
		ask("HEAD", "/?length=yes&write=none"), ask("HEAD", "/?length=wrong"), ask("HEAD",
			"/?pad=5000"), ask("HEAD", "/?pad=90000&write=flush"), ask("HEAD", "/?status=304"),
		ask("HEAD", "/?set=Content-Type:a/b&write=none"), ask("HEAD", "/?status=404&set=Trailer:X-T&after=X-T:t"),
		get("/?write=flush"), get("/?write=flush&length=yes"), get("/?write=flush&pad=9000"),
		get("/?write=flush&status=204"), get("/?status=304&write=flush"), get(
			"/?write=flush&set=Content-Type:text/event-stream"),
		get("/?inform=yes&set=Link:a&length=yes"), get("/?inform=yes&write=flush&set=Link:b&set=Connection:keep-alive"),
		ask("HEAD", "/?inform=yes"),
		get("/?set=Trailer:X-T&after=X-T:t&after=X-T:u"),
		get("/?set=Trailer:X-T,%20x-u&set=Trailer:Host&after=X-U:%0d%0au&after=Host:a"), get(
			"/?write=flush&after=Trailer:X-T:t"), get("/?write=flush&pad=4000&after=Trailer:X-U:t&after=Trailer:X-T:t"),
		get("/?set=Trailer:X-T&length=yes&after=X-T:t"), get("/?set=Trailer:X-T&write=none"), get(
			"/?set=Trailer:&after=X-T:t"), get("/?set=Trailer:X:t&after=Trailer:X-T:t"),
		ask("PUT", "/", "Content-Length: 3") + "abc", ask("DELETE", "/?read=close", "Content-Length: 3") + "abc",
		post("/", strings.Repeat("long", 50_000)), post("/?write=flush",
			strings.Repeat("long", 50_000)), post("/?read=no", strings.Repeat("long", 60_000)),
		post("/?read=close", strings.Repeat("long", 60_000)), post("/?read=some", strings.Repeat("long", 60_000)),
		post("/?duplex=yes&pad=50000", strings.Repeat("long", 60_000)), post("/?read=close&write=flush", "a body"),
		get("/?pad=3000&write=pieces&set=Content-Type:a/b"), post("/?read=no", "unread body"),
		post("/?read=no", strings.Repeat("u", 60_000)),
	} {
		if got := same(t, loop, plain, request); !strings.HasPrefix(got, "HTTP/1.1 ") ||
			strings.Contains(got, "Connection: close") || loop.handed.Load() > 0 {
			t.Errorf("%.200q is answered %.200q", request, got)
		}
		all = append(all, request)
	}
	// all of them, one behind the other on one connection
	if got := same(t, loop, plain, all...); strings.Count(got, "HTTP/1.1 ") < len(all) {
		t.Errorf("%d answers to %d requests", strings.Count(got, "HTTP/1.1 "), len(all))
	}
	same(t, loop, plain, strings.Join(all, ""))
	if n := loop.handed.Load(); n > 0 {
		t.Errorf("net/http has served %d connections", n)
	}
	for _, last := range []string{
		get("/", "Connection: close"), get("/", "Connection: Close"), get("/?set=Connection:close"),
		get("/?length=wrong"), get("/?length=wrong&pad=3000"), get("/?write=panic"),
		get("/?pad=9000", "Connection: close"), post("/", "x", "Connection: close"), get("/?write=broken&pad=9000"),
		get("/?write=broken&length=yes"), ask("HEAD", "/", "Connection: close"),
		get("/?write=flush&set=Connection:close"),
	} {
		same(t, loop, plain, last+get("/after"))
		same(t, loop, plain, get("/before"), last)
	}
	for _, short := range []string{
		"POST / HTTP/1.1\r\nHost:\r\nContent-Length:1000000\r\n\r\n", "POST /?read=close HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n",
		post("/", "cut off")[:62], "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf",
		"POST /?read=no HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n", post("/?read=close",
			strings.Repeat("cut", 9000))[:9000], post("/?read=some", strings.Repeat("cut", 9000))[:9000],
		post("/?read=no&write=flush", strings.Repeat("cut", 9000))[:9000],
	} {
		same(t, loop, plain, short)
		same(t, loop, plain, get("/before"), short)
	}
	if n := loop.handed.Load(); n > 0 {
		t.Errorf("net/http has served %d connections", n)
	}
}

// TestHandsOver has net/http answer all that is odd, also behind requests that the loop has served.
func TestHandsOver(t *testing.T) {
	loop, plain := newSides(t, http.HandlerFunc(tell))
	for i, odd := range oddRequests() {
		before := loop.handed.Load()
		same(t, loop, plain, odd)
		if loop.handed.Load() == before {
			t.Errorf("the loop serves %.200q by itself", odd)
		}
		if i%4 != 0 && !effort.All() {
			continue
		}
		same(t, loop, plain, get("/before"), odd)
		same(t, loop, plain, post("/before", "a body"), odd+get("/behind"))
		var bytewise []string
		if len(odd) < 60 {
			for i := range len(odd) {
				bytewise = append(bytewise, odd[i:i+1])
			}
			same(t, loop, plain, bytewise...)
		}
	}
}

// oddRequests are requests that only net/http may judge.
func oddRequests() []string {
	line := func(s string) string { return s + "\r\nHost: a\r\n\r\n" }
	list := []string{
		line("OPTIONS * HTTP/1.1"), line("CONNECT a:1 HTTP/1.1"), line("CONNECT /a HTTP/1.1"), line("get / HTTP/1.1"),
		line("G3T / HTTP/1.1"), line("GETS / HTTP/1.1"), line("TRACE / HTTP/1.1"), line(
			"M-SEARCH / HTTP/1.1"), line("PROPFIND / HTTP/1.1"),
		line("GET / HTTP/1.0"), line("GET / HTTP/1.2"), line("GET / HTTP/2.0"), line("GET / HTTP/0.9"),
		line("GET / http/1.1"), line("GET / HTTP/1.1 "), line("GET  / HTTP/1.1"), line("GET / / HTTP/1.1"), line(
			"GET /"), line("GET"),
		line("GET http://b/ HTTP/1.1"), line("GET a HTTP/1.1"), line("GET * HTTP/1.1"), line("GET /a#b HTTP/1.1"),
		line("GET /%zz HTTP/1.1"), line("GET /\x01 HTTP/1.1"), line("GET /\u00e4 HTTP/1.1"), line(
			"GET\t/ HTTP/1.1"), line("GET /\tHTTP/1.1"),
		line(" GET / HTTP/1.1"), "\r\n" + line("GET / HTTP/1.1"), "\n" + line("GET / HTTP/1.1"),
		line("\x00GET / HTTP/1.1"),
		"GET / HTTP/1.1\nHost: a\n\n", "GET / HTTP/1.1\r\nHost: a\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\n\n", "GET / HTTP/1.1\r\nHost: a\r\r\n\r\n", "GET / HTTP/1.1\rHost: a\r\r", "GET / HTTP/1.1\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\nhost: b\r\n\r\n", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", "GET / HTTP/1.1\r\nHost: \xff\r\n\r\n",
		"G", "GET / HT", "GET / HTTP/1.1\r\nHost: a", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
	}
	list = append(list, get("/", strings.Fields(strings.Repeat("a: ", maxFields))...)) // and Host
	for _, field := range []string{
		"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n", "transfer-encoding: CHUNKED\r\n\r\n0\r\n", "Transfer-Encoding: gzip, chunked", "Transfer-Encoding: identity", "Transfer-Encoding:\tchunked", "Transfer-Encoding: xchunked", "Transfer-Encoding: chunked\r\nContent-Length: 3",
		"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", "Transfer-Encoding : chunked", "Transfer-Encoding\t: chunked", " Transfer-Encoding: chunked", "X: a\r\n Transfer-Encoding: chunked", "X: a\r\n\tb", "Transfer-Encoding: \x0bchunked", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
		"Content-Length: +3\r\n\r\nabc", "Content-Length: -1", "Content-Length: 3, 3\r\n\r\nabc", "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", "Content-Length:", "Content-Length: 0x3", "Content-Length: 3 3", "Content-Length: 99999999999999999999", "Content-Length: 1000000000000000000", "Content-Length: 3;", "Content-Length : 3\r\n\r\nabc", "Content_Length : 3",
		"Content-Length: 3\x00", "Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc", "Expect: 100-continue", "Expect: x", "Upgrade: websocket\r\nConnection: Upgrade", "Upgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\nConnection: Upgrade, HTTP2-Settings", "HTTP2-Settings: x", "Trailer: X", "Connection: keep-alive, close", "Connection: x", "Connection: close\r\nConnection: close", "Connection:", "Connection: clo\u017fe", "Connection: \u212aeep-alive",
		"a b: c", ": c", "a", "a\x00: b", "a: \x00", "a: b\x7fc", "a: b\x1fc", "\u00e4: x", "(a): b", "a/b: c", "X: a\rb", "X: a\r\r\nY: b", strings.Repeat("X: y\r\n", 4000) + "a: b", "X: " + strings.Repeat("y", 17_000), "X: " + strings.Repeat("y", 80_000),
	} {
		list = append(list, "POST / HTTP/1.1\r\nHost: a\r\n"+field+"\r\n\r\n")
	}
	return list
}

// TestThroughClient asks with net/http's own client, over many connections at a time.
func TestThroughClient(t *testing.T) {
	loop, _ := newSides(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		fmt.Fprintf(w, "%s %s", r.Header.Get("X-Number"), body)
	}))
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}
	defer client.CloseIdleConnections()
	t.Run("all", func(t *testing.T) {
		for i := range 16 {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for j := range 200 {
					number := strconv.Itoa(1000*i + j)
					body := strings.Repeat(number, j+1)
					r := httptest.NewRequest("POST", "http://"+loop.addr+"/a", strings.NewReader(body))
					r.RequestURI = ""
					r.Header.Set("X-Number", number)
					resp, err := client.Do(r)
					if err != nil {
						t.Fatal(err)
					}
					got, err := io.ReadAll(resp.Body)
					_ = resp.Body.Close()
					if want := number + " " + body; err != nil || string(got) != want {
						t.Fatalf("%q %v, want %q", got, err, want)
					}
				}
			})
		}
	})
	if n := loop.handed.Load(); n > 0 {
		t.Errorf("net/http has served %d connections", n)
	}
}
