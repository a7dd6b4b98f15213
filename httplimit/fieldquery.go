package httplimit

import (
	"slices"
	"strings"

	"github.com/weir-rl/weir/internal/answer"
	"github.com/weir-rl/weir/rule"
)

// CheckQuery is Check for the query alone: it looks for parameters that come twice, or under a name
// that a server may take for one that is read.
func (g *FieldGuard) CheckQuery(a *Attributes, f *rule.Fields) (FieldProblem, bool) {
	if a.query == "" || len(f.Query) == 0 && !f.AllQuery {
		return FieldProblem{}, true
	}
	var few [8]bool
	seen := few[:]
	if len(f.Query) > len(seen) {
		seen = make([]bool, len(f.Query))
	}
	var all map[string]bool
	escaped := strings.IndexByte(a.query, '%') >= 0 || strings.IndexByte(a.query, '+') >= 0
	semicolon := strings.IndexByte(a.query, ';') >= 0
	for query := a.query; query != ""; {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		name, _, _ := strings.Cut(pair, "=")
		if escaped {
			name = unescapeQuery(name)
		}
		if i := slices.Index(f.Query, name); i >= 0 && pair != "" {
			if seen[i] && g.Repeated == RefuseRepeatedFields {
				return g.repeatedParameter(name), false
			}
			seen[i] = true
		} else if g.Lookalikes != KeepLookalikeFields {
			if like := likeParameter(f.Query, name); like != "" {
				return g.lookalikeParameter(name, like), false
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

func (g *FieldGuard) repeatedParameter(name string) FieldProblem {
	return g.refuse(repeated, name, "The query has the parameter "+answer.Printable(name)+" more than once."+whyRepeated, "fields.repeated")
}

func (g *FieldGuard) lookalikeParameter(name, like string) FieldProblem {
	return g.refuse(lookalike, name, "The query has a parameter "+answer.Printable(name)+", which some servers take for "+answer.Printable(like)+"."+whyLookalike, "fields.lookalikes")
}

// behindSemicolon looks at what a server has for parameters that ends them at a semicolon, too: one
// behind it, and one whose value ends there.
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
		if like = likeParameter(list, name); like != "" {
			return ";" + name, like
		}
	}
	return "", ""
}

// likeParameter returns the parameter of the list that a server may take name for, which is another
// name; "" if there is none. To ASP.NET the case of letters says nothing. PHP takes a dot and a
// blank for an underscore. To PHP, Rack and the parser of Express 4, key[] and key[a] are parts of
// key, and to some of them [key] is key. PHP ends a name at a NUL.
func likeParameter(list []string, name string) string {
	if i := strings.IndexByte(name, 0); i >= 0 {
		if name = name[:i]; slices.Contains(list, name) {
			return name
		}
	}
	trimmed, inner := strings.TrimLeft(name, " "), ""
	if bare := strings.TrimLeft(name, " ["); len(bare) != len(name) && strings.IndexByte(name, '[') >= 0 {
		inner, _, _ = strings.Cut(bare, "]")
	}
	for _, read := range list {
		if read != "" && (name != read && partOf(read, name) || trimmed != name && partOf(read, trimmed) || len(inner) == len(read) && partOf(read, inner)) {
			return read
		}
	}
	return ""
}

// partOf reports whether a server may take name for a parameter, or for a part of it.
func partOf(read, name string) bool {
	n := len(read)
	return len(name) >= n && likeName(read, name[:n]) && (len(name) == n || name[n] == '[')
}

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
