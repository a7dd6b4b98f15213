package server

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/admin/metrics"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/internal/rulesource"
	"github.com/weir-rl/weir/internal/util/sparselog"
	"github.com/weir-rl/weir/internal/util/suggest"
	"github.com/weir-rl/weir/internal/wire/listen"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/cas"
	"github.com/weir-rl/weir/store/postgres"
)

// openMetrics makes the metrics of the parts behind the limiter. They exist before the limiter, so
// they read it only later.
func (p *program) openMetrics(context.Context) error {
	p.tally = observe.NewTally()
	o := metrics.Options{
		Node:     p.node,
		Tally:    p.tally,
		Rules:    p.rulesStatus,
		Memory:   p.storage.local.Stats,
		Bans:     func() weir.BanStats { return p.limiter.Bans().Stats() },
		NFTables: p.firewall.stats,
		Detailed: p.c.detailed,
		UnknownDomain: func(domain string) {
			near := ""
			if set, _ := p.limiter.Rules(); set != nil {
				near = suggest.Nearest(domain, set.Domains())
			}
			p.log.Warn("requests come in for a domain that no rule file declares"+suggest.DidYouMean(near)+
				"; they are "+p.verdictOnUnknown(), "domain", sparselog.Excerpt(domain))
		},
		TooCostly: func(r *rule.Rule) {
			if n := p.costly.Due(time.Minute); n > 0 {
				p.log.Warn("a request was refused, since expressions of rules take too long on it", "rule", r.Name,
					"at", fmt.Sprintf("%s:%d", r.Pos.File, r.Pos.Line), "since_last_line", n)
			}
		},
	}
	if s := p.storage; s.shared != nil {
		o.Fallback = s.fallback
		if s.redis != nil {
			o.Redis = s.redis.Stats
		} else {
			o.Database = databaseOf(s.shared)
		}
		if s.leases != nil {
			o.Leases = s.leases.Stats
		}
		if s.regions != nil {
			o.Regions = s.regions.Stats
		}
	}
	for door, address := range map[string]string{
		"http": p.c.listen.http, "rls": p.c.listen.grpc, "resp": p.c.listen.resp, "proxy": p.c.listen.proxy, "spoe": p.c.listen.spoe,
	} {
		if address != "" {
			o.Doors = append(o.Doors, door)
		}
	}
	p.metrics = metrics.New(o)
	if p.c.inPlace {
		p.rateLimit = metrics.NewRateLimit(p.metrics, p.ruleLoads)
	}
	return nil
}

// rulesStatus is the status of the rules for metrics. The versions of a control plane count up
// whenever anything changes there, and each of its processes has its own: as labels they would make
// series without end, that say nothing.
func (p *program) rulesStatus() rulesource.Status {
	s := p.rules.Status()
	if p.xds != nil {
		s.Version = ""
	}
	return s
}

// ruleLoads is how often rules were taken over, and how often they could not be, counted as
// envoyproxy/ratelimit does: rules that are as before were taken over, too.
func (p *program) ruleLoads() (good, failed uint64) {
	if p.xds != nil {
		s := p.xds.Stats()
		return s.Changed + s.Same, s.Refused
	}
	s := p.rules.Status()
	return s.Loads, s.Failures
}

// addMetricsDoor makes the door of the metrics alone, for whoever collects them and is to do
// nothing else.
func (p *program) addMetricsDoor() {
	h := p.metrics.Handler()
	if p.rateLimit != nil {
		h = p.rateLimit.Handler()
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", h)
	p.doors = append(p.doors, p.newHTTPDoor("metrics", p.c.listen.metrics,
		listen.NewHTTPServer(mux, listen.HTTPOptions{Logger: p.log})))
}

// databaseOf returns what reads a store in a database.
func databaseOf(s sharedStore) func() metrics.Database {
	switch s := s.(type) {
	case *postgres.Store:
		return func() metrics.Database {
			of := s.Stats()
			return metrics.Database{Stats: of.Stats, Nodes: of.Nodes, Swept: of.Swept}
		}
	case interface{ Stats() cas.Stats }:
		nodes := s.(sharedStore).Nodes
		return func() metrics.Database { return metrics.Database{Stats: s.Stats(), Nodes: nodes()} }
	}
	return nil
}
