package recent

import (
	"slices"

	"github.com/weir-rl/weir/internal/util/httpfield"
	"github.com/weir-rl/weir/rule"
)

// ruleNames are the attributes that the rules of a set read.
type ruleNames struct {
	set   *rule.Set
	rules [][]look // by rule.Rule.Index
}

// look is one attribute, or a list from which the first one that is present counts.
type look []attribute

type attribute struct {
	name   string
	hidden bool // its values are not kept
}

func (b *Buffer) namesOf(s *rule.Set) *ruleNames {
	n := &ruleNames{set: s, rules: make([][]look, len(s.Rules()))}
	for _, r := range s.Rules() {
		n.rules[r.Index] = b.looksOf(r)
	}
	return n
}

// looks returns the attributes that r, a rule of s, reads.
func (b *Buffer) looks(s *rule.Set, r *rule.Rule) []look {
	if n := b.rules.Load(); n != nil && n.set == s && r.Index < len(n.rules) {
		return n.rules[r.Index]
	}
	// of a set that went out of force meanwhile, or a limit that the request brought
	return b.looksOf(r)
}

func (b *Buffer) looksOf(r *rule.Rule) []look {
	var looks []look
	add := func(names ...string) {
		l := make(look, len(names))
		for i, name := range names {
			l[i] = attribute{name, b.hides(name)}
		}
		if !slices.ContainsFunc(looks, func(have look) bool { return slices.Equal(have, l) }) {
			looks = append(looks, l)
		}
	}
	for _, c := range r.When {
		add(c.Attribute)
	}
	for _, k := range r.Per {
		add(k...)
	}
	if r.Lyft != nil {
		for _, e := range r.Lyft.Path {
			if e.Key == "remote_address" { // which is ip at doors without descriptors
				add(e.Key, "ip")
			} else {
				add(e.Key)
			}
		}
	}
	return looks
}

// hides reports whether the values of an attribute are not kept.
func (b *Buffer) hides(name string) bool {
	return httpfield.HiddenAttribute(b.hide, name)
}
