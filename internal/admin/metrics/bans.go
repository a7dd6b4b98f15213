package metrics

import "github.com/prometheus/client_golang/prometheus"

var (
	descBans          = prometheus.NewDesc("weir_bans", "Bans in force on this node, by the limit whose keys they are.", []string{"domain", "rule", "limit"}, nil)
	descBansSet       = prometheus.NewDesc("weir_bans_set_total", "Bans that this node set, for denials or by hand.", nil, nil)
	descBanned        = prometheus.NewDesc("weir_banned_requests_total", "Requests that a ban refused; they are among the denied ones of weir_requests_total, and not of weir_decisions_total, which has them as banned.", []string{"domain"}, nil)
	descBansEvicted   = prometheus.NewDesc("weir_bans_evicted_total", "Bans that went before their end, since this node holds as many as it may.", nil, nil)
	descDenialsLost   = prometheus.NewDesc("weir_ban_denials_dropped_total", "Denials that were not counted towards a ban: too many keys waited to be counted, or the store failed.", nil, nil)
	descGrants        = prometheus.NewDesc("weir_grants", "Grants in force on this node.", nil, nil)
	descEntries       = prometheus.NewDesc("weir_nftables_entries", "Blocks of addresses whose packets the kernel drops.", nil, nil)
	descEntriesSpared = prometheus.NewDesc("weir_nftables_spared_total", "Addresses that a ban did not give to the kernel, since they are never banned there: trusted proxies, loopback, this machine's own.", nil, nil)
	descEntriesFailed = prometheus.NewDesc("weir_nftables_errors_total", "Addresses that the kernel did not take.", nil, nil)
)

var descsBans = []*prometheus.Desc{descBans, descBansSet, descBanned, descBansEvicted, descDenialsLost, descGrants, descEntries, descEntriesSpared, descEntriesFailed}

// collectBans sends the counts of bans.
func (o *Options) collectBans(ch chan<- prometheus.Metric) {
	counter, gauge := counterTo(ch), gaugeTo(ch)
	if o.Bans != nil {
		s := o.Bans()
		for limit, n := range s.InForce {
			gauge(descBans, float64(n), label(limit.Domain), label(limit.Name), label(limit.Name))
		}
		counter(descBansSet, s.Set)
		counter(descBansEvicted, s.Evicted)
		counter(descDenialsLost, s.Dropped)
		gauge(descGrants, float64(s.Grants))
	}
	if o.NFTables != nil {
		s := o.NFTables()
		gauge(descEntries, float64(s.Entries))
		counter(descEntriesSpared, s.Spared)
		counter(descEntriesFailed, s.Failed)
	}
}
