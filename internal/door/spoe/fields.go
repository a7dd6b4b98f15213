package spoe

import (
	"strings"

	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/internal/util/httpfield"
	"github.com/weir-rl/weir/rule"
)

// checkFields looks at the arguments by which the rules decide: fields of the header that come with
// different values, and the parameters of the query.
func (a *attributes) checkFields(g *httplimit.FieldGuard, f *rule.Fields) (httplimit.FieldProblem, bool) {
	for i := range f.Headers {
		name, lines, value := f.Headers[i].Name, 0, ""
		for k := range a.arguments {
			arg := &a.arguments[k]
			// several messages may hold one field
			if field, ok := strings.CutPrefix(arg.name, headerPrefix); ok && arg.text != "" && arg.text != value &&
				lowerEqual(field, name) {
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
	for i := 0; f.AllHeaders && i < len(a.arguments); i++ {
		if field, lines := a.linesOf(i); lines > 1 {
			if p, ok := g.CheckField(&field, lines, ""); !ok {
				return p, false
			}
		}
	}
	if !a.hasHTTP {
		return httplimit.FieldProblem{}, true
	}
	return g.CheckQuery(&a.http, f)
}

// linesOf returns the field of the i-th argument, if that is one that has one value, and how many
// values the arguments from there on have for it.
func (a *attributes) linesOf(i int) (field httpfield.HeaderField, lines int) {
	name, ok := strings.CutPrefix(a.arguments[i].name, headerPrefix)
	if !ok || a.arguments[i].text == "" {
		return field, 0
	}
	field, single := httpfield.NewHeaderField(name)
	if !single {
		return field, 0
	}
	for k := i; k < len(a.arguments); k++ {
		arg := &a.arguments[k]
		other, ok := strings.CutPrefix(arg.name, headerPrefix)
		if ok && (k == i || arg.text != "" && arg.text != a.arguments[i].text) && lowerEqual(other, field.Name) {
			lines++
		}
	}
	return field, lines
}
