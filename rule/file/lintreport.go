package file

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-rl/weir/rule"
)

// merged makes one warning of those that say the same of several rules of a file.
func (l *linter) merged() []rule.Problem {
	type same struct{ name, file, message, hint string }
	subjects := map[same][]string{}
	var order []finding
	for _, f := range l.found {
		k := same{f.Name, f.Pos.File, f.Message, f.Hint}
		if subjects[k] == nil {
			order = append(order, f)
		}
		if !slices.Contains(subjects[k], f.subject) {
			subjects[k] = append(subjects[k], f.subject)
		}
	}
	var problems []rule.Problem
	for _, f := range order {
		f.Message = listed(subjects[same{f.Name, f.Pos.File, f.Message, f.Hint}]) + ": " + f.Message
		problems = append(problems, f.Problem)
	}
	return problems
}

// maxListed is how many names a warning lists.
const maxListed = 10

// listed joins names: "a, b and c".
func listed(names []string) string {
	last := ""
	if n := len(names); n > maxListed+1 {
		names, last = names[:maxListed], fmt.Sprintf("%d more", n-maxListed)
	} else if n > 1 {
		names, last = names[:n-1], names[n-1]
	}
	text := strings.Join(names, ", ")
	if last != "" {
		text += " and " + last
	}
	return text
}

// leftIgnores warns of comments that silence nothing.
func (l *linter) leftIgnores(s *rule.Set) []rule.Problem {
	var problems []rule.Problem
	for _, o := range origins(s) {
		g := l.ignores[o.name]
		for i, ig := range g.list {
			pos := rule.Position{File: o.name, Line: ig.line, Column: ig.column}
			quote := o.quote(ig.line, ig.column)
			if ig.fault != "" {
				problems = append(problems, rule.Problem{Pos: pos, Message: ig.fault, Hint: ig.hint, Quote: quote})
			}
			for k, name := range ig.names {
				switch {
				case !warningNamed(name):
					hint := "weir lint --warnings lists them"
					if near := rule.Nearest(name, warningNames()); near != "" {
						hint = fmt.Sprintf("did you mean %q?", near)
					}
					problems = append(problems, rule.Problem{Pos: pos, Message: fmt.Sprintf("lint: ignore: there is no warning %q", clip(name)), Hint: hint, Quote: quote})
				case (name == UnverifiedIdentity || name == KeptSecret) && l.options.Identity == nil, name == UnusedLease && l.options.NoLeases == "",
					name == UnusedRegions && l.options.NoRegions == "", (name == EachRegion || name == warnRegionsSmall) && l.options.Regions < 2:
					// Whether it is needed is known with the configuration only.
				case !g.used[i][k] && !g.ignores(warnUnusedIgnore, ig.line):
					problems = append(problems, rule.Problem{Pos: pos, Name: warnUnusedIgnore, Message: "lint: ignore " + name + " ignores nothing", Hint: "remove it", Quote: quote})
				}
			}
		}
	}
	return problems
}
