package httplimit

import (
	"slices"
	"strings"

	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/util/httpfield"
	"github.com/weir-rl/weir/rule"
)

// CheckQuery is Check for the query alone: it looks for parameters that come twice, or under a name
// that a server may take for one that is read, and for signed tokens that cannot be read.
func (g *FieldGuard) CheckQuery(a *Attributes, f *rule.Fields) (FieldProblem, bool) {
	if a.query == "" || len(f.Query) == 0 && !f.AllQuery {
		return FieldProblem{}, true
	}
	var few [8]seenAs
	seen := few[:]
	if len(f.Query) > len(seen) {
		seen = make([]seenAs, len(f.Query))
	}
	var all map[string]bool
	escaped := strings.IndexByte(a.query, '%') >= 0 || strings.IndexByte(a.query, '+') >= 0
	semicolon := strings.IndexByte(a.query, ';') >= 0
	for query := a.query; query != ""; {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		name, value, _ := strings.Cut(pair, "=")
		if escaped {
			name = unescapeQuery(name)
		}
		if i := slices.Index(f.Query, name); i >= 0 && pair != "" {
			if seen[i]&itself != 0 && g.Repeated == RefuseRepeatedFields {
				return g.repeatedParameter(name), false
			}
			if seen[i] |= itself; seen[i]&part != 0 && g.Lookalikes != KeepLookalikeFields {
				return g.partOfParameter(name), false
			}
			if escaped || strings.IndexByte(value, '.') >= 0 {
				if _, ok := httpfield.CutSigned(unescapeQuery(value)); !ok {
					return g.unreadableToken("parameter " + answer.Printable(name) + " of the query"), false
				}
			}
		} else if g.Lookalikes != KeepLookalikeFields {
			like, inside := likeParameter(f.Query, name)
			if like >= 0 && !inside {
				return g.lookalikeParameter(name, f.Query[like]), false
			}
			if like >= 0 {
				if seen[like] |= part; seen[like]&itself != 0 {
					return g.partOfParameter(f.Query[like]), false
				}
			}
		}
		if semicolon && g.Lookalikes != KeepLookalikeFields {
			if name, like := behindSemicolon(f.Query, pair); like != "" {
				return g.lookalikeParameter(name, like), false
			}
		}
		if f.AllQuery && pair != "" && g.Repeated == RefuseRepeatedFields {
			if all[name] {
				return g.repeatedParameter(name), false
			}
			if all == nil {
				all = map[string]bool{}
			}
			all[name] = true
		}
	}
	return FieldProblem{}, true
}

// seenAs says how a query has a parameter.
type seenAs uint8

const (
	itself seenAs = 1 << iota // page=1
	part                      // page[size]=1
)

func (g *FieldGuard) repeatedParameter(name string) FieldProblem {
	return g.refuse(repeated, name,
		"The query has the parameter "+answer.Printable(name)+" more than once."+whyRepeated, "fields.repeated")
}

func (g *FieldGuard) lookalikeParameter(name, like string) FieldProblem {
	return g.refuse(lookalike, name,
		"The query has a parameter "+answer.Printable(name)+", which some servers take for "+answer.Printable(like)+"."+whyLookalike, "fields.lookalikes")
}

func (g *FieldGuard) partOfParameter(name string) FieldProblem {
	name = answer.Printable(name)
	return g.refuse(lookalike, name,
		"The query has a parameter "+name+" and parts of one, such as "+name+"[size]. Servers take different ones of them for "+name+", so a rate limit might count by another than the server behind it acts by.", "fields.lookalikes")
}

// behindSemicolon looks at the parameters of servers that end them at a semicolon, too: one behind
// it, and one whose value ends there.
func behindSemicolon(list []string, pair string) (name, like string) {
	head, rest, found := strings.Cut(pair, ";")
	if !found {
		return "", ""
	}
	key, _, _ := strings.Cut(head, "=")
	if name = unescapeQuery(key); slices.Contains(list, name) {
		return name + ";", name
	}
	for piece := range strings.SplitSeq(rest, ";") {
		key, _, _ := strings.Cut(piece, "=")
		if name = unescapeQuery(key); slices.Contains(list, name) {
			return ";" + name, name
		}
		if i, _ := likeParameter(list, name); i >= 0 {
			return ";" + name, list[i]
		}
	}
	return "", ""
}

// likeParameter returns the parameter of the list that a server may take name for, which is another
// name, by its index; -1 if there is none. To ASP.NET the case of letters says nothing. PHP takes a
// dot and a blank for an underscore. To PHP, Rack and the parser of Express 4, key[] and key[0] are
// key, or parts of it, and to some of them [key] is key. PHP ends a name at a NUL.
//
// inside says that the name has a named part of the parameter in brackets, as page[size] of
// JSON:API has: no server finds a text in it for the parameter, but either no such parameter, or a
// map.
func likeParameter(list []string, name string) (like int, inside bool) {
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
