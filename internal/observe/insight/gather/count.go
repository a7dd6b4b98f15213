package gather

import "github.com/weir-rl/weir/internal/observe/insight/snapshot"

// count reads the counters, up to an instant. mu is held.
func (c *Collector) count(unix int64) {
	perDomain := map[*domainState]*snapshot.Bucket{}
	for _, d := range c.domains {
		n := d.gate.read()
		perDomain[d] = &snapshot.Bucket{snapshot.LaneMet: n - d.last}
		d.last = n
	}
	taken := c.countFailures(unix)
	for _, s := range c.rules {
		x := s.counted()
		if x == (gateCounts{}) {
			continue
		}
		if s.trial != nil {
			s.trial.count(&x)
		}
		b := ruleBucket(&x)
		if c.follow(s); s.series != nil {
			s.series.add(unix, &b)
		}
		for i := range b {
			s.total[i] += uint64(b[i])
		}
		if into := perDomain[s.domainState]; into != nil {
			db := domainBucket(&x)
			into.Add(&db)
		}
	}
	if c.left -= taken; taken > 0 && c.left < 0 {
		c.resize()
	}
	for d, b := range perDomain {
		d.series.second.advance(unix)
		if *b != (snapshot.Bucket{}) {
			d.series.add(unix, b)
			d.total += uint64(b[snapshot.LaneMet])
		}
	}
	if n := c.storeErrors.Load(); n != c.lastErrs {
		c.errors.add(unix, n-c.lastErrs)
		c.lastErrs = n
	}
	if n := c.unknown.n.Load(); n != c.lastUnknown {
		c.unknowns.add(unix, n-c.lastUnknown)
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
