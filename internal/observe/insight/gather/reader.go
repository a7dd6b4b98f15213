package gather

import (
	"context"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
)

// view returns a View of this node alone.
func (c *Collector) view() *snapshot.View {
	return &snapshot.View{Ask: func(_ context.Context, want snapshot.Want) (*snapshot.Snapshot, insight.Nodes, error) {
		s := c.Snapshot(want)
		return s, insight.Nodes{Asked: 1, Answered: 1, Apart: snapshot.Apart([]*snapshot.Snapshot{s}, nil)}, nil
	}}
}

// Overview implements Reader.
func (c *Collector) Overview(ctx context.Context, domain string, over time.Duration) (*insight.Overview, error) {
	return c.view().Overview(ctx, domain, over)
}

// Rules implements Reader.
func (c *Collector) Rules(
	ctx context.Context, domain string, over time.Duration,
) ([]insight.RuleReport, insight.Nodes, error) {
	return c.view().Rules(ctx, domain, over)
}

// Rule implements Reader.
func (c *Collector) Rule(
	ctx context.Context, domain, rule string, over time.Duration,
) (*insight.RuleReport, insight.Nodes, error) {
	return c.view().Rule(ctx, domain, rule, over)
}

// Keys implements Reader.
func (c *Collector) Keys(ctx context.Context, q insight.KeysQuery) ([]insight.KeyCount, insight.Nodes, error) {
	return c.view().Keys(ctx, q)
}

// Key implements Reader.
func (c *Collector) Key(ctx context.Context, domain, key string) (*insight.KeyReport, insight.Nodes, error) {
	return c.view().Key(ctx, domain, key)
}

// Candidates implements insight.Reader.
func (c *Collector) Candidates(ctx context.Context, domain string) ([]insight.Candidate, insight.Nodes, error) {
	return c.view().Candidates(ctx, domain)
}
