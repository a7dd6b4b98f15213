package doors

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestAPIKeys: a limit by apikey holds for a key wherever its clients put it, through the proxy and
// forward auth, and what lets them in is nowhere to be found: not in Redis, in no list, on no page.
func TestAPIKeys(t *testing.T) {
	t.Parallel()
	const secret = "sk-live-0123456789abcdefghij"
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(upstream.Close)
	for _, c := range []struct {
		source string
		kept   bool // the secret, as it is
	}{{"apikey", false}, {"hash:header:Authorization", false}, {"header:Authorization", true}} {
		t.Run(c.source, func(t *testing.T) {
			t.Parallel()
			redis := redistest.Start(t)
			args := append([]string{"serve", "--rules=" + servertest.RulesFile(t, `domain: shop
limits:
  - { name: own, per: [client], allow: 3/year, ban: { after: 1, within: 1h, for: 1h } }
`), "--store=" + redis.URL(), "--identity=client=" + c.source, "--client-ip-trusted-proxies=loopback", "--proxy-upstream=" + upstream.URL, "--listen-proxy=127.0.0.1:0"}, servertest.Patient...)
			p := servertest.Start(t, args...)
			proxy, forward, admin := "http://"+p.Addr("proxy"), "http://"+p.Addr("http")+"/api/v1/forward-auth",
				"http://"+p.Addr("admin")
			client := servertest.ClientOf(t, false, nil, nil)
			send := func(path string, headers ...string) int {
				t.Helper()
				status, body := servertest.Ask(t, client, "GET", proxy+path, "", headers...)
				if status != 200 && status != 429 {
					t.Errorf("%s %v: %d %s", path, headers, status, body)
				}
				return status
			}
			if send("/", "Authorization", "Bearer "+secret) != 200 {
				t.Error("the first request was refused")
			}
			if c.source == "apikey" {
				for _, header := range []string{"X-Api-Key", "Api-Key"} {
					if send("/", header, secret) != 200 {
						t.Errorf("one in %s was refused", header)
					}
				}
				for _, header := range []string{"X-Api-Key", "Apikey", "X-Goog-Api-Key"} {
					if send("/", header, secret) != 429 {
						t.Errorf("one too many in %s passed", header)
					}
				}
				if send("/v1/models?key="+secret) != 429 || send("/v1/models?key=other") != 200 {
					t.Error("in the query")
				}
				asks := []string{"X-Forwarded-Host", "shop.example", "X-Forwarded-Method", "GET", "X-Forwarded-Uri",
					"/v1/models?key=" + secret}
				if status, body := servertest.Ask(t, client, "GET", forward, "", asks...); status != 429 {
					t.Errorf("forward auth: %d %s", status, body)
				}
			} else {
				for range 2 {
					send("/", "Authorization", "Bearer "+secret)
				}
			}
			if send("/", "Authorization", "Bearer "+secret) != 429 {
				t.Error("one too many passed")
			}
			var all strings.Builder
			for _, page := range []string{"/api/v1/keys?limit=own", "/api/v1/keys", "/api/v1/bans", "/api/v1/decisions",
				"/api/v1/overview", "/api/v1/limits", "/metrics"} {
				_, body := servertest.Ask(t, client, "GET", admin+page, "")
				all.WriteString(body)
			}
			if status, out, errs := servertest.RunBuilt(t, "keys", "list", "own", "--server="+admin); status == 0 {
				all.WriteString(out + errs)
			}
			all.WriteString(p.Stderr.String())
			stored := 0
			for _, key := range redis.Do("KEYS", "*").([]any) {
				fmt.Fprintf(&all, "%s %s\n", key, redis.Do("DUMP", fmt.Sprint(key)))
				stored++
			}
			if found := strings.Contains(all.String(), secret); found != c.kept || stored == 0 {
				t.Errorf("the key is shown or stored: %v, among %d keys in Redis", found, stored)
			}
			if warned := strings.Contains(p.Stderr.String(), "[kept-secret]"); warned != c.kept {
				t.Errorf("warned of: %v\n%s", warned, p.Stderr)
			}
			p.End()
		})
	}
}
