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
		if x == (counts{}) {
			continue
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
	c.second = unix
	c.noteSaturation(unix)
}

// ruleBucket returns the counts of a rule.
func ruleBucket(x *counts) (b snapshot.Bucket) {
	for role := range roles {
		n := x[role*outcomes : (role+1)*outcomes]
		for o, v := range n {
			if o != banned {
				b[snapshot.LaneMet] += v
			}
		}
		b[snapshot.LaneRefused] += n[alone] + n[shared]
		b[snapshot.LaneAlone] += n[alone]
		b[snapshot.LaneNear] += n[near]
		b[snapshot.LaneSoft] += n[soft]
		b[snapshot.LaneBanned] += n[banned]
		b[snapshot.LaneWould] += n[would] + n[wouldToo]
	}
	return b
}

// domainBucket returns the counts for a domain of the requests that met a rule first.
func domainBucket(x *counts) (b snapshot.Bucket) {
	for _, role := range [...]int{first, firstNear} {
		n := x[role*outcomes : (role+1)*outcomes]
		for o, v := range n {
			b[snapshot.LaneMet] += v
			if role == firstNear {
				b[snapshot.LaneNear] += v
			}
			if refusesAt(o) && o != would || o == stopped || o == banned {
				b[snapshot.LaneRefused] += v
			}
		}
		b[snapshot.LaneBanned] += n[banned]
	}
	for role := range roles {
		b[snapshot.LaneWould] += x[role*outcomes+would]
	}
	return b
}
