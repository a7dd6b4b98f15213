package lint

import (
	"strings"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
)

// asWritten returns conditions whose patterns are as they are written.
func asWritten(when []rule.Condition) []rule.Condition {
	all := make([]rule.Condition, 0, len(when))
	for i := range when {
		c := rule.Condition{Attribute: when[i].Attribute, Pos: when[i].Pos}
		for k := range when[i].Patterns {
			c.Patterns = append(c.Patterns, *when[i].Patterns[k].Written())
		}
		all = append(all, c)
	}
	return all
}

// spellings warns of paths that look as if the server distinguishes their spellings, while the
// rules do not.
func (l *linter) spellings(s *rule.Set) {
	const exact = "write paths: exact where the server tells them apart; else leave one of them out"
	type path struct{ domain, text string }
	type place struct {
		written string
		rule    *rule.Rule
		line    int
	}
	seen := map[path]place{}
	for _, r := range s.Rules() {
		for i := range r.When {
			c := &r.When[i]
			if !c.Folds() {
				continue
			}
			for k := range c.Patterns {
				p := &c.Patterns[k]
				if p.Negated {
					continue
				}
				if asksForSlash(p) {
					l.warn(warnPathSpelling, r, p.Pos,
						"leave the slash out; or write paths: exact where the server tells the two apart",
						"when.path: %s asks for a final slash, without which many servers answer the same", p.Source)
					continue
				}
				if p.Kind() == rule.RegexpPattern {
					continue
				}
				at := path{r.Domain, p.Folded().Text()}
				first, known := seen[at]
				switch {
				case !known:
					seen[at] = place{p.Written().Text(), r, p.Pos.Line}
				case first.written != p.Written().Text() && first.rule == r:
					l.warn(warnPathSpelling, r, p.Pos, exact, "when.path: %s is the same path as %s", p.Source,
						first.written)
				case first.written != p.Written().Text():
					l.warn(warnPathSpelling, r, p.Pos, exact,
						"when.path: %s is the same path as %s of %s, so that a request meets both", p.Source, first.written, first.rule.Name)
				}
			}
		}
	}
}

// asksForSlash reports whether a pattern of paths is about the final slash: what stands before it
// is anything.
func asksForSlash(p *rule.Pattern) bool {
	text := p.Written().Text()
	switch p.Kind() {
	case rule.GlobPattern:
		return strings.HasSuffix(text, "**/") || text == "*/"
	case rule.RegexpPattern:
		for _, before := range []string{"", ".*", ".+", "^.*", "^.+"} {
			if text == before+"/$" {
				return true
			}
		}
	}
	return false
}

// headNotes says of the limits of a domain which of them HEAD meets although they name GET alone.
func headNotes(s *rule.Set, domain string) []rule.Problem {
	var names []string
	var first *rule.Rule
	for _, r := range s.Rules() {
		if r.Domain != domain || r.Lyft != nil || !bites(r) || !headAsGet(r) {
			continue
		}
		if first == nil {
			first = r
		}
		names = append(names, r.Name)
	}
	if first == nil {
		return nil
	}
	return []rule.Problem{note(first, `write method: [GET, "!HEAD"] where HEAD costs nothing`,
		"%s: method GET is met by HEAD too, since servers run the same code for it", message.Listed(names))}
}

// headAsGet reports whether HEAD meets the condition on the method that r has only since GET does.
func headAsGet(r *rule.Rule) bool {
	for i := range r.When {
		c := &r.When[i]
		if c.Attribute != "method" {
			continue
		}
		get, head := false, false
		for k := range c.Patterns {
			p := &c.Patterns[k]
			if p.Negated {
				if !p.Match("HEAD") {
					return false
				}
				continue
			}
			get, head = get || p.Match("GET"), head || p.Match("HEAD")
		}
		return get && !head
	}
	return false
}

// pathNotes says which rules of the Lyft form match paths, which they do to the letter.
func pathNotes(s *rule.Set, domain string) []rule.Problem {
	var names []string
	var first *rule.Rule
	for _, r := range s.Rules() {
		if r.Domain != domain || r.Lyft == nil || !bites(r) {
			continue
		}
		for _, e := range r.Lyft.Path {
			if e.Key == "path" && e.Value != "" {
				if first == nil {
					first = r
				}
				names = append(names, r.Name)
				break
			}
		}
	}
	if first == nil {
		return nil
	}
	return []rule.Problem{note(first,
		"write it under limits, as in when: {path: /login}, where the server takes these for one",
		"%s: descriptors match a path to the letter, so that /Login and /login/ pass a rule on /login", message.Listed(names))}
}
