package spelling

import (
	"slices"
	"strings"

	"github.com/weir-rl/weir/internal/util/chars"
	"github.com/weir-rl/weir/internal/util/httpfield"
)

// Cookie is the name of a cookie that is read.
type Cookie struct {
	Name   string
	Folded string // as FoldCookie makes it
}

// Values appends the values that servers may take for the cookie in these lines of the Cookie
// field, each once, in normal form and in order; those that are empty are left out. ok is false if
// one of them cannot be read, and servers may read it in different ways.
//
// Browsers send several cookies of one name where they were set for different domains or paths. Of
// these, Express, Rack and Flask take the first, Django and Starlette the last.
func (c *Cookie) Values(lines []string, most int, values []string) (_ []string, ok bool) {
	for _, line := range lines {
		for line != "" {
			var pair string
			pair, line, _ = strings.Cut(line, ";")
			name, value, _ := strings.Cut(pair, "=")
			value = strings.Trim(value, " \t")
			if !c.is(strings.Trim(name, " \t")) {
				if c.within(pair) {
					return values, false
				}
				continue
			}
			if value, ok = normalCookie(value); ok {
				value, ok = httpfield.CutSigned(value)
			}
			if !ok {
				return values, false
			}
			if value != "" && !slices.Contains(values, value) {
				if values = append(values, value); len(values) > most {
					return values, true // more are not looked at
				}
			}
		}
	}
	return values, true
}

// is reports whether a server may take name for the name of the cookie.
func (c *Cookie) is(name string) bool {
	if name == c.Name {
		return true
	}
	return len(name) >= len(c.Name) && strings.EqualFold(FoldCookie(name), c.Folded)
}

// within reports whether a server that ends cookies at blanks and commas, too, finds the cookie
// inside another one, or behind a word that is no cookie.
func (c *Cookie) within(pair string) bool {
	pair = strings.Trim(pair, " \t")
	end := strings.IndexAny(pair, " ,\t")
	if end < 0 {
		return false
	}
	for part := range strings.FieldsFuncSeq(pair[end:],
		func(r rune) bool { return r == ' ' || r == ',' || r == '\t' }) {
		if name, _, found := strings.Cut(part, "="); found && c.is(name) {
			return true
		}
	}
	return false
}

// FoldCookie returns the name of a cookie as the servers that change it most have it: PHP decodes
// %, and takes a dot, a blank and a [ for an underscore.
func FoldCookie(name string) string {
	if strings.IndexByte(name, '%') >= 0 {
		if decoded, ok := percentDecoded(name); ok {
			name = decoded
		}
	}
	if strings.ContainsAny(name, ". [") {
		name = strings.NewReplacer(".", "_", " ", "_", "[", "_").Replace(name)
	}
	return name
}

// normalCookie returns the value of a cookie in one spelling for all that servers take for the same
// value: without quotes around it, and with its escapes resolved. Most resolve %, and some take a +
// for a blank, so a blank is written as +. ok is false for a value with characters that RFC 6265
// does not allow, and that servers treat in different ways: quotes within, backslashes, blanks,
// control characters, and a % that begins no escape.
func normalCookie(value string) (_ string, ok bool) {
	if len(value) >= 2 && value[0] == '"' && value[len(value)-1] == '"' {
		value = value[1 : len(value)-1]
	}
	if IsPadded(value) {
		return "", false
	}
	escaped := false
	for i := range len(value) {
		switch c := value[i]; {
		case c <= ' ' || c == '"' || c == '\\' || c == 0x7f:
			return "", false
		case c == '%':
			escaped = true
		}
	}
	if !escaped {
		return value, true
	}
	value, ok = percentDecoded(value)
	for i := range len(value) {
		if c := value[i]; c < ' ' || c == 0x7f {
			return "", false
		}
	}
	return strings.ReplaceAll(value, " ", "+"), ok
}

// percentDecoded resolves all escapes of s; ok is false if one of them is none.
func percentDecoded(s string) (_ string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i+2 >= len(s) || !chars.IsHex(s[i+1]) || !chars.IsHex(s[i+2]) {
			return s, false
		}
		b.WriteByte(chars.HexDigit(s[i+1])<<4 | chars.HexDigit(s[i+2]))
		i += 2
	}
	return b.String(), true
}
