package telemetry

import (
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/nftables"
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
		"ned_requests_total 5",
		"s_evicted_total 6",
		"s_total 4",
		"s{domain=\"shop\",limit=\"a\uFFFD\"} 1",
		`s{domain="shop",limit="login"} 2`,
	)
	same(t, counts(t, m, "weir_grants"), " 3")
	same(t, counts(t, m, "weir_nftables"), "_entries 8", "_errors_total 10", "_spared_total 9")
	same(t, counts(t, New(Options{}), "weir_ban"))
}
