package lint

import (
	"fmt"
	"slices"
	"strings"

	"github.com/weir-rl/weir/internal/util/httpfield"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/message"
)

// maxNoted is up to how many names one note lists.
const maxNoted = 8

// Notes points out facts about rules in s that the rules do not show. Rules of the Lyft form are
// never met at doors without descriptors if their keys are no attributes there, and match paths to
// the letter: nothing to mend where Envoy is the only one to ask. Native limits on GET are met by
// HEAD too.
func Notes(s *rule.Set) []rule.Problem {
	if s == nil {
		return nil
	}
	var notes []rule.Problem
	for _, domain := range s.Domains() {
		notes = append(notes, headNotes(s, domain)...)
		notes = append(notes, pathNotes(s, domain)...)
		var keys []string
		var first *rule.Rule
		n := 0
		lacks := map[*rule.Rule]string{}
		for _, lack := range s.Lacking(domain, httpfield.RequestAttribute) {
			lacks[lack.Rule] = lack.Attribute
		}
		for _, r := range s.Rules() {
			if r.Domain != domain || r.Lyft == nil {
				continue
			}
			if a, b, ok := contradiction(r); ok && len(notes) < message.MaxProblems {
				notes = append(notes,
					note(r, "",
						"%s: only descriptors meet it, at Envoy's doors: an attribute has one value, and cannot be %s and %s",
						r.Name, message.Level(a), message.Level(b)))
				continue
			}
			key, lacking := lacks[r]
			if !lacking {
				continue
			}
			if n++; first == nil {
				first = r
			}
			if !slices.Contains(keys, key) {
				keys = append(keys, key)
			}
		}
		if first == nil {
			continue
		}
		if more := len(keys) - maxNoted; more > 0 {
			keys = append(keys[:maxNoted:maxNoted], fmt.Sprintf("%d more", more))
		}
		notes = append(notes, note(first, "name such an attribute in identity, as in: "+keys[0]+": \"header:X-Name\"",
			"domain %s: %s met only where requests bring %s: Envoy, the decision APIs, Redis clients and HAProxy do; "+
				"the proxy, forward auth and the middleware know method, path, host, ip, header.*, query.* and what identity names",
			domain, message.Count(n, "descriptor is", "descriptors are"), strings.Join(keys, ", ")))
	}
	message.SortProblems(notes)
	return notes
}

func note(r *rule.Rule, hint, format string, args ...any) rule.Problem {
	return rule.Problem{Pos: r.Pos, Rule: r.Name, Message: fmt.Sprintf(format, args...), Hint: hint,
		Quote: message.Of(r).Quote(r.Pos.Line, r.Pos.Column)}
}

// contradiction returns two levels on the path to r that ask for different values of one key.
func contradiction(r *rule.Rule) (a, b rule.Entry, ok bool) {
	for i, b := range r.Lyft.Path {
		for _, a := range r.Lyft.Path[:i] {
			if a.Key == b.Key && a.Value != b.Value && fixed(a.Value) && fixed(b.Value) {
				return a, b, true
			}
		}
	}
	return rule.Entry{}, rule.Entry{}, false
}

// fixed reports whether all requests that meet a node have the node's value.
func fixed(value string) bool { return value != "" && !strings.Contains(value, "*") }
