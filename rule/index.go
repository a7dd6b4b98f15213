package rule

import (
	"net/netip"
	"slices"
	"strings"
)

// patternSet answers "does any of these patterns match" in a time that does not grow with exact values and addresses.
type patternSet struct {
	few      []Pattern           // looked at one by one
	exact    map[string]struct{} // nil if there are few exact values
	maxExact int                 // the longest of them: a longer value is not looked up
	blocks   *blockTable[struct{}]
}

// fewPatterns is up to how many patterns are quicker looked at one by one.
const fewPatterns = 6

func newPatternSet(patterns []Pattern) patternSet {
	if len(patterns) <= fewPatterns {
		return patternSet{few: patterns}
	}
	var s patternSet
	for _, p := range patterns {
		switch p.kind {
		case patternExact:
			if s.exact == nil {
				s.exact = map[string]struct{}{}
			}
			s.exact[p.text] = struct{}{}
			s.maxExact = max(s.maxExact, len(p.text))
		case patternCIDR:
			if s.blocks == nil {
				s.blocks = &blockTable[struct{}]{}
			}
			s.blocks.set(p.block, struct{}{})
		default:
			s.few = append(s.few, p)
		}
	}
	return s
}

// match ignores the negation of the patterns.
func (s *patternSet) match(text string, addr netip.Addr) bool {
	if s.exact != nil && len(text) <= s.maxExact {
		if _, ok := s.exact[text]; ok {
			return true
		}
	}
	if s.blocks != nil && s.blocks.has(addr) {
		return true
	}
	for i := range s.few {
		if s.few[i].positive(text, addr) {
			return true
		}
	}
	return false
}

// blockTable finds the address blocks that hold an address, by one look-up for each length of prefix that it holds.
type blockTable[T any] struct {
	bits4, bits6 []int
	blocks       map[netip.Prefix]T
}

func (t *blockTable[T]) set(p netip.Prefix, v T) {
	if t.blocks == nil {
		t.blocks = map[netip.Prefix]T{}
	}
	bits := &t.bits6
	if p.Addr().Is4() {
		bits = &t.bits4
	}
	if i, found := slices.BinarySearch(*bits, p.Bits()); !found {
		*bits = slices.Insert(*bits, i, p.Bits())
	}
	t.blocks[p] = v
}

func (t *blockTable[T]) get(p netip.Prefix) T { return t.blocks[p] }

// lengths returns the lengths of the blocks in which addr may be; none for the zero Addr.
func (t *blockTable[T]) lengths(addr netip.Addr) []int {
	switch {
	case addr.Is4():
		return t.bits4
	case addr.Is6():
		return t.bits6
	}
	return nil
}

func (t *blockTable[T]) has(addr netip.Addr) bool {
	for _, bits := range t.lengths(addr) {
		if p, err := addr.Prefix(bits); err == nil {
			if _, ok := t.blocks[p]; ok {
				return true
			}
		}
	}
	return false
}

// trie is a radix tree of literals; reversed, of literals read from their end.
type trie struct {
	root     trieNode
	reversed bool
}

type trieNode struct {
	label    string // the bytes that lead here from the parent
	ids      []int32
	heads    []byte // first byte of each child's label
	children []*trieNode
}

func (t *trie) insert(literal string, id int32) {
	if t.reversed {
		b := []byte(literal)
		slices.Reverse(b)
		literal = string(b)
	}
	n := &t.root
	for literal != "" {
		i := slices.Index(n.heads, literal[0])
		if i < 0 {
			child := &trieNode{label: literal}
			n.heads, n.children = append(n.heads, literal[0]), append(n.children, child)
			n, literal = child, ""
			break
		}
		child := n.children[i]
		common := 0
		for common < len(literal) && common < len(child.label) && literal[common] == child.label[common] {
			common++
		}
		if common < len(child.label) { // split the edge
			middle := &trieNode{label: child.label[:common], heads: []byte{child.label[common]}, children: []*trieNode{child}}
			child.label = child.label[common:]
			n.children[i] = middle
			child = middle
		}
		n, literal = child, literal[common:]
	}
	if len(n.ids) == 0 || n.ids[len(n.ids)-1] != id {
		n.ids = append(n.ids, id)
	}
}

// appendIDs appends the ids of all literals that s begins with; in a reversed trie, ends with.
func (t *trie) appendIDs(dst []int32, s string) []int32 {
	n := &t.root
	for {
		dst = append(dst, n.ids...)
		if s == "" || len(n.heads) == 0 {
			return dst
		}
		head := s[0]
		if t.reversed {
			head = s[len(s)-1]
		}
		i := -1
		for k, h := range n.heads {
			if h == head {
				i = k
				break
			}
		}
		if i < 0 {
			return dst
		}
		n = n.children[i]
		if len(s) < len(n.label) {
			return dst
		}
		if !t.reversed {
			if s[:len(n.label)] != n.label {
				return dst
			}
			s = s[len(n.label):]
			continue
		}
		for k := range len(n.label) {
			if s[len(s)-1-k] != n.label[k] {
				return dst
			}
		}
		s = s[:len(s)-len(n.label)]
	}
}

// anchor is a literal that a value must hold for a pattern to match it.
type anchor struct {
	kind  anchorKind
	text  string
	block netip.Prefix
}

type anchorKind uint8

const (
	anchorExact anchorKind = iota
	anchorBlock
	anchorPrefix
	anchorSuffix
	anchorPresent // nothing but that there is a value
)

// anchorChoices returns ways to anchor p, each a set of literals one of which every matching value holds.
func anchorChoices(p *Pattern) [][]anchor {
	switch p.kind {
	case patternExact:
		return [][]anchor{{{kind: anchorExact, text: p.text}}}
	case patternCIDR:
		return [][]anchor{{{kind: anchorBlock, block: p.block}}}
	case patternGlob:
		return globAnchors(p.glob)
	}
	return [][]anchor{{{kind: anchorPresent}}}
}

func globAnchors(g *glob) [][]anchor {
	var choices [][]anchor
	switch {
	case g.kind == globExact:
		return [][]anchor{{{kind: anchorExact, text: g.prefix}}}
	case g.kind == globOne && g.folder:
		choices = append(choices, []anchor{{kind: anchorPrefix, text: g.prefix}, {kind: anchorExact, text: strings.TrimSuffix(g.prefix, "/")}})
	case g.prefix != "":
		choices = append(choices, []anchor{{kind: anchorPrefix, text: g.prefix}})
	}
	if g.suffix != "" {
		choices = append(choices, []anchor{{kind: anchorSuffix, text: g.suffix}})
	}
	if len(choices) == 0 {
		choices = [][]anchor{{{kind: anchorPresent}}}
	}
	return choices
}

// valueIndex finds the ids whose anchors a value of one attribute holds.
type valueIndex struct {
	exact          map[string][]int32
	maxExact       int
	prefix, suffix *trie
	blocks         *blockTable[[]int32]
	present        []int32
}

func (x *valueIndex) add(a anchor, id int32) {
	switch a.kind {
	case anchorExact:
		if x.exact == nil {
			x.exact = map[string][]int32{}
		}
		x.exact[a.text] = append(x.exact[a.text], id)
		x.maxExact = max(x.maxExact, len(a.text))
	case anchorBlock:
		if x.blocks == nil {
			x.blocks = &blockTable[[]int32]{}
		}
		x.blocks.set(a.block, append(x.blocks.get(a.block), id))
	case anchorPrefix:
		if x.prefix == nil {
			x.prefix = &trie{}
		}
		x.prefix.insert(a.text, id)
	case anchorSuffix:
		if x.suffix == nil {
			x.suffix = &trie{reversed: true}
		}
		x.suffix.insert(a.text, id)
	default:
		x.present = append(x.present, id)
	}
}

// appendIDs appends the ids that a value brings in; an id may come several times, and in any order.
func (x *valueIndex) appendIDs(dst []int32, text string, addr netip.Addr) []int32 {
	if x.exact != nil && len(text) <= x.maxExact {
		dst = append(dst, x.exact[text]...)
	}
	if x.prefix != nil {
		dst = x.prefix.appendIDs(dst, text)
	}
	if x.suffix != nil {
		dst = x.suffix.appendIDs(dst, text)
	}
	if x.blocks != nil {
		for _, bits := range x.blocks.lengths(addr) {
			if p, err := addr.Prefix(bits); err == nil {
				dst = append(dst, x.blocks.blocks[p]...)
			}
		}
	}
	return append(dst, x.present...)
}

// ruleIndex finds the native rules that may apply. It looks only at rules whose anchor the request holds.
type ruleIndex struct {
	always  []int32       // rules without an anchor, ascending
	slots   []int         // attributes that anchor rules
	indexes []*valueIndex // by slot; nil for one that anchors none
}

// fewRules is up to how many rules are quicker looked at one by one than through an index.
const fewRules = 8

// slotAnchor is one way to anchor a rule: at these literals of one attribute.
type slotAnchor struct {
	slot    int
	anchors []anchor
}

// newRuleIndex indexes rules. For each it takes, of all ways to anchor it, the one that shares its most common literal
// with the fewest other rules.
func newRuleIndex(rules []*matchRule, slots int) *ruleIndex {
	type literal struct {
		slot int
		anchor
	}
	choices := make([][]slotAnchor, len(rules))
	count := map[literal]int{}
	for i, r := range rules {
		choices[i] = ruleAnchors(r)
		for _, c := range choices[i] {
			for _, a := range c.anchors {
				count[literal{c.slot, a}]++
			}
		}
	}
	x := &ruleIndex{indexes: make([]*valueIndex, slots)}
	for i := range rules {
		best, cost := -1, 0
		for k, c := range choices[i] {
			worst := 0
			for _, a := range c.anchors {
				worst = max(worst, count[literal{c.slot, a}])
			}
			if best < 0 || better(c, worst, choices[i][best], cost) {
				best, cost = k, worst
			}
		}
		if best < 0 {
			x.always = append(x.always, int32(i))
			continue
		}
		c := choices[i][best]
		if x.indexes[c.slot] == nil {
			x.indexes[c.slot] = &valueIndex{}
			x.slots = append(x.slots, c.slot)
		}
		for _, a := range c.anchors {
			x.indexes[c.slot].add(a, int32(i))
		}
	}
	return x
}

// better reports whether anchoring at a (shared by costA rules) beats b: a literal beats mere presence, then fewer rules,
// then the kind that says more, then the longer literal.
func better(a slotAnchor, costA int, b slotAnchor, costB int) bool {
	ka, kb := a.anchors[0].kind, b.anchors[0].kind
	if (ka == anchorPresent) != (kb == anchorPresent) {
		return kb == anchorPresent
	}
	if costA != costB {
		return costA < costB
	}
	if min(ka, anchorPrefix) != min(kb, anchorPrefix) {
		return ka < kb
	}
	return len(a.anchors[0].text) > len(b.anchors[0].text)
}

// ruleAnchors returns the ways to anchor r: at a condition with positive patterns, or at a part of its key.
func ruleAnchors(r *matchRule) []slotAnchor {
	var ways []slotAnchor
	for i := range r.conditions {
		c := &r.conditions[i]
		if len(c.positive) == 0 {
			continue
		}
		var merged []anchor
		literal := true
		for k := range c.positive {
			options := anchorChoices(&c.positive[k])
			if options[0][0].kind == anchorPresent {
				literal = false
				break
			}
			if len(c.positive) == 1 {
				for _, o := range options {
					ways = append(ways, slotAnchor{c.slot, o})
				}
				break
			}
			merged = append(merged, longest(options)...)
		}
		if !literal {
			ways = append(ways, slotAnchor{c.slot, []anchor{{kind: anchorPresent}}})
		} else if len(merged) > 0 {
			slices.SortFunc(merged, func(a, b anchor) int { // the weakest first, by which the way is judged
				if a.kind != b.kind {
					return int(b.kind) - int(a.kind)
				}
				return len(a.text) - len(b.text)
			})
			ways = append(ways, slotAnchor{c.slot, slices.Compact(merged)})
		}
	}
	for _, part := range r.per {
		if len(part) == 1 {
			ways = append(ways, slotAnchor{part[0].slot, []anchor{{kind: anchorPresent}}})
		}
	}
	return ways
}

// longest returns the choice with the longest literal.
func longest(choices [][]anchor) []anchor {
	best := choices[0]
	for _, c := range choices[1:] {
		if len(c[0].text) > len(best[0].text) {
			best = c
		}
	}
	return best
}

// manySlots is above how many anchoring attributes the request's own attributes are gone through instead of them.
const manySlots = 32

// candidates returns the rules that may apply, ascending and each once, without those in always.
func (x *ruleIndex) candidates(m *Matches) []int32 {
	m.candidates = m.candidates[:0]
	if len(x.slots) <= manySlots {
		for _, s := range x.slots {
			x.addCandidates(m, s)
		}
	} else {
		x.addPresent(m)
	}
	if len(m.candidates) > 1 {
		slices.Sort(m.candidates)
		m.candidates = slices.Compact(m.candidates)
	}
	return m.candidates
}

// addPresent adds the rules that the attributes bring in that the request has. It is apart from candidates so that what
// the loop captures is allocated here only.
func (x *ruleIndex) addPresent(m *Matches) {
	for name := range m.attributes() {
		if s, ok := m.domain.slotOf[name]; ok && x.indexes[s] != nil {
			x.addCandidates(m, s)
		}
	}
}

func (x *ruleIndex) addCandidates(m *Matches, slot int) {
	if v := m.value(slot); v.present && v.indexed != m.generation {
		v.indexed = m.generation // an attribute that comes twice brings its rules in once
		m.candidates = x.indexes[slot].appendIDs(m.candidates, v.text, m.addrOf(slot))
	}
}
