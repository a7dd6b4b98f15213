package main

import (
	"fmt"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/admin/metrics"
	"github.com/weir-rl/weir/internal/door/auth"
	"github.com/weir-rl/weir/internal/util/sparselog"
	"github.com/weir-rl/weir/internal/wire/h2"
	"github.com/weir-rl/weir/internal/wire/listen"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/cas"
	"github.com/weir-rl/weir/store/postgres"
)

// newMetrics makes the metrics of the parts behind the limiter. They exist before the limiter, so
// they read it only later.
func (p *program) newMetrics() *metrics.Metrics {
	o := metrics.Options{
		Tally:    p.tally,
		Rules:    p.rules.Status,
		Memory:   p.storage.local.Stats,
		Bans:     func() weir.BanStats { return p.limiter.Bans().Stats() },
		NFTables: p.firewall.stats,
		Detailed: p.c.detailed,
		UnknownDomain: func(domain string) {
			p.log.Warn("requests come in for a domain that no rule file declares; they are allowed", "domain", sparselog.Excerpt(domain))
		},
		TooCostly: func(r *rule.Rule) {
			if n := p.costly.Due(time.Minute); n > 0 {
				p.log.Warn("a request was refused, since expressions of rules take too long on it", "rule", r.Name, "at", fmt.Sprintf("%s:%d", r.Pos.File, r.Pos.Line), "since_last_line", n)
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
	return metrics.New(o)
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

// collect adds the metrics of load, queues and doors.
func (p *program) collect() {
	load := metrics.LoadOptions{Limiter: p.limiter, Signals: p.signals, List: p.signals.List}
	if p.overload != nil {
		load.Overload = p.overload.Stats
	}
	queues := metrics.QueueOptions{Reservations: p.limiter.Reservations().Stats}
	if p.proxy != nil {
		queues.Held, queues.Abandoned, queues.Upstream = p.proxy.Held, p.proxy.Abandoned, p.proxy.Upstream
		queues.Bodies = func() (slow, stalled, crowded, unread uint64) {
			s := p.proxy.Stats()
			return s.SlowBodies, s.StalledBodies, s.CrowdedBodies, s.UnreadAnswers
		}
		queues.Resent = func() uint64 { return p.proxy.Stats().SentAgain }
		if p.deferred != nil {
			queues.Deferred, queues.Worker = p.deferred.Stats, p.proxy.Deferred
		}
	}
	doors := metrics.DoorOptions{Doors: p.connectionStats, Memory: p.memoryStats, Line: p.line.Stats}
	if p.tokens != nil {
		doors.Tokens = func() (wrong, tooMany uint64) { s := p.tokens.Stats(); return s.Wrong, s.TooMany }
	}
	if p.pages != nil {
		doors.Pages = func() map[string]uint64 {
			refused := map[string]uint64{}
			for reason, n := range p.pages.Stats().Refused {
				refused[auth.PageReason(reason).String()] = n
			}
			return refused
		}
	}
	if p.certificates != nil {
		doors.Certificates = p.certificates.Status
	}
	if p.insight != nil {
		p.metrics.Registry().MustRegister(metrics.NewInsight(p.insightMetrics()))
	}
	asked := metrics.NodesOptions{}
	if p.nodes != nil {
		asked.Nodes, asked.Unreadable = p.nodes.Stats, p.fleet.Unreadable
	}
	if p.recorder != nil {
		asked.Record = p.recorder.Stats
	}
	p.metrics.Registry().MustRegister(metrics.NewNodes(asked))
	exports := metrics.ExportOptions{}
	if p.decisions != nil {
		exports.DecisionsDropped = p.decisions.Dropped
	}
	if p.otel != nil {
		exports.Failed, exports.Dropped = p.otel.Failed, p.otel.Dropped
	}
	p.metrics.Registry().MustRegister(metrics.NewExports(exports))
	if p.quota != nil {
		p.metrics.Registry().MustRegister(metrics.NewRLQS(p.quota.Stats))
	}
	p.metrics.Registry().MustRegister(metrics.NewFields(p.fieldMetrics()), metrics.NewLoad(load), metrics.NewQueues(queues), metrics.NewDoors(doors))
}

// memoryStats reads what HTTP/2 takes at each door that bounds it.
func (p *program) memoryStats() map[string]h2.MemoryStats {
	out := map[string]h2.MemoryStats{}
	for _, d := range p.doors {
		if d.memory != nil {
			out[d.name] = d.memory()
		}
	}
	return out
}

// connectionStats reads the connections of each door; nothing before the doors are open.
func (p *program) connectionStats() map[string]listen.Stats {
	if !p.opened.Load() {
		return nil
	}
	out := map[string]listen.Stats{}
	for _, d := range p.doors {
		out[d.name] = d.listener.Stats()
	}
	return out
}
