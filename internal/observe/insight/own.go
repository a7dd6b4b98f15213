package insight

import (
	"context"
	"time"
)

// view returns a View of this node alone.
func (c *Collector) view() *View {
	return &View{Ask: func(_ context.Context, want Want) (*Snapshot, Nodes, error) {
		return c.Snapshot(want), Nodes{Asked: 1, Answered: 1}, nil
	}}
}

// Overview implements Reader.
func (c *Collector) Overview(ctx context.Context, domain string, over time.Duration) (*Overview, error) {
	return c.view().Overview(ctx, domain, over)
}

// Rules implements Reader.
func (c *Collector) Rules(ctx context.Context, domain string, over time.Duration) ([]RuleReport, Nodes, error) {
	return c.view().Rules(ctx, domain, over)
}

// Rule implements Reader.
func (c *Collector) Rule(ctx context.Context, domain, rule string, over time.Duration) (*RuleReport, Nodes, error) {
	return c.view().Rule(ctx, domain, rule, over)
}

// Keys implements Reader.
func (c *Collector) Keys(ctx context.Context, q KeysQuery) ([]KeyCount, Nodes, error) {
	return c.view().Keys(ctx, q)
}

// Key implements Reader.
func (c *Collector) Key(ctx context.Context, domain, key string) (*KeyReport, Nodes, error) {
	return c.view().Key(ctx, domain, key)
}
