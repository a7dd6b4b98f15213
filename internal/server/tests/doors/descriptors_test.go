package doors

import (
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

const messagingRules = `
domain: messaging
descriptors:
  - key: message_type
    value: marketing
    rate_limit: { unit: day, requests_per_unit: 5, algorithm: sliding_log, count_denied: true }
  - key: remote_address
    rate_limit: { unit: day, requests_per_unit: 12, algorithm: sliding_log, count_denied: true }
`

// Rules of the Lyft form hold at each door: five marketing messages a day are five, wherever they
// are asked for.
func TestDescriptorsAtEachDoor(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "messaging.yaml"), messagingRules)
	p := servertest.Start(t, "serve", "--rules="+dir, "--listen-proxy=127.0.0.1:0", "--proxy-upstream="+upstream.URL,
		"--identity=message_type=header:X-Message-Type", "--client-ip-trusted-proxies=127.0.0.0/8")
	api := "http://" + p.Addr("http")
	ask := func(url string, headers ...string) *http.Response {
		t.Helper()
		r, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(headers); i += 2 {
			r.Header.Set(headers[i], headers[i+1])
		}
		answer, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		return answer
	}
	const query = "/api/v1/limit?domain=messaging&message_type=marketing"
	proxied := func() *http.Response {
		return ask("http://"+p.Addr("proxy")+"/", "X-Message-Type", "marketing", "X-Forwarded-For", "192.0.2.1")
	}
	forwarded := func() *http.Response {
		return ask(api+"/api/v1/forward-auth/forwarded", "X-Forwarded-Method", "GET", "X-Forwarded-Uri", "/",
			"X-Message-Type", "marketing",
			"X-Forwarded-For", "192.0.2.1")
	}
	for i, c := range []struct {
		answer *http.Response
		left   string
	}{{ask(api + query), "4"}, {proxied(), "3"}, {forwarded(), "2"}, {ask(api + query), "1"}, {proxied(), "0"}} {
		if c.answer.StatusCode != 200 || c.answer.Header.Get("X-RateLimit-Remaining") != c.left {
			t.Errorf("request %d: %s, %s left, want %s", i+1, c.answer.Status,
				c.answer.Header.Get("X-RateLimit-Remaining"), c.left)
		}
	}
	for name, answer := range map[string]*http.Response{"API": ask(api + query), "proxy": proxied(),
		"forward auth": forwarded()} {
		if answer.StatusCode != 429 || answer.Header.Get("Retry-After") == "" {
			t.Errorf("%s: %s", name, answer.Status)
		}
	}
	// The address counts as remote_address: five of twelve are used, with the refused ones.
	if got := ask("http://"+p.Addr("proxy")+"/", "X-Forwarded-For", "192.0.2.1").Header.Get("X-RateLimit-Remaining"); got != "6" {
		t.Errorf("%s left for the address, want 6", got)
	}
	if strings.Contains(p.Stderr.String(), "can meet") {
		t.Errorf("a rule is said to be out of reach:\n%s", p.Stderr)
	}
	p.End()
}

// What forward auth cannot meet is said when it is asked for the first time.
func TestForwardAuthTellsOfDescriptors(t *testing.T) {
	dir := t.TempDir()
	servertest.WriteRules(t, filepath.Join(dir, "messaging.yaml"),
		strings.ReplaceAll(messagingRules, "remote_address", "tenant"))
	p := servertest.Start(t, "serve", "--rules="+dir, "--client-ip-trusted-proxies=127.0.0.0/8")
	for range 3 {
		r, _ := http.NewRequest(http.MethodGet, "http://"+p.Addr("http")+"/api/v1/forward-auth", nil)
		r.Header.Set("X-Forwarded-Method", "GET")
		r.Header.Set("X-Forwarded-Uri", "/")
		r.Header.Set("X-Forwarded-For", "192.0.2.1")
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != 200 {
			t.Fatal(answer.Status)
		}
	}
	p.End()
	const want = "no check in domain messaging can meet message_type_marketing (no message_type), tenant (no tenant)"
	if n := strings.Count(p.Stderr.String(), want); n != 1 {
		t.Errorf("said %d times, want once:\n%s", n, p.Stderr)
	}
}
