package file

import (
	"slices"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// maxBanSpan is the longest within and for of a ban.
const maxBanSpan = algo.MaxWindow

// ban reads ban into r, except its Counter.
func (l *loader) ban(v *element, r *rule.Rule) {
	const example = "as in: ban: {after: 20, within: 10m, for: 15m}"
	if v.kind != mapKind {
		l.err(v, example, "ban: expected a mapping of after, within and for, got %s", describe(v))
		return
	}
	keys := l.keys(v, keyRules{known: []string{"after", "within", "for", "scope", "at"}, elsewhere: map[string]string{
		"per":      "a ban is of the rule's own key",
		"duration": "it is called for", "time": "it is called for", "denials": "it is called after", "count": "it is called after",
	}})
	b := &rule.Ban{}
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
func (l *loader) checkBan(s *settings, r *rule.Rule, keys fields) {
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
	if r.Ban.NFTables && !(len(r.Per) == 1 && slices.Equal(r.Per[0], rule.Key{"ip"})) {
		l.err(at, "take per: [ip], or leave nftables out of at", "ban.at: nftables drops the packets of addresses, so that the key must be an address and nothing else")
	}
	if r.Ban.Domain && len(r.Per) == 0 {
		l.err(at, "add per, or leave scope out", "ban.scope: domain needs per: other requests have no descriptor to make this one's key of")
	}
	switch {
	case r.Defer != "":
		l.err(on, "make two limits of it: one that defers, and one that allows more and bans", "ban does not fit on_limit.defer: what is deferred has not been refused to anybody")
	case r.Wait > 0 && !s.uses(algo.Algorithm.Delays):
		l.err(on, "make two limits of it: one that waits, and one that allows more and bans", "ban does not fit on_limit.wait, but for leaky_bucket: the limit denies a request that waits, and it is served all the same")
	}
}
