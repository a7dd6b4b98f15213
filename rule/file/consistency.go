package file

import (
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
	"github.com/weir-rl/weir/rule/file/internal/yaml"
)

// leasing is what consistency asks for: units that are lent ahead. The zero value is exact.
type leasing struct {
	percent int
	span    time.Duration // consistency.for; 0 if it is not given
	at      *yaml.Node    // the percentage
	refused bool          // it was reported that this limit cannot be leased
}

// consistency reads consistency into s, and its regions into r.
func (l *loader) consistency(v *yaml.Node, r *rule.Rule, s *settings) {
	const example = "as in: consistency: {lease: 5%}"
	switch {
	case v.Kind == yaml.Scalar && v.Text == "exact":
		return
	case v.Kind != yaml.Mapping || len(v.Pairs) == 0:
		hint, got := "", v.String()
		switch {
		case v.Kind == yaml.Mapping:
			got = "an empty mapping"
		case v.Kind != yaml.Scalar:
		case v.Text == "lease" || v.Text == "leased":
			hint = "write how much of the limit may be out, " + example
		case v.Text == "regions" || v.Text == "regional" || v.Text == "sync":
			hint = "write what the regions may admit together, " + regionsExample
		}
		l.err(v, hint, "consistency: expected exact, {lease: 5%%} or {regions: {over: 20%%}}, got %s", got)
		return
	}
	inner, _ := l.keys(v, keyRules{known: []string{"lease", "for", "regions"}, elsewhere: map[string]string{
		"over": "it belongs into regions, as in: regions: {over: 20%, tell: 1%}",
		"tell": "it belongs into regions, as in: regions: {over: 20%, tell: 1%}",
		"sync": "it is of regions, as in: regions: sync",
	}})
	if d := inner.val("for"); d != nil {
		switch span, ok := l.duration(d, "consistency.for"); {
		case !ok:
		case span < algo.MinLeaseFor || span > algo.MaxLeaseFor:
			l.err(d, "leave it out for one that fits the window", "consistency.for: expected %s to %s, got %s",
				algo.MinLeaseFor, message.DaysOrMinutes(algo.MaxLeaseFor), message.Clip(d.Text))
		default:
			s.lease.span = span
		}
	}
	if v := inner.val("regions"); v != nil {
		l.regions(v, r, s)
	}
	p := inner.val("lease")
	if p == nil && (len(inner) < len(v.Pairs) || inner.val("regions") != nil && inner.val("for") == nil) {
		return // reported, or not wanted
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

// lent is how much of a limit that says nothing of leases may be out, in percent, and for how long;
// 0 percent for nothing, and 0 for a time that fits the window.
func (s *settings) lent(c *algo.Config) (percent int, span time.Duration) {
	switch {
	case s.regions.borrows() && c.Window >= leastBorrowed && !c.FirstRequest:
		if s.lends { // to Envoys, which need them for longer
			return regionsLent, 0
		}
		return regionsLent, regionsLentFor
	case s.lends:
		return message.DefaultLent, 0
	}
	return 0, 0
}

// compileLimit is compiled.limit. A limit that could be there, but cannot be leased, it reports
// once for a rule, where the lease stands.
func (l *loader) compileLimit(s *settings, c algo.Config, at *yaml.Node) *algo.Limit {
	if percent, span := s.lent(&c); c.Lease == 0 && percent > 0 {
		lent := c
		lent.Lease, lent.LeaseFor = percent, span
		if limit, err := l.compiled.limit(lent); err == nil {
			return limit
		}
	}
	limit, err := l.compiled.limit(c)
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
	case c.Algorithm.HasSlots():
		return exact + "make a limit of its own of the one on what is in flight"
	case c.Algorithm.Delays():
		return exact + "take token_bucket"
	case c.RefillInterval:
		return exact + "leave refill out"
	case c.SoftFor != 0:
		return exact + "leave for out of throttle.soft: the margin then stays open"
	case c.N > algo.MaxN:
		return exact + "count in larger units"
	case c.CountDenied:
		return exact + "write count_denied: false"
	}
	return ""
}
