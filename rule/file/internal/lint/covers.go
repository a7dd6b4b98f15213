package lint

import (
	"slices"
	"strings"

	"github.com/weir-rl/weir/rule"
)

// Whether one pattern, condition or rule surely covers another. Only equal patterns, prefixes,
// single texts and networks are compared; of all others a relation is taken not to hold.

// positive matches p without its negation.
func positive(p *rule.Pattern, value string) bool { return p.Match(value) != p.Negated }

// opening returns a text with which everything that p matches begins; "" if none is known. It does
// not look at negation.
func opening(p *rule.Pattern) string {
	switch p.Kind() {
	case rule.ExactPattern:
		return p.Text()
	case rule.GlobPattern:
		text, rest, _ := strings.Cut(p.Text(), "*")
		if rest == "*" {
			text = strings.TrimSuffix(text, "/") // /api/** matches /api too
		}
		return text
	}
	return ""
}

// patternCovers reports whether a surely matches all that b matches; negations aside.
func patternCovers(a, b *rule.Pattern) bool {
	switch {
	case a.Source != "" && strings.TrimPrefix(a.Source, "!") == strings.TrimPrefix(b.Source, "!"):
		return true
	case b.Kind() == rule.BlockPattern && a.Kind() == rule.BlockPattern:
		return a.Block().Bits() <= b.Block().Bits() && a.Block().Contains(b.Block().Addr())
	case b.Kind() == rule.BlockPattern && b.Block().IsSingleIP():
		return positive(a, b.Block().Addr().String())
	case b.Kind() == rule.ExactPattern:
		return positive(a, b.Text())
	case a.Kind() != rule.GlobPattern || b.Kind() != rule.GlobPattern:
		return false
	}
	switch prefix, rest, _ := strings.Cut(a.Text(), "*"); rest {
	case "*": // a is /api/**
		return strings.HasPrefix(opening(b), prefix)
	case "": // a is /api/*
		more, ok := strings.CutPrefix(b.Text(), prefix)
		return ok && !strings.Contains(more, "/") && !strings.Contains(more, "**")
	}
	return false
}

// patternsApart reports whether surely no value matches both a and b; negations aside.
func patternsApart(a, b *rule.Pattern) bool {
	switch {
	case a.Kind() == rule.BlockPattern && b.Kind() == rule.BlockPattern:
		return !a.Block().Overlaps(b.Block())
	case a.Kind() == rule.ExactPattern:
		return !positive(b, a.Text())
	case b.Kind() == rule.ExactPattern:
		return !positive(a, b.Text())
	case a.Kind() == rule.BlockPattern && a.Block().IsSingleIP():
		return !positive(b, a.Block().Addr().String())
	case b.Kind() == rule.BlockPattern && b.Block().IsSingleIP():
		return !positive(a, b.Block().Addr().String())
	}
	x, y := opening(a), opening(b)
	return !strings.HasPrefix(x, y) && !strings.HasPrefix(y, x)
}

// split returns the patterns of c that are not negated, and those that are.
func split(c *rule.Condition) (positives, negatives []*rule.Pattern) {
	for i := range c.Patterns {
		if p := &c.Patterns[i]; p.Negated {
			negatives = append(negatives, p)
		} else {
			positives = append(positives, p)
		}
	}
	return positives, negatives
}

// conditionCovers reports whether what meets b surely meets a, which is of the same attribute.
func conditionCovers(a, b *rule.Condition) bool {
	allowed, excluded := split(a)
	within, without := split(b)
	if b.Folds() && !a.Folds() && len(allowed) > 0 {
		return false // b is met in spellings in which a need not be
	}
	if len(allowed) > 0 {
		if len(within) == 0 {
			return false // b is met by requests that lack the attribute
		}
		for _, p := range within {
			if a.Folds() {
				p = p.Folded()
			}
			if !slices.ContainsFunc(allowed, func(o *rule.Pattern) bool { return patternCovers(o, p) }) {
				return false
			}
		}
	}
	for _, n := range excluded {
		n, slash := n.Written(), b.Folds() && strings.HasSuffix(n.Source, "/")
		if slices.ContainsFunc(without, func(o *rule.Pattern) bool { return patternCovers(o, n) }) {
			continue
		}
		if b.Folds() {
			n = n.Folded()
		}
		if len(within) == 0 || slash || slices.ContainsFunc(within,
			func(p *rule.Pattern) bool { return !patternsApart(p, n) }) {
			return false
		}
	}
	return true
}

// implied reports whether every request that meets the conditions `by` surely also meets
// conditions.
func implied(conditions, by []rule.Condition) bool {
	for i := range conditions {
		c := &conditions[i]
		k := slices.IndexFunc(by, func(o rule.Condition) bool { return o.Attribute == c.Attribute })
		if k < 0 || !conditionCovers(c, &by[k]) {
			return false
		}
	}
	return true
}

// keyed reports whether a request that meets the conditions and has the key `by` surely has the key
// per.
func keyed(per, by []rule.Key, conditions []rule.Condition) bool {
	for _, k := range per {
		has := func(a string) bool { return slices.Contains(k, a) }
		if slices.ContainsFunc(by,
			func(o rule.Key) bool { return !slices.ContainsFunc(o, func(a string) bool { return !has(a) }) }) {
			continue
		}
		if slices.ContainsFunc(conditions, func(c rule.Condition) bool {
			positives, _ := split(&c)
			return has(c.Attribute) && len(positives) > 0
		}) {
			continue
		}
		return false
	}
	return true
}

// maxCases is into how many cases a rule whose conditions list alternatives is taken apart.
const maxCases = 64

// cases takes the conditions of a rule apart into cases with one alternative of each condition. A
// request that meets the conditions meets one of them.
func cases(when []rule.Condition) [][]rule.Condition {
	n := 1
	for i := range when {
		positives, _ := split(&when[i])
		if n *= max(1, len(positives)); n > maxCases {
			return [][]rule.Condition{when}
		}
	}
	all := [][]rule.Condition{nil}
	for i := range when {
		positives, negatives := split(&when[i])
		var longer [][]rule.Condition
		for _, c := range all {
			if len(positives) == 0 {
				longer = append(longer, append(slices.Clone(c), when[i]))
			}
			for _, p := range positives {
				one := rule.Condition{Attribute: when[i].Attribute, Pos: when[i].Pos, Patterns: []rule.Pattern{*p}}
				for _, n := range negatives {
					one.Patterns = append(one.Patterns, *n)
				}
				longer = append(longer, append(slices.Clone(c), one))
			}
		}
		all = longer
	}
	return all
}
