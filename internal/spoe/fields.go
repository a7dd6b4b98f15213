package spoe

import (
	"strings"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/rule"
)

// checkFields looks at the arguments by which the rules decide: those of a field of the header that
// come with different values, and the parameters of the query.
func (a *attributes) checkFields(g *httplimit.FieldGuard, f *rule.Fields) (httplimit.FieldProblem, bool) {
	for i := range f.Headers {
		name, lines, value := f.Headers[i].Name, 0, ""
		for k := range a.arguments {
			arg := &a.arguments[k]
			// several messages may tell of one field
			if field, ok := strings.CutPrefix(arg.name, headerPrefix); ok && arg.text != "" && arg.text != value && lowerEqual(field, name) {
				lines++
				value = arg.text
			}
		}
		if lines == 0 {
			continue
		}
		if p, ok := g.CheckField(&f.Headers[i], lines, value); !ok {
			return p, false
		}
	}
	if !a.hasHTTP {
		return httplimit.FieldProblem{}, true
	}
	return g.CheckQuery(&a.http, f)
}
