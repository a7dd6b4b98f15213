package httplimit

import (
	"slices"
	"strings"

	"github.com/weir-rl/weir/httplimit/internal/spelling"
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
			name = spelling.UnescapeQuery(name)
		}
		if i := slices.Index(f.Query, name); i >= 0 && pair != "" {
			if seen[i]&itself != 0 && g.Repeated == RefuseRepeatedFields {
				return g.repeatedParameter(name), false
			}
			if seen[i] |= itself; seen[i]&part != 0 && g.Lookalikes != KeepLookalikeFields {
				return g.partOfParameter(name), false
			}
			if escaped || strings.IndexByte(value, '.') >= 0 {
				if _, ok := httpfield.CutSigned(spelling.UnescapeQuery(value)); !ok {
					return g.unreadableToken("parameter " + answer.Printable(name) + " of the query"), false
				}
			}
		} else if g.Lookalikes != KeepLookalikeFields {
			like, inside := spelling.LikeParameter(f.Query, name)
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
			if name, like := spelling.BehindSemicolon(f.Query, pair); like != "" {
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
