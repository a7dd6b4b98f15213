package cassandra

import (
	"context"
	"time"

	"github.com/weir-rl/weir/store/internal/census"
)

// allNodes is the partition of all nodes' heartbeats.
const allNodes = "weir"

// sendBeats sends heartbeats until the engine is closed, and then says that this node leaves.
func (e *engine) sendBeats(c *connection) {
	census.Run(e.ctx, e.o.Heartbeat, &e.nodes, func() (int64, bool) { return e.beat(e.ctx, c) })
	ctx, cancel := context.WithTimeout(context.Background(), e.o.Timeout)
	defer cancel()
	_ = c.session.Query(c.leave, allNodes, e.name).Consistency(e.target.quorum).ExecContext(ctx) // or it expires
}

// beat says that this node is alive, and asks how many are.
func (e *engine) beat(ctx context.Context, c *connection) (nodes int64, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, e.o.Timeout)
	defer cancel()
	life := int((census.Missed*e.o.Heartbeat + time.Second - 1) / time.Second)
	if err := c.session.Query(c.beat, life, allNodes, e.name).Consistency(e.target.quorum).ExecContext(ctx); err != nil {
		return 0, false
	}
	err := c.session.Query(c.countNodes, allNodes).Consistency(e.target.quorum).ScanContext(ctx, &nodes)
	return nodes, err == nil
}
