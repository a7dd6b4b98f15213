//go:build unix

package server_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/server"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestBansAtStart: a server that starts refuses banned keys from the first request on, at each
// door, however long it takes to read the bans; and it says so if it cannot read them.
func TestBansAtStart(t *testing.T) {
	before := server.SetBoardPatience(patience.Left(t))
	t.Cleanup(func() { server.SetBoardPatience(before) })
	redis := redistest.Start(t)
	between := redistest.Proxy(t, redis.Addr())
	const banned = 45
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	servertest.WriteRules(t, rules,
		"domain: shop\nlimits: [{name: login, per: [ip], allow: 1000/min, ban: {after: 20, within: 10m, for: 15m, scope: domain}}]\n")
	first := servertest.StartOn(t, redis.URL(), "--rules="+rules)
	admin := "http://" + first.Addr("admin")
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
	first.End()

	between.Delay(30 * time.Millisecond)
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer upstream.Close()
	through := "redis://" + between.Addr()
	p := servertest.StartOn(t, through, "--rules="+rules, "--listen-proxy=127.0.0.1:0",
		"--proxy-upstream="+upstream.URL, "--client-ip-trusted-proxies=127.0.0.1")
	doors := []func(ip string) bool{
		func(ip string) bool {
			status, _, _ := servertest.Get(t, "http://"+p.Addr("http")+"/api/v1/limit?domain=shop&ip="+ip)
			return status == http.StatusOK
		},
		func(ip string) bool {
			r, err := http.NewRequest(http.MethodGet, "http://"+p.Addr("proxy")+"/", nil)
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
			return strings.HasPrefix(servertest.RedisCLI(t, p.Addr("resp"), "WEIR.LIMIT", "shop", "1", "ip", ip), "1")
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
	p.End()

	// With the store away the doors open all the same, and it is said.
	server.SetBoardPatience(100 * time.Millisecond)
	between.Refuse()
	p = servertest.Start(t, "serve", "--store="+through, "--rules="+rules)
	n := servertest.NodeOf(t, p.Stderr, p.Addr)
	p.Stderr.Await(t, "bans and grants could not be read: banned keys pass until the store answers")
	if status, body := n.Readyz(); status != http.StatusOK ||
		!strings.Contains(body, "bans and grants have not been read yet") {
		t.Errorf("%d %s", status, body)
	}
	between.Pass()
	p.Stderr.Await(t, "bans and grants have been read")
	if status := n.Ask("domain=shop&ip=192.0.2.1"); status == http.StatusOK {
		t.Error("a banned key passes after the bans have been read")
	}
	n.AwaitBack()
	p.End()
}
