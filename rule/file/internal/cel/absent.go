//go:build !nocel

package cel

import (
	"regexp"
	"slices"

	"cel.dev/cel-go/cel"
	celast "cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"

	"github.com/weir-rl/weir/rule/internal/asked"
)

// FailsWithout returns the attributes that an `if` looks up and whose absence may make it fail
// where it would be true if the attribute were empty.
func FailsWithout(source string) []string {
	env, err := requestEnv()
	if err != nil {
		return nil
	}
	ast, issues := env.Compile(source)
	if issues.Err() != nil {
		return nil
	}
	return missed(ast)
}

// missed returns the attributes that an expression looks up and whose absence may make it fail
// where it would be true if the attribute were empty.
func missed(a *cel.Ast) (names []string) {
	root := a.NativeRep().Expr()
	celast.PreOrderVisit(root, celast.NewExprVisitor(func(e celast.Expr) {
		if q, ok := attributeOf(e); ok && q.LookUp && !slices.Contains(names, q.Attribute) {
			names = append(names, q.Attribute)
		}
	}))
	return slices.DeleteFunc(names, func(name string) bool {
		all := withoutOne(root, name)
		return !all.has(fails, true) && !all.has(isFalse, true)
	})
}

// An absence holds the possible outcomes of a condition on a request without a certain attribute:
// pairs of its truth, and of whether it would be true if the attribute were empty. It is a set of
// bits.
type absence uint8

// truth is the result of a condition.
type truth uint8

const (
	isFalse truth = iota
	isTrue
	fails
)

func fateOf(is truth, empty bool) absence {
	n := 2 * is
	if empty {
		n++
	}
	return 1 << n
}

func (a absence) has(is truth, empty bool) bool { return a&fateOf(is, empty) != 0 }

// either is of a condition that may hold or not, whether or not the attribute is there.
var either = fateOf(isFalse, false) | fateOf(isTrue, true)

// combine returns what two conditions come to.
func (a absence) combine(b absence, of func(x, y truth) truth, empty func(x, y bool) bool) (out absence) {
	for x := isFalse; x <= fails; x++ {
		for y := isFalse; y <= fails; y++ {
			for n := range 4 {
				p, q := n&1 != 0, n&2 != 0
				if a.has(x, p) && b.has(y, q) {
					out |= fateOf(of(x, y), empty(p, q))
				}
			}
		}
	}
	return out
}

// and and or are as in CEL: what fails does not matter where the other side decides.
func and(x, y truth) truth {
	switch {
	case x == isFalse || y == isFalse:
		return isFalse
	case x == fails || y == fails:
		return fails
	}
	return isTrue
}

func or(x, y truth) truth { return not(and(not(x), not(y))) }

func not(x truth) truth {
	switch x {
	case isFalse:
		return isTrue
	case isTrue:
		return isFalse
	}
	return fails
}

// withoutOne returns the possible outcomes of a condition on a request without an attribute.
func withoutOne(e celast.Expr, name string) absence {
	both, one := func(x, y bool) bool { return x && y }, func(x, y bool) bool { return x || y }
	negated := func(a absence) absence {
		return a.combine(fateOf(isTrue, true), func(x, _ truth) truth { return not(x) },
			func(x, _ bool) bool { return !x })
	}
	if e.Kind() == celast.CallKind {
		c := e.AsCall()
		args := c.Args()
		switch c.FunctionName() {
		case operators.LogicalAnd:
			return withoutOne(args[0], name).combine(withoutOne(args[1], name), and, both)
		case operators.LogicalOr:
			return withoutOne(args[0], name).combine(withoutOne(args[1], name), or, one)
		case operators.LogicalNot:
			return negated(withoutOne(args[0], name))
		case operators.Conditional: // as c && x || !c && y
			is := withoutOne(args[0], name)
			x, y := withoutOne(args[1], name), withoutOne(args[2], name)
			return is.combine(x, and, both).combine(negated(is).combine(y, and, both), or, one)
		case operators.NotEquals:
			if !mentions(e, name) {
				return either
			}
			return fateOf(fails, !emptyMeets(operators.Equals, args, name))
		}
	}
	switch q, ok := askOf(e); {
	case ok && q.Attribute == name && q.OneOf[0].Op == asked.Present:
		return fateOf(isFalse, false)
	case !mentions(e, name):
		return either
	case e.Kind() == celast.CallKind:
		return fateOf(fails, emptyMeets(e.AsCall().FunctionName(), argumentsOf(e.AsCall()), name))
	}
	return fateOf(fails, false)
}

// mentions reports whether an expression looks an attribute up.
func mentions(e celast.Expr, name string) (found bool) {
	celast.PreOrderVisit(e, celast.NewExprVisitor(func(e celast.Expr) {
		q, ok := attributeOf(e)
		found = found || ok && q.LookUp && q.Attribute == name
	}))
	return found
}

// emptyMeets reports whether a comparison of an attribute with constants holds if the attribute is
// empty; a number that is made of it is then 0. It is false where that is unknown.
func emptyMeets(function string, args []celast.Expr, name string) bool {
	if len(args) != 2 {
		return false
	}
	q, ok := comparison(function, args[0], args[1])
	if !ok {
		q, ok = numberAsk(function, args[0], args[1])
	}
	if !ok || q.Attribute != name {
		return false
	}
	return slices.ContainsFunc(q.OneOf, func(c asked.Comparison) bool {
		switch c.Op {
		case asked.Equals, asked.HasPrefix, asked.HasSuffix, asked.Contains:
			return slices.Contains(c.Values, "")
		case asked.MatchesRegexp:
			return slices.ContainsFunc(c.Values, func(v string) bool {
				re, err := regexp.Compile(v)
				return err == nil && re.MatchString("")
			})
		case asked.Within:
			return slices.ContainsFunc(c.Ranges, func(r asked.Range) bool {
				zero, _ := r.Of.Key("0")
				if r.Of == asked.Size {
					zero = 0
				}
				return r.Least <= zero && zero <= r.Most
			})
		}
		return false
	})
}
