package doors

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// attacks are what a web page makes the browser of this machine send to the decision API.
var attacks = []struct {
	name, method, path, body string
	headers                  []string
	want                     int
	by                       string
}{
	{"an image", "GET", "/api/v1/limit?user=ada", "", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "image", "Sec-Fetch-Mode", "no-cors"}, 403, "sec_fetch_site"},
	{"a window that is opened", "GET", "/api/v1/limit?user=ada", "", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Dest", "document", "Sec-Fetch-Mode", "navigate"}, 403, "sec_fetch_site"},
	{"a page on another port", "GET", "/api/v1/limit?user=ada", "", []string{"Sec-Fetch-Site", "same-site"}, 403, "sec_fetch_site"},
	{"a form of text", "POST", "/api/v1/limit", `{"attributes":{"user":"ada","x":"="}}`, []string{"Content-Type", "text/plain"}, 415, "content_type"},
	{"a form of text in UTF-8", "POST", "/api/v1/limit", `{"attributes":{"user":"ada","x":"="}}`, []string{"Content-Type", "Text/Plain ;charset=UTF-8"}, 415, "content_type"},
	{"a script", "POST", "/api/v1/limit", `{"attributes":{"user":"ada"}}`, []string{"Origin", "https://evil.example"}, 403, "origin"},
	{"a script of a sandboxed page", "POST", "/api/v1/limit", `{"attributes":{"user":"ada"}}`, []string{"Origin", "null"}, 403, "origin"},
	{"a script that reads", "GET", "/api/v1/limit?user=ada", "", []string{"Origin", "http://localhost:3000"}, 403, "origin"},
	{"DNS rebinding", "GET", "/api/v1/limit?user=ada", "", []string{"Host", "evil.example:8080"}, 403, "host"},
	{"DNS rebinding, of the same origin", "POST", "/api/v1/limit", `{"attributes":{"user":"ada"}}`, []string{"Host", "evil.example", "Origin", "http://evil.example", "Content-Type", "application/json"}, 403, "host"},
	{"a batch", "POST", "/api/v1/limit/batch", `{"requests":[{"attributes":{"user":"ada"}}]}`, []string{"Origin", "https://evil.example", "Content-Type", "text/plain"}, 403, "origin"},
	{"a reservation", "POST", "/api/v1/reserve", `{"attributes":{"user":"ada"},"timeout":60}`, []string{"Content-Type", "text/plain"}, 415, "content_type"},
	{"Envoy's protocol", "POST", "/json", `{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"ada"}]}]}`, []string{"Origin", "https://evil.example"}, 403, "origin"},
}

// TestPages: no web page that a browser of this machine shows uses up a limit at the decision API,
// while programs, listed proxies that pass on what browsers sent, and forward auth go on.
func TestPages(t *testing.T) {
	t.Parallel()
	tokens := servertest.RulesFile(t, "sesame role=operator\nviewer-token role=viewer\n")
	p := servertest.Start(t, "serve", "--rules="+servertest.RulesFile(t, servertest.Hourly),
		"--auth-tokens-file="+tokens, "--admin-hosts=weir.internal")
	base := "http://" + p.Addr("http")
	client := servertest.ClientOf(t, false, nil, nil)
	for _, a := range attacks {
		if status, body := servertest.Ask(t, client, a.method, base+a.path, a.body, a.headers...); status != a.want {
			t.Errorf("%s: %d %s, want %d", a.name, status, body, a.want)
		}
	}
	refused := map[string]int{}
	for _, a := range attacks {
		refused[a.by]++
	}
	_, _, metrics := servertest.Get(t, "http://"+p.Addr("admin")+"/metrics")
	for by, n := range refused {
		if want := fmt.Sprintf("weir_page_requests_refused_total{by=%q} %d\n", by, n); !strings.Contains(metrics,
			want) {
			t.Errorf("%q is not in the metrics:\n%s", want, metrics)
		}
	}
	if n := strings.Count(p.Stderr.String(), "requests of web pages are refused"); n != 1 {
		t.Errorf("that is told %d times:\n%s", n, p.Stderr)
	}
	// Nothing was used up by all that. The last of these is refused by the limit.
	for i, c := range []struct {
		host    string
		headers []string
		want    int
	}{
		{"", nil, 200},
		{"weir.internal:8080", []string{"Content-Type", "application/json"}, 200},
		{"LOCALHOST.", []string{"Content-Type", "application/x-www-form-urlencoded"}, 429},
		{"", []string{"Sec-Fetch-Site", "same-origin"}, 429},
		{"evil.example", []string{"Origin", "https://evil.example", "Content-Type", "text/plain", "Authorization", "Bearer sesame"}, 429},
		{"", []string{"Origin", "https://evil.example", "Authorization", "Bearer viewer-token"}, 403},
		{"", []string{"Origin", "https://evil.example", "Authorization", "Bearer wrong"}, 403},
	} {
		if status, body := servertest.Ask(t, client, "POST", base+"/api/v1/limit", `{"attributes":{"user":"ada"}}`, append([]string{"Host", c.host}, c.headers...)...); status != c.want {
			t.Errorf("program %d: %d %s, want %d", i, status, body, c.want)
		}
	}
	for _, path := range []string{"/healthcheck", "/api/v1/openapi.yaml"} {
		if status, body := servertest.Ask(t, client, "GET", base+path, "", "Sec-Fetch-Site", "cross-site", "Origin", "https://evil.example"); status != 200 {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	p.End()

	p = servertest.Start(t, "serve", "--rules="+servertest.RulesFile(t, servertest.Hourly),
		"--client-ip-trusted-proxies=loopback")
	base = "http://" + p.Addr("http")
	for _, a := range attacks[:4] {
		if status, body := servertest.Ask(t, client, a.method, base+a.path, a.body, a.headers...); status != 200 &&
			status != 429 {
			t.Errorf("%s, passed on by a listed proxy: %d %s", a.name, status, body)
		}
	}
	check := []string{"X-Forwarded-Method", "POST", "X-Forwarded-Uri", "/", "X-Forwarded-Host", "shop.example",
		"X-Forwarded-For", "192.0.2.7", "Host", "shop.example", "Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site", "Content-Type", "text/plain"}
	if status, body := servertest.Ask(t, client, "GET", base+"/api/v1/forward-auth", "", check...); status != http.StatusOK {
		t.Errorf("forward auth: %d %s", status, body)
	}
	p.End()

	// On a network a server has names that are not known here.
	p = servertest.Start(t, "serve", "--rules="+servertest.RulesFile(t, servertest.Hourly), "--listen-http=0.0.0.0:0")
	address := p.Addr("http")
	port := address[strings.LastIndexByte(address, ':')+1:]
	if status, body := servertest.Ask(t, client, "GET", "http://127.0.0.1:"+port+"/api/v1/limit?user=ada", "", "Host", "weir.shop.svc.cluster.local"); status != 200 {
		t.Errorf("on all addresses, by a name: %d %s", status, body)
	}
	if status, body := servertest.Ask(t, client, "GET", "http://127.0.0.1:"+port+"/api/v1/limit?user=ada", "", "Host", "evil.example", "Origin", "http://other.example"); status != 403 {
		t.Errorf("on all addresses, from a page: %d %s", status, body)
	}
	p.End()
}
