package fallback

import (
	"sync"
	"sync/atomic"

	"github.com/weir-rl/weir/algo"
)

// maxShares bounds the number of limits whose share is cached. A server has one for each rule;
// requests with limits of their own may bring more.
const maxShares = 10_000

// shares are a node's shares of limits, derived once for each limit.
type shares struct {
	nodes  int64
	limits sync.Map // *algo.Limit → *algo.Limit
	nones  sync.Map // the same, see none
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

// none returns a limit that keeps the states of l and refuses every charge with a cost.
func (t *shares) none(l *algo.Limit) *algo.Limit {
	if d, ok := t.nones.Load(l); ok {
		return d.(*algo.Limit)
	}
	d, had := t.nones.LoadOrStore(l, deriveBy(l, nothing))
	if !had {
		t.n.Add(1)
	}
	return d.(*algo.Limit)
}

// nothing is a limit of 0.
func nothing(l *algo.Limit) *algo.Limit {
	c := l.Config()
	c.N, c.Soft, c.SoftFor = 0, 0, 0
	if c.Burst != 0 {
		c.Burst = algo.NoBurst
	}
	if d, err := algo.New(c); err == nil {
		return d
	}
	return l
}

// ShareOf returns the limit that is one of n equal shares of l: ceil(N / n), and burst alike, of
// each limit of a schedule.
func ShareOf(l *algo.Limit, n int64) *algo.Limit { return derive(l, n) }

// derive returns the limit that is one of nodes equal shares of l, rounded up: of each limit of a
// schedule. A soft margin that rounds to nothing does not close.
func derive(l *algo.Limit, nodes int64) *algo.Limit {
	up := func(n int64) int64 { return ceil(n, nodes) }
	return deriveBy(l, func(l *algo.Limit) *algo.Limit {
		if d, err := l.Resize(up, up); err == nil {
			return d
		}
		return l
	})
}

// deriveBy changes a limit, or each limit of its schedule.
func deriveBy(l *algo.Limit, change func(*algo.Limit) *algo.Limit) *algo.Limit {
	d, err := l.Each(func(l *algo.Limit) (*algo.Limit, error) { return change(l), nil })
	// the limits of a schedule must agree in ways that do not depend on their numbers
	if err != nil {
		return l
	}
	return d
}

func ceil(a, b int64) int64 {
	q := a / b
	if a%b > 0 {
		q++
	}
	return q
}
