package server

import (
	"fmt"
	"strconv"

	"github.com/weir-rl/weir/internal/door/rlqs"
	"github.com/weir-rl/weir/internal/leasing/broker"
	"github.com/weir-rl/weir/internal/server/settings"
)

// quotaSettings are the settings of the door for Envoy's filter rate_limit_quota.
var quotaSettings = []setting{
	{Path: "rlqs.domains", Kind: settings.List,
		Help: "domains whose limits lend a tenth of themselves to Envoys, where they say nothing of leases; the same on all nodes",
		Set:  func(c *Config, items []string) error { c.rlqsDomains = items; return nil }},
	{Path: "rlqs.first", Value: strconv.FormatInt(broker.Defaults().First, 10),
		Help: "requests that a new bucket may let through before its demand is known",
		Set: settings.Text(func(c *Config, s string) error {
			n, err := strconv.ParseInt(s, 10, 64)
			if err != nil || n < broker.MinFirst || n > broker.MaxFirst {
				return fmt.Errorf("%q must be a number from %d to %d", s, broker.MinFirst, broker.MaxFirst)
			}
			c.rlqs.Settings.First = n
			return nil
		})},
}

// quotaConfig is the configuration of quotas for Envoys.
type quotaConfig struct {
	rlqs        rlqs.Options
	rlqsDomains []string // domains whose limits lend where they say nothing of leases
}

// newQuota makes the door for Envoy's filter rate_limit_quota, which the gRPC port serves.
func (p *program) newQuota() *rlqs.Service {
	o := p.c.rlqs
	o.Logger, o.Signals = p.log, p.signalsVersion
	if p.storage.redis != nil { // behind the fallback, which the door asks where Redis does not answer
		o.Lender = p.storage.redis
	}
	if g := p.storage.regions; g != nil {
		o.Lender, o.Expand = g.Lender(p.storage.redis), g.Expand
	}
	return rlqs.New(p.limiter, p.metrics.Store(p.tracedStore(p.storage.Store)), o)
}

// signalsVersion changes when a signal does that a rule uses.
func (p *program) signalsVersion() (v uint64) {
	set, _ := p.limiter.Rules()
	if set == nil {
		return 0
	}
	for _, name := range signalsOf(set) {
		value, ok := p.signals.Signal(name)
		if v = v*1_000_003 + uint64(value)<<1; ok {
			v++
		}
	}
	return v
}
