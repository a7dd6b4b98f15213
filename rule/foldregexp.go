package rule

import (
	"regexp"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"
)

// foldRegexp returns an expression that matches a folded path where re matches that path in any
// spelling; re itself if it does that already.
func foldRegexp(re *regexp.Regexp) *regexp.Regexp {
	tree, err := syntax.Parse(re.String(), syntax.Perl)
	if err != nil {
		return re
	}
	before := tree.String()
	// The digits of percent-encodings are in upper case in every path.
	foldTree(tree, strings.Contains(re.String(), "%"))
	tree = looseEnd(tree)
	if tree.String() == before {
		return re
	}
	folded, err := regexp.Compile(tree.String())
	if err != nil {
		return re
	}
	return folded
}

// FoldRegexp returns a regular expression that matches a folded path (see Condition.Folds) where
// source matches that path in any spelling; source itself if that is one. It is for expressions.
func FoldRegexp(source string) string {
	re, err := regexp.Compile(source)
	if err != nil {
		return source
	}
	if folded := foldRegexp(re); folded != re {
		return folded.String()
	}
	return source
}

// FoldPath returns a path in normal form as limits match it: its ASCII letters in lower case,
// except the digits of percent-encodings, and without slashes, dots and blanks at its end.
func FoldPath(path string) string {
	var scratch []byte
	return cutEnd(lowerPath(path, &scratch))
}

// LowerPath is FoldPath for a part of a path: its end stays.
func LowerPath(part string) string {
	var scratch []byte
	return lowerPath(part, &scratch)
}

// foreignLetters replaces the letters of likeASCII.
var foreignLetters = strings.NewReplacer("%C4%B0", "i", "%C4%B1", "i", "%C5%BF", "s", "%E2%84%AA", "k")

// foldTree makes each ASCII letter of re match the letter in lower case, and with both in upper
// case too. Paths have no letters beyond ASCII in their normal form.
func foldTree(re *syntax.Regexp, both bool) {
	switch re.Op {
	case syntax.OpLiteral:
		if text := string(re.Rune); strings.Contains(text, "%") {
			re.Rune = []rune(foreignLetters.Replace(text))
		}
		if both {
			re.Flags |= syntax.FoldCase
			break
		}
		ascii := true
		for i, r := range re.Rune {
			if 'A' <= r && r <= 'Z' {
				re.Rune[i] = r - 'A' + 'a'
			}
			ascii = ascii && r < utf8.RuneSelf
		}
		if ascii {
			re.Flags &^= syntax.FoldCase
		}
	case syntax.OpCharClass:
		foldClass(re)
	}
	for _, sub := range re.Sub {
		foldTree(sub, both)
	}
}

// foldClass adds to a class of characters the letters in lower case of those in upper case.
func foldClass(re *syntax.Regexp) {
	var added []rune
	for i := 0; i+1 < len(re.Rune); i += 2 {
		if low, high := max(re.Rune[i], 'A'), min(re.Rune[i+1], 'Z'); low <= high {
			added = append(added, low-'A'+'a', high-'A'+'a')
		}
	}
	for i := 0; i+1 < len(added); i += 2 {
		re.Rune = addRange(re.Rune, added[i], added[i+1])
	}
}

// addRange adds a range to a class, whose ranges are sorted and do not touch each other.
func addRange(class []rune, low, high rune) []rune {
	out := make([]rune, 0, len(class)+2)
	i := 0
	for ; i+1 < len(class) && class[i+1] < low-1; i += 2 {
		out = append(out, class[i], class[i+1])
	}
	for ; i+1 < len(class) && class[i] <= high+1; i += 2 {
		low, high = min(low, class[i]), max(high, class[i+1])
	}
	out = append(out, low, high)
	return append(out, class[i:]...)
}

// looseEnd lets the path end in place of a slash with which re ends, since a folded path does not
// have it. A slash that stands alone, or behind a possible slash, stays: the expression asks for
// it.
func looseEnd(re *syntax.Regexp) *syntax.Regexp {
	switch re.Op {
	case syntax.OpCapture, syntax.OpAlternate:
		for i, sub := range re.Sub {
			re.Sub[i] = looseEnd(sub)
		}
	case syntax.OpConcat:
		last := len(re.Sub) - 1
		if re.Sub[last].Op == syntax.OpEndText {
			last--
		}
		if last < 0 {
			break
		}
		if l := re.Sub[last]; last > 0 && l.Op == syntax.OpLiteral && len(l.Rune) == 1 {
			if l.Rune[0] == '/' && !mayEndInSlash(re.Sub[last-1]) {
				re.Sub[last] = slashOrEnd()
			}
			break
		}
		re.Sub[last] = looseEnd(re.Sub[last])
	case syntax.OpLiteral:
		n := len(re.Rune) - 1
		if n < 1 || re.Rune[n] != '/' || re.Rune[n-1] == '/' {
			break
		}
		rest := &syntax.Regexp{Op: syntax.OpLiteral, Flags: re.Flags, Rune: slices.Clone(re.Rune[:n])}
		return &syntax.Regexp{Op: syntax.OpConcat, Flags: re.Flags, Sub: []*syntax.Regexp{rest, slashOrEnd()}}
	}
	return re
}

// slashOrEnd is (/|$).
func slashOrEnd() *syntax.Regexp {
	slash := &syntax.Regexp{Op: syntax.OpLiteral, Rune: []rune{'/'}}
	end := &syntax.Regexp{Op: syntax.OpEndText, Flags: syntax.WasDollar}
	return &syntax.Regexp{Op: syntax.OpAlternate, Sub: []*syntax.Regexp{slash, end}}
}

// mayEndInSlash reports whether a match of re may be empty, or end in a slash.
func mayEndInSlash(re *syntax.Regexp) bool {
	switch re.Op {
	case syntax.OpLiteral:
		return len(re.Rune) == 0 || re.Rune[len(re.Rune)-1] == '/'
	case syntax.OpCharClass:
		for i := 0; i+1 < len(re.Rune); i += 2 {
			if re.Rune[i] <= '/' && '/' <= re.Rune[i+1] {
				return true
			}
		}
		return false
	case syntax.OpCapture, syntax.OpPlus:
		return mayEndInSlash(re.Sub[0])
	case syntax.OpRepeat:
		return re.Min == 0 || mayEndInSlash(re.Sub[0])
	case syntax.OpConcat:
		return mayEndInSlash(re.Sub[len(re.Sub)-1])
	case syntax.OpAlternate:
		return slices.ContainsFunc(re.Sub, mayEndInSlash)
	}
	return true
}
