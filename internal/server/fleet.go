package server

import (
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/admin/fleet"
	"github.com/weir-rl/weir/internal/admin/metrics"
	"github.com/weir-rl/weir/internal/admin/nodes"
	"github.com/weir-rl/weir/internal/lab/preview"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/record"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// openPreview makes what records requests, unless insight.record is 0.
func (p *program) openPreview(context.Context) error {
	o := p.c.record
	if o.Bytes == 0 {
		return nil
	}
	o.Known = p.known()
	o.Hide = secretIdentities(p.c.identity)
	o.Clock = func() int64 { return p.storeNow().UnixMicro() }
	o.Fresh = p.c.store == storeMemory && p.c.memory.Snapshot == ""
	r, err := record.NewRecorder(o)
	if err != nil {
		return err
	}
	r.SetSeed(p.tally.Seed())
	p.recorder = r
	p.preview = preview.New(r, func() *rule.Set {
		set, _ := p.limiter.Rules()
		return set
	}, file.Options{IPv6Prefix: p.c.ipv6Prefix})
	p.preview.SetLint(p.c.LintOptions())
	p.preview.SetProcess([]string{preview.Command}, p.log)
	return nil
}

// openFleet makes the view of all nodes that share the store, or of this one alone if it shares
// none.
func (p *program) openFleet(context.Context) error {
	o := fleet.Options{
		Name: p.node.String(), Recent: p.recent, Insight: p.insight, State: p.nodeState, Logger: p.log,
		Bans:   func() []weir.Ban { return p.limiter.Bans().List() },
		Banned: admin.Banned(func() *weir.Limiter { return p.limiter }),
	}
	if p.storage.regions != nil {
		o.Regions = p.storage.readRegions
	}
	if p.outages != nil {
		o.Outages = p.outages.List
	}
	if p.recorder != nil {
		o.Seeded = p.recorder.SetSeed
	}
	if s := p.storage.redis; s != nil {
		var err error
		if p.nodes, err = nodes.New(nodes.Options{Client: s.Client, Prefix: p.c.redis.Prefix, Name: o.Name, Alive: s.Nodes, Logger: p.log}); err != nil {
			return err
		}
		o.Nodes = p.nodes
		if o.Board, err = fleet.NewRedisBoard(s.Client, p.c.redis.Prefix); err != nil {
			return err
		}
		o.Leads = func(ctx context.Context) bool {
			names, err := s.NodeNames(ctx)
			return err == nil && len(names) > 0 && slices.Min(names) == s.Name()
		}
	}
	p.fleet = fleet.New(o)
	switch s := p.storage.shared; {
	case p.preview == nil || s == nil:
	case p.nodes == nil:
		p.preview.SetOthers(record.Others{Nodes: s.Nodes})
	default:
		p.nodes.Handle(recordKind, p.recorder.Answer)
		p.preview.SetOthers(record.Others{Nodes: s.Nodes, Ask: p.askRecord})
	}
	return nil
}

// recordKind is the kind of the questions that previews of other nodes ask.
const recordKind = "record/1"

// askRecord asks the other nodes for a part of their records.
func (p *program) askRecord(ctx context.Context, question []byte,
	take func(node string, answer []byte) bool) insight.Nodes {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	t, err := p.nodes.AskOthers(ctx, recordKind, question, func(a nodes.Answer) {
		if take(a.Node, a.Data) {
			cancel(nodes.ErrEnough)
		}
	})
	if err != nil && t.Remark == "" {
		t.Remark = err.Error()
	}
	return insight.Nodes{Asked: max(t.Asked, 1), Answered: max(t.Answered, 1), Remark: t.Remark}
}

// record records requests until ctx ends.
func (p *program) record(ctx context.Context) {
	if p.recorder != nil {
		p.recorder.Run(ctx)
	}
}

// answerNodes answers other nodes until ctx ends.
func (p *program) answerNodes(ctx context.Context) {
	if p.nodes != nil {
		p.nodes.Listen(ctx)
	}
}

// runFleet gathers what all nodes know until ctx ends.
func (p *program) runFleet(ctx context.Context) { p.fleet.Run(ctx) }

// nodeMetrics are the metrics of how nodes answer each other, and of recorded requests.
func (p *program) nodeMetrics() []prometheus.Collector {
	var o metrics.NodesOptions
	if p.nodes != nil {
		o.Nodes, o.Unreadable = p.nodes.Stats, p.fleet.Unreadable
	}
	if p.recorder != nil {
		o.Record = p.recorder.Stats
	}
	return []prometheus.Collector{metrics.NewNodes(o)}
}

// nodeState is the state that this node publishes.
func (p *program) nodeState() insight.NodeState {
	set, generation := p.limiter.Rules()
	source := p.rules.Status()
	s := insight.NodeState{
		Version: p.version, Started: p.started.UTC(), Generation: generation, Digest: source.Digest, RulesVersion: source.Version, RulesSince: source.Loaded.UTC(), RulesBroken: source.Err != nil,
		Store: "memory",
	}
	if set != nil {
		s.Rules = len(set.Rules())
	}
	if p.storage.fallback != nil {
		state, _, _ := p.storage.fallback.State()
		s.Store, s.Breaker = kindOf(p.c.store).name, state.String()
		if fault := p.storage.lasting(); fault != nil {
			s.StoreFault = fault.Advice
		}
		s.StoreRemark = p.remark()
	}
	if p.insight == nil {
		return s
	}
	if o, err := p.insight.Overview(context.Background(), "", 10*time.Second); err == nil {
		s.PerSecond, s.P99 = o.PerSecond, o.P99
		if o.Requests > 0 {
			s.RefusedShare = float64(o.Refused) / float64(o.Requests)
		}
	}
	s.StoreErrors, s.Taken, s.Thinned, s.Memory = p.insight.StoreErrors(), p.insight.Taken(), p.insight.Thinned(),
		p.insight.Bytes()
	return s
}
