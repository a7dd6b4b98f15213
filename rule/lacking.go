package rule

import (
	"slices"
	"strings"
)

// Lack is a rule that no request meets which comes through a door that supplies only some
// attributes.
type Lack struct {
	Rule      *Rule
	Attribute string // the first one that the rule needs and the door does not supply
}

// Lacking returns the rules of a domain that no request can meet because an attribute is missing,
// in rule order. supplies reports whether a door supplies an attribute. A rule does not lack it if
// another attribute would do (per: user|ip), or if it is met where the attribute is absent (when:
// {plan: "!gold"}). Lacking does not look into expressions.
func (s *Set) Lacking(domain string, supplies func(attribute string) bool) []Lack {
	var lacks []Lack
	for _, r := range s.rules {
		if r.Domain != domain {
			continue
		}
		if attribute, lacking := r.lacks(supplies); lacking {
			lacks = append(lacks, Lack{r, attribute})
		}
	}
	return lacks
}

func (r *Rule) lacks(supplies func(string) bool) (string, bool) {
	if r.Lyft != nil {
		for _, e := range r.Lyft.Path {
			if !supplies(e.Key) && !(e.Key == RemoteAddress && supplies("ip")) {
				return e.Key, true
			}
		}
	}
	for _, c := range r.When {
		positive := slices.ContainsFunc(c.Patterns, func(p Pattern) bool { return !p.Negated })
		if positive && !supplies(c.Attribute) {
			return c.Attribute, true
		}
	}
	for _, k := range r.Per {
		if !slices.ContainsFunc(k, supplies) {
			return strings.Join(k, "|"), true
		}
	}
	return "", false
}
