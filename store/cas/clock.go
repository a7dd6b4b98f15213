package cas

import (
	"sync"
	"sync/atomic"
	"time"
)

// clock estimates the engine's clock from its replies. Safe for concurrent use.
//
// The engine read its clock before a reply came. So that clock is ahead of this node's monotonic
// one by at least the difference of the two, and the largest difference of the last replies is the
// best estimate: never later than the engine's clock, if both go at the same pace, and as much
// earlier as the fastest reply took on its way back.
type clock struct {
	offset atomic.Int64 // the estimate: engine's clock minus monotonic, µs
	known  atomic.Bool
	last   atomic.Int64 // last instant that was given out

	mu     sync.Mutex
	before int64 // largest difference of the term before
	now    int64 // of this term
	turn   int64 // when this term ends, by the monotonic clock, ns
}

// clockTerm is how long a difference is remembered at least. Two clocks that go at different paces
// come apart by some 1 ms in that time.
const clockTerm = 10 * time.Second

// note notes a reply of the engine's clock to a call, and when that was sent and answered, by the
// monotonic clock, in ns.
func (c *clock) note(reply, sent, answered int64) {
	ahead := reply - answered/1000
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.known.Load(), c.offset.Load()+sent/1000-reply > MaxSkew: // the engine's clock was set back
		c.before, c.now, c.turn = ahead, ahead, answered+int64(clockTerm)
		c.last.Store(0)
	case answered >= c.turn:
		c.before, c.now, c.turn = c.now, ahead, answered+int64(clockTerm)
	default:
		c.now = max(c.now, ahead)
	}
	c.offset.Store(max(c.before, c.now))
	c.known.Store(true)
}

// at returns the engine's clock as it is estimated to be at an instant of the monotonic one.
func (c *clock) at(monotonic int64) int64 { return c.offset.Load() + monotonic/1000 }

// instant returns the instant of a decision that is made now: the estimate, but no earlier than the
// one before, as long as these are near to each other, and no earlier than least.
func (c *clock) instant(monotonic, least int64) int64 {
	for {
		last := c.last.Load()
		at := c.at(monotonic)
		if least > at && least-at < MaxSkew {
			at = least
		}
		if last > at && last-at < MaxSkew {
			at = last
		}
		if c.last.CompareAndSwap(last, at) {
			return at
		}
	}
}
