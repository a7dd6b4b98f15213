package lint

import (
	"regexp/syntax"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/weir-rl/weir/rule"
)

// textSet describes what a pattern matches: a sequence of bytes and runs of others. The pattern may
// match less.
type textSet []textPart

// textPart is a byte, or a run of any bytes.
type textPart struct {
	run  run
	byte byte
}

// run is a wildcard: which bytes it may stand for.
type run uint8

const (
	noRun  run = iota
	inRun      // any run of bytes but the slash
	anyRun     // any run of bytes
)

// texts returns what p, which is no block of addresses, matches, its negation aside.
func texts(p *rule.Pattern) (s textSet) {
	if p.Kind() == rule.RegexpPattern {
		return regexpTexts(p.Text())
	}
	source, glob := p.Text(), p.Kind() == rule.GlobPattern
	for i := 0; i < len(source); {
		stars := len(source[i:]) - len(strings.TrimLeft(source[i:], "*"))
		switch {
		case stars == 0 || !glob:
			s = append(s, textPart{byte: source[i]})
			stars = 1
		case stars == 1:
			s = append(s, textPart{run: inRun})
		default:
			s = append(s, textPart{run: anyRun})
		}
		i += stars
	}
	return s
}

// regexpTexts returns what a regular expression matches.
func regexpTexts(source string) (s textSet) {
	anything := func() {
		if n := len(s); n == 0 || s[n-1].run != anyRun {
			s = append(s, textPart{run: anyRun})
		}
	}
	re, err := syntax.Parse(source, syntax.Perl)
	if err != nil {
		anything()
		return s
	}
	parts := []*syntax.Regexp{re}
	if re.Op == syntax.OpConcat {
		parts = re.Sub
	}
	if parts[0].Op == syntax.OpBeginText {
		parts = parts[1:]
	} else {
		anything()
	}
	closed := len(parts) > 0 && parts[len(parts)-1].Op == syntax.OpEndText
	if closed {
		parts = parts[:len(parts)-1]
	}
	for _, part := range parts {
		switch {
		case part.Op == syntax.OpEmptyMatch:
		case part.Op == syntax.OpLiteral && part.Flags&syntax.FoldCase == 0 &&
			!slices.Contains(part.Rune, utf8.RuneError):
			for _, c := range []byte(string(part.Rune)) {
				s = append(s, textPart{byte: c})
			}
		default:
			anything()
		}
	}
	if !closed {
		anything()
	}
	return s
}

// has reports whether every text of s holds c.
func (s textSet) has(c byte) bool { return slices.Contains(s, textPart{byte: c}) }

// mayBeginWithSlash reports whether some text of s begins with a slash.
func (s textSet) mayBeginWithSlash() bool {
	for _, p := range s {
		if p.run != inRun { // which may be empty
			return p.run == anyRun || p.byte == '/'
		}
	}
	return false
}

// unnormal says what in every text of s stands in no path in its normal form; "" if there is
// nothing of that kind.
func (s textSet) unnormal() string {
	var text strings.Builder
	for _, p := range s {
		if p.run != noRun {
			text.WriteByte('?') // which no path holds
		} else {
			text.WriteByte(p.byte)
		}
	}
	t := text.String()
	for _, bad := range []string{"//", "/./", "/../"} {
		if strings.Contains(t, bad) {
			return "repeated slashes and dot segments are removed before a path is matched"
		}
	}
	for i := strings.IndexByte(t, '%'); i >= 0 && i+2 < len(t); i++ {
		if code := t[i+1 : i+3]; t[i] == '%' && isHex(code) && code != strings.ToUpper(code) {
			return "percent-encoding is in upper case when a path is matched, as in %2F"
		}
	}
	return ""
}

// isHex reports whether s holds hexadecimal digits only.
func isHex(s string) bool { return strings.Trim(s, "0123456789abcdefABCDEF") == "" }
