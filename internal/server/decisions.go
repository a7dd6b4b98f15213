package server

import (
	"context"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/internal/admin/metrics"
	"github.com/weir-rl/weir/internal/observe/decisionlog"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/server/settings"
)

// decisionSettings is the section decisions.
var decisionSettings = []setting{
	{Path: "decisions.log",
		Help: "where decisions are written to, a line of JSON each: stdout, or a file, which SIGHUP opens anew",
		Set:  settings.String(func(c *Config) *string { return &c.decisions.Path })},
	{Path: "decisions.outcomes", Value: "denied,shadow_denied", Kind: settings.List,
		Help: "which ones: denied, shadow_denied, soft, near_limit",
		Set: func(c *Config, items []string) (err error) {
			c.decisions.Outcomes, err = recent.ParseOutcome(items)
			return err
		}},
	{Path: "decisions.per_second", Value: "100",
		Help: "bound on the lines of a second; those beyond are counted, not written",
		Set:  settings.Int(1, 1_000_000, func(c *Config) *int { return &c.decisions.PerSecond })},
	{Path: "decisions.allowed", Value: "0%",
		Help: "share of the ordinary admitted decisions that are written too",
		Set: settings.Text(func(c *Config, s string) (err error) {
			c.decisions.Allowed, err = parseShare(s)
			return err
		})},
}

// decisionConfig is the configuration of the decision log.
type decisionConfig struct {
	decisions decisionlog.Options
}

// openDecisions opens the decision log, if there is one.
func (p *program) openDecisions(context.Context) (err error) {
	o := p.c.decisions
	if o.Path == "" {
		return nil
	}
	if o.Path == "stdout" {
		o.Path, o.Out = "", p.stdout
	}
	o.Node, o.Entries, o.Logger = p.nodeLabel(), p.recent, p.log
	if p.decisions, err = decisionlog.Open(o); err != nil {
		return fmt.Errorf("decisions.log: %w", err)
	}
	return nil
}

// writeDecisions writes the decision log until ctx ends.
func (p *program) writeDecisions(ctx context.Context) {
	if p.decisions != nil {
		p.decisions.Run(ctx)
	}
}

func (p *program) reopenDecisions() {
	if p.decisions != nil {
		p.decisions.Reopen()
	}
}

// exportMetrics are the metrics of the decision log, and of exports to a collector.
func (p *program) exportMetrics() []prometheus.Collector {
	var o metrics.ExportOptions
	if p.decisions != nil {
		o.DecisionsDropped = p.decisions.Dropped
	}
	if p.otel != nil {
		o.Failed, o.Dropped = p.otel.Failed, p.otel.Dropped
	}
	return []prometheus.Collector{metrics.NewExports(o)}
}
