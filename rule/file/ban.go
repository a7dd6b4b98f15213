package file

import (
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/yaml"
)

// maxBanSpan is the longest within and for of a ban.
const maxBanSpan = algo.MaxWindow

// ban reads ban into r, except its Counter.
func (l *loader) ban(v *yaml.Node, r *rule.Rule) {
	const example = "as in: ban: {after: 20, within: 10m, for: 15m}"
	keys, ok := l.keys(v, keyRules{
		expected: "ban: expected a mapping of after, within and for", example: example,
		known: []string{"after", "within", "for", "scope", "at"}, elsewhere: map[string]string{
			"per":      "a ban is of the rule's own key",
			"duration": "it is called for", "time": "it is called for", "denials": "it is called after", "count": "it is called after",
		},
	})
	if !ok {
		return
	}
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
		items := []*yaml.Node{at}
		if at.Kind == yaml.List {
			if items = at.Items; len(items) == 0 {
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
