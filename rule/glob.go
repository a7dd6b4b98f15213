package rule

import "strings"

// glob is a compiled glob. Matching takes time linear in the text for a given glob, whatever the
// text is: the general case runs an NFA in bit vectors (Shift-And, Baeza-Yates and Gonnet 1992),
// and the common ones compare strings.
type glob struct {
	source string // as it was written
	prefix string // literal text before the first wildcard
	suffix string // literal text after the last wildcard
	kind   globKind
	cross  bool // the only wildcard may cross a slash (globOne)
	// ends in /**: the folder itself matches too; prefix or nfa then hold the final slash
	folder bool
	nfa    *nfa // of several wildcards
}

type globKind uint8

const (
	globExact globKind = iota // no wildcard: prefix is the text
	globOne                   // one wildcard between prefix and suffix
	globNFA                   // several
)

// run is a wildcard of a glob: which bytes it may stand for.
type run uint8

const (
	noRun  run = iota
	inRun      // any run of bytes but the slash
	anyRun     // any run of bytes
)

// newGlob compiles the glob p. With lyft, a single * crosses slashes and a final /** has no special
// meaning.
func newGlob(p string, lyft bool) *glob {
	var lit []byte        // all literal bytes
	gaps := []run{noRun}  // gaps[i]: the wildcard before literal byte i
	first, last := -1, -1 // number of literal bytes before the first and before the last wildcard
	wildcards := 0        // number of gaps that hold a wildcard
	for i := 0; i < len(p); {
		if p[i] != '*' {
			lit, gaps = append(lit, p[i]), append(gaps, noRun)
			i++
			continue
		}
		j := i
		for j < len(p) && p[j] == '*' {
			j++
		}
		kind := inRun
		if lyft || j-i > 1 {
			kind = anyRun
		}
		gaps[len(lit)] = kind
		wildcards++
		if first < 0 {
			first = len(lit)
		}
		last = len(lit)
		i = j
	}
	g := &glob{source: p}
	if wildcards == 0 {
		g.prefix = p
		return g
	}
	g.prefix, g.suffix = p[:first], p[len(p)-(len(lit)-last):]
	g.folder = !lyft && strings.HasSuffix(p, "/**")
	if wildcards == 1 {
		g.kind, g.cross = globOne, gaps[first] == anyRun
		return g
	}
	g.kind = globNFA
	text := string(lit)
	g.nfa = newNFA(text, gaps, g.folder)
	for begin, i := first, first+1; i <= last; i++ {
		if gaps[i] != noRun {
			g.nfa.inner = append(g.nfa.inner, text[begin:i])
			begin = i
		}
	}
	return g
}

// match reports whether g matches all of s.
func (g *glob) match(s string) bool {
	switch g.kind {
	case globExact:
		return s == g.prefix
	case globOne:
		if len(s) < len(g.prefix)+len(g.suffix) || s[:len(g.prefix)] != g.prefix {
			return g.folder && s == g.prefix[:len(g.prefix)-1]
		}
		if s[len(s)-len(g.suffix):] != g.suffix {
			return false
		}
		return g.cross || strings.IndexByte(s[len(g.prefix):len(s)-len(g.suffix)], '/') < 0
	default:
		if !strings.HasPrefix(s, g.prefix) || !strings.HasSuffix(s, g.suffix) {
			return false
		}
		return g.nfa.match(s)
	}
}

// nfa matches a glob byte by byte. State i is "the first i literal bytes are matched"; a state with
// a wildcard before its next literal stays alive on the bytes that the wildcard may stand for.
type nfa struct {
	inner  []string // the literal texts between the wildcards
	words  int
	class  [256]uint8 // class of a byte: 0 for a byte that is no literal of the glob
	step   []uint64   // for each class, words masks of the states that may be entered on it
	stay   []uint64   // states that stay alive on any byte but the slash
	cross  []uint64   // states that stay alive on the slash
	accept []uint64
}

func newNFA(text string, gaps []run, folder bool) *nfa {
	n := &nfa{words: len(text)/64 + 1}
	n.stay, n.cross, n.accept = make([]uint64, n.words), make([]uint64, n.words), make([]uint64, n.words)
	set := func(mask []uint64, state int) { mask[state/64] |= 1 << (state % 64) }
	classes := 1 // at most 255 more, since a star is never a literal
	for i := range len(text) {
		if n.class[text[i]] == 0 {
			n.class[text[i]] = uint8(classes)
			classes++
		}
	}
	n.step = make([]uint64, classes*n.words)
	for i := range len(text) {
		set(n.step[int(n.class[text[i]])*n.words:], i+1)
	}
	for i, g := range gaps {
		if g != noRun {
			set(n.stay, i)
		}
		if g == anyRun {
			set(n.cross, i)
		}
	}
	set(n.accept, len(text))
	if folder {
		set(n.accept, len(text)-1)
	}
	return n
}

func (n *nfa) match(s string) bool {
	if n.words == 1 {
		return n.match1(s)
	}
	var vec [16]uint64
	d := vec[:]
	if n.words <= len(vec) {
		d = d[:n.words]
	} else {
		d = make([]uint64, n.words)
	}
	d[0] = 1
	for i := range len(s) {
		c := s[i]
		stay := n.stay
		if c == '/' {
			stay = n.cross
		}
		step := n.step[int(n.class[c])*n.words:]
		var carry, alive uint64
		for w := range d {
			old := d[w]
			d[w] = (old<<1|carry)&step[w] | old&stay[w]
			carry = old >> 63
			alive |= d[w]
		}
		if alive == 0 {
			return false
		}
	}
	for w := range d {
		if d[w]&n.accept[w] != 0 {
			return true
		}
	}
	return false
}

func (n *nfa) match1(s string) bool {
	d, stay, cross := uint64(1), n.stay[0], n.cross[0]
	for i := range len(s) {
		c := s[i]
		keep := stay
		if c == '/' {
			keep = cross
		}
		d = d<<1&n.step[n.class[c]] | d&keep
		if d == 0 {
			return false
		}
	}
	return d&n.accept[0] != 0
}
