//go:build !nocel

package cel

import (
	"errors"
	"strings"
)

// Bounds on the expressions of one load.
const (
	maxExpression = 8 << 10 // bytes of one
	maxText       = 8 << 20 // bytes of all
)

// Compiler compiles the expressions of one load of rules, and remembers them: the same text often
// stands in many rules. The zero value is ready.
type Compiler struct {
	ifs, costs, costsAfter expressions
	bytes                  int
}

// expressions are the compiled expressions of one key of rule files, by their texts.
type expressions struct {
	known  map[string]compiled
	shapes shapeCache
}

type compiled struct {
	program *Program
	err     error
}

// If compiles the expression of an `if`, which must give a bool.
func (c *Compiler) If(source string) (*Program, error) { return c.compile(&c.ifs, compileIf, source) }

// Cost compiles the expression of a `cost`, which must give an int.
func (c *Compiler) Cost(source string) (*Program, error) {
	return c.compile(&c.costs, compileCost, source)
}

// CostAfter compiles the expression of a `cost_after`, which must give an int.
func (c *Compiler) CostAfter(source string) (*Program, error) {
	return c.compile(&c.costsAfter, compileCostAfter, source)
}

func (c *Compiler) compile(
	of *expressions, compile func(string, shapeCache) (*Program, error), source string,
) (*Program, error) {
	if p, ok := of.known[source]; ok {
		return p.program, p.err
	}
	if of.known == nil {
		*of = expressions{map[string]compiled{}, shapeCache{}}
	}
	var p compiled
	switch c.bytes += len(source); {
	case len(source) > maxExpression:
		p.err = errors.New("the expression is longer than 8 KiB")
	case c.bytes > maxText:
		p.err = errors.New("the expressions of all rules together are too large")
	default:
		p.program, p.err = compile(source, of.shapes)
	}
	of.known[source] = p
	return p.program, p.err
}

// DropAsks frees the conditions of each `if`, once rule.Compile has copied what its index needs.
func (c *Compiler) DropAsks() {
	for _, p := range c.ifs.known {
		if p.program != nil {
			p.program.asks, p.program.foldedAsks, p.program.asksAll = nil, nil, false
		}
	}
}

// ClientsOf returns the attributes of a list whose values any client can choose, and no server
// behind need go by.
func ClientsOf(names []string) []string {
	var list []string
	for _, name := range names {
		if strings.HasPrefix(name, "header.") || strings.HasPrefix(name, "query.") {
			list = append(list, name)
		}
	}
	return list
}
