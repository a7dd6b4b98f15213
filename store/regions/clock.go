package regions

import (
	"sync/atomic"

	"github.com/weir-rl/weir/store"
)

// clock estimates the store's clock from the instants of decisions. The zero value knows nothing
// yet. Safe for concurrent use.
type clock struct {
	offset atomic.Int64 // the store's clock less the monotonic one, in µs; 0: nothing is known
}

// noticedSkew is how far off the clock may be, in µs: it is written no more often than that
// requires.
const noticedSkew = 10_000

// notice takes down an instant of the store's clock, which has just come.
func (c *clock) notice(now int64) {
	is := now - store.Monotonic()/1000
	if was := c.offset.Load(); was == 0 || is > was+noticedSkew || is < was-noticedSkew {
		c.offset.Store(is)
	}
}

// now returns an instant, in µs; 0 if nothing is known.
func (c *clock) now() int64 {
	if offset := c.offset.Load(); offset != 0 {
		return offset + store.Monotonic()/1000
	}
	return 0
}
