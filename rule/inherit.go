package rule

import (
	"cmp"
	"slices"

	"github.com/weir-rl/weir/algo"
)

// maxPrevious bounds Counter.Previous.
const maxPrevious = 4

// lineage identifies Counters that may carry on each other's state.
type lineage struct {
	domain, identity string
	algorithm        algo.Algorithm
}

func (c *Counter) lineage() lineage { return lineage{c.Domain, c.identity, c.Limit.Algorithm()} }

// Inherit makes s carry on the counters of old, which it is about to replace. Call it once, before
// s is used.
//
// A Counter that both sets have keeps its state. If a rule's windows changed, old and new ones of
// the same algorithm are paired from the shortest up, and each new one takes over its partner's
// state.
func (s *Set) Inherit(old *Set) {
	if old == nil {
		return
	}
	oldByID := make(map[uint64]*Counter, len(old.counters))
	for _, c := range old.counters {
		oldByID[c.ID] = c
	}
	alive := make(map[uint64]bool, len(s.counters)) // these keep their states to themselves
	for _, c := range s.counters {
		alive[c.ID] = true
	}
	kept := make(map[uint64]bool, len(s.counters))
	appeared := map[lineage][]*Counter{}
	for _, c := range s.counters {
		if before := oldByID[c.ID]; before != nil {
			kept[c.ID] = true
			c.Previous = slices.DeleteFunc(slices.Clone(before.Previous), func(p *Counter) bool { return alive[p.ID] })
		} else {
			appeared[c.lineage()] = append(appeared[c.lineage()], c)
		}
	}
	s.inheritBans(old)
	defer s.inheritBesides()
	if len(appeared) == 0 {
		return
	}
	vanished := map[lineage][]*Counter{}
	for _, c := range old.counters {
		if l := c.lineage(); !kept[c.ID] && appeared[l] != nil {
			vanished[l] = append(vanished[l], c)
		}
	}
	for l, gone := range vanished {
		come := appeared[l]
		slices.SortStableFunc(gone, byWindow)
		slices.SortStableFunc(come, byWindow)
		for i := range min(len(gone), len(come)) {
			come[i].Previous = previous(gone[i], alive)
		}
	}
}

func byWindow(a, b *Counter) int {
	return cmp.Compare(a.Limit.Config().Window, b.Limit.Config().Window)
}

// previous returns old and the counters that old carried on, without those that are alive again.
// They are copies that do not keep their own predecessors in memory.
func previous(old *Counter, alive map[uint64]bool) []*Counter {
	out := []*Counter{old.alone()}
	for _, p := range old.Previous {
		if !alive[p.ID] && len(out) < maxPrevious {
			out = append(out, p)
		}
	}
	return out
}

// alone returns a copy of c without its predecessors.
func (c *Counter) alone() *Counter {
	last := *c
	last.Previous = nil
	if last.Margin != nil {
		last.Margin = last.Margin.alone()
	}
	if last.Lease != nil {
		last.Lease = last.Lease.alone()
	}
	if all := last.all(); all != nil {
		regions := *last.Regions
		regions.All = all.alone()
		last.Regions = &regions
	}
	return &last
}

// inheritBesides makes the records beside the states of Counters, and the states of all regions'
// use, carry on their predecessors'.
func (s *Set) inheritBesides() {
	for _, c := range s.counters {
		all := c.all()
		for _, p := range c.Previous {
			c.inheritBeside(p)
			if before := p.all(); all != nil && before != nil {
				all.Previous = append(all.Previous, before)
				all.inheritBeside(before)
			}
		}
	}
}

func (c *Counter) inheritBeside(p *Counter) {
	if c.Margin != nil && p.Margin != nil {
		c.Margin.Previous = append(c.Margin.Previous, p.Margin)
	}
	if c.Lease != nil && p.Lease != nil {
		c.Lease.Previous = append(c.Lease.Previous, p.Lease)
	}
}

// inheritBans makes bans whose `within` changed keep the denials that were counted.
func (s *Set) inheritBans(old *Set) {
	before := map[lineage]*Counter{}
	for _, d := range old.domains {
		for _, r := range d.banning {
			if c := r.Ban.Counter; c != nil {
				before[c.lineage()] = c
			}
		}
	}
	for _, d := range s.domains {
		for _, r := range d.banning {
			c := r.Ban.Counter
			if c == nil {
				continue
			}
			switch last := before[c.lineage()]; {
			case last == nil:
			case last.ID == c.ID:
				c.Previous = last.Previous
			default:
				c.Previous = previous(last, map[uint64]bool{c.ID: true})
			}
		}
	}
}
