package lint

import (
	"fmt"
	"slices"

	"github.com/weir-rl/weir/internal/util/suggest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
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
		f.Message = message.Listed(subjects[same{f.Name, f.Pos.File, f.Message, f.Hint}]) + ": " + f.Message
		problems = append(problems, f.Problem)
	}
	return problems
}

// leftIgnores warns of comments that silence nothing.
func (l *linter) leftIgnores(s *rule.Set) []rule.Problem {
	var problems []rule.Problem
	for _, o := range message.All(s) {
		g := l.ignores[o.Name]
		for i, ig := range g.List {
			pos := rule.Position{File: o.Name, Line: ig.Line, Column: ig.Column}
			quote := o.Quote(ig.Line, ig.Column)
			if ig.Fault != "" {
				problems = append(problems, rule.Problem{Pos: pos, Message: ig.Fault, Hint: ig.Hint, Quote: quote})
			}
			for k, name := range ig.Names {
				switch {
				case !Named(name):
					hint := "weir lint --warnings lists them"
					if near := suggest.Nearest(name, warningNames()); near != "" {
						hint = fmt.Sprintf("did you mean %q?", near)
					}
					problems = append(problems, rule.Problem{Pos: pos,
						Message: fmt.Sprintf("lint: ignore: there is no warning %q",
							message.Clip(name)), Hint: hint, Quote: quote})
				case (name == UnverifiedIdentity || name == KeptSecret) && l.options.Identity == nil,
					name == UnusedLease && l.options.NoLeases == "",
					name == UnusedRegions && l.options.NoRegions == "",
					(name == EachRegion || name == warnRegionsSmall) && l.options.Regions < 2:
					// Whether it is needed is known with the configuration only.
				case !g.Used[i][k] && !g.Silence(warnUnusedIgnore, ig.Line):
					problems = append(problems, rule.Problem{Pos: pos, Name: warnUnusedIgnore,
						Message: "lint: ignore " + name + " ignores nothing", Hint: "remove it", Quote: quote})
				}
			}
		}
	}
	return problems
}
