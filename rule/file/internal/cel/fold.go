//go:build !nocel

package cel

import (
	"reflect"
	"slices"

	"cel.dev/cel-go/cel"
	celast "cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/internal/asked"
)

// fold makes the form of an expression for a path that is folded: the texts that it compares the
// path with are folded too. asks says whether its conditions are wanted.
func (p *Program) fold(env *cel.Env, ast *cel.Ast, asks bool) error {
	type literal struct {
		at     celast.Expr
		before types.String
	}
	var changed []literal
	celast.PreOrderVisit(ast.NativeRep().Expr(), celast.NewExprVisitor(func(e celast.Expr) {
		if e.Kind() != celast.CallKind {
			return
		}
		folded := foldings[e.AsCall().FunctionName()]
		args := argumentsOf(e.AsCall())
		if folded == nil || len(args) != 2 {
			return
		}
		for i, a := range args {
			if q, ok := attributeOf(a); !ok || q.Attribute != "path" {
				continue
			}
			texts := []celast.Expr{args[1-i]}
			if texts[0].Kind() == celast.ListKind {
				texts = texts[0].AsList().Elements()
			}
			for _, t := range texts {
				text, ok := stringOf(t)
				if now := folded(text); ok && now != text {
					changed = append(changed, literal{t, types.String(text)})
					t.SetKindCase(celast.NewExprFactory().NewLiteral(t.ID(), types.String(now)))
				}
			}
		}
	}))
	if len(changed) == 0 {
		return nil
	}
	var err error
	if p.folded, err = planned(env, ast); err == nil && asks {
		folded, _ := asksOf(ast)
		p.foldedAsks = eitherOf(p.asks, folded)
	}
	for _, l := range changed {
		l.at.SetKindCase(celast.NewExprFactory().NewLiteral(l.at.ID(), l.before))
	}
	return err
}

// eitherOf returns what holds where the written form of an expression or its folded form is true,
// given the conditions of both. A rule is met if either is. A folded condition does not always hold
// where the written one does: path.contains("A9") holds for "%C3%A9", path.contains("a9") does not.
// The forms differ in texts only, so their conditions come in pairs; if not, nothing is known.
func eitherOf(written, folded []asked.Ask) []asked.Ask {
	if len(written) != len(folded) {
		return nil
	}
	for i := range folded {
		w, f := &written[i], &folded[i]
		if w.Attribute != f.Attribute || w.LookUp != f.LookUp {
			return nil
		}
		for _, c := range w.OneOf {
			same := func(o asked.Comparison) bool { return reflect.DeepEqual(o, c) }
			if !slices.ContainsFunc(f.OneOf, same) {
				f.OneOf = append(f.OneOf, c)
			}
		}
	}
	return folded
}

// foldings fold the texts that a function compares the path with.
var foldings = map[string]func(text string) string{
	operators.Equals: rule.FoldPath, operators.NotEquals: rule.FoldPath, operators.In: rule.FoldPath,
	"startsWith": rule.LowerPath, "contains": rule.LowerPath, "endsWith": rule.FoldPath, "matches": rule.FoldRegexp,
}
