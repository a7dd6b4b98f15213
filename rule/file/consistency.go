package file

import (
	"time"

	"github.com/weir-rl/weir/algo"
)

// leasing is what consistency asks for: units that are lent ahead. The zero value is exact.
type leasing struct {
	percent int
	span    time.Duration // consistency.for; 0 if it is not given
	at      *element      // the percentage
	refused bool          // it was reported that this limit cannot be leased
}

// defaultLent is the share of a limit of Options.Lend that may be out, in percent.
const defaultLent = 10

// consistency reads consistency into s.
func (l *loader) consistency(keys fields, s *settings) {
	const example = "as in: consistency: {lease: 5%}"
	v := keys.val("consistency")
	switch {
	case v == nil || v.kind == scalarKind && v.text == "exact":
		return
	case v.kind == mapKind && len(v.pairs) == 1 && v.pairs[0].key.text == "regions":
		l.err(keys.key("consistency"), "", "consistency: regions are not supported yet: expected exact or {lease: 5%%}")
		return
	case v.kind != mapKind || len(v.pairs) == 0:
		hint, got := "", describe(v)
		if v.kind == scalarKind && (v.text == "lease" || v.text == "leased") {
			hint = "write how much of the limit may be out, " + example
		} else if v.kind == mapKind {
			got = "an empty mapping"
		}
		l.err(v, hint, "consistency: expected exact or {lease: 5%%}, got %s", got)
		return
	}
	inner := l.keys(v, keyRules{known: []string{"lease", "for"}})
	if d := inner.val("for"); d != nil {
		switch span, ok := l.duration(d, "consistency.for"); {
		case !ok:
		case span < algo.MinLeaseFor || span > algo.MaxLeaseFor:
			l.err(d, "leave it out for one that fits the window", "consistency.for: expected %s to %s, got %s", algo.MinLeaseFor, daysOrMinutes(algo.MaxLeaseFor), clip(d.text))
		default:
			s.lease.span = span
		}
	}
	p := inner.val("lease")
	if p == nil && len(inner) < len(v.pairs) {
		return // reported
	}
	if p == nil {
		l.err(v, example, "consistency: lease is missing, the share of the limit that may be out")
		return
	}
	s.lease.percent, _ = l.percent(p, "consistency.lease", algo.MinLease, algo.MaxLease)
	s.lease.at = p
}

// leased puts the lease into c.
func (s *settings) leased(c *algo.Config) {
	if s.lease.percent > 0 {
		c.Lease, c.LeaseFor = s.lease.percent, s.lease.span
	}
}

// compileLimit is algo.New. A limit that could be there, but cannot be leased, it reports once for
// a rule, where the lease stands.
func (l *loader) compileLimit(s *settings, c algo.Config, at *element) *algo.Limit {
	if c.Lease == 0 && l.lending {
		lent := c
		lent.Lease = defaultLent
		if limit, err := algo.New(lent); err == nil {
			return limit
		}
	}
	limit, err := algo.New(c)
	if err == nil {
		return limit
	}
	if c.Lease > 0 {
		exact := c
		exact.Lease, exact.LeaseFor = 0, 0
		if _, other := algo.New(exact); other != nil {
			err = other
		} else {
			if !s.lease.refused {
				l.err(s.lease.at, leaseHint(&c), "consistency.lease: %v", err)
			}
			s.lease.refused = true
			return nil
		}
	}
	l.err(at, "", "allow: %v", err)
	return nil
}

// leaseHint says how to mend a limit that cannot be leased.
func leaseHint(c *algo.Config) string {
	const exact = "leave consistency out, or "
	switch {
	case c.Algorithm == algo.Concurrency:
		return exact + "make a limit of its own of the one on what is in flight"
	case c.Algorithm == algo.LeakyBucket:
		return exact + "take token_bucket"
	case c.RefillInterval:
		return exact + "leave refill out"
	case c.SoftFor != 0:
		return exact + "leave for out of throttle.soft: the margin then stays open"
	case c.CountDenied:
		return exact + "write count_denied: false"
	}
	return ""
}
