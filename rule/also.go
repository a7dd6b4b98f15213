package rule

import (
	"bytes"
	"slices"
)

// MatchAlso adds the limits that another reading of the same request meets to m, which Match has
// filled. A door that cannot tell which of several values a server takes matches the request once
// with each: a limit that several readings meet under one key counts it once. The request is exempt
// if it is by each of them, and as important as the one by which it is least important.
func (s *Set) MatchAlso(q *Query, m *Matches) {
	first := *m
	hits := make([]Hit, len(m.Hits))
	for i := range m.Hits {
		hits[i] = m.Hits[i]
		hits[i].Key = bytes.Clone(m.Hits[i].Key)
	}
	bans := make([]banKey, len(m.bans))
	for i := range m.bans {
		bans[i] = banKey{m.bans[i].rule, bytes.Clone(m.bans[i].key)}
	}
	described, failures := slices.Clone(m.Descriptors), slices.Clone(m.Failures())
	s.Match(q, m)
	m.Hits, m.Descriptors = withoutTwins(hits, m.Hits, described, m.Descriptors)
	m.bans = append(bans, m.bans...)
	m.failures = append(failures, m.Failures()...)
	m.CELErrors += first.CELErrors
	switch {
	case first.Exempt: // the priority is the other reading's
	case m.Exempt:
		m.Priority = first.Priority
	default:
		m.Priority = min(m.Priority, first.Priority)
	}
	m.Exempt = m.Exempt && first.Exempt
}

// withoutTwins joins what two readings met, without the hits of the second that the first has, too.
func withoutTwins(hits, more []Hit, described, also []DescriptorMatch) ([]Hit, []DescriptorMatch) {
	first := len(hits)
	place := make([]int, len(more))
	for i := range more {
		h := &more[i]
		place[i] = slices.IndexFunc(hits[:first], func(o Hit) bool { return o.Window == h.Window && bytes.Equal(o.Key, h.Key) })
		if place[i] < 0 {
			place[i] = len(hits)
			hits = append(hits, *h)
		}
	}
	for _, d := range also {
		if d.Hit >= 0 {
			d.Hit = place[d.Hit]
		}
		described = append(described, d)
	}
	return hits, described
}
