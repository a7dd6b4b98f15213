package doors

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// The families of headers and the origins of pages that are configured hold at the proxy, with an
// upstream that sends both of its own, and at forward auth.
func TestHeadersAndPages(t *testing.T) {
	const page = "https://shop.example"
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", page)
		w.Header().Set("Access-Control-Expose-Headers", "X-Total")
		w.Header().Set("X-RateLimit-Reset", "1")
		w.Header().Set("RateLimit", `"of the upstream";r=1`)
	}))
	defer upstream.Close()
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "a.yaml"),
		"domain: shop\nlimits: [{ name: api, per: [path], allow: 1/hour, algorithm: sliding_log }]\n")
	p := servertest.Start(t, "serve", "--proxy-upstream", upstream.URL, "--rules", dir, "--listen-proxy=127.0.0.1:0",
		"--headers=x-epoch,draft03", "--cors-origins="+page,
		"--client-ip-trusted-proxies=127.0.0.1")
	ask := func(address, path, origin string, headers ...string) *http.Response {
		t.Helper()
		r, err := http.NewRequest("GET", "http://"+address+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Origin", origin)
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		return resp
	}
	exposed := "Retry-After, Retry-After-Ms, X-Should-Retry, X-RateLimit-Soft, X-RateLimit-Warning, X-RateLimit-Decision, X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset, X-RateLimit-Retry-After, " +
		"RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, RateLimit-Policy"
	check := func(what string, resp *http.Response, status int, allowed string, lists ...string) {
		t.Helper()
		h := resp.Header
		reset, err := strconv.ParseInt(h.Get("X-RateLimit-Reset"), 10, 64)
		if in := reset - time.Now().Unix(); err != nil || in < 3500 || in > 3700 || len(h["X-Ratelimit-Reset"]) != 1 {
			t.Errorf("%s: the reset is at %q", what, h["X-Ratelimit-Reset"])
		}
		if resp.StatusCode != status || h.Get("RateLimit-Policy") != "1;w=3600" || h.Get("RateLimit-Limit") != "1" ||
			h.Get("RateLimit-Remaining") != "0" ||
			h.Get("Access-Control-Allow-Origin") != allowed ||
			!slices.Equal(h["Access-Control-Expose-Headers"], lists) ||
			(h.Get("Retry-After") != "") != (status != 200) {
			t.Errorf("%s: %d %v", what, resp.StatusCode, h)
		}
	}
	proxy := p.Addr("proxy")
	pass := ask(proxy, "/a", page)
	check("a pass", pass, 200, page, "X-Total", exposed)
	if got := pass.Header.Get("RateLimit"); got != `"of the upstream";r=1` {
		t.Errorf("a field of another family became %q", got)
	}
	check("a refusal", ask(proxy, "/a", page), 429, page, exposed)
	check("a pass to another page", ask(proxy, "/b", "https://evil.example"), 200, page, "X-Total")
	check("a refusal to another page", ask(proxy, "/b", "https://evil.example"), 429, "")

	http1 := p.Addr("http")
	original := []string{"X-Forwarded-Method", "GET", "X-Forwarded-Uri", "/c", "X-Forwarded-Host", "api.example",
		"X-Forwarded-For", "192.0.2.1"}
	if resp := ask(http1, "/api/v1/forward-auth/forwarded/shop", page, original...); resp.StatusCode != 200 {
		t.Errorf("forward auth: %d", resp.StatusCode)
	}
	check("a refusal of forward auth", ask(http1, "/api/v1/forward-auth/forwarded/shop", page, original...), 429, page,
		exposed)
	p.End()
}

// On the wire HTTP/1 has the names of fields as docs/reference/headers.md says, at each door that
// writes them.
func TestNamesOnTheWire(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "a.yaml"),
		"domain: shop\nlimits: [{ name: api, per: [path], allow: 1/hour, algorithm: sliding_log }]\n")
	p := servertest.Start(t, "serve", "--proxy-upstream", upstream.URL, "--rules", dir, "--listen-proxy=127.0.0.1:0",
		"--client-ip-trusted-proxies=127.0.0.1")
	for what, c := range map[string]struct{ address, request string }{
		"HTTP API":     {p.Addr("http"), "GET /api/v1/limit?path=/a HTTP/1.1\r\n"},
		"forward auth": {p.Addr("http"), "GET /api/v1/forward-auth HTTP/1.1\r\nX-Forwarded-Method: GET\r\nX-Forwarded-Uri: /b\r\nX-Forwarded-For: 192.0.2.1\r\n"},
		"proxy":        {p.Addr("proxy"), "GET /c HTTP/1.1\r\n"},
	} {
		for _, status := range []string{"200 OK", "429 Too Many Requests"} {
			conn, err := net.Dial("tcp", c.address)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, c.request+"Host: shop.example\r\nConnection: close\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			raw, err := io.ReadAll(conn)
			conn.Close()
			if err != nil || !strings.HasPrefix(string(raw), "HTTP/1.1 "+status+"\r\n") {
				t.Errorf("%s: %v %s", what, err, raw)
			}
			for _, name := range []string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset",
				"Ratelimit-Policy", "Ratelimit"} {
				if !strings.Contains(string(raw), "\r\n"+name+": ") {
					t.Errorf("%s: no %s in\n%s", what, name, raw)
				}
			}
		}
	}
	p.End()
}
