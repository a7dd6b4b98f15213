package fallback

import (
	"sync"
	"sync/atomic"

	"github.com/weir-rl/weir/algo"
)

// maxShares bounds the limits whose share is kept. A server has as many as its rules; requests may bring more.
const maxShares = 10_000

// shares are a node's shares of limits, derived once for each limit.
type shares struct {
	nodes  int64
	limits sync.Map // *algo.Limit → *algo.Limit
	n      atomic.Int64
}

// sharesNow returns the shares for the number of nodes in force.
func (s *Store) sharesNow() *shares {
	nodes, t := int64(s.Share()), s.shares.Load()
	if t.nodes == nodes && t.n.Load() < maxShares {
		return t
	}
	next := &shares{nodes: nodes}
	s.shares.CompareAndSwap(t, next)
	return next
}

// of returns the share of l.
func (t *shares) of(l *algo.Limit) *algo.Limit {
	if t.nodes == 1 {
		return l
	}
	if d, ok := t.limits.Load(l); ok {
		return d.(*algo.Limit)
	}
	d, had := t.limits.LoadOrStore(l, derive(l, t.nodes))
	if !had {
		t.n.Add(1)
	}
	return d.(*algo.Limit)
}

// derive returns the limit that is one of nodes equal shares of l, rounded up.
func derive(l *algo.Limit, nodes int64) *algo.Limit {
	c := l.Config()
	c.N = ceil(c.N, nodes)
	if c.Burst > 0 {
		c.Burst = ceil(c.Burst, nodes)
	}
	for {
		d, err := algo.New(c)
		if err == nil {
			return d
		}
		// With fewer factors in common, N and an odd window may need larger numbers than a bucket of this size has
		// room for. A smaller one has.
		if c.Burst <= 1 {
			return l
		}
		c.Burst /= 2
	}
}

func ceil(a, b int64) int64 {
	q := a / b
	if a%b > 0 {
		q++
	}
	return q
}
