//go:build nocel

// Package cel without CEL: with the build tag nocel, expressions are errors at load. They would be
// more than half of the program that the documentation's playground loads.
package cel

import (
	"errors"

	"github.com/weir-rl/weir/rule"
)

var errLeftOut = errors.New("expressions are left out of this program; `weir lint` and the server take them")

// Program is an expression that was not compiled: there is none.
type Program struct{}

// Holds reports no truth.
func (p *Program) Holds(*rule.Variables) (bool, error) { return false, errLeftOut }

// Amount gives no number.
func (p *Program) Amount(*rule.Variables) (int64, error) { return 0, errLeftOut }

// Settle gives no number.
func (p *Program) Settle(rule.ResponseInfo) (int64, error) { return 0, errLeftOut }

// Reads returns nothing.
func (p *Program) Reads() (names []string, all bool) { return nil, false }

// Numbers returns nothing.
func (p *Program) Numbers() []string { return nil }

// ReadsWhole reports nothing.
func (p *Program) ReadsWhole() (headers, query bool) { return false, false }

// Compiler refuses each expression.
type Compiler struct{}

// If refuses the expression of an `if`.
func (c *Compiler) If(string) (*Program, error) { return nil, errLeftOut }

// Cost refuses the expression of a `cost`.
func (c *Compiler) Cost(string) (*Program, error) { return nil, errLeftOut }

// CostAfter refuses the expression of a `cost_after`.
func (c *Compiler) CostAfter(string) (*Program, error) { return nil, errLeftOut }

// DropAsks does nothing.
func (c *Compiler) DropAsks() {}

// CompileIf refuses the expression of an `if`.
func CompileIf(string) (rule.Predicate, error) { return nil, errLeftOut }

// CompileCost refuses the expression of a `cost`.
func CompileCost(string) (rule.Amount, error) { return nil, errLeftOut }

// CompileCostAfter refuses the expression of a `cost_after`.
func CompileCostAfter(string) (rule.Settlement, error) { return nil, errLeftOut }

// FailsWithout returns nothing.
func FailsWithout(string) []string { return nil }

// ClientsOf returns nothing.
func ClientsOf([]string) []string { return nil }
