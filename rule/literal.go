package rule

import (
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds on the literals that are kept of one regular expression. Beyond them less is known of it.
const (
	maxAlternatives = 64   // of one set, such as (a|b|c)
	maxProduct      = 16   // alternatives that a product of two sets may have, as of [ab][cd]
	maxLiteralBytes = 4096 // of all members of a product
	maxInner        = 6    // sets that a match must hold one of
	maxRepeats      = 4    // copies of x in x{n} that are spelt out
	maxBytes        = 4    // single bytes that are alternatives to each other
)

// literals is what every match of a regular expression is known to hold. Sets of literals are of
// alternatives and never empty; one with the empty string among them says nothing.
//
// It is computed bottom up, as Russ Cox did for Google Code Search
// (https://swtch.com/~rsc/regexp/regexp4.html), but keeps literals as they are where that cuts them
// into trigrams, and knows of anchors.
type literals struct {
	exact      bool // a match is one of prefix, which is suffix too
	begin, end bool // a match begins where the text begins, ends where it ends
	prefix     []string
	suffix     []string
	inner      [][]string // a match holds one of each
}

// anything are the literals of an expression that may match anything; empty are those of an
// expression that matches the empty string alone.
func anything() literals { return literals{prefix: []string{""}, suffix: []string{""}} }
func empty() literals    { return exactly([]string{""}) }

func exactly(set []string) literals { return literals{exact: true, prefix: set, suffix: set} }

// literalFinder finds literals; with fold, those that matches hold once foldText has been at them.
type literalFinder struct{ fold bool }

func (f literalFinder) of(re *syntax.Regexp) literals {
	switch re.Op {
	case syntax.OpEmptyMatch, syntax.OpBeginLine, syntax.OpEndLine, syntax.OpWordBoundary,
		syntax.OpNoWordBoundary:
		return empty()
	case syntax.OpBeginText:
		l := empty()
		l.begin = true
		return l
	case syntax.OpEndText:
		l := empty()
		l.end = true
		return l
	case syntax.OpLiteral:
		return f.literal(re)
	case syntax.OpCharClass:
		return f.class(re)
	case syntax.OpCapture:
		return f.of(re.Sub[0])
	case syntax.OpQuest:
		return either(f.of(re.Sub[0]), empty())
	case syntax.OpPlus:
		return repeated(f.of(re.Sub[0]), 1, -1)
	case syntax.OpRepeat:
		return repeated(f.of(re.Sub[0]), re.Min, re.Max)
	case syntax.OpConcat:
		all := empty()
		for _, sub := range re.Sub {
			all = joined(all, f.of(sub))
		}
		return all
	case syntax.OpAlternate:
		all := f.of(re.Sub[0])
		for _, sub := range re.Sub[1:] {
			all = either(all, f.of(sub))
		}
		return all
	}
	return anything()
}

// text is the text that a rune of an expression matches. It is not ok if there are several: under
// (?i), or for U+FFFD, which matches each byte that is not UTF-8.
func (f literalFinder) text(r rune, anyCase bool) (text string, ok bool) {
	if r == utf8.RuneError {
		return "", false
	}
	text = f.folded(r)
	if anyCase {
		for o := unicode.SimpleFold(r); o != r; o = unicode.SimpleFold(o) {
			if f.folded(o) != text {
				return "", false
			}
		}
	}
	return text, true
}

func (f literalFinder) folded(r rune) string {
	if f.fold {
		var scratch []byte
		return foldText(string(r), &scratch)
	}
	return string(r)
}

func (f literalFinder) literal(re *syntax.Regexp) literals {
	all := empty()
	var run strings.Builder
	flush := func() {
		if run.Len() > 0 {
			all = joined(all, exactly([]string{run.String()}))
			run.Reset()
		}
	}
	for _, r := range re.Rune {
		if text, ok := f.text(r, re.Flags&syntax.FoldCase != 0); ok {
			run.WriteString(text)
			continue
		}
		flush()
		all = joined(all, anything())
	}
	flush()
	return all
}

// class spells a small class of characters out.
func (f literalFinder) class(re *syntax.Regexp) literals {
	var set []string
	count := 0
	for i := 0; i+1 < len(re.Rune); i += 2 {
		if count += int(re.Rune[i+1]-re.Rune[i]) + 1; count > 2*maxProduct {
			return anything()
		}
		for r := re.Rune[i]; r <= re.Rune[i+1]; r++ {
			text, ok := f.text(r, false)
			if !ok {
				return anything()
			}
			if !slices.Contains(set, text) {
				set = append(set, text)
			}
		}
	}
	if len(set) == 0 || len(set) > maxProduct {
		return anything()
	}
	return exactly(set)
}

// repeated are the literals of x{low,high}; high is -1 for no bound.
func repeated(x literals, low, high int) literals {
	if low == 0 {
		if high == 1 {
			return either(x, empty())
		}
		return anything()
	}
	all := x
	for range min(low, maxRepeats) - 1 {
		all = joined(all, x)
	}
	if low == high && low <= maxRepeats {
		return all
	}
	return joined(all, joined(anything(), lastOf(x)))
}

// lastOf are the literals at the end of x: the last of many.
func lastOf(x literals) literals {
	return literals{end: x.end, prefix: []string{""}, suffix: x.suffix}
}

// joined are the literals of a followed by b.
func joined(a, b literals) literals {
	l := literals{
		begin: a.begin || a.matchesNothing() && b.begin,
		end:   b.end || b.matchesNothing() && a.end,
	}
	if a.exact && b.exact {
		if set, ok := product(a.suffix, b.prefix); ok {
			l.exact, l.prefix, l.suffix = true, set, set
			return l
		}
	}
	l.prefix, l.suffix = a.prefix, b.suffix
	for _, set := range append(slices.Clone(a.inner), b.inner...) {
		l.hold(set)
	}
	seam, ok := product(a.suffix, b.prefix)
	if !ok {
		l.hold(a.suffix)
		l.hold(b.prefix)
		return l
	}
	if a.exact {
		l.prefix = seam
	}
	if b.exact {
		l.suffix = seam
	}
	l.hold(seam)
	return l
}

func (l *literals) matchesNothing() bool {
	return l.exact && len(l.prefix) == 1 && l.prefix[0] == ""
}

// either are the literals of a|b.
func either(a, b literals) literals {
	l := literals{begin: a.begin && b.begin, end: a.end && b.end}
	var small bool
	if l.prefix, small = union(a.prefix, b.prefix); !small {
		l.prefix = []string{""}
	}
	if a.exact && b.exact && small {
		l.exact, l.suffix = true, l.prefix
		return l
	}
	if l.suffix, small = union(a.suffix, b.suffix); !small {
		l.suffix = []string{""}
	}
	if set, ok := union(a.best(), b.best()); ok {
		l.hold(set)
	}
	return l
}

// best is the most selective set of literals of which every match holds one.
func (l *literals) best() []string {
	best := l.prefix
	for _, set := range append([][]string{l.suffix}, l.inner...) {
		if shortest(set) > shortest(best) {
			best = set
		}
	}
	return best
}

// hold notes that a match holds one of set. Of many such sets the longest are kept.
func (l *literals) hold(set []string) {
	n := shortest(set)
	if n == 0 || slices.ContainsFunc(l.inner, func(o []string) bool { return slices.Equal(o, set) }) {
		return
	}
	if len(l.inner) < maxInner {
		l.inner = append(l.inner, set)
		return
	}
	worst := 0
	for i := range l.inner {
		if shortest(l.inner[i]) < shortest(l.inner[worst]) {
			worst = i
		}
	}
	if n > shortest(l.inner[worst]) {
		l.inner[worst] = set
	}
}

// shortest is the length of the shortest literal of a set.
func shortest(set []string) int {
	n := len(set[0])
	for _, s := range set[1:] {
		n = min(n, len(s))
	}
	return n
}

// product joins each of a with each of b, unless that is too many.
func product(a, b []string) ([]string, bool) {
	if n := len(a) * len(b); n > maxProduct && len(a) > 1 && len(b) > 1 || n > maxAlternatives {
		return nil, false
	}
	bytes := 0
	for _, s := range a {
		bytes += len(s) * len(b)
	}
	for _, s := range b {
		bytes += len(s) * len(a)
	}
	if bytes > maxLiteralBytes {
		return nil, false
	}
	out := make([]string, 0, len(a)*len(b))
	for _, x := range a {
		for _, y := range b {
			out = append(out, x+y)
		}
	}
	slices.Sort(out)
	return slices.Compact(out), true
}

func union(a, b []string) ([]string, bool) {
	if len(a)+len(b) > maxAlternatives {
		return nil, false
	}
	out := append(slices.Clone(a), b...)
	slices.Sort(out)
	return slices.Compact(out), true
}

// foldText folds s so that texts which differ in the case of ASCII letters become the same: these,
// and the two other characters that (?i) takes for one of them, ſ (U+017F) for s and K (U+212A) for
// k, become lower case. It returns s itself if there is nothing to fold, and else a view of
// scratch.
func foldText(s string, scratch *[]byte) string {
	i := 0
	for i < len(s) && (s[i] < 'A' || s[i] > 'Z') && s[i] != 0xc5 && s[i] != 0xe2 {
		i++
	}
	if i == len(s) {
		return s
	}
	begin := len(*scratch)
	b := append(*scratch, s[:i]...)
	for ; i < len(s); i++ {
		switch c := s[i]; {
		case 'A' <= c && c <= 'Z':
			b = append(b, c-'A'+'a')
		case c == 0xc5 && strings.HasPrefix(s[i:], "ſ"):
			b = append(b, 's')
			i += len("ſ") - 1
		case c == 0xe2 && strings.HasPrefix(s[i:], "\u212a"):
			b = append(b, 'k')
			i += len("\u212a") - 1
		default:
			b = append(b, c)
		}
	}
	*scratch = b
	return view(b[begin:])
}

// foldsCase reports whether a part of re matches letters of either case.
func foldsCase(re *syntax.Regexp) bool {
	return re.Op == syntax.OpLiteral && re.Flags&syntax.FoldCase != 0 ||
		slices.ContainsFunc(re.Sub, foldsCase)
}

// regexpAnchors returns ways to anchor a regular expression, and whether it also matches the empty
// string, which the ways leave out.
func regexpAnchors(source string) (ways [][]anchor, matchesEmpty bool) {
	re, err := syntax.Parse(source, syntax.Perl)
	if err != nil {
		return nil, true
	}
	l := literalFinder{}.of(re)
	ways, matchesEmpty = l.anchors(false)
	if foldsCase(re) {
		l = literalFinder{fold: true}.of(re)
		folded, _ := l.anchors(true)
		ways = append(ways, folded...)
	}
	return ways, matchesEmpty
}

// anchors returns ways to anchor what l is known of.
func (l *literals) anchors(fold bool) (ways [][]anchor, matchesEmpty bool) {
	if l.exact && l.begin && l.end {
		if set := anchorsOf(anchorExact, fold, l.prefix); len(set) > 0 {
			ways = append(ways, set)
		}
		return ways, slices.Contains(l.prefix, "")
	}
	add := func(kind anchorKind, set []string) {
		// One of many single bytes, as of [0-9], is in most values.
		if n := shortest(set); n > 1 || n == 1 && len(set) <= maxBytes {
			ways = append(ways, anchorsOf(kind, fold, fewest(kind, set)))
		}
	}
	switch {
	case l.begin:
		add(anchorPrefix, l.prefix)
	case !l.exact || !l.end:
		add(anchorInner, l.prefix)
	}
	switch {
	case l.end:
		add(anchorSuffix, l.suffix)
	case !l.exact:
		add(anchorInner, l.suffix)
	}
	for _, set := range l.inner {
		add(anchorInner, set)
	}
	return ways, len(ways) == 0
}

func anchorsOf(kind anchorKind, fold bool, set []string) []anchor {
	var list []anchor
	for _, s := range set {
		if s != "" {
			list = append(list, anchor{kind: kind, fold: fold, text: s})
		}
	}
	return list
}

// fewest leaves out what another member of the set says already: of ab and a, ab.
func fewest(kind anchorKind, set []string) []string {
	within := map[anchorKind]func(s, part string) bool{
		anchorPrefix: strings.HasPrefix, anchorSuffix: strings.HasSuffix, anchorInner: strings.Contains,
	}[kind]
	var out []string
	for _, s := range set {
		if !slices.ContainsFunc(set, func(o string) bool { return o != s && within(s, o) }) {
			out = append(out, s)
		}
	}
	return out
}
