package proxy

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"

	"github.com/weir-rl/weir/httplimit"
)

// BenchmarkProxy sets the proxy beside a bare httputil.ReverseProxy whose transport and buffers are
// tuned as well as they can be, and beside the upstream alone. Compare them within one run; client
// and upstream are measured with them. benchmarks/proxyload has each in a process of its own.
func BenchmarkProxy(b *testing.B) {
	up := newUpstream(b, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, "hello") })
	u, err := url.Parse(up.URL)
	if err != nil {
		b.Fatal(err)
	}
	p := &Proxy{o: Options{Upstream: u}}
	transport := p.newTransport(true)
	transport.Protocols.SetHTTP1(true)
	bare := &httputil.ReverseProxy{
		Rewrite:    func(r *httputil.ProxyRequest) { r.SetURL(u); r.SetXForwarded() },
		Transport:  transport,
		BufferPool: buffers,
		ErrorLog:   log.New(io.Discard, "", 0),
	}
	limited, err := New(
		newLimiter(b,
			`limits: [{name: a, when: {path: /api/**}, per: [ip], allow: [1000000000/min, 1000000000/hour]}]`),
		Options{Upstream: u})
	if err != nil {
		b.Fatal(err)
	}
	silent, err := New(
		newLimiter(b,
			`limits: [{name: a, when: {path: /api/**}, per: [ip], allow: [1000000000/min, 1000000000/hour]}]`),
		Options{Upstream: u, Headers: httplimit.Off})
	if err != nil {
		b.Fatal(err)
	}
	through := *limited // the same, but every request goes through httputil.ReverseProxy
	through.direct = nil
	refusing, err := New(newLimiter(b, `limits: [{name: a, when: {path: /api/**}, per: [ip], allow: 0/min}]`),
		Options{Upstream: u})
	if err != nil {
		b.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		h      http.Handler
		status int
	}{{"upstream", up.Config.Handler, 200}, {"bare", bare, 200}, {"weir", limited, 200},
		{"weir-through-reverseproxy", &through, 200}, {"weir-headers-off", silent, 200}, {"weir-refuses", refusing,
			429}} {
		b.Run(c.name, func(b *testing.B) {
			s := httptest.NewServer(c.h)
			defer s.Close()
			tr := &http.Transport{MaxIdleConnsPerHost: 64}
			defer tr.CloseIdleConnections()
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					resp, err := tr.RoundTrip(httptest.NewRequest("GET", s.URL+"/api/x?y=1", nil))
					if err != nil {
						b.Error(err)
						return
					}
					_, _ = io.Copy(io.Discard, resp.Body)
					_ = resp.Body.Close()
					if resp.StatusCode != c.status {
						b.Errorf("status %d", resp.StatusCode)
						return
					}
				}
			})
		})
	}
}
