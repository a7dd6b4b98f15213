package lease

import "time"

// guard watches this node's clock: units are used until a deadline by a clock that stands still
// while the machine is suspended, and does not know of a migration. So it is compared with others.
type guard struct {
	clocks func() []int64 // ns, of clocks that go on; nil: none are watched
	last   []int64        // their distances from this node's clock, when they were read last
	looked int64          // when, by this node's clock
}

const (
	// how far clocks may run apart between two readings
	mostApart = int64(50 * time.Millisecond)
	// after a longer time without a look, leases that were long over count as dropped by a pause
	longPause = int64(time.Second)
)

func (g *guard) start() {
	if g.clocks == nil {
		g.clocks = otherClocks
	}
}

// look compares the clocks. gap reports that units held must not be used any more; paused that this
// process did not run for some time.
func (g *guard) look(at int64) (gap, paused bool) {
	if g.clocks == nil {
		return false, false
	}
	paused = g.looked != 0 && at-g.looked > longPause
	g.looked = at
	now := g.clocks()
	for i := range now {
		d := now[i] - at
		if i == len(g.last) {
			g.last = append(g.last, d)
		}
		if apart := d - g.last[i]; apart > mostApart || apart < -mostApart {
			gap = true
		}
		g.last[i] = d
	}
	return gap, paused
}

// wall is the clock on the wall.
func wall() int64 { return time.Now().UnixNano() }
