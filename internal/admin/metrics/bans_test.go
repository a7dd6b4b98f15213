package metrics

import (
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/host/nftables"
	"github.com/weir-rl/weir/rule"
)

func TestBans(t *testing.T) {
	m := New(Options{
		Bans: func() weir.BanStats {
			return weir.BanStats{
				InForce: map[weir.RuleName]int{{Domain: "shop", Name: "login"}: 2, {Domain: "shop", Name: "a\xff"}: 1},
				Grants:  3, Set: 4, Requests: 5, Evicted: 6, Dropped: 7,
			}
		},
		NFTables: func() nftables.Stats { return nftables.Stats{Entries: 8, Spared: 9, Failed: 10} },
	})
	same(t, counts(t, m, "weir_ban"),
		"_denials_dropped_total 7",
		"s_evicted_total 6",
		"s_set_total 4",
		"s{domain=\"shop\",limit=\"a\uFFFD\",rule=\"a\uFFFD\"} 1",
		`s{domain="shop",limit="login",rule="login"} 2`,
	)
	same(t, counts(t, m, "weir_grants"), " 3")
	same(t, counts(t, m, "weir_nftables"), "_entries 8", "_errors_total 10", "_spared_total 9")
	same(t, counts(t, New(Options{}), "weir_ban"))
}

// TestBannedApart: what a ban refuses is denied, and counted by domain, but is no denial of the
// limit whose ban it is: that has not been asked.
func TestBannedApart(t *testing.T) {
	m := New(Options{})
	l := limiter(t, m,
		"domain: shop\nlimits: [{ name: login, per: [ip], allow: [3/min, 9/hour], algorithm: sliding_log, ban: { after: 2, within: 1m, for: 1h } }]\n", "domain: calm\nlimits: [{ name: login, allow: 3/min }]\n")
	if _, err := l.Bans().Set(t.Context(), "shop", "login", []string{"192.0.2.1"}, time.Now().Add(time.Hour), "test"); err != nil {
		t.Fatal(err)
	}
	for range 4 {
		decide(t, l, "shop", 1, rule.Map{"ip": "192.0.2.1"})
	}
	for range 4 { // one is denied by the limit itself
		decide(t, l, "shop", 1, rule.Map{"ip": "192.0.2.2"})
	}
	same(t, counts(t, m, "weir_requests_total"), `{domain="shop",door="",outcome="allowed"} 3`,
		`{domain="shop",door="",outcome="denied"} 5`)
	same(t, counts(t, m, "weir_banned_requests_total"), `{domain="shop"} 4`)
	if n := scrape(t, m)[`weir_banned_requests_total{domain="calm"}`]; n != "0" {
		t.Errorf("a domain without bans: %q; a difference with what was denied would be empty", n)
	}
	same(t, counts(t, m, "weir_decisions_total"),
		`{domain="shop",limit="login:60s",outcome="allowed",rule="login"} 2`, `{domain="shop",limit="login:60s",outcome="near_limit",rule="login"} 1`,
		`{domain="shop",limit="login:60s",outcome="denied",rule="login"} 1`, `{domain="shop",limit="login:60s",outcome="banned",rule="login"} 4`,
		`{domain="shop",limit="login:3600s",outcome="allowed",rule="login"} 4`)
}
