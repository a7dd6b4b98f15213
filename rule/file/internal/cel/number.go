//go:build !nocel

package cel

import (
	"math"

	celast "cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"

	"github.com/weir-rl/weir/rule/internal/asked"
)

// numberFunctions are the functions that make a number of an attribute.
var numberFunctions = map[string]asked.Number{
	"int": asked.Int, "uint": asked.Uint, "double": asked.Double, "size": asked.Size,
}

// turned are the comparisons of numbers, each with the one that says the same with its operands
// exchanged.
var turned = map[string]string{
	operators.Less: operators.Greater, operators.LessEquals: operators.GreaterEquals,
	operators.Greater: operators.Less, operators.GreaterEquals: operators.LessEquals,
	operators.Equals: operators.Equals,
}

// numberAsk is the condition that a comparison of numbers puts on the attribute from which one of
// them is made, as in int(attr.n) >= 5 and path.size() < 100.
func numberAsk(function string, a, b celast.Expr) (asked.Ask, bool) {
	if a.Kind() == celast.LiteralKind && turned[function] != "" {
		function, a, b = turned[function], b, a
	}
	q, of, ok := numberOf(a)
	if !ok {
		return asked.Ask{}, false
	}
	list := []celast.Expr{b}
	if function == operators.In {
		if b.Kind() != celast.ListKind {
			return asked.Ask{}, false
		}
		function, list = operators.Equals, b.AsList().Elements()
	}
	var ranges []asked.Range
	for _, e := range list {
		r, ok := rangeOf(function, of, e)
		if !ok {
			return asked.Ask{}, false
		}
		ranges = append(ranges, r)
	}
	if len(ranges) == 0 {
		return asked.Ask{}, false
	}
	q.OneOf = []asked.Comparison{{Op: asked.Within, Ranges: ranges}}
	return q, true
}

// numberOf returns an Ask of the attribute from which an operand makes a number, and how.
func numberOf(e celast.Expr) (asked.Ask, asked.Number, bool) {
	if e.Kind() != celast.CallKind {
		return asked.Ask{}, 0, false
	}
	c := e.AsCall()
	args := argumentsOf(c)
	of := numberFunctions[c.FunctionName()]
	if of == asked.NoNumber || len(args) != 1 {
		return asked.Ask{}, 0, false
	}
	q, ok := attributeOf(args[0])
	return q, of, ok
}

// rangeOf returns the numbers that compare so with a literal.
func rangeOf(function string, of asked.Number, literal celast.Expr) (asked.Range, bool) {
	r := of.All()
	key, ok := keyOf(of, literal)
	if !ok {
		return r, false
	}
	none := asked.Range{Of: of, Least: 1, Most: 0}
	switch function {
	case operators.Equals:
		r.Least, r.Most = key, key
	case operators.LessEquals:
		r.Most = key
	case operators.GreaterEquals:
		r.Least = key
	case operators.Less:
		if key == math.MinInt64 {
			return none, true
		}
		r.Most = key - 1
	case operators.Greater:
		if key == math.MaxInt64 {
			return none, true
		}
		r.Least = key + 1
	default:
		return r, false
	}
	return r, true
}

// keyOf returns the key of a literal number. It fails if of gives numbers of another type.
func keyOf(of asked.Number, e celast.Expr) (int64, bool) {
	if e.Kind() != celast.LiteralKind {
		return 0, false
	}
	switch v := e.AsLiteral().(type) {
	case types.Int:
		return int64(v), of == asked.Int || of == asked.Size
	case types.Uint:
		return asked.UintKey(uint64(v)), of == asked.Uint
	case types.Double:
		return asked.DoubleKey(float64(v)), of == asked.Double && !math.IsNaN(float64(v))
	}
	return 0, false
}
