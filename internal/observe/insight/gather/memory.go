package gather

import (
	"unsafe"

	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
)

// Options.Memory bounds the memory. It is divided among the rules that were met: the more there
// are, the less is kept of each. A rule that was never met takes only its gate.

// keptSize is how much is kept of a rule.
type keptSize struct {
	all, refused int  // keys in the samples
	top          int  // counters in the lists of top keys
	lean         bool // no counts by the second, and an hour only of counts by the minute
}

// keptSizes are the sizes to choose from, for a few rules first and for many last.
var keptSizes = [...]keptSize{
	{all: snapshot.MostKeys, refused: snapshot.MostRefused, top: snapshot.MostTop},
	{all: 384, refused: 192, top: 64},
	{all: 256, refused: 128, top: 64},
	{all: 128, refused: 64, top: 32},
	{all: 64, refused: 32, top: 16, lean: true},
	{all: 32, refused: 16, top: 8, lean: true},
	{all: 24, refused: 12, top: 8, lean: true},
}

// cost returns the most memory that a rule with so many limits takes in that size.
func (z keptSize) cost(windows int) int64 {
	key := int64(unsafe.Sizeof(sampledKey{})) + int64(max(windows, 1))*int64(unsafe.Sizeof(snapshot.Demand{})) + 4*2
	traced := key + int64(unsafe.Sizeof(keyTrace{})) + keyText
	n := snapshot.Eras * (int64(z.all)*key + int64(z.refused)*traced)
	n += 2 * snapshot.TopKinds * int64(z.top) * topBytes
	n += newSeriesSize(z.lean) + int64(minutesOf(z.lean))*int64(unsafe.Sizeof(minuteState{}))
	return n + filterBytes(z.all+z.refused)
}

// topBytes is the most memory that a counter in a list of top keys takes.
const topBytes = int64(unsafe.Sizeof(topKey{})) + 8 + keyText

// filterBytes returns the memory of a filter with so many keys.
func filterBytes(keys int) int64 {
	slots := 64
	for slots < 4*keys+16 {
		slots *= 2
	}
	return int64(slots) * 4
}

// bare returns the memory of a rule that is not followed: its counters.
func (s *ruleState) bare() int64 {
	return int64(len(s.gate.cells))*int64(unsafe.Sizeof(gateCell{})) + filterBytes(0) + int64(unsafe.Sizeof(*s)) + s.own.bytes() + s.trial.bytes()
}

// fixedBytes returns the memory that cannot be shared out: rings, domains, and what each rule takes
// without being followed.
func (c *Collector) fixedBytes() (n int64) {
	n = int64(len(c.rings)) * ringSlots * int64(unsafe.Sizeof(ringSlot{}))
	for _, d := range c.domains {
		n += d.series.bytes()
	}
	for _, s := range c.rules {
		n += s.bare()
	}
	for _, s := range c.alike {
		n += int64(unsafe.Sizeof(*s)) + s.bytes()
	}
	return n
}

// resize divides the memory among the rules that were met. mu is held.
func (c *Collector) resize() {
	left := c.o.Memory - c.fixedBytes()
	to := keptSizes[len(keptSizes)-1]
	for _, z := range keptSizes {
		sum := int64(0)
		for _, s := range c.rules {
			if s.series != nil {
				sum += z.cost(s.windows)
			}
		}
		if sum <= left {
			to = z
			break
		}
	}
	c.size = to
	for _, s := range c.rules {
		if s.series == nil {
			continue
		}
		if left -= to.cost(s.windows); left < 0 {
			s.unfollow()
			continue
		}
		s.resize(to)
	}
	c.left = left
}

// follow begins to follow a rule that is met for the first time, if there is room. mu is held.
//
// It looks at the other rules only if they have to become smaller: with 100,000 rules, looking at
// all of them for each rule took minutes.
func (c *Collector) follow(s *ruleState) {
	if s.series != nil || s.unfollowed {
		return
	}
	cost := c.size.cost(s.windows)
	if c.left < cost && c.size == keptSizes[len(keptSizes)-1] {
		s.unfollow()
		return
	}
	s.series = newSeries(c.size.lean)
	s.minutes = make([]minuteState, minutesOf(c.size.lean))
	if c.left < cost {
		c.resize()
		return
	}
	c.left -= cost
	s.resize(c.size)
}

// unfollow leaves a rule with its counters alone, since there is no room for more.
func (s *ruleState) unfollow() {
	s.unfollowed = true
	s.series, s.minutes = nil, nil
	s.eras = [snapshot.Eras]eraFigures{}
	s.live, s.long = [snapshot.TopKinds]topList{}, [snapshot.TopKinds]topList{}
	if s.trial != nil {
		s.trial.top = topList{}
	}
	s.gate.below.Store(0)
	s.gate.beyond.Store(0)
	s.gate.belowAll.Store(0)
	s.gate.belowRefused.Store(0)
	s.gate.filter.Store(newFilter(64))
}

// bytes returns the most memory that may be in use.
func (c *Collector) bytes() int64 {
	n := c.fixedBytes()
	for _, s := range c.rules {
		if s.series != nil {
			n += s.size.cost(s.windows)
		}
	}
	return n
}
