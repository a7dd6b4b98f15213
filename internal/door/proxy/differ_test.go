package proxy

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/door"
	"github.com/weir-rl/weir/internal/wire/upstream"
)

// outcome is what came of a request: what the client got, and what the upstream saw.
type outcome struct {
	Hints   []string
	Status  int
	Header  []string
	Body    string
	Trailer []string
	Broken  bool // nothing, or not all, came: how much of it is a matter of time
	Seen    []string
}

// fieldsOf lists the fields of h, in order; of those whose values turn with the clock, the names
// alone. How a body is framed is no field.
func fieldsOf(h http.Header) []string {
	var out []string
	for name, lines := range h {
		switch name {
		case "Content-Length", "Transfer-Encoding":
			continue
		case "Connection": // so is keep-alive, to a client of HTTP/1.0
			lines = slices.DeleteFunc(slices.Clone(lines), func(line string) bool { return line == "keep-alive" })
		case "Date", "Ratelimit", "X-Ratelimit-Reset":
			lines = []string{fmt.Sprint(len(lines))}
		}
		for _, line := range lines {
			// What net/http guesses of our bodies, which it does after hints.
			if line != "text/plain; charset=utf-8" && line != "application/octet-stream" {
				out = append(out, name+": "+line)
			}
		}
	}
	slices.SortStableFunc(out, func(a, b string) int {
		nameA, _, _ := strings.Cut(a, ":")
		nameB, _, _ := strings.Cut(b, ":")
		return strings.Compare(nameA, nameB)
	}) // lines of one name stay in their order
	return out
}

// Whatever the client sends and the upstream answers, a client cannot tell the direct way from
// httputil.ReverseProxy, nor can the upstream.
func TestDirectIsReverseProxy(t *testing.T) {
	if !directWorks {
		t.Skip("all requests go that way here anyway")
	}
	var mu sync.Mutex
	var parts []string
	var keep bool
	var seen []string
	up := newScripted(t, func(conn net.Conn, r *http.Request, body []byte) bool {
		mu.Lock()
		defer mu.Unlock()
		seen = append(fieldsOf(r.Header), r.Method+" "+r.RequestURI, "host "+r.Host,
			"length "+fmt.Sprint(r.ContentLength), string(body))
		say(conn, parts...)
		return keep
	})
	type pair struct{ direct, reverse served }
	var pairs []pair
	for _, change := range []func(*Options){
		func(*Options) {},
		func(o *Options) { o.PathAsIs, o.UpstreamHost, o.Headers = true, true, httplimit.Off },
		func(o *Options) { o.ClientIP.Trusted = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")} },
	} {
		rules := `limits: [{name: ours, when: {path: /ours/**}, allow: 1000000/hour, algorithm: fixed_window}]`
		var p pair
		p.direct = proxyServer(t, up.url()+"/base", rules, change)
		directWorks = false
		p.reverse = proxyServer(t, up.url()+"/base", rules, change)
		directWorks = true
		pairs = append(pairs, p)
	}
	ask := func(server served, method, request string) (o outcome) {
		conn, err := net.Dial("tcp", server.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		say(conn, request)
		in := bufio.NewReader(conn)
		for {
			resp, err := http.ReadResponse(in, &http.Request{Method: method})
			if err != nil {
				return outcome{Broken: true}
			}
			if resp.StatusCode < 200 {
				o.Hints = append(o.Hints, fmt.Sprint(resp.StatusCode, fieldsOf(resp.Header)))
				continue
			}
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				return outcome{Broken: true}
			}
			o.Status, o.Header, o.Body, o.Trailer = resp.StatusCode, fieldsOf(resp.Header), string(body),
				fieldsOf(resp.Trailer)
			mu.Lock()
			defer mu.Unlock()
			o.Seen = seen
			return o
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SampledFrom(pairs).Draw(t, "proxies")
		method, request := drawRequest(t)
		answer, whole := drawResponse(t, method)
		var cut []string
		for cuts := rapid.IntRange(0, 2).Draw(t, "cuts"); cuts > 0; cuts-- {
			at := rapid.IntRange(0, len(answer)).Draw(t, "cut")
			cut, answer = append(cut, answer[:at]), answer[at:]
		}
		stays := whole && rapid.Bool().Draw(t, "keep")
		mu.Lock()
		if !keep { // whether a proxy sees in time that a connection is closed is a matter of luck
			for _, p := range pairs {
				p.direct.direct.CloseIdle()
				for _, either := range []served{p.direct, p.reverse} {
					either.reverse.Transport.(*again).kept.CloseIdleConnections()
				}
			}
		}
		parts, keep, seen = append(cut, answer), stays, nil
		mu.Unlock()
		want := ask(p.reverse, method, request)
		mu.Lock()
		seen = nil
		mu.Unlock()
		got := ask(p.direct, method, request)
		if old := strings.Contains(request, " HTTP/1.0\r\n"); old && (got.Broken || want.Broken) {
			// such a client cannot tell a body that breaks off from one that ends, if it got
			// anything
			return
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%q\nanswered with\n%.2000q\ngives\n%.2000v\nbut through ReverseProxy\n%.2000v", request, parts,
				fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want))
		}
	})
}

// served is a proxy with its address.
type served struct {
	addr string
	*Proxy
}

func proxyServer(t testing.TB, upstream, rules string, change func(*Options)) served {
	addr, h := serveProxy(t, upstream, newLimiter(t, rules), nil, change)
	return served{addr, h}
}

func drawRequest(t *rapid.T) (method, request string) {
	method = rapid.SampledFrom([]string{"GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "X-OWN"}).Draw(
		t, "method")
	target := rapid.SampledFrom([]string{"/", "/ours/x", "/ours/%7Ex?a=b&c", "/a//b/../c", "/%zz", "/a%2Fb",
		"/\xc3\xa9", "/a b", "/x?", "/?q=%00#x", `/a"<>b`, "/ours/[x]", "/a;b=(c)!'*", "*"}).Draw(t, "target")
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s\r\n", method, target,
		rapid.SampledFrom([]string{"HTTP/1.1", "HTTP/1.1", "HTTP/1.1", "HTTP/1.0"}).Draw(t, "version"))
	fmt.Fprintf(&b, "Host: %s\r\n", rapid.SampledFrom([]string{"x", "Shop.Example:80", "", "a."}).Draw(t, "host"))
	for _, line := range rapid.SliceOfN(rapid.SampledFrom([]string{
		"User-Agent: a", "User-Agent:", "Accept: */*", "Accept: text/html", "accept-ENCODING: gzip", "Cookie: a=b; c=d", "X-A: 1", "X-A: 2", "X-Empty:", "X-Tab: a\tb",
		"Connection: keep-alive", "Connection: close", "Connection: X-A, Te", "TE: trailers", "Te: gzip", "Trailer: X-T", "Keep-Alive: 5", "Proxy-Connection: x", "Proxy-Authorization: x",
		"Upgrade: h2c", "X-Forwarded-For: 203.0.113.1", "X-Forwarded-For: 10.0.0.1, 10.0.0.2", "X-Forwarded-Host: evil", "X-Forwarded-Proto: https", "Forwarded: for=x",
		"X-Weir-Ticket: x", "X-Weir-Attempt: 9", "Authorization: Bearer a", "Idempotency-Key: k", "If-None-Match: \"x\"", "X-\xc3\xa9: a", "X-Utf: \xc3\xa9", "Accept-Language: de",
	}), 0, 6).Draw(t, "fields") {
		b.WriteString(line + "\r\n")
	}
	if method != "GET" && rapid.Bool().Draw(t, "body") {
		size := rapid.SampledFrom([]int{0, 1, 5000, upstream.MaxBody, upstream.MaxBody + 1, 5 * upstream.MaxBody}).Draw(
			t, "size")
		fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", size, strings.Repeat("b", size))
	} else {
		b.WriteString("\r\n")
	}
	return method, b.String()
}

// drawResponse draws a response, which is most often a good one. whole tells that it says itself
// where it ends.
func drawResponse(t *rapid.T, method string) (response string, whole bool) {
	var b strings.Builder
	for hints := rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "hints"); hints > 0; hints-- {
		b.WriteString(rapid.SampledFrom([]string{"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\nX-H: 1\r\n\r\n",
			"HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 102 Processing\r\n\r\n"}).Draw(t, "hint"))
	}
	status := rapid.SampledFrom([]string{
		"HTTP/1.1 200 OK", "HTTP/1.1 200 OK", "HTTP/1.1 200 OK", "HTTP/1.1 404 Not Found", "HTTP/1.1 500 \xff", "HTTP/1.1 204 No Content", "HTTP/1.1 304 Not Modified", "HTTP/1.1 206 Partial Content",
		"HTTP/1.1 299 ", "HTTP/1.1 200", "HTTP/1.0 200 OK", "HTTP/1.1  200 OK", "http/1.1 200 OK", "HTTP/1.1 2x0 OK", "HTTP/1.1 999 Odd", "HTTP/1.1 050 Low", "HTTP/2.0 200 OK", "HTTP/1.1 -20 OK",
	}).Draw(t, "status")
	b.WriteString(status + "\r\n")
	lines := rapid.SliceOfN(rapid.SampledFrom([]string{
		"X-A: 1", "x-lower: v", "X-Multi: a", "X-Multi: b", "Set-Cookie: a=b", "set-cookie: c=d", "Connection: keep-alive", "Connection: close", "Connection: X-A", "Connection: x-multi, close", "Keep-Alive: timeout=5",
		"Pragma: no-cache", "pragma: other", "Cache-Control: max-age=1", "Content-Type: text/event-stream; charset=utf-8", "Content-Type: text/plain", "X-Fold: a\r\n\t b", "X Space: 1", "X-Tab:\t v \t", "X-Empty:",
		"X-Utf: \xc3\xa9", "Trailer: X-T", "Trailer: Content-Length", "Upgrade: x", "TE: x", "Date: Thu, 01 Jan 1970 00:00:00 GMT", "X-RateLimit-Limit: 7", "RateLimit: \"a\";r=1", "Retry-After: 5", "Proxy-Authenticate: x",
		"Content-Encoding: gzip", "Host: evil", "Server: s", "ETag: \"x\"", "X-Weir-Ticket: x", "NoColon", ": empty", "X-Bad: a\x01b", "Content-Length: 3", "Content-Length: x", "Transfer-Encoding: chunked", "Transfer-Encoding: gzip",
	}), 0, 6).Draw(t, "fields")
	for _, line := range lines {
		b.WriteString(line + "\r\n")
	}
	body := strings.Repeat("0123456789", rapid.SampledFrom([]int{0, 1, 50, 400, 1000, 5000}).Draw(t, "tens"))
	switch rapid.SampledFrom([]string{"length", "length", "length", "short", "long", "chunks", "chunks", "trailers",
		"cut", "close"}).Draw(t, "framing") {
	case "length":
		fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n", len(body))
		whole = true
		if method != "HEAD" && !strings.Contains(status, " 204 ") && !strings.Contains(status, " 304 ") {
			b.WriteString(body)
		}
	case "short":
		fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(body)+1, body)
	case "long":
		fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%sextra", len(body), body)
	case "chunks":
		b.WriteString("Transfer-Encoding: chunked\r\n\r\n" + chunks(t, body) + "0\r\n\r\n")
	case "trailers":
		b.WriteString("Transfer-Encoding: Chunked\r\n\r\n" + chunks(t, body) + "0\r\nX-T: 1\r\nx-u: 2\r\n\r\n")
	case "cut":
		b.WriteString("Transfer-Encoding: chunked\r\n\r\n" + chunks(t, body))
	case "close":
		b.WriteString("\r\n" + body)
	}
	response = b.String()
	if rapid.IntRange(0, 9).Draw(t, "spoil") == 0 {
		at := rapid.IntRange(0, min(len(response)-1, 300)).Draw(t, "at")
		response = response[:at] + string([]byte{rapid.Byte().Draw(t, "byte")}) + response[at+1:]
		whole = false
	}
	return response, whole && len(lines) == 0
}

func chunks(t *rapid.T, body string) string {
	var b strings.Builder
	for body != "" {
		n := rapid.IntRange(1, len(body)).Draw(t, "chunk")
		fmt.Fprintf(&b, "%x%s\r\n%s\r\n", n, rapid.SampledFrom([]string{"", "", ";x=y"}).Draw(t, "extension"), body[:n])
		body = body[n:]
	}
	return b.String()
}

// FuzzRequest: whatever a request holds, what goes to the upstream is one request, and that one.
func FuzzRequest(f *testing.F) {
	f.Add("GET", "/a/b", "c=d", "X-A", "b", "shop.example")
	f.Add("GET /x HTTP/1.1", "/", "", "X-A", "b", "x")
	f.Add("GET", "/a b", "c d#e", "X-A", "b\r\nX-B: c", "x")
	f.Add("POST", "/", "\r\n\r\nGET / HTTP/1.1", "X A", "b", "")
	f.Add("GET", "/%zz\x00", "", "X-Forwarded-For", "a\nb", "x")
	f.Add("GET", "*", "", "Content-Length", "5", "x:80")
	f.Add("GET", "/", "", "Transfer-Encoding", "chunked", "x")
	f.Add("DELETE", "//a/../b", "", "User-Agent", "\x7f", "x")
	p, err := New(newLimiter(f, noLimits), Options{
		Upstream: &url.URL{Scheme: "http", Host: "upstream", Path: "/base"}, ClientIP: httplimit.ClientIP{Trusted: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, method, path, query, name, value, host string) {
		if !door.ValidHost(host) {
			return // is refused before
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.Method, r.URL.Path, r.URL.RawQuery, r.Host = method, path, query, host
		r.Header[name] = []string{value}
		var a httplimit.Attributes
		a.Reset(r, p.o.ClientIP, nil)
		q := upstream.NewRequest()
		defer q.Free()
		if !p.writeHead(q, r, &a) {
			return
		}
		b := q.Bytes()
		in := bufio.NewReader(bytes.NewReader(b))
		got, err := http.ReadRequest(in)
		if err != nil {
			t.Fatalf("%q: %v", b, err)
		}
		if body, err := io.ReadAll(got.Body); len(body) > 0 || err != nil || in.Buffered() > 0 {
			t.Errorf("%q holds more than a request", b)
		}
		if host = a.Host(); host == "" {
			host = "upstream"
		}
		if query = safeQuery.Replace(query); path == "*" {
			query = ""
		}
		if got.Method != method || got.Host != host || path != "*" && !strings.HasPrefix(got.URL.Path, "/base") ||
			got.URL.RawQuery != query {
			t.Errorf("%q is another request", b)
		}
		for k := range got.Header {
			if !strings.EqualFold(k, name) && !strings.HasPrefix(k, "X-Forwarded-") && k != "Content-Length" {
				t.Errorf("%q has a field %q", b, k)
			}
		}
	})
}
