package rule

import (
	"github.com/weir-rl/weir/algo"
)

// banKey is the key of a rule whose bans hold everywhere in the domain.
type banKey struct {
	rule *Rule
	key  []byte
}

// BanRules returns the rules of a domain that ban (Rule.Ban), in rule order; nil if there are none.
// The slice must not be changed.
func (s *Set) BanRules(domain string) []*Rule {
	if d := s.domain(domain); d != nil {
		return d.banning
	}
	return nil
}

// BanKeys calls f with the key that the request has under each rule of its domain whose bans hold
// everywhere (Ban.Domain), and under Query.BanRules, whether or not the request meets that
// rule's conditions. It leaves out a rule if the request lacks a part of its key. It is to be
// called after Match with the same m, gives nothing for an exempt request, and ends when f returns
// false. Keys are valid until m is used again. It allocates nothing; in a domain without such rules
// it is free.
//
// A key on which the rule is in shadow (Rule.EnforcePercent) is given too: its denials do not
// count, so that nothing but an operator bans it.
//
// The bans of the other rules (Ban.Domain false) hold where the rule is met: Matches.Hits has their
// keys.
func (s *Set) BanKeys(m *Matches, f func(r *Rule, key []byte) bool) {
	for i := range m.bans {
		if !f(m.bans[i].rule, m.bans[i].key) {
			return
		}
	}
}

// BansDomain reports whether a ban under r can hold everywhere in the domain: whether each request
// that has the parts of r's key has that key, whatever rules it meets. It is false of a rule of the
// Lyft form, whose key says which descriptor was met, and of a rule without per.
func (r *Rule) BansDomain() bool {
	m := r.compiled
	return m != nil && !m.byPath() && !m.entries && len(m.per) > 0
}

// matchBans makes the keys for BanKeys, also under rules of the Set that the query names.
func (m *Matches) matchBans(also []*Rule) {
	for _, r := range m.domain.banned {
		m.addBanKey(r)
	}
	for _, r := range also {
		if r.Domain == m.domain.name && r.BansDomain() && (r.Ban == nil || !r.Ban.Domain) {
			m.addBanKey(r.compiled)
		}
	}
}

func (m *Matches) addBanKey(r *matchRule) {
	begin := len(m.buf)
	if !m.appendKey(r) {
		m.buf = m.buf[:begin]
		return
	}
	m.bans = append(m.bans, banKey{r.rule, m.buf[begin:len(m.buf):len(m.buf)]})
}

// addBan gives the ban of r its Counter.
func (b *builder) addBan(r *Rule) {
	if r.Ban == nil || r.Ban.After == 0 || r.Ban.Within == 0 {
		return // the latter have been reported
	}
	limit, err := algo.New(algo.Config{Algorithm: algo.SlidingLog, N: r.Ban.After, Window: r.Ban.Within})
	if err != nil {
		b.problem(r, "", "ban: %v", err)
		return
	}
	id := "b" + ruleIdentity(r)
	hash, group := identityHashes(r.Domain, id, limit)
	r.Ban.Counter = &Counter{
		ID: hash, Group: group, Domain: r.Domain, Rule: r.Name, Window: r.Name,
		Limit: limit, Index: -1, identity: id,
	}
	b.reserve(r, r.Ban.Counter)
}

// MatchBans fills m for BanKeys alone: it looks at no condition of any rule, and leaves out whether
// q is exempt. It costs a key for each rule that bans in its whole domain, or is in q.BanRules.
func (s *Set) MatchBans(q *Query, m *Matches) {
	d := s.domain(q.Domain)
	m.begin(d, q)
	if d == nil {
		m.source, m.pairs, m.descriptors = nil, nil, nil
		return
	}
	m.Known = true
	m.matchBans(q.BanRules)
	m.end()
}
