package gather

import (
	"unsafe"

	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/internal/observe/insight/series"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
)

// Options.Memory bounds the memory. It is divided among the rules that were met: the more there
// are, the less is kept of each. A rule that nobody met takes a few words.

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
	n += series.Size(z.lean) + int64(series.Minutes(z.lean))*int64(unsafe.Sizeof(series.Minute{}))
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

// bareBytes is the memory of a rule that nobody met, beside its limits, and countsBytes what its
// counts take once somebody has, beside the cells of its gate. The counts of requests that meet one
// limit alone are not among them: all watchers share these.
const (
	bareBytes   = int64(unsafe.Sizeof(ruleState{}) + unsafe.Sizeof(gate{}) + 3*unsafe.Sizeof(uintptr(0)))
	countsBytes = int64(unsafe.Sizeof(ruleCounts{}))
	limitBytes  = int64(unsafe.Sizeof(aloneCount{}) + unsafe.Sizeof(limitRef{}) + 4*unsafe.Sizeof(uintptr(0)))
	domainBytes = int64(unsafe.Sizeof(domainState{})+unsafe.Sizeof(domainGate{})) + 64
)

// fixedBytes returns the memory that cannot be shared out: rings, domains, and what each rule takes
// without being followed.
func (c *Collector) fixedBytes() (n int64) {
	n = int64(len(c.rings)) * ringSlots * int64(unsafe.Sizeof(ringSlot{}))
	n += int64(len(c.domains))*domainBytes + c.inDomains
	for _, s := range c.rules {
		n += bareBytes + int64(s.windows)*limitBytes
		if s.trial != nil {
			n += int64(unsafe.Sizeof(trial{}))
		}
	}
	for _, s := range c.counted {
		n += countsBytes + s.own.bytes()
		if s.hasCells {
			n += s.gate.bytes()
		}
	}
	for _, s := range c.alike {
		n += int64(unsafe.Sizeof(*s)) + s.bytes()
	}
	return n + int64(len(c.kins))*int64(unsafe.Sizeof(kin{}))
}

// cost returns the most memory that following the rule takes.
func (s *ruleState) cost(z keptSize) int64 {
	n := z.cost(s.windows)
	if s.trial != nil && s.trial.Enforce > 0 {
		n += int64(z.top) * topBytes
	}
	return n
}

// widen lets gates have many cells for as long as these take a quarter of the memory. mu is held.
func (c *Collector) widen() {
	each := int64(observe.Cells()) * int64(unsafe.Sizeof(gateCell{}))
	n := c.o.Memory / 4 / each
	for _, s := range c.counted {
		if s.gate.bytes() == each {
			n--
		}
	}
	c.wide.Store(n)
}

// resize divides the memory among the rules that are followed. mu is held.
func (c *Collector) resize() {
	left := c.o.Memory - c.fixedBytes()
	to := keptSizes[len(keptSizes)-1]
	for _, z := range keptSizes {
		sum := int64(0)
		for _, s := range c.counted {
			if s.series != nil {
				sum += s.cost(z)
			}
		}
		if sum <= left {
			to = z
			break
		}
	}
	c.size = to
	for _, s := range c.counted {
		if s.series == nil {
			continue
		}
		if left < s.cost(to) {
			s.unfollow()
			continue
		}
		left -= s.cost(to)
		s.resize(to)
	}
	c.left, c.short = left, min(left, 0)
}

// follow begins to follow a rule that is met for the first time, if there is room. mu is held.
//
// It looks at the other rules only if they have to become smaller: with 100,000 rules, looking at
// all of them for each rule took minutes.
func (c *Collector) follow(s *ruleState) {
	if s.series != nil || s.unfollowed {
		return
	}
	c.beginCounts(s)
	cost := s.cost(c.size)
	if c.left < cost && c.size == keptSizes[len(keptSizes)-1] {
		s.unfollow()
		return
	}
	s.ruleFigures = &ruleFigures{series: series.New(c.size.lean), minutes: make([]series.Minute, series.Minutes(c.size.lean))}
	if c.left < cost {
		c.resize()
		return
	}
	c.left -= cost
	s.resize(c.size)
}

// unfollow leaves a rule with its counters alone, since there is no room for more.
func (s *ruleState) unfollow() {
	s.unfollowed, s.ruleFigures = true, &notFollowed
	if s.trial != nil {
		s.trial.top = topList{}
	}
	s.gate.below.Store(0)
	s.gate.beyond.Store(0)
	s.gate.belowAll.Store(0)
	s.gate.belowRefused.Store(0)
	s.gate.filter.Store(noKeys)
}

// followDomain begins to follow a domain that was asked for the first time. All domains together
// take half of the memory at most: beyond an eighth they are lean, and beyond the half only their
// total is known.
func (c *Collector) followDomain(d *domainState) {
	if d.series != &series.Nothing {
		return
	}
	lean := c.inDomains+series.Size(false) > c.o.Memory/8
	if c.inDomains+series.Size(lean) > c.o.Memory/2 {
		return
	}
	d.series = series.New(lean)
	c.inDomains += d.series.Bytes()
	c.left -= d.series.Bytes()
}
