// Package changes says what differs between two rule sets, rule by rule, and field by field as rule
// files call them. Begin with Between.
package changes

import (
	"cmp"
	"slices"
	"strings"

	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/rule"
)

// name is the name of a rule.
type name struct{ domain, rule string }

// Between returns what differs between two rule sets, sorted by domain and rule. A nil set holds no
// rules. In which file a rule stands makes no difference, nor do comments and the way in which
// something is written.
func Between(before, after *rule.Set) (c insight.RuleChanges) {
	had, has := rulesOf(before), rulesOf(after)
	var list []insight.RuleChange
	for id, r := range has {
		old := had[id]
		if old == nil {
			list = append(list, insight.RuleChange{Domain: id.domain, Rule: id.rule, Change: insight.Added,
				Fields: []insight.FieldChange{{Field: "allow", After: clip(allowOf(r))}}})
		} else if f := differences(old, r); len(f) > 0 {
			list = append(list, insight.RuleChange{Domain: id.domain, Rule: id.rule, Change: insight.Changed, Fields: f})
		}
	}
	for id, r := range had {
		if has[id] == nil {
			list = append(list, insight.RuleChange{Domain: id.domain, Rule: id.rule, Change: insight.Removed,
				Fields: []insight.FieldChange{{Field: "allow", Before: clip(allowOf(r))}}})
		}
	}
	list = append(list, ofDomains(before, after)...)
	slices.SortFunc(list, func(a, b insight.RuleChange) int {
		return cmp.Or(strings.Compare(a.Domain, b.Domain), strings.Compare(a.Rule, b.Rule))
	})
	c.Changes = list[:min(len(list), insight.MostChanges)]
	c.More = len(list) - len(c.Changes)
	for i := range c.Changes {
		x := &c.Changes[i]
		x.Domain, x.Rule = clip(x.Domain), clip(x.Rule)
	}
	return c
}

// Same reports whether two rules do the same.
func Same(a, b *rule.Rule) bool { return len(differences(a, b)) == 0 }

func rulesOf(s *rule.Set) map[name]*rule.Rule {
	all := map[name]*rule.Rule{}
	if s != nil {
		for _, r := range s.Rules() {
			all[name{r.Domain, r.Name}] = r
		}
	}
	return all
}

// differences returns the fields in which two rules differ, the first ones.
func differences(before, after *rule.Rule) (list []insight.FieldChange) {
	for _, f := range fields {
		if a, b := f.text(before), f.text(after); a != b && len(list) < insight.MostFields {
			a, b = clipBoth(a, b)
			list = append(list, insight.FieldChange{Field: f.name, Before: a, After: b})
		}
	}
	return list
}

// ofDomains compares what files say of all their rules.
func ofDomains(before, after *rule.Set) (list []insight.RuleChange) {
	had, has := domainsOf(before), domainsOf(after)
	for domain, b := range has {
		a := had[domain]
		if a == nil {
			a = &domainText{}
		}
		c := insight.RuleChange{Domain: domain, Change: insight.Changed}
		add := func(field, x, y string) {
			if x != y {
				x, y = clipBoth(x, y)
				c.Fields = append(c.Fields, insight.FieldChange{Field: field, Before: x, After: y})
			}
		}
		add("exempt", strings.Join(a.exempt, "; "), strings.Join(b.exempt, "; "))
		add("groups", strings.Join(a.ordered, "; "), strings.Join(b.ordered, "; "))
		if len(c.Fields) > 0 {
			list = append(list, c)
		}
	}
	return list // a domain that is gone took its rules along, which says it
}

// domainText is what files say of all their rules of one domain.
type domainText struct {
	exempt  []string // sorted
	ordered []string // for each file with groups: first, its rules in order
}

func domainsOf(s *rule.Set) map[string]*domainText {
	all := map[string]*domainText{}
	if s == nil {
		return all
	}
	for _, f := range s.Files() {
		d := all[f.Domain]
		if d == nil {
			d = &domainText{}
			all[f.Domain] = d
		}
		for i := range f.Exempt {
			text := conditionText(&f.Exempt[i])
			if f.ExactPaths {
				text += " exactly"
			}
			d.exempt = append(d.exempt, text)
		}
		if f.First && len(f.Rules) > 0 {
			names := make([]string, len(f.Rules))
			for i, r := range f.Rules {
				names[i] = r.Name
			}
			d.ordered = append(d.ordered, "first of "+strings.Join(names, ", "))
		}
	}
	for _, d := range all {
		slices.Sort(d.exempt)
	}
	return all
}

// clip shortens a text to insight.MostValue bytes.
func clip(s string) string {
	if len(s) <= insight.MostValue {
		return s
	}
	return strings.ToValidUTF8(s[:insight.MostValue-len("…")], "") + "…"
}

// clipBoth shortens two different texts so that both show where they begin to differ.
func clipBoth(a, b string) (string, string) {
	if len(a) <= insight.MostValue && len(b) <= insight.MostValue {
		return a, b
	}
	same := 0
	for same < len(a) && same < len(b) && a[same] == b[same] {
		same++
	}
	if same -= 20; same > 0 {
		cut := func(s string) string { return clip("…" + strings.ToValidUTF8(s[same:], "")) }
		return cut(a), cut(b)
	}
	return clip(a), clip(b)
}
