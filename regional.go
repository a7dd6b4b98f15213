package weir

import (
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// Numbers returns the Counter with an ID, which may be the Counter's own or its rule.Regions.All's,
// and the numbers of a key: those in force, with grants and elastic signals, and those that the
// rule or an override gives it. All are nil if no rule in force has such a Counter, or the key is
// not limited by it. It is for package store/regions, which hears of uses and borrows units by ID.
// Safe for concurrent use.
func (l *Limiter) Numbers(id uint64, key []byte) (c *rule.Counter, inForce, plain *algo.Limit) {
	w := l.windowOf(id, key)
	if w == nil || w.Limit == nil {
		return nil, nil, nil
	}
	inForce, _ = l.granted(w, key, l.orders.Now())
	return w.Counter, inForce, w.Limit
}
