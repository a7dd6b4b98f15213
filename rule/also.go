package rule

import (
	"bytes"
	"slices"
)

// MatchAlso adds the limits that another reading of the same request meets to m, which Match has
// filled. A door that cannot know which of several values a server takes matches the request once
// with each: a limit that several readings meet under one key counts it once, at the highest cost.
// The request is exempt if all readings are, and as important as its least important reading. All
// readings together may take as long in expressions as one may: past that the request is refused.
func (s *Set) MatchAlso(q *Query, m *Matches) {
	if m.TooCostly != nil {
		return
	}
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
	written := slices.Clone(m.written)
	for i := range written {
		written[i].key = bytes.Clone(written[i].key)
	}
	described, failures := slices.Clone(m.Descriptors), slices.Clone(m.Failures())
	m.vars.before = m.vars.spent
	s.Match(q, m)
	m.vars.before = [2]uint64{}
	if m.TooCostly != nil {
		return
	}
	place := m.joinHits(hits, described)
	for _, w := range m.written {
		for i := w.first; i < w.behind; i++ {
			if at := place[i]; at >= len(hits) {
				written = append(written, writtenKey{at, at + 1, w.key})
			}
		}
	}
	m.written = written
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

// joinHits puts the hits and descriptors of another reading before m's, and leaves out hits of m
// that the other has, too. It returns the new place of each of m's hits.
func (m *Matches) joinHits(hits []Hit, described []DescriptorMatch) (place []int) {
	first := len(hits)
	place = make([]int, len(m.Hits))
	for i := range m.Hits {
		h := &m.Hits[i]
		at := slices.IndexFunc(hits[:first],
			func(o Hit) bool { return o.Window == h.Window && bytes.Equal(o.Key, h.Key) })
		if at < 0 {
			at = len(hits)
			hits = append(hits, *h)
		} else {
			hits[at].Cost = max(hits[at].Cost, h.Cost)
		}
		place[i] = at
	}
	for _, d := range m.Descriptors {
		if d.Hit >= 0 {
			d.Hit = place[d.Hit]
		}
		described = append(described, d)
	}
	m.Hits, m.Descriptors = hits, described
	return place
}
