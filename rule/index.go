package rule

import (
	"net/netip"
	"slices"
)

// patternSet answers "does any of these patterns match" in a time that does not grow with the
// number of patterns that a literal tells apart.
type patternSet struct {
	few  []Pattern     // looked at one by one
	many *patternTable // the others; nil if there are none
}

// patternTable finds the patterns that may match a value.
type patternTable struct {
	exact    map[string]struct{} // nil if there are none
	maxExact int                 // the longest of them: a longer value is not looked up
	blocks   *blockTable[struct{}]
	patterns []Pattern   // looked at if index names them
	index    *valueIndex // nil if there are few of them
}

// fewPatterns is up to how many patterns are quicker looked at one by one.
const fewPatterns = 6

func newPatternSet(patterns []Pattern) *patternSet {
	if len(patterns) <= fewPatterns {
		return &patternSet{few: patterns}
	}
	t := &patternTable{}
	var others []Pattern
	for _, p := range patterns {
		switch p.kind {
		case ExactPattern:
			if t.exact == nil {
				t.exact = map[string]struct{}{}
			}
			t.exact[p.text] = struct{}{}
			t.maxExact = max(t.maxExact, len(p.text))
		case BlockPattern:
			if t.blocks == nil {
				t.blocks = &blockTable[struct{}]{}
			}
			t.blocks.set(*p.block, struct{}{})
		default:
			others = append(others, p)
		}
	}
	if len(others) <= fewPatterns {
		return &patternSet{few: others, many: t}
	}
	s := &patternSet{many: t}
	for _, p := range others {
		best := bestOf(anchorChoices(&p))
		if best[0].kind == anchorPresent {
			s.few = append(s.few, p)
			continue
		}
		if t.index == nil {
			t.index = &valueIndex{}
		}
		for _, a := range best {
			t.index.add(a, int32(len(t.patterns)))
		}
		t.patterns = append(t.patterns, p)
	}
	if t.index != nil {
		t.index.finish()
	}
	return s
}

// match ignores the negation of the patterns. m is its memory meanwhile.
func (s *patternSet) match(m *Matches, text string, addr netip.Addr) bool {
	if s.many != nil && s.many.match(m, text, addr) {
		return true
	}
	for i := range s.few {
		if s.few[i].positive(text, addr) {
			return true
		}
	}
	return false
}

func (t *patternTable) match(m *Matches, text string, addr netip.Addr) bool {
	if t.exact != nil && len(text) <= t.maxExact {
		if _, ok := t.exact[text]; ok {
			return true
		}
	}
	if t.blocks != nil && t.blocks.has(addr) {
		return true
	}
	if t.index == nil {
		return false
	}
	m.patterns = t.index.appendIDs(m, m.patterns[:0], text, addr)
	m.tried += len(m.patterns)
	for _, i := range m.patterns {
		if t.patterns[i].positive(text, addr) {
			return true
		}
	}
	return false
}

// blockTable finds the address blocks that hold an address, by one look-up for each length of
// prefix that it holds.
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

// valueIndex finds the ids whose anchors a value of one attribute holds.
type valueIndex struct {
	exact          map[string][]int32
	maxExact       int
	prefix, suffix *trie
	blocks         *blockTable[[]int32]
	inner          *gramTable
	numbers        []*numberIndex // one for each way in which the value is made a number
	folded         *valueIndex    // of the literals that a folded value must hold
	present        []int32
	absent         []int32 // looked at where there is no value
}

// add files id under an anchor. finish must be called after the last one.
func (x *valueIndex) add(a anchor, id int32) {
	if a.fold {
		if x.folded == nil {
			x.folded = &valueIndex{}
		}
		a.fold = false
		x.folded.add(a, id)
		return
	}
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
	case anchorInner:
		if x.inner == nil {
			x.inner = &gramTable{}
		}
		x.inner.add(a.text, id)
	case anchorAbsent:
		x.absent = append(x.absent, id)
	case anchorRange:
		x.numberIndex(a.numbers.Of).add(a.numbers, id)
	case anchorNoNumber:
		n := x.numberIndex(a.of)
		n.odd = append(n.odd, id)
	default:
		x.present = append(x.present, id)
	}
}

func (x *valueIndex) finish() {
	if x.inner != nil {
		x.inner.finish()
	}
	if x.folded != nil {
		x.folded.finish()
	}
	for _, n := range x.numbers {
		n.finish()
	}
}

// appendIDs appends the ids that a value brings in; an id may come several times, and in any order.
// m is its memory meanwhile.
func (x *valueIndex) appendIDs(m *Matches, dst []int32, text string, addr netip.Addr) []int32 {
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
	if x.inner != nil {
		dst = x.inner.appendIDs(m, dst, text)
	}
	for _, n := range x.numbers {
		dst = n.appendIDs(dst, text)
	}
	if x.folded != nil {
		begin := len(m.scratch)
		dst = x.folded.appendIDs(m, dst, foldText(text, &m.scratch), addr)
		m.scratch = m.scratch[:begin]
	}
	return append(dst, x.present...)
}

// ruleIndex finds the native rules that may apply. It looks only at rules whose anchor the request
// holds.
type ruleIndex struct {
	always  []int32       // rules without an anchor, ascending
	slots   []int         // attributes that anchor rules
	lacking []int         // the ones whose absence brings rules in
	indexes []*valueIndex // by slot; nil for one that anchors none
	loose   []int32       // rules that are costly to look at, and that no literal tells apart
}

// fewRules is up to how many rules are quicker looked at one by one than through an index.
const fewRules = 8

// newRuleIndex indexes rules. For each it takes, of all ways to anchor it, the one that shares its
// most common literal with the fewest other rules.
func newRuleIndex(rules []*matchRule, d *domain, known map[askKey]asks) *ruleIndex {
	type literal struct {
		slot int
		anchor
	}
	find := anchorer{domain: d, asks: known, known: map[string][][]anchor{}}
	ways := make([][]slotAnchor, len(rules))
	count := map[literal]int{}
	var crowds crowds
	for i, r := range rules {
		ways[i] = find.rule(r)
		for _, w := range ways[i] {
			for _, a := range w.anchors {
				if a.kind == anchorRange {
					crowds.add(w.slot, a.numbers)
				} else {
					count[literal{w.slot, a}]++
				}
			}
		}
	}
	crowds.finish()
	x := &ruleIndex{indexes: make([]*valueIndex, len(d.slots))}
	alike := map[string]*matchRule{}
	for i, r := range rules {
		best, least := -1, weight{presence: true}
		for k, way := range ways[i] {
			w := weigh(way.anchors, func(a anchor) int {
				if a.kind == anchorRange {
					return crowds.in(way.slot, a.numbers)
				}
				return count[literal{way.slot, a}]
			})
			if best < 0 || w.less(least) {
				best, least = k, w
			}
		}
		if (least.presence || least.rank == 3 && least.length == -1) && r.costly() > 0 {
			x.loose = append(x.loose, int32(i))
		}
		if best < 0 {
			x.always = append(x.always, int32(i))
			continue
		}
		way := ways[i][best]
		v := x.indexes[way.slot]
		if v == nil {
			v = &valueIndex{}
			x.indexes[way.slot] = v
			x.slots = append(x.slots, way.slot)
		}
		for _, a := range way.anchors {
			if (a.kind == anchorAbsent || a.kind == anchorNoNumber) &&
				!first(alike, find.oddSpelling(r, way.slot, a.of), r, way.slot, a.of) {
				continue
			}
			v.add(a, int32(i))
		}
	}
	for _, s := range x.slots {
		x.indexes[s].finish()
		if len(x.indexes[s].absent) > 0 {
			x.lacking = append(x.lacking, s)
		}
	}
	return x
}

// indexPays reports whether these rules are quicker found through an index than one by one.
func indexPays(rules []*matchRule) bool {
	n := len(rules)
	for _, r := range rules {
		if n > fewRules {
			return true
		}
		n += r.costly()
	}
	return n > fewRules
}

// manySlots is above how many anchoring attributes the request's own attributes are gone through
// instead of them.
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
		for _, s := range x.lacking {
			if !m.value(s).present {
				x.addCandidates(m, s)
			}
		}
	}
	if m.hasty && len(m.candidates) > nowCost/chargeCost {
		return m.candidates // for slowWith
	}
	if len(m.candidates) > 1 {
		slices.Sort(m.candidates)
		m.candidates = slices.Compact(m.candidates)
	}
	return m.candidates
}

// addPresent adds the rules for the attributes that the request has. It is apart from candidates so
// that the variables that the loop captures are allocated here only.
func (x *ruleIndex) addPresent(m *Matches) {
	for name := range m.attributes() {
		if s, ok := m.domain.slotOf[name]; ok && x.indexes[s] != nil {
			x.addCandidates(m, s)
		}
	}
}

func (x *ruleIndex) addCandidates(m *Matches, slot int) {
	v := m.value(slot)
	switch {
	case !v.present:
		m.candidates = append(m.candidates, x.indexes[slot].absent...)
	case v.indexed != m.generation:
		v.indexed = m.generation // an attribute that comes twice brings its rules in once
		m.candidates = x.indexes[slot].appendIDs(m, m.candidates, v.text, m.addrOf(slot))
		if s := m.odd & spelledOf(m.domain.slots[slot].kind); s != 0 {
			one, other := m.spellings(s)
			m.candidates = x.indexes[slot].appendIDs(m, m.candidates, one, netip.Addr{})
			if one != other && other != v.text {
				m.candidates = x.indexes[slot].appendIDs(m, m.candidates, other, netip.Addr{})
			}
		}
	}
}
