package proxy

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
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
	"sync/atomic"
	"testing"
	"time"
)

func read(t testing.TB, resp *http.Response, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if err := resp.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestNewErrors(t *testing.T) {
	l := newLimiter(t, noLimits)
	for in, want := range map[string]string{
		"":                      "proxy.upstream: missing",
		"localhost:3000":        "write http://, https:// or h2c://",
		"ftp://x":               "write http://, https:// or h2c://",
		"http://":               "names no host",
		"http://a:b@c":          "holds a user",
		"http://c/?x=1":         "has a query",
		"http://c/#x":           "a fragment",
		"http:opaque":           "names no host",
		"http://:80":            "names no host",
		"http://127.0.0.1:3000": "",
	} {
		var u *url.URL
		if in != "" {
			var err error
			if u, err = url.Parse(in); err != nil {
				t.Fatal(err)
			}
		}
		_, err := New(l, Options{Upstream: u})
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", in, err, want)
		}
	}
}

// Ten pass, the eleventh is refused and never reaches the upstream.
func TestUpstreamSeesOnlyWhatPassed(t *testing.T) {
	for _, h2c := range []bool{false, true} {
		t.Run(fmt.Sprintf("h2c=%v", h2c), func(t *testing.T) {
			var seen atomic.Int64
			up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) { seen.Add(1); fmt.Fprint(w, "hello") })
			addr := newProxy(t, up.URL, `limits: [{name: a, per: [ip], allow: 10/min, algorithm: sliding_log}]`)
			c := client(t, h2c)
			for i := range 12 {
				resp, err := c.Get("http://" + addr + "/x")
				body := read(t, resp, err)
				if h2c != (resp.ProtoMajor == 2) {
					t.Fatalf("the proxy answered in %s", resp.Proto)
				}
				if i < 10 {
					if resp.StatusCode != 200 || body != "hello" ||
						resp.Header.Get("X-RateLimit-Remaining") != fmt.Sprint(9-i) ||
						resp.Header.Get("Retry-After") != "" {
						t.Errorf("request %d: %d %v", i, resp.StatusCode, resp.Header)
					}
					continue
				}
				var p struct{ Detail string }
				if err := json.Unmarshal([]byte(body), &p); err != nil || resp.StatusCode != 429 ||
					resp.Header.Get("Retry-After") == "" || !strings.Contains(p.Detail, "10 requests per minute") {
					t.Errorf("request %d: %d %v %s", i, resp.StatusCode, resp.Header, body)
				}
			}
			if seen.Load() != 10 {
				t.Errorf("the upstream saw %d", seen.Load())
			}
		})
	}
}

func TestForwardedHeaders(t *testing.T) {
	var got http.Header
	var host string
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) { got, host = r.Header, r.Host })
	spoofed := http.Header{
		"X-Forwarded-For": {"203.0.113.9"}, "X-Forwarded-Host": {"evil"}, "X-Forwarded-Proto": {"https"}, "Forwarded": {"for=203.0.113.9"},
		"Connection": {"X-Hop, X-Forwarded-Proto, close"}, "X-Hop": {"1"}, "Keep-Alive": {"1"}, "Te": {"trailers, deflate"}, "Proxy-Authorization": {"x"}, "X-Kept": {"1"},
	}
	for _, c := range []struct {
		name             string
		trusted          string
		change           func(*Options)
		xff, xfh, xfp, h string
	}{
		{"a stranger", "", nil, "127.0.0.1", "client.example", "http", "client.example"},
		{"a trusted proxy", "127.0.0.0/8", nil, "203.0.113.9, 127.0.0.1", "evil", "https", "client.example"},
		{"the upstream's own host", "", func(o *Options) { o.UpstreamHost = true }, "127.0.0.1", "client.example", "http", up.Listener.Addr().String()},
	} {
		addr := newProxy(t, up.URL, noLimits, func(o *Options) {
			if c.trusted != "" {
				o.ClientIP.Trusted = []netip.Prefix{netip.MustParsePrefix(c.trusted)}
			}
			if c.change != nil {
				c.change(o)
			}
		})
		r, err := http.NewRequest("GET", "http://"+addr+"/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header, r.Host = spoofed.Clone(), "client.example"
		resp, err := client(t, false).Do(r)
		read(t, resp, err)
		for k, want := range map[string]string{
			"X-Forwarded-For": c.xff, "X-Forwarded-Host": c.xfh, "X-Forwarded-Proto": c.xfp, "Forwarded": "", "X-Hop": "", "Keep-Alive": "", "Te": "trailers",
			"Proxy-Authorization": "", "Connection": "", "X-Kept": "1", "Accept-Encoding": "",
		} {
			if v := strings.Join(got[k], "|"); v != want {
				t.Errorf("%s: %s is %q, want %q", c.name, k, v, want)
			}
		}
		if host != c.h {
			t.Errorf("%s: Host is %q, want %q", c.name, host, c.h)
		}
	}
}

// Ours win where a limit was met; what the upstream says stays where none was.
func TestHeadersOfTheUpstream(t *testing.T) {
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-RateLimit-Limit", "77")
		w.Header().Set("RateLimit", `"theirs";r=1`)
		w.Header().Set("X-RateLimit-Retry-After", "77")
		w.Header().Set("Retry-After", "5")
		w.Header().Set("Connection", "X-Hop")
		w.Header().Set("X-Hop", "1")
		w.Header().Set("Keep-Alive", "x")
		w.WriteHeader(http.StatusEarlyHints)
		w.WriteHeader(http.StatusTeapot)
	})
	addr := newProxy(t, up.URL, `limits: [{name: ours, when: {path: /ours}, allow: 10/min, algorithm: fixed_window}]`)
	c := client(t, false)
	resp, err := c.Get("http://" + addr + "/ours")
	read(t, resp, err)
	if h := resp.Header; resp.StatusCode != 418 || !slices.Equal(h.Values("X-RateLimit-Limit"), []string{"10"}) ||
		len(h.Values("RateLimit")) != 1 || !strings.HasPrefix(h.Get("RateLimit"), `"theirs";r=1, "ours";r=9`) ||
		h.Get("X-RateLimit-Retry-After") != "" || h.Get("Retry-After") != "5" || h.Get("X-Hop") != "" ||
		h.Get("Keep-Alive") != "" {
		t.Errorf("%d %v", resp.StatusCode, h)
	}
	resp, err = c.Get("http://" + addr + "/theirs")
	read(t, resp, err)
	if h := resp.Header; h.Get("X-RateLimit-Limit") != "77" || h.Get("RateLimit") != `"theirs";r=1` {
		t.Errorf("%v", h)
	}
}

func TestTLSAndHTTP2(t *testing.T) {
	var proto string
	handler := func(w http.ResponseWriter, r *http.Request) {
		proto = r.Proto
		fmt.Fprint(w, r.Header.Get("X-Forwarded-Proto"))
	}
	plain := newUpstream(t, handler)
	secure := httptest.NewUnstartedServer(http.HandlerFunc(handler))
	secure.EnableHTTP2 = true
	secure.StartTLS()
	t.Cleanup(secure.Close)
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	for _, c := range []struct{ upstream, proto string }{{plain.URL, "HTTP/1.1"}, {secure.URL, "HTTP/2.0"},
		{h2cServer(t, handler), "HTTP/2.0"}} {
		addr, _ := serveProxy(t, c.upstream, newLimiter(t, noLimits),
			&tls.Config{Certificates: secure.TLS.Certificates}, func(
				o *Options) {
				o.TLS = &tls.Config{RootCAs: roots}
			})
		tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true}
		t.Cleanup(tr.CloseIdleConnections)
		resp, err := (&http.Client{Transport: tr}).Get("https://" + addr + "/")
		if body := read(t, resp, err); resp.ProtoMajor != 2 || proto != c.proto || body != "https" {
			t.Errorf("%s: the client spoke %s, the upstream %s, X-Forwarded-Proto %q", c.upstream, resp.Proto, proto,
				body)
		}
	}
	// An upstream whose certificate is not trusted is a 502.
	addr := newProxy(t, secure.URL, noLimits)
	resp, err := client(t, false).Get("http://" + addr)
	if read(t, resp, err); resp.StatusCode != 502 {
		t.Errorf("an untrusted certificate: %d", resp.StatusCode)
	}
}

func TestUpstreamFailures(t *testing.T) {
	garbage, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = garbage.Close() })
	go func() {
		for {
			c, err := garbage.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "I do not speak HTTP\r\n\r\n")
			_ = c.Close()
		}
	}()
	release := make(chan bool)
	slow := newUpstream(t, func(w http.ResponseWriter, r *http.Request) { <-release })
	t.Cleanup(func() { close(release) })
	for _, c := range []struct {
		upstream string
		timeout  time.Duration // 0: the default, which no busy machine reaches
		status   int
	}{{"http://127.0.0.1:1", 0, 502}, {"http://" + garbage.Addr().String(), 0, 502},
		{slow.URL, 50 * time.Millisecond, 504}} {
		addr := newProxy(t, c.upstream, `limits: [{name: a, allow: 10/min}]`,
			func(o *Options) { o.Timeout = c.timeout })
		resp, err := client(t, false).Get("http://" + addr + "/x")
		body := read(t, resp, err)
		var p struct{ Status int }
		if err := json.Unmarshal([]byte(body), &p); err != nil || resp.StatusCode != c.status || p.Status != c.status ||
			resp.Header.Get("Content-Type") != "application/problem+json" ||
			resp.Header.Get("X-RateLimit-Remaining") != "9" || strings.Contains(body, "127.0.0.1") {
			t.Errorf("%s: %d %v %s", c.upstream, resp.StatusCode, resp.Header, body)
		}
	}
}

// Many at once over few limits: the upstream sees exactly what passed. (Meant for -race.)
func TestConcurrentClients(t *testing.T) {
	var seen atomic.Int64
	up := newUpstream(t, func(w http.ResponseWriter, r *http.Request) { seen.Add(1); _, _ = io.Copy(w, r.Body) })
	addr := newProxy(t, up.URL,
		`limits: [{name: a, per: [header.k], allow: 40/hour, algorithm: sliding_log}, {name: b, allow: 4 concurrent}]`)
	var passed, refused atomic.Int64
	var wg sync.WaitGroup
	for g := range 8 {
		c := client(t, g%2 == 0)
		wg.Go(func() {
			for i := range 50 {
				r, err := http.NewRequest("POST", "http://"+addr+"/", strings.NewReader("hello"))
				if err != nil {
					t.Error(err)
					return
				}
				r.Header.Set("K", fmt.Sprint(i%2))
				resp, err := c.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				body, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				switch {
				case resp.StatusCode == 200 && string(body) == "hello":
					passed.Add(1)
				case resp.StatusCode == 429 && err == nil:
					refused.Add(1)
				default:
					t.Errorf("%d %q %v", resp.StatusCode, body, err)
				}
			}
		})
	}
	wg.Wait()
	if passed.Load() > 80 || passed.Load()+refused.Load() != 400 || seen.Load() != passed.Load() {
		t.Errorf("%d passed, %d refused, the upstream saw %d", passed.Load(), refused.Load(), seen.Load())
	}
}
