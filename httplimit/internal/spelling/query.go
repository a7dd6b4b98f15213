package spelling

import (
	"net/url"
	"slices"
	"strings"

	"github.com/weir-rl/weir/internal/util/chars"
)

// QueryValue returns the first value of a parameter. It allocates only for values that hold an
// escape.
func QueryValue(query, name string) (string, bool) {
	for len(query) > 0 {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		key, value, _ := strings.Cut(pair, "=")
		if key == name || UnescapeQuery(key) == name {
			return UnescapeQuery(value), pair != ""
		}
	}
	return "", false
}

// UnescapeQuery resolves escapes; invalid ones stay as they are.
func UnescapeQuery(s string) string {
	if strings.IndexByte(s, '%') < 0 && strings.IndexByte(s, '+') < 0 {
		return s
	}
	if u, err := url.QueryUnescape(s); err == nil {
		return u
	}
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '+':
			b = append(b, ' ')
		case c == '%' && i+2 < len(s) && chars.IsHex(s[i+1]) && chars.IsHex(s[i+2]):
			b = append(b, chars.HexDigit(s[i+1])<<4|chars.HexDigit(s[i+2]))
			i += 2
		default:
			b = append(b, c)
		}
	}
	return string(b)
}

// BehindSemicolon looks at the parameters of servers that end them at a semicolon, too: one behind
// it, and one whose value ends there.
func BehindSemicolon(list []string, pair string) (name, like string) {
	head, rest, found := strings.Cut(pair, ";")
	if !found {
		return "", ""
	}
	key, _, _ := strings.Cut(head, "=")
	if name = UnescapeQuery(key); slices.Contains(list, name) {
		return name + ";", name
	}
	for piece := range strings.SplitSeq(rest, ";") {
		key, _, _ := strings.Cut(piece, "=")
		if name = UnescapeQuery(key); slices.Contains(list, name) {
			return ";" + name, name
		}
		if i, _ := LikeParameter(list, name); i >= 0 {
			return ";" + name, list[i]
		}
	}
	return "", ""
}

// LikeParameter returns the parameter of the list that a server may take name for, which is another
// name, by its index; -1 if there is none. To ASP.NET the case of letters says nothing. PHP takes a
// dot and a blank for an underscore. To PHP, Rack and the parser of Express 4, key[] and key[0] are
// key, or parts of it, and to some of them [key] is key. PHP ends a name at a NUL.
//
// inside says that the name has a named part of the parameter in brackets, as page[size] of
// JSON:API has: no server finds a text in it for the parameter, but either no such parameter, or a
// map.
func LikeParameter(list []string, name string) (like int, inside bool) {
	if i := strings.IndexByte(name, 0); i >= 0 {
		name = name[:i]
		if like = slices.Index(list, name); like >= 0 {
			return like, false
		}
	}
	trimmed, inner := strings.TrimLeft(name, " "), ""
	if bare := strings.TrimLeft(name, " ["); len(bare) != len(name) && strings.IndexByte(name, '[') >= 0 {
		inner, _, _ = strings.Cut(bare, "]")
	}
	for i, read := range list {
		if read == "" {
			continue
		}
		for _, as := range [...]string{name, trimmed} {
			if as != read && partOf(read, as) {
				return i, namesPart(as[len(read):])
			}
		}
		if trimmed != name && trimmed == read || len(inner) == len(read) && partOf(read, inner) {
			return i, false
		}
	}
	return -1, false
}

// partOf reports whether a server may take name for a parameter, or for a part of it.
func partOf(read, name string) bool {
	n := len(read)
	return len(name) >= n && likeName(read, name[:n]) && (len(name) == n || name[n] == '[')
}

// namesPart reports whether what follows the name of a parameter names a part of it that is no
// element of a list: [size], but not [] or [0].
func namesPart(s string) bool {
	if len(s) < 3 || !isLetter(s[1]) {
		return false
	}
	i := 1
	for i < len(s) && (isLetter(s[i]) || '0' <= s[i] && s[i] <= '9' || s[i] == '-') {
		i++
	}
	return i < len(s) && s[i] == ']'
}

func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '_' }

// likeName compares names of one length.
func likeName(a, b string) bool {
	for i := range len(a) {
		if foldParameter(a[i]) != foldParameter(b[i]) {
			return false
		}
	}
	return true
}

func foldParameter(c byte) byte {
	switch {
	case 'A' <= c && c <= 'Z':
		return c - 'A' + 'a'
	case c == '.' || c == ' ' || c == '[':
		return '_'
	}
	return c
}
