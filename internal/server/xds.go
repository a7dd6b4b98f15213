package server

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/internal/admin/metrics"
	"github.com/weir-rl/weir/internal/rulesource/xds"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// openXDS loads the rules of a control plane. Where none have come, and a start does not need them,
// the set is empty, and the limiter waits for one.
func (p *program) openXDS(ctx context.Context) (*rule.Set, error) {
	follower, set, err := xds.Follow(ctx, xds.Options{
		Address: p.c.xds, Version: p.version, Rules: file.Options{IPv6Prefix: p.c.ipv6Prefix, Lend: p.c.rlqsDomains},
		Logger: p.log, Changed: p.rulesChanged, Looked: p.auditRules,
	})
	if err != nil {
		return nil, passing{err} // what the server holds changes without this configuration
	}
	p.rules, p.xds = follower, follower
	if set == nil {
		p.awaited = true
		set, _ = rule.Compile(nil, rule.Options{})
	}
	return set, nil
}

// awaitsRules says why this server decides nothing yet; "" if it does.
func (p *program) awaitsRules() string {
	if p.xds == nil || p.xds.Has() {
		return ""
	}
	return "no rules have come from " + p.c.xds.String() + " yet"
}

// xdsMetrics are the metrics of a control plane.
func (p *program) xdsMetrics() []prometheus.Collector {
	if p.xds == nil {
		return nil
	}
	return []prometheus.Collector{metrics.NewXDS(p.xds.Stats)}
}
