package file

import (
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/weir-rl/weir/rule"
)

// Whether one pattern, condition or rule surely covers another. All of it errs on one side: a
// relation that is not proven within the bounds below is taken not to hold.

// The bounds on one proof.
const (
	maxTexts = 1 << 10 // elements of a textSet
	maxProof = 1 << 14 // states looked at
)

// run is a wildcard: which bytes it may stand for.
type run uint8

const (
	noRun  run = iota
	inRun      // any run of bytes but the slash
	anyRun     // any run of bytes
)

// textElement is a byte, or a run of any bytes.
type textElement struct {
	run  run
	byte byte
}

// textSet is a set of texts: a sequence of bytes and runs. With folder it ends in /** and holds the
// folder itself too.
type textSet struct {
	elements []textElement
	folder   bool
}

func literalText(text string) textSet {
	s := textSet{elements: make([]textElement, len(text))}
	for i := range len(text) {
		s.elements[i].byte = text[i]
	}
	return s
}

// globTexts is the set of texts that a native glob matches.
func globTexts(source string) textSet {
	var s textSet
	for i := 0; i < len(source); {
		if source[i] != '*' {
			s.elements = append(s.elements, textElement{byte: source[i]})
			i++
			continue
		}
		stars := len(source[i:]) - len(strings.TrimLeft(source[i:], "*"))
		kind := inRun
		if stars > 1 {
			kind = anyRun
		}
		s.elements = append(s.elements, textElement{run: kind})
		i += stars
	}
	s.folder = strings.HasSuffix(source, "/**")
	return s
}

// texts returns what p matches, its negation aside. It is exact, or holds more than p matches.
func texts(p *rule.Pattern) (s textSet, exact bool) {
	switch p.Kind() {
	case rule.ExactPattern:
		return literalText(p.Text()), true
	case rule.GlobPattern:
		return globTexts(p.Text()), true
	case rule.RegexpPattern:
		return regexpTexts(p.Text())
	case rule.BlockPattern:
		if p.Block().IsSingleIP() {
			return literalText(p.Block().Addr().String()), true
		}
	}
	return textSet{elements: []textElement{{run: anyRun}}}, false
}

// regexpTexts returns the texts that an expression matches, or a larger set.
func regexpTexts(source string) (s textSet, exact bool) {
	re, err := syntax.Parse(source, syntax.Perl)
	if err != nil {
		return textSet{elements: []textElement{{run: anyRun}}}, false
	}
	parts := []*syntax.Regexp{re}
	if re.Op == syntax.OpConcat {
		parts = re.Sub
	}
	exact = true
	begin, end := 0, len(parts)
	if parts[0].Op == syntax.OpBeginText {
		begin++
	} else {
		s.run()
	}
	closed := begin < end && parts[end-1].Op == syntax.OpEndText
	if closed {
		end--
	}
	optional := func(r *syntax.Regexp) bool { return r.Op == syntax.OpStar || r.Op == syntax.OpQuest }
	for !closed && begin < end && optional(parts[end-1]) { // what follows may be anything
		end--
	}
	for parts[0].Op != syntax.OpBeginText && begin < end && optional(parts[begin]) {
		begin++
	}
	for _, part := range parts[begin:end] {
		switch {
		case part.Op == syntax.OpEmptyMatch:
		case part.Op == syntax.OpLiteral && part.Flags&syntax.FoldCase == 0 && !slices.Contains(part.Rune, utf8.RuneError):
			for _, c := range []byte(string(part.Rune)) {
				s.elements = append(s.elements, textElement{byte: c})
			}
		case part.Op == syntax.OpStar && part.Sub[0].Op == syntax.OpAnyChar:
			s.run()
		default:
			s.run()
			exact = false
		}
	}
	if !closed {
		s.run()
	}
	return s, exact
}

// run appends a run of any bytes, unless there is one already.
func (s *textSet) run() {
	if n := len(s.elements); n == 0 || s.elements[n-1].run != anyRun {
		s.elements = append(s.elements, textElement{run: anyRun})
	}
}

// accepts reports whether the text may end where the first i elements have been passed.
func (s *textSet) accepts(i int) bool {
	return i == len(s.elements) || s.folder && i == len(s.elements)-2
}

// closure adds to states those that are reached without a byte.
func (s *textSet) closure(states []bool) {
	for i := range s.elements {
		if states[i] && s.elements[i].run != noRun {
			states[i+1] = true
		}
	}
}

// step returns the states behind one byte c.
func (s *textSet) step(states []bool, c byte) []bool {
	next := make([]bool, len(states))
	for i, e := range s.elements {
		switch {
		case !states[i]:
		case e.run == noRun && e.byte == c:
			next[i+1] = true
		case e.run == anyRun, e.run == inRun && c != '/':
			next[i] = true
		}
	}
	s.closure(next)
	return next
}

// start returns the states before the first byte.
func (s *textSet) start() []bool {
	states := make([]bool, len(s.elements)+1)
	states[0] = true
	s.closure(states)
	return states
}

// alphabet returns a byte for each class of bytes that the sets tell apart.
func alphabet(sets ...textSet) []byte {
	var seen [256]bool
	seen['/'] = true
	for _, s := range sets {
		for _, e := range s.elements {
			if e.run == noRun {
				seen[e.byte] = true
			}
		}
	}
	var bytes []byte
	other := false
	for c, known := range seen {
		if known {
			bytes = append(bytes, byte(c))
		} else if !other {
			other = true
			bytes = append(bytes, byte(c))
		}
	}
	return bytes
}

// within reports whether every text of s is one of a, as far as it can be proven.
func (s textSet) within(a textSet) bool {
	if len(a.elements) > maxTexts || len(s.elements) > maxTexts {
		return false
	}
	bytes := alphabet(a, s)
	return explore(s, a, bytes, func(inB, inA bool) bool { return !inB || inA })
}

// apart reports whether no text is of both a and s, as far as it can be proven.
func (s textSet) apart(a textSet) bool {
	if len(a.elements) > maxTexts || len(s.elements) > maxTexts {
		return false
	}
	return explore(s, a, alphabet(a, s), func(inB, inA bool) bool { return !inB || !inA })
}

// explore goes through all pairs of sets of states that some text leads a and b to, and reports
// whether holds of each.
func explore(b, a textSet, bytes []byte, holds func(inB, inA bool) bool) bool {
	type pair struct{ b, a []bool }
	key := func(p pair) string {
		k := make([]byte, 0, len(p.a)+len(p.b))
		for _, states := range [][]bool{p.b, p.a} {
			for _, s := range states {
				if s {
					k = append(k, 1)
				} else {
					k = append(k, 0)
				}
			}
		}
		return string(k)
	}
	accepts := func(s textSet, states []bool) bool {
		for i, in := range states {
			if in && s.accepts(i) {
				return true
			}
		}
		return false
	}
	first := pair{b.start(), a.start()}
	seen := map[string]bool{key(first): true}
	todo := []pair{first}
	work := 0
	for len(todo) > 0 {
		p := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if !holds(accepts(b, p.b), accepts(a, p.a)) {
			return false
		}
		for _, c := range bytes {
			next := pair{b: b.step(p.b, c)}
			if !slices.Contains(next.b, true) {
				continue
			}
			next.a = a.step(p.a, c)
			if work += len(next.a) + len(next.b); work > maxProof*64 {
				return false
			}
			if k := key(next); !seen[k] {
				if len(seen) >= maxProof {
					return false
				}
				seen[k] = true
				todo = append(todo, next)
			}
		}
	}
	return true
}

// positive matches p without its negation.
func positive(p *rule.Pattern, value string) bool { return p.Match(value) != p.Negated }

// beforeStar returns the literal text with which a glob begins.
func beforeStar(glob string) string {
	text, _, _ := strings.Cut(glob, "*")
	return text
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
	case b.Kind() == rule.BlockPattern || a.Kind() == rule.BlockPattern || a.Kind() == rule.ExactPattern && b.Kind() == rule.GlobPattern:
		return false
	case a.Kind() == rule.GlobPattern && b.Kind() == rule.GlobPattern && !strings.HasPrefix(beforeStar(b.Text()), beforeStar(a.Text())):
		return false // seen at once, which matters where thousands of rules are compared
	}
	whole, exact := texts(a)
	if !exact {
		return false
	}
	part, _ := texts(b)
	return part.within(whole)
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
	x, _ := texts(a)
	y, _ := texts(b)
	return x.apart(y)
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
		if len(within) == 0 || slash || slices.ContainsFunc(within, func(p *rule.Pattern) bool { return !patternsApart(p, n) }) {
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
		if slices.ContainsFunc(by, func(o rule.Key) bool { return !slices.ContainsFunc(o, func(a string) bool { return !has(a) }) }) {
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
