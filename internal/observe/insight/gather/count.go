package gather

import (
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
)

// notice finds out which rules were asked. mu is held.
func (c *Collector) notice() {
	c.askedGates.take(func(g *gate) {
		if s := c.numbers[g.number]; s != nil {
			c.ask(s)
		}
	})
}

// ask notes that something is to be learned of a rule.
func (c *Collector) ask(s *ruleState) {
	s.fresh = true
	c.read(s)
}

// read has the counters of a rule read from now on. They are read until a judgement learns nothing
// new: a decision calls the hook a little before it counts.
func (c *Collector) read(s *ruleState) {
	if s.isAsked {
		return
	}
	s.isAsked = true
	c.asked = append(c.asked, s)
	c.beginCounts(s)
}

// beginCounts gives a rule counts of its own.
func (c *Collector) beginCounts(s *ruleState) {
	if s.isCounted() {
		return
	}
	s.ruleCounts = &ruleCounts{ownFailing: failureSource{failureCounter: &s.gate.failing}}
	if s.kin != nil {
		s.verdicts = s.kin.of(s)
		s.kin.unmet--
	}
	c.counted = append(c.counted, s)
	c.left -= countsBytes
}

// count reads the counters of the rules that were asked, up to an instant. mu is held.
func (c *Collector) count(unix int64) {
	c.notice()
	for _, d := range c.domains {
		n := d.gate.read()
		d.fresh, d.last = snapshot.Bucket{snapshot.LaneMet: n - d.last}, n
	}
	c.left -= c.countFailures(unix)
	for _, s := range c.asked {
		x := s.newCounts()
		if x == (gateCounts{}) {
			continue
		}
		if !s.hasCells && s.gate.cells.Load() != nil {
			s.hasCells = true
			c.left -= s.gate.bytes()
		}
		s.fresh = true
		if s.trial != nil {
			s.trial.count(&x)
		}
		b := ruleBucket(&x)
		if c.follow(s); s.series != nil {
			s.series.Add(unix, &b)
		}
		for i := range b {
			s.total[i] += uint64(b[i])
		}
		if d := s.domainState; d != nil {
			db := domainBucket(&x)
			d.fresh.Add(&db)
		}
	}
	for _, d := range c.domains {
		d.series.Advance(unix)
		if d.fresh != (snapshot.Bucket{}) {
			c.followDomain(d)
			d.series.Add(unix, &d.fresh)
			d.total += uint64(d.fresh[snapshot.LaneMet] - d.fresh[snapshot.LaneBanned])
		}
	}
	if c.left < 0 && c.left < c.short {
		c.resize()
	}
	if n := c.storeErrors.Load(); n != c.lastErrs {
		c.errors.Add(unix, n-c.lastErrs)
		c.lastErrs = n
	}
	if n := c.unknown.n.Load(); n != c.lastUnknown {
		c.unknowns.Add(unix, n-c.lastUnknown)
		c.lastUnknown = n
	}
	c.second = unix
	c.noteSaturation(unix)
}

// ruleBucket returns the counts of a rule.
func ruleBucket(x *gateCounts) (b snapshot.Bucket) {
	for at := range role(roles) {
		n := x.of(at)
		for o, v := range n {
			if outcome(o) != outcomeBanned {
				b[snapshot.LaneMet] += v
			}
		}
		b[snapshot.LaneRefused] += n[outcomeAlone] + n[outcomeShared]
		b[snapshot.LaneAlone] += n[outcomeAlone]
		b[snapshot.LaneNear] += n[outcomeNear]
		b[snapshot.LaneSoft] += n[outcomeSoft]
		b[snapshot.LaneBanned] += n[outcomeBanned]
		b[snapshot.LaneWould] += n[outcomeWould] + n[outcomeWouldToo]
	}
	return b
}

// domainBucket returns the counts for a domain of the requests that met a rule first.
func domainBucket(x *gateCounts) (b snapshot.Bucket) {
	for _, at := range [...]role{roleFirst, roleFirstNear} {
		n := x.of(at)
		for i, v := range n {
			o := outcome(i)
			b[snapshot.LaneMet] += v
			if at == roleFirstNear {
				b[snapshot.LaneNear] += v
			}
			if refusesAt(o) && o != outcomeWould || o == outcomeStopped || o == outcomeBanned {
				b[snapshot.LaneRefused] += v
			}
		}
		b[snapshot.LaneBanned] += n[outcomeBanned]
	}
	for at := range role(roles) {
		b[snapshot.LaneWould] += x[counterOf(at, outcomeWould)]
	}
	return b
}
