package metrics

import (
	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/host/nftables"
)

// banRows are metrics of the limiter's bans and grants. weir_banned_requests_total is counted with
// decisions.
var banRows = []row[weir.BanStats]{
	gauges("weir_bans", "domain rule limit", "Bans in force on this node, by the limit whose keys they are.",
		func(s weir.BanStats, v value) {
			for limit, n := range s.InForce {
				v(float64(n), label(limit.Domain), label(limit.Name), label(limit.Name))
			}
		}),
	counter("weir_bans_set_total", "Bans that this node set, for denials or by hand.",
		func(s weir.BanStats) uint64 { return s.Set }),
	counter("weir_bans_evicted_total", "Bans that went before their end, since this node holds as many as it may.",
		func(s weir.BanStats) uint64 { return s.Evicted }),
	counter("weir_ban_denials_dropped_total",
		"Denials that were not counted towards a ban: too many keys waited to be counted, or the store failed.",
		func(s weir.BanStats) uint64 { return s.Dropped }),
	gauge("weir_grants", "Grants in force on this node.", func(s weir.BanStats) int { return s.Grants }),
}

// kernelRows are metrics of the bans that the kernel holds.
var kernelRows = []row[nftables.Stats]{
	gauge("weir_nftables_entries", "Blocks of addresses whose packets the kernel drops.",
		func(s nftables.Stats) int { return s.Entries }),
	counter("weir_nftables_spared_total",
		"Addresses that a ban did not give to the kernel, since they are never banned there: trusted proxies, loopback, this machine's own.",
		func(s nftables.Stats) uint64 { return s.Spared }),
	counter("weir_nftables_errors_total", "Addresses that the kernel did not take.",
		func(s nftables.Stats) uint64 { return s.Failed }),
}
