//go:build !nocel

package cel

import (
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	celast "cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/internal/asked"
)

// asksOf returns the conditions on attributes that an expression implies, and whether it has no
// others.
func asksOf(a *cel.Ast) (asks []asked.Ask, all bool) {
	all = true
	for _, e := range operands(a.NativeRep().Expr(), operators.LogicalAnd, nil) {
		if q, ok := askOf(e); ok {
			asks = append(asks, q)
		} else {
			all = false
		}
	}
	return asks, all
}

// operands appends the operands of an operator, over brackets.
func operands(e celast.Expr, operator string, dst []celast.Expr) []celast.Expr {
	if e.Kind() != celast.CallKind || e.AsCall().FunctionName() != operator {
		return append(dst, e)
	}
	for _, o := range e.AsCall().Args() {
		dst = operands(o, operator, dst)
	}
	return dst
}

func askOf(e celast.Expr) (asked.Ask, bool) {
	switch e.Kind() {
	case celast.SelectKind:
		if s := e.AsSelect(); s.IsTestOnly() {
			return presenceOf(s.Operand(), s.FieldName())
		}
	case celast.CallKind:
		c := e.AsCall()
		if c.FunctionName() == operators.LogicalOr {
			return eitherAsk(operands(e, operators.LogicalOr, nil))
		}
		args := argumentsOf(c)
		if len(args) != 2 {
			break
		}
		if q, ok := comparison(c.FunctionName(), args[0], args[1]); ok {
			return q, true
		}
		return numberAsk(c.FunctionName(), args[0], args[1])
	}
	return asked.Ask{}, false
}

// argumentsOf returns the arguments of a call, the one that it is a member of first.
func argumentsOf(c celast.CallExpr) []celast.Expr {
	if c.IsMemberFunction() {
		return append([]celast.Expr{c.Target()}, c.Args()...)
	}
	return c.Args()
}

// comparison is the condition that a function of two operands puts on the attribute among them.
func comparison(function string, a, b celast.Expr) (asked.Ask, bool) {
	if function == operators.Equals {
		if _, ok := stringOf(a); ok {
			a, b = b, a
		}
	}
	if function == operators.In {
		if name, ok := stringOf(a); ok {
			return presenceOf(b, name)
		}
	}
	op, known := comparisons[function]
	q, ok := attributeOf(a)
	if !known || !ok {
		return asked.Ask{}, false
	}
	list := []celast.Expr{b}
	if function == operators.In {
		if b.Kind() != celast.ListKind {
			return asked.Ask{}, false
		}
		list = b.AsList().Elements()
	}
	var values []string
	for _, e := range list {
		v, ok := stringOf(e)
		if !ok {
			return asked.Ask{}, false
		}
		values = append(values, v)
	}
	if len(values) == 0 {
		return asked.Ask{}, false
	}
	q.OneOf = []asked.Comparison{{Op: op, Values: values}}
	return q, true
}

// comparisons are the functions that compare an attribute with constants.
var comparisons = map[string]asked.Op{
	operators.Equals: asked.Equals, operators.In: asked.Equals, "startsWith": asked.HasPrefix, "endsWith": asked.HasSuffix,
	"contains": asked.Contains, "matches": asked.MatchesRegexp,
}

// eitherAsk is the condition of several comparisons of which one must hold, if all are on one
// attribute.
func eitherAsk(terms []celast.Expr) (asked.Ask, bool) {
	var all asked.Ask
	for i, e := range terms {
		q, ok := askOf(e)
		if !ok || q.OneOf[0].Op == asked.Present {
			return asked.Ask{}, false
		}
		if i == 0 {
			all = asked.Ask{Attribute: q.Attribute, LookUp: q.LookUp}
		}
		if q.Attribute != all.Attribute || q.LookUp != all.LookUp {
			return asked.Ask{}, false
		}
		all.OneOf = append(all.OneOf, q.OneOf...)
	}
	return all, true
}

// attributeOf returns an Ask of the attribute that an operand is: a variable, or an entry of a map.
func attributeOf(e celast.Expr) (asked.Ask, bool) {
	switch e.Kind() {
	case celast.IdentKind:
		name := e.AsIdent()
		return asked.Ask{Attribute: name}, slices.Contains(rule.OwnVariables[:], name)
	case celast.SelectKind:
		if s := e.AsSelect(); !s.IsTestOnly() {
			name, ok := entryOf(s.Operand(), s.FieldName())
			return asked.Ask{Attribute: name, LookUp: true}, ok
		}
	case celast.CallKind:
		c := e.AsCall()
		if c.FunctionName() == operators.Index && len(c.Args()) == 2 {
			if key, ok := stringOf(c.Args()[1]); ok {
				name, ok := entryOf(c.Args()[0], key)
				return asked.Ask{Attribute: name, LookUp: true}, ok
			}
		}
		if name, otherwise, ok := getOf(c); ok {
			text, literal := stringOf(otherwise)
			return asked.Ask{Attribute: name}, literal && text == "" // as of a variable
		}
	}
	return asked.Ask{}, false
}

// getOf returns the attribute that a call of get looks up by a constant key, and its default.
func getOf(c celast.CallExpr) (name string, otherwise celast.Expr, ok bool) {
	if c.FunctionName() != get || c.IsMemberFunction() || len(c.Args()) != 3 {
		return "", nil, false
	}
	key, ok := stringOf(c.Args()[1])
	if !ok {
		return "", nil, false
	}
	name, ok = entryOf(c.Args()[0], key)
	return name, c.Args()[2], ok
}

// presenceOf is the condition of has(MAP.key) and key in MAP.
func presenceOf(m celast.Expr, key string) (asked.Ask, bool) {
	name, ok := entryOf(m, key)
	return asked.Ask{Attribute: name, OneOf: []asked.Comparison{{Op: asked.Present}}}, ok
}

// entryOf returns the attribute that an entry of a map of attributes is.
func entryOf(m celast.Expr, key string) (string, bool) {
	if key == "" {
		return "", false
	}
	prefix, ok := mapOf(m)
	return prefix + strings.Clone(key), ok
}

// mapOf returns the prefix of the attributes in a map; it is not ok if e is no map of attributes.
func mapOf(e celast.Expr) (prefix string, ok bool) {
	if e.Kind() == celast.IdentKind {
		for _, m := range attributeMaps {
			if m.name == e.AsIdent() {
				return m.prefix, true
			}
		}
	}
	return "", false
}

func stringOf(e celast.Expr) (string, bool) {
	if e.Kind() != celast.LiteralKind {
		return "", false
	}
	s, ok := e.AsLiteral().(types.String)
	return string(s), ok
}

// readsOf returns the attributes that an expression names, and the prefixes of others that it may
// read, once for each place.
func readsOf(e celast.Expr) (names, prefixes []string) {
	var walk func(e celast.Expr)
	walk = func(e celast.Expr) {
		if q, ok := attributeOf(e); ok {
			names = append(names, q.Attribute)
			return
		}
		if prefix, ok := mapOf(e); ok {
			prefixes = append(prefixes, prefix) // as a whole, or by a key that is computed
			return
		}
		switch e.Kind() {
		case celast.SelectKind:
			s := e.AsSelect()
			if name, ok := entryOf(s.Operand(), s.FieldName()); ok { // has(MAP.key)
				names = append(names, name)
				return
			}
			walk(s.Operand())
		case celast.CallKind:
			c := e.AsCall()
			if name, otherwise, ok := getOf(c); ok {
				names = append(names, name)
				walk(otherwise)
				return
			}
			if c.FunctionName() == operators.In && len(c.Args()) == 2 {
				if key, ok := stringOf(c.Args()[0]); ok {
					if name, ok := entryOf(c.Args()[1], key); ok {
						names = append(names, name)
						return
					}
				}
			}
			if c.IsMemberFunction() {
				walk(c.Target())
			}
			for _, arg := range c.Args() {
				walk(arg)
			}
		default:
			for _, part := range partsOf(e) {
				walk(part)
			}
		}
	}
	walk(e)
	return names, prefixes
}

// numbersOf returns the attributes whose values become part of the number that an expression gives:
// not those that only decide which number it is.
func numbersOf(e celast.Expr) (names []string) {
	parts := func(of []celast.Expr) (names []string) {
		for _, each := range of {
			names = append(names, numbersOf(each)...)
		}
		return names
	}
	switch e.Kind() {
	case celast.LiteralKind:
		return nil
	case celast.CallKind:
		args := e.AsCall().Args()
		switch e.AsCall().FunctionName() {
		case operators.Conditional:
			return parts(args[1:])
		case operators.Add, operators.Subtract, operators.Multiply, operators.Divide, operators.Modulo,
			operators.Negate:
			return parts(args)
		case operators.Index:
			if kind := args[0].Kind(); kind == celast.ListKind || kind == celast.MapKind {
				return parts(valuesOf(args[0]))
			}
		}
	}
	names, _ = readsOf(e)
	return names
}

// valuesOf returns the elements of a list, or the values of a map.
func valuesOf(e celast.Expr) (values []celast.Expr) {
	if e.Kind() == celast.ListKind {
		return e.AsList().Elements()
	}
	for _, entry := range e.AsMap().Entries() {
		values = append(values, entry.AsMapEntry().Value())
	}
	return values
}

// partsOf returns the parts of a list, a map, a struct or a comprehension.
func partsOf(e celast.Expr) (parts []celast.Expr) {
	switch e.Kind() {
	case celast.ListKind:
		return e.AsList().Elements()
	case celast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			parts = append(parts, entry.AsMapEntry().Key(), entry.AsMapEntry().Value())
		}
	case celast.StructKind:
		for _, f := range e.AsStruct().Fields() {
			parts = append(parts, f.AsStructField().Value())
		}
	case celast.ComprehensionKind:
		c := e.AsComprehension()
		return []celast.Expr{c.IterRange(), c.AccuInit(), c.LoopCondition(), c.LoopStep(), c.Result()}
	}
	return parts
}
