package lint

import (
	"regexp"
	"strings"
	"sync"

	"github.com/weir-rl/weir/rule"
)

// parameter warns of a pattern of paths that holds a parameter as the routers of web frameworks
// write it, and reports whether it does.
func (l *linter) parameter(r *rule.Rule, subject, what string, p *rule.Pattern) bool {
	if p.Kind() != rule.ExactPattern && p.Kind() != rule.GlobPattern {
		return false
	}
	text := strings.TrimPrefix(p.Source, "!")
	if alternatives().MatchString(text) {
		l.warnOf(warnPathParameter, subject, r, p.Pos, "several are a list, as in path: [/a, /b]",
			"%s: %s stands for itself: braces name no alternatives", what, p.Source)
		return true
	}
	meant := withoutParameters(text)
	if meant == "" {
		return false
	}
	if p.Negated {
		meant = "!" + meant
	}
	l.warnOf(warnPathParameter, subject, r, p.Pos,
		"write "+meant+": * stands for one segment, ** for any number of them",
		"%s: %s stands for itself: a pattern has no parameters", what, p.Source)
	return true
}

// alternatives finds braces as shells expand them: {a,b}.
var alternatives = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`\{[^/{}:]*,[^/{}]*\}`) })

// parameters find a parameter in a segment of a path. What follows its name may say that it stands
// for several segments.
var parameters = sync.OnceValue(func() []*regexp.Regexp {
	return []*regexp.Regexp{
		// {id}, {id:[0-9]+}, {path...}, {*path}
		regexp.MustCompile(`\{([A-Za-z_*.$@][^/]*)\}`),
		// :id, :path*, :id(\d+)
		regexp.MustCompile(`^:([A-Za-z_][A-Za-z0-9_]*(?:\([^/]*\))?[*+]?)`),
		// <id>, <int:id>, <path:rest>
		regexp.MustCompile(`<((?:[a-z]+:)?[A-Za-z_][A-Za-z0-9_]*)>`),
		// [id], [...rest]
		regexp.MustCompile(`^\[{1,2}((?:\.{3})?[A-Za-z_][A-Za-z0-9_]*)\]{1,2}$`),
	}
})

// withoutParameters returns a path with wildcards in place of its parameters; "" if it has none.
func withoutParameters(path string) string {
	if !strings.ContainsAny(path, "{:<[") {
		return ""
	}
	segments := strings.Split(path, "/")
	found := false
	for i, s := range segments {
		for _, p := range parameters() {
			segments[i] = p.ReplaceAllStringFunc(segments[i], func(match string) string {
				found = true
				return wildcard(match)
			})
			if segments[i] != s {
				break
			}
		}
	}
	if !found {
		return ""
	}
	return strings.Join(segments, "/")
}

// wildcard is the wildcard of a pattern for a parameter.
func wildcard(parameter string) string {
	name := strings.Trim(parameter, "{}[]<>")
	if strings.Contains(name, "...") || strings.HasPrefix(name, "*") || strings.HasPrefix(name, "path:") ||
		strings.HasSuffix(name, ":path") ||
		strings.HasSuffix(name, ":.*") || strings.HasSuffix(name, ":.+") ||
		strings.HasPrefix(parameter, ":") && strings.ContainsAny(name[len(name)-1:], "*+") {
		return "**"
	}
	return "*"
}
