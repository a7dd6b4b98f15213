// Package census sends the heartbeats of a node to a shared database, and smooths the number of
// nodes that it reports. Begin with Run.
package census

import (
	"context"
	"sync/atomic"
	"time"
)

// Missed is after how many intervals without a heartbeat a node counts as gone.
const Missed = 5

// Run calls beat, which sends a heartbeat and reports how many nodes are alive, in each interval
// until ctx ends, and keeps the number to believe in live.
func Run(ctx context.Context, interval time.Duration, live *atomic.Int64, beat func() (nodes int64, ok bool)) {
	// At first more often: nodes are often started together, and each has to learn of all.
	var c census
	for wait := interval / 16; ; wait = min(2*wait, interval) {
		if n, ok := beat(); ok {
			live.Store(c.believe(live.Load(), n))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// census smooths the number of nodes that are reported. A database that was away has missed
// heartbeats, and at first counts only the nodes that were quickest to send one. A smaller number
// than before is therefore believed only after it has been reported for as long as a node may be
// silent. The zero value is ready; it is for one goroutine.
type census struct {
	fewer   int   // answers in a row with fewer nodes
	largest int64 // the largest of them
}

// believe returns the number to believe after before was, and another one is reported.
func (c *census) believe(before, reported int64) int64 {
	if reported < before {
		c.fewer, c.largest = c.fewer+1, max(c.largest, reported)
		if c.fewer <= Missed {
			return before
		}
		reported = c.largest
	}
	*c = census{}
	return reported
}
