package memory

import (
	"sync/atomic"
	"time"
)

// resyncAfter is how long the wall clock is carried on by the monotonic one before it is read
// again. A step of the wall clock is followed within this time.
const resyncAfter = int64(500 * time.Millisecond)

// wallClock reads the wall clock at about half the price of time.Now: it reads the monotonic clock
// only, and adds the distance between the two, which it measures again at intervals.
type wallClock struct {
	base   time.Time
	offset atomic.Int64 // wall clock at base, in ns since the Unix epoch
	synced atomic.Int64 // when offset was measured, in ns since base
}

func (c *wallClock) init() {
	c.base = time.Now()
	c.resync()
}

// now returns µs since the Unix epoch.
func (c *wallClock) now() int64 {
	elapsed := int64(time.Since(c.base))
	if elapsed-c.synced.Load() > resyncAfter {
		return c.resync()
	}
	return (c.offset.Load() + elapsed) / 1000
}

// resync measures the offset. Several callers may do so at once: each gets a true reading.
func (c *wallClock) resync() int64 {
	t := time.Now()
	elapsed := int64(t.Sub(c.base))
	c.offset.Store(t.UnixNano() - elapsed)
	c.synced.Store(elapsed)
	return t.UnixMicro()
}
