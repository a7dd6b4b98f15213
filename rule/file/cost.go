package file

import (
	"strconv"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file/internal/cel"
	"github.com/weir-rl/weir/rule/file/internal/yaml"
)

// maxCostTimeout is the longest cost_timeout: reservations are remembered until then.
const maxCostTimeout = 24 * time.Hour

// CompileIf compiles the CEL expression of an `if`, for rules that a program builds itself
// (rule.Compile). The error describes the fault of the expression.
func CompileIf(source string) (rule.Predicate, error) { return cel.CompileIf(source) }

// CompileCost compiles the CEL expression of a `cost`, as CompileIf does.
func CompileCost(source string) (rule.Amount, error) { return cel.CompileCost(source) }

// CompileCostAfter compiles the CEL expression of a `cost_after`, as CompileIf does.
func CompileCostAfter(source string) (rule.Settlement, error) { return cel.CompileCostAfter(source) }

// cost reads cost into r.
func (l *loader) cost(v *yaml.Node, r *rule.Rule) {
	if v.Kind == yaml.Scalar && !v.Quoted {
		if _, err := strconv.ParseFloat(v.Text, 64); err == nil {
			if n, ok := l.integer(v, "cost", 0, algo.MaxCost); ok {
				r.Cost = n
			}
			return
		}
	}
	text, ok := l.text(v, "cost")
	if !ok {
		return
	}
	p, err := l.compiled.cel.Cost(text)
	if r.CostExpr = text; err != nil {
		l.err(v, "", "cost: %v", err)
		return
	}
	exprs(r).Cost = p
	if names, all := p.Reads(); all || len(cel.ClientsOf(names)) > 0 || len(p.Numbers()) > 0 {
		r.CostMin = 1
	}
}

// costMin reads the least that a request costs by the expression of r.
func (l *loader) costMin(v *yaml.Node, r *rule.Rule) {
	n, ok := l.integer(v, "cost_min", 0, algo.MaxCost)
	switch {
	case !ok:
	case r.CostExpr == "":
		l.err(v, "leave it out, or write the number as cost", "cost_min is for a cost that is an expression")
	default:
		r.CostMin = n
	}
}

// costAfter reads cost_after into r.
func (l *loader) costAfter(v *yaml.Node, r *rule.Rule) {
	text, ok := l.text(v, "cost_after")
	if !ok {
		return
	}
	p, err := l.compiled.cel.CostAfter(text)
	if r.CostAfter = text; err != nil {
		l.err(v, "", "cost_after: %v", err)
		return
	}
	exprs(r).CostAfter = p
}

// condition reads if into r.
func (l *loader) condition(v *yaml.Node, r *rule.Rule) {
	text, ok := l.text(v, "if")
	if !ok {
		return
	}
	p, err := l.compiled.cel.If(text)
	if r.If = text; err != nil {
		l.err(v, "", "if: %v", err)
		return
	}
	exprs(r).If = p
}

// exprs returns the compiled expressions of r, to be filled in.
func exprs(r *rule.Rule) *rule.Exprs {
	if r.Exprs == nil {
		r.Exprs = &rule.Exprs{}
	}
	return r.Exprs
}
