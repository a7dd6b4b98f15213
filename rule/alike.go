package rule

import (
	"fmt"
	"strings"

	"github.com/weir-rl/weir/rule/internal/asked"
)

// alikeRules are the rules that one rule stands for on odd requests: those that lack the attribute
// of a slot, or have no number there. Of 100,000 rules `attr.plan == "p7"`, each with its own plan,
// all fail on a request without a plan. The index then brings in the first of them only; when its
// expression fails, the others fail too, and are counted with it.
type alikeRules struct {
	slot       int
	ifAbsent   *Alike       // all of them where there is no value; nil if that is the rule alone
	number     asked.Number // how the value is made a number; NoNumber if that is not asked
	ifNoNumber *Alike       // where there is a value, and it is no such number; nil likewise
}

// on returns the rules that fare alike on this request; nil if the rule is the only one.
func (a *alikeRules) on(m *Matches) *Alike {
	v := m.value(a.slot)
	if !v.present {
		return a.ifAbsent
	}
	if a.ifNoNumber != nil {
		if _, ok := a.number.Key(v.text); !ok {
			return a.ifNoNumber
		}
	}
	return nil
}

// first reports whether r is the first of the rules that fare alike where the attribute of a slot
// is absent, or if of is given, has a value of which it makes no number; the first one stands for
// all of them there.
func first(alike map[string]*matchRule, spelling string, r *matchRule, slot int, of asked.Number) bool {
	if spelling == "" {
		return true
	}
	if f := alike[spelling]; f != nil {
		group := &f.alike.ifNoNumber
		if of == asked.NoNumber {
			group = &f.alike.ifAbsent
		}
		if *group == nil {
			*group = &Alike{Rules: []*Rule{f.rule}}
		}
		(*group).Rules = append((*group).Rules, r.rule)
		return false
	}
	alike[spelling] = r
	if r.alike == nil {
		r.own().alike = &alikeRules{slot: slot}
	}
	if of != asked.NoNumber {
		r.alike.number = of
	}
	return true
}

// oddSpelling spells the conditions of r that decide on requests which are odd in the attribute of
// a slot at which r is anchored: they lack it, or if of is given, have a value of which of makes no
// number. Rules of one spelling fare the same there, fail for the same reason, and cannot be met;
// their differences, such as the constant that the attribute is compared with, are left out. It is
// "" if r has no such spelling.
func (f *anchorer) oddSpelling(r *matchRule, slot int, of asked.Number) string {
	p := r.rule.predicate()
	if p == nil || r.group >= 0 || !f.asks[r.askKey(p)].all {
		return ""
	}
	all := f.asks[r.askKey(p)].list
	same := func(q *ask) bool {
		if of == asked.NoNumber {
			return q.failsIfAbsent()
		}
		return q.sameIfNoNumber(of)
	}
	var b strings.Builder
	fmt.Fprint(&b, slot, " ", of, " ", r.folds)
	for i := range all {
		q := &all[i]
		switch {
		case f.domain.slotOf[q.attribute] != slot:
			fmt.Fprintf(&b, " %q", q.text)
		case !same(q):
			return ""
		default:
			fmt.Fprintf(&b, " %t %d", q.lookUp, q.only) // why it fails
		}
	}
	for _, c := range r.rule.When {
		fmt.Fprintf(&b, " when %q", c.Attribute)
		for _, p := range c.Patterns {
			fmt.Fprintf(&b, " %q", p.Source)
		}
	}
	fmt.Fprintf(&b, " per %q", r.rule.Per)
	return b.String()
}
