package rule

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/weir-rl/weir/rule/internal/asked"
)

// anchor is a literal that a value must hold for a pattern to match it.
type anchor struct {
	kind    anchorKind
	fold    bool // text is compared with the value as foldText makes it
	text    string
	block   netip.Prefix
	numbers *asked.Range // of anchorRange, of its own for each rule
	of      asked.Number // of anchorNoNumber
}

type anchorKind uint8

const (
	anchorExact anchorKind = iota
	anchorBlock
	anchorPrefix
	anchorSuffix
	anchorInner   // anywhere in the value
	anchorPresent // nothing but that there is a value
	anchorAbsent  // that there is none
	anchorRange
	anchorNoNumber // that the value is no number
)

// anchorChoices returns ways to anchor p. Each is a set of literals, and every matching value holds
// one of them.
func anchorChoices(p *Pattern) [][]anchor {
	switch p.kind {
	case ExactPattern:
		return [][]anchor{{{kind: anchorExact, text: p.text}}}
	case BlockPattern:
		return [][]anchor{{{kind: anchorBlock, block: *p.block}}}
	case GlobPattern:
		return globAnchors(p.glob)
	case RegexpPattern:
		if ways, _ := regexpAnchors(p.re.String()); len(ways) > 0 {
			return ways
		}
	}
	return [][]anchor{{{kind: anchorPresent}}}
}

func globAnchors(g *glob) [][]anchor {
	var choices [][]anchor
	switch {
	case g.kind == globExact:
		return [][]anchor{{{kind: anchorExact, text: g.prefix}}}
	case g.kind == globOne && g.folder:
		folder := strings.TrimSuffix(g.prefix, "/")
		choices = append(choices, []anchor{
			{kind: anchorPrefix, text: g.prefix}, {kind: anchorExact, text: folder},
		})
	case g.prefix != "":
		choices = append(choices, []anchor{{kind: anchorPrefix, text: g.prefix}})
	}
	if g.suffix != "" {
		choices = append(choices, []anchor{{kind: anchorSuffix, text: g.suffix}})
	}
	var inner []string
	if g.kind == globNFA {
		inner = g.nfa.inner
	}
	for i, text := range inner {
		way := []anchor{{kind: anchorInner, text: text}}
		if folder := strings.TrimSuffix(text, "/"); g.folder && i == len(inner)-1 {
			if folder == "" {
				continue // any value may end in that
			}
			way = append(way, anchor{kind: anchorSuffix, text: folder})
		}
		choices = append(choices, way)
	}
	if len(choices) == 0 {
		choices = [][]anchor{{{kind: anchorPresent}}}
	}
	return choices
}

// weight says how selective a set of anchors is: as selective as its least selective member. Less
// is better.
type weight struct {
	presence bool // it asks for presence only
	cost     int  // how many rules share the most common literal
	absent   bool // a request without the attribute, or with an odd value, brings the rule in, too
	rank     int  // of kinds: an exact value is found soonest
	length   int  // of the shortest literal, negated
}

// weak is the weight of a literal that many values hold by chance, in rules that share it.
const weak = 16

// weigh weighs anchors; shared returns how many rules share the literal of an anchor.
func weigh(anchors []anchor, shared func(anchor) int) weight {
	var w weight
	for i, a := range anchors {
		if a.kind == anchorAbsent || a.kind == anchorNoNumber {
			w.absent = true
			continue
		}
		n, rank := shared(a), 0
		switch a.kind {
		case anchorExact:
		case anchorBlock:
			rank = 1
		case anchorRange:
			rank = 2
		case anchorPrefix, anchorSuffix:
			if rank = 2; len(a.text) < 2 {
				n += weak
			}
		case anchorInner:
			if rank = 3; len(a.text) < 3 {
				n += weak
			}
		default:
			w.presence = true
		}
		w.cost, w.rank = max(w.cost, n), max(w.rank, rank)
		if i == 0 || -len(a.text) > w.length {
			w.length = -len(a.text)
		}
	}
	return w
}

func (w weight) less(o weight) bool {
	switch {
	case w.presence != o.presence:
		return o.presence
	case w.cost != o.cost:
		return w.cost < o.cost
	case w.absent != o.absent:
		return o.absent
	case w.rank != o.rank:
		return w.rank < o.rank
	}
	return w.length < o.length
}

// bestOf returns the choice that is the most selective by itself.
func bestOf(choices [][]anchor) []anchor {
	alone := func(anchor) int { return 1 }
	best := choices[0]
	for _, c := range choices[1:] {
		if weigh(c, alone).less(weigh(best, alone)) {
			best = c
		}
	}
	return best
}

// slotAnchor is one way to anchor a rule: at these literals of one attribute.
type slotAnchor struct {
	slot    int
	anchors []anchor
}

// anchorer finds ways to anchor rules. It remembers the ways of each regular expression, since one
// often stands in many rules.
type anchorer struct {
	domain *domain
	asks   map[askKey]asks
	known  map[string][][]anchor
}

func (f *anchorer) choices(p *Pattern) [][]anchor {
	if p.kind != RegexpPattern {
		return anchorChoices(p)
	}
	source := p.re.String()
	choices, ok := f.known[source]
	if !ok {
		choices = anchorChoices(p)
		f.known[source] = choices
	}
	return choices
}

// rule returns the ways to anchor r: at a condition with positive patterns, at a condition of its
// expression on an attribute, or at a part of its key.
func (f *anchorer) rule(r *matchRule) []slotAnchor {
	var ways []slotAnchor
	for i := range r.rule.When {
		c := &r.rule.When[i]
		if !c.positive {
			continue
		}
		slot := int(c.slot)
		positive, _ := c.split()
		if len(positive) == 1 {
			for _, o := range f.choices(&positive[0]) {
				ways = append(ways, slotAnchor{slot, o})
			}
			continue
		}
		var merged []anchor
		for k := range positive {
			merged = append(merged, bestOf(f.choices(&positive[k]))...)
		}
		slices.SortFunc(merged, func(a, b anchor) int {
			return cmp.Or(int(a.kind)-int(b.kind), cmp.Compare(a.text, b.text))
		})
		ways = append(ways, slotAnchor{slot, slices.Compact(merged)})
	}
	if p := r.rule.predicate(); p != nil {
		all := f.asks[r.askKey(p)]
		for i := range all.list {
			ways = append(ways, f.ask(&all, &all.list[i])...)
		}
	}
	for _, part := range r.per {
		if len(part) == 1 {
			ways = append(ways, slotAnchor{part[0].slot, []anchor{{kind: anchorPresent}}})
		}
	}
	for i := range ways {
		path := f.domain.slots[ways[i].slot].kind == kindPath
		ways[i].anchors = withPresence(ways[i].anchors, path)
	}
	return ways
}

// withPresence returns anchors, or if one of them says no more than that there is a value, that one
// in place of all literals.
func withPresence(anchors []anchor, path bool) []anchor {
	presence := func(a anchor) bool { // each path has a slash
		return a.kind == anchorPresent ||
			path && a.text == "/" && (a.kind == anchorPrefix || a.kind == anchorInner)
	}
	if !slices.ContainsFunc(anchors, presence) {
		return anchors
	}
	out := []anchor{{kind: anchorPresent}} // an odd value is one, too
	if slices.ContainsFunc(anchors, func(a anchor) bool { return a.kind == anchorAbsent }) {
		out = append(out, anchor{kind: anchorAbsent})
	}
	return out
}

// ask returns the ways to anchor a rule at q, one of all that its expression asks.
func (f *anchorer) ask(all *asks, q *ask) []slotAnchor {
	slot, ok := f.domain.slotOf[q.attribute]
	if !ok {
		return nil
	}
	// A look-up of an absent attribute fails, which is counted, unless the expression asks whether
	// it is there. So does the conversion of a value that is no number.
	presence := slices.ContainsFunc(all.list, func(o ask) bool { return o.attribute == q.attribute && o.presence })
	fails := q.lookUp || slices.ContainsFunc(q.numbers, asked.Number.Fails)
	absent := q.absent || fails && !presence
	var ways []slotAnchor
	for _, w := range q.ways {
		w = slices.Clip(w)
		if absent {
			w = append(w, anchor{kind: anchorAbsent})
		}
		for _, n := range q.numbers {
			if n.Fails() {
				w = append(w, anchor{kind: anchorNoNumber, of: n})
			}
		}
		ways = append(ways, slotAnchor{slot, w})
	}
	return ways
}

// crowds counts how many ranges of one attribute overlap with each, so that rules are filed where
// there are few.
type crowds map[crowdOf]*crowd

type crowdOf struct {
	slot int
	of   asked.Number
}

type crowd struct{ leasts, mosts []int64 }

func (c *crowds) add(slot int, r *asked.Range) {
	if *c == nil {
		*c = crowds{}
	}
	at := crowdOf{slot, r.Of}
	one := (*c)[at]
	if one == nil {
		one = &crowd{}
		(*c)[at] = one
	}
	if !r.Empty() {
		one.leasts, one.mosts = append(one.leasts, r.Least), append(one.mosts, r.Most)
	}
}

func (c crowds) finish() {
	for _, one := range c {
		slices.Sort(one.leasts)
		slices.Sort(one.mosts)
	}
}

// in returns how many ranges meet r, which is one of them.
func (c crowds) in(slot int, r *asked.Range) int {
	if r.Empty() {
		return 0
	}
	one := c[crowdOf{slot, r.Of}]
	before, _ := slices.BinarySearch(one.mosts, r.Least)
	behind := len(one.leasts)
	if r.Most < one.leasts[behind-1] {
		behind, _ = slices.BinarySearch(one.leasts, r.Most+1)
	}
	return behind - before
}
