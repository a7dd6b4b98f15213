//go:build unix

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
)

// TestBansAtStart: a server that starts refuses banned keys from the first request on, at each
// door, however long it takes to read the bans; and it says so if it cannot read them.
func TestBansAtStart(t *testing.T) {
	before := setBoardPatience(patience.Left(t))
	t.Cleanup(func() { setBoardPatience(before) })
	redis := redistest.Start(t)
	between := redistest.Proxy(t, redis.Addr())
	const banned = 45
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	writeRules(t, rules, "domain: shop\nlimits: [{name: login, per: [ip], allow: 1000/min, ban: {after: 20, within: 10m, for: 15m, scope: domain}}]\n")
	first := startOn(t, redis.URL(), "--rules="+rules)
	admin := "http://" + first.addr("admin")
	for i := range banned {
		body := fmt.Sprintf(`{"domain": "shop", "limit": "login", "key": ["192.0.2.%d"], "for": "1h"}`, i)
		resp, err := http.Post(admin+"/api/v1/bans", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("a ban: %s", resp.Status)
		}
	}
	first.end()

	between.Delay(30 * time.Millisecond)
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	through := "redis://" + between.Addr()
	p := startOn(t, through, "--rules="+rules, "--listen-proxy=127.0.0.1:0", "--proxy-upstream="+upstream.URL, "--client-ip-trusted-proxies=127.0.0.1")
	doors := []func(ip string) bool{
		func(ip string) bool {
			status, _, _ := get(t, "http://"+p.addr("http")+"/api/v1/limit?domain=shop&ip="+ip)
			return status == http.StatusOK
		},
		func(ip string) bool {
			r, err := http.NewRequest(http.MethodGet, "http://"+p.addr("proxy")+"/", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("X-Forwarded-For", ip)
			resp, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			return resp.StatusCode == http.StatusOK
		},
		func(ip string) bool {
			return strings.HasPrefix(redisCLI(t, p.addr("resp"), "WEIR.LIMIT", "shop", "1", "ip", ip), "1")
		},
	}
	passed := 0
	for i := range banned {
		if doors[i%len(doors)](fmt.Sprintf("192.0.2.%d", i)) {
			passed++
		}
	}
	if passed > 0 {
		t.Errorf("%d of %d first requests of banned keys passed", passed, banned)
	}
	for i, door := range doors {
		if !door("198.51.100.1") {
			t.Errorf("door %d refuses who is not banned", i)
		}
	}
	p.end()

	// With the store away the doors open all the same, and it is said.
	setBoardPatience(100 * time.Millisecond)
	between.Refuse()
	p = startServer(t, "serve", "--store="+through, "--rules="+rules)
	n := nodeOf(t, p.stderr, p.addr)
	p.stderr.await(t, "bans and grants could not be read: banned keys pass until the store answers")
	if status, body := n.readyz(); status != http.StatusOK || !strings.Contains(body, "bans and grants have not been read yet") {
		t.Errorf("%d %s", status, body)
	}
	between.Pass()
	p.stderr.await(t, "bans and grants have been read")
	if status := n.ask("domain=shop&ip=192.0.2.1"); status == http.StatusOK {
		t.Error("a banned key passes after the bans have been read")
	}
	n.awaitBack()
	p.end()
}
