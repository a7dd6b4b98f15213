package rule

import (
	"slices"

	"github.com/weir-rl/weir/algo"
)

// banKey is the key of a rule whose bans hold everywhere in the domain.
type banKey struct {
	rule *Rule
	key  []byte
}

// BanRules returns the rules of a domain that ban (Rule.Ban), in rule order; nil if there are none. The slice must not be changed.
func (s *Set) BanRules(domain string) []*Rule {
	if d := s.domain(domain); d != nil {
		return d.banning
	}
	return nil
}

// BanKeys calls f with the key that the request has under each rule of its domain whose bans hold everywhere (Ban.Domain),
// whether or not the request meets that rule's conditions; a rule whose key the request lacks a part of is left out. It is to be
// called after Match with the same m, gives nothing for an exempt request, and ends when f returns false. Keys are valid until m
// is used again. It allocates nothing; in a domain without such rules it is free.
//
// A key on which the rule is in shadow (Rule.EnforcePercent) is given too: its denials do not count, so that nothing but an
// operator bans it.
//
// The bans of the other rules (Ban.Domain false) hold where the rule is met: Matches.Hits has their keys.
func (s *Set) BanKeys(m *Matches, f func(r *Rule, key []byte) bool) {
	for i := range m.bans {
		if !f(m.bans[i].rule, m.bans[i].key) {
			return
		}
	}
}

// matchBans makes the keys for BanKeys.
func (m *Matches) matchBans() {
	for _, r := range m.domain.banned {
		begin := len(m.buf)
		if !m.appendKey(r) {
			m.buf = m.buf[:begin]
			continue
		}
		m.bans = append(m.bans, banKey{r.rule, m.buf[begin:len(m.buf):len(m.buf)]})
	}
}

// maxBanSpan is the longest within and for of a ban.
const maxBanSpan = algo.MaxWindow

// ban reads ban into r, but for its Counter.
func (l *loader) ban(v *element, r *Rule) {
	const example = "as in: ban: {after: 20, within: 10m, for: 15m}"
	if v.kind != mapKind {
		l.err(v, example, "ban: expected a mapping of after, within and for, got %s", describe(v))
		return
	}
	keys := l.keys(v, keyRules{known: []string{"after", "within", "for", "scope", "at"}, elsewhere: map[string]string{
		"per":      "a ban is of the rule's own key",
		"duration": "it is called for", "time": "it is called for", "denials": "it is called after", "count": "it is called after",
	}})
	b := &Ban{}
	for _, key := range []string{"after", "within", "for"} {
		if keys.val(key) == nil {
			l.err(v, example, "ban: %s is missing", key)
		}
	}
	if a := keys.val("after"); a != nil {
		b.After, _ = l.integer(a, "ban.after", 1, algo.MaxLogN)
	}
	if w := keys.val("within"); w != nil {
		b.Within, _ = l.span(w, "ban.within", maxBanSpan)
	}
	if f := keys.val("for"); f != nil {
		b.For, _ = l.span(f, "ban.for", maxBanSpan)
	}
	if s := keys.val("scope"); s != nil {
		b.Domain = l.oneOf(s, "ban.scope", "limit", "domain") == "domain"
	}
	if at := keys.val("at"); at != nil {
		items := []*element{at}
		if at.kind == listKind {
			if items = at.items; len(items) == 0 {
				l.err(at, "leave it out: bans hold at http then", "ban.at: the list is empty")
			}
		}
		for _, i := range items {
			if l.oneOf(i, "ban.at", "http", "nftables") == "nftables" {
				b.NFTables = true
			}
		}
	}
	r.Ban = b
}

// checkBan refuses a ban that the rest of the rule leaves nothing to do.
func (l *loader) checkBan(s *settings, r *Rule, keys fields) {
	at := keys.key("ban")
	if at == nil || r.Ban == nil {
		return
	}
	on := keys.key("on_limit")
	switch {
	case r.Shadow || r.Lyft != nil && r.Lyft.Shadow:
		l.err(at, "remove ban, or the shadow", "ban: a rule in shadow bans nobody")
		return
	case r.Lyft != nil && r.Lyft.Quota:
		l.err(at, "remove ban, or quota_mode", "ban: a rule in quota_mode refuses only together with others, so that its denials say nothing of a client")
		return
	case s.parts == 0:
		l.err(at, "add per, as in: per: [ip]", "ban needs per: with the one counter that this limit has, a ban would refuse everybody")
		return
	}
	if r.Ban.NFTables && !(len(r.Per) == 1 && slices.Equal(r.Per[0], Key{"ip"})) {
		l.err(at, "take per: [ip], or leave nftables out of at", "ban.at: nftables drops the packets of addresses, so that the key must be an address and nothing else")
	}
	if r.Ban.Domain && len(r.Per) == 0 {
		l.err(at, "add per, or leave scope out", "ban.scope: domain needs per: other requests have no descriptor to make this one's key of")
	}
	switch {
	case r.Defer != "":
		l.err(on, "make two limits of it: one that defers, and one that allows more and bans", "ban does not fit on_limit.defer: what is deferred has not been refused to anybody")
	case r.Wait > 0 && !s.used[algo.LeakyBucket]:
		l.err(on, "make two limits of it: one that waits, and one that allows more and bans", "ban does not fit on_limit.wait, but for leaky_bucket: the limit denies a request that waits, and it is served all the same")
	}
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
	r.Ban.Counter = &Counter{
		ID: identityHash(r.Domain, id, limit), Group: groupHash(r.Domain, id), Domain: r.Domain, Rule: r.Name, Window: r.Name,
		Limit: limit, Index: -1, identity: id,
	}
	b.reserve(r, r.Ban.Counter)
}
