//go:build !nocel

// Package cel compiles and evaluates the CEL expressions of rules: `if`, `cost` and `cost_after`.
// What an evaluation may cost is bounded.
//
// Begin with Compiler (compiler.go), which makes a Program of a text (compileText in cel.go). It
// remembers what it parsed, since many expressions differ in a literal only (shape.go). Rules are
// indexed by the conditions that an `if` puts on single attributes (ask.go, number.go). An
// expression that reads the path has a second form for folded paths (fold.go). Regular expressions
// are charged for the length of their text (matches.go).
package cel

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"cel.dev/cel-go/interpreter"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/internal/asked"
)

// budget bounds the cost of the expressions of all rules on one request, with an account of
// their own for rules in shadow, in CEL's own units: about one a simple step, which takes some 200
// ns. So a request costs some 20 ms at most. It is far above the need of expressions over a request
// of ordinary size: it is enough to go through 4,000 query parameters once.
const budget = 100_000

// freeCost is the free cost of each expression beside the budget, so that there may be any number
// of rules.
const freeCost = 200

// functionCosts gives functions that go through a text quickly a cost that fits the time they take.
var functionCosts = cel.CostTrackerOptions(
	cost.OverloadTracker(overloads.Matches, matchesCost),
	cost.OverloadTracker(overloads.MatchesString, matchesCost),
	cost.OverloadTracker(overloads.ContainsString, perByte(1.0/64)),
	cost.OverloadTracker(overloads.Equals, wholeMaps),
	cost.OverloadTracker(overloads.NotEquals, wholeMaps),
	cost.OverloadTracker(overloads.SizeString, perByte(1.0/64)),
	cost.OverloadTracker(overloads.SizeStringInst, perByte(1.0/64)),
	cost.OverloadTracker(overloads.StringToBytes, perByte(1.0/64)),
)

// perByte is the cost of a function that looks at each byte of its first argument.
func perByte(units float64) cost.FunctionTracker {
	return func(args []ref.Val, _ ref.Val) *uint64 {
		n := uint64(1)
		if text, ok := args[0].(types.String); ok {
			n += uint64(float64(len(text)) * units)
		}
		return &n
	}
}

// wholeMaps is the cost of comparing maps, whose entries are all looked up; nil, so that CEL's own
// cost holds, for other values.
func wholeMaps(args []ref.Val, _ ref.Val) *uint64 {
	m, ok := args[0].(traits.Mapper)
	if !ok {
		return nil
	}
	n, _ := m.Size().(types.Int)
	units := 1 + 4*uint64(n)
	return &units
}

// Program is a compiled CEL expression. It implements rule.Predicate, rule.Amount or
// rule.Settlement, as its key needs.
type Program struct {
	cel     cel.Program
	asks    []asked.Ask // of an `if`: what must hold for it to be true
	asksAll bool        // that is all that it says
	// folded is the expression for a folded path; nil if it is the same. foldedAsks are the
	// conditions where this or the written one is true.
	folded     cel.Program
	foldedAsks []asked.Ask
	reads      []string // the attributes that it names
	whole      []string // the prefixes of others that it may read
	numbers    []string // of a `cost`: the attributes whose values become part of it
}

var (
	_ rule.Predicate  = (*Program)(nil)
	_ rule.Amount     = (*Program)(nil)
	_ rule.Settlement = (*Program)(nil)
)

var requestEnv = sync.OnceValues(func() (*cel.Env, error) {
	options := []cel.EnvOption{
		cel.Variable("domain", cel.StringType),
		cel.Variable("header", textMap),
		cel.Variable("query", textMap),
		cel.Variable("attr", textMap),
		getFunction,
		cel.ASTValidators(cel.ValidateRegexProgramSizeLimit(maxProgram)),
	}
	for _, n := range rule.OwnVariables {
		options = append(options, cel.Variable(n, cel.StringType))
	}
	return cel.NewEnv(options...)
})

// textMap is the type of the maps that expressions know.
var textMap = cel.MapType(cel.StringType, cel.StringType)

// get is the name of a function of expressions: get(MAP, "key", "default").
const get = "get"

// getFunction looks a key up, and gives the default where it is absent: map["key"] fails there.
var getFunction = cel.Function(get, cel.Overload("get_map_string_string",
	[]*cel.Type{textMap, cel.StringType, cel.StringType},
	cel.StringType, cel.FunctionBinding(func(args ...ref.Val) ref.Val {
		m, ok := args[0].(traits.Mapper)
		if !ok {
			return types.MaybeNoSuchOverloadErr(args[0])
		}
		if v, _ := m.Find(args[1]); v != nil {
			return v
		}
		return args[2]
	})))

// dialect is what expressions of one key may use and give.
type dialect struct {
	env    func() (*cel.Env, error)
	result *cel.Type
	what   string               // its result, in words
	known  string               // the variables, in words
	check  func(*cel.Ast) error // finds faults that the types do not show; nil for none
	asks   bool                 // its conditions on single attributes are wanted
	costs  bool                 // the terms that its number comes from are wanted
}

const requestVariables = `domain, method, path, host, ip, user, header["…"], query["…"] and attr["…"]`

// compileIf compiles the CEL expression of `if`, which must give a bool.
func compileIf(source string, shapes shapeCache) (*Program, error) {
	return compileText(source, shapes, dialect{env: requestEnv, result: cel.BoolType, what: "true or false",
		known: requestVariables, asks: true})
}

// compileCost compiles the CEL expression of `cost`, which must give an int.
func compileCost(source string, shapes shapeCache) (*Program, error) {
	return compileText(source, shapes, dialect{env: requestEnv, result: cel.IntType,
		what: "an int, such as int(attr.tokens)", known: requestVariables, costs: true})
}

// CompileIf compiles the CEL expression of an `if` alone.
func CompileIf(source string) (rule.Predicate, error) {
	p, err := compileIf(source, nil)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// CompileCost compiles the CEL expression of a `cost` alone.
func CompileCost(source string) (rule.Amount, error) {
	p, err := compileCost(source, nil)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// CompileCostAfter compiles the CEL expression of a `cost_after` alone.
func CompileCostAfter(source string) (rule.Settlement, error) {
	p, err := compileCostAfter(source, nil)
	if err != nil {
		return nil, err
	}
	return p, nil
}

// planned makes a checked expression ready to be evaluated.
func planned(env *cel.Env, ast *cel.Ast) (cel.Program, error) {
	return env.Program(ast, append(withMatches[:len(withMatches):len(withMatches)], cel.EvalOptions(cel.OptOptimize),
		cel.CostLimit(budget), functionCosts)...)
}

func compileText(source string, shapes shapeCache, d dialect) (*Program, error) {
	if strings.TrimSpace(source) == "" {
		return nil, errors.New("the expression is empty")
	}
	env, err := d.env()
	if err != nil {
		return nil, err
	}
	ast, err := shapes.parse(source, env, d.known)
	if err != nil {
		return nil, err
	}
	if out := ast.OutputType(); !out.IsExactType(d.result) {
		return nil, fmt.Errorf("the expression gives %s: it must give %s", cel.FormatCELType(out), d.what)
	}
	if d.check != nil {
		if err := d.check(ast); err != nil {
			return nil, err
		}
	}
	prg, err := planned(env, ast)
	if err != nil {
		return nil, fmt.Errorf("the expression cannot be compiled: %w", err)
	}
	p := &Program{cel: prg}
	if d.asks {
		p.asks, p.asksAll = asksOf(ast)
	}
	p.reads, p.whole = readsOf(ast.NativeRep().Expr())
	if d.costs {
		p.numbers = numbersOf(ast.NativeRep().Expr())
	}
	if err := p.fold(env, ast, d.asks); err != nil {
		return nil, fmt.Errorf("the expression cannot be compiled: %w", err)
	}
	return p, nil
}

// compileError turns the compiler's issues into one line. known are the variables that there are.
func compileError(issues *cel.Issues, known string) error {
	var b strings.Builder
	undeclared := false
	for i, e := range issues.Errors() {
		if i > 0 {
			b.WriteString("; ")
		}
		message := strings.TrimSuffix(e.Message, " (in container '')")
		undeclared = undeclared || strings.HasPrefix(message, "undeclared reference")
		fmt.Fprintf(&b, "at %d:%d of the expression: %s", e.Location.Line(), e.Location.Column()+1, message)
		if i == 4 && len(issues.Errors()) > 5 {
			fmt.Fprintf(&b, "; and %d more", len(issues.Errors())-5)
			break
		}
	}
	if undeclared {
		fmt.Fprintf(&b, " (known are %s)", known)
	}
	return errors.New(b.String())
}

// Asks returns the conditions by which rule.Compile can file the rule.
func (p *Program) Asks(folded bool) (asks []asked.Ask, all bool) {
	if folded && p.folded != nil {
		return p.foldedAsks, p.asksAll && len(p.foldedAsks) == len(p.asks)
	}
	return p.asks, p.asksAll
}

// Folds reports to rule.Compile that the expression has a form of its own for folded paths.
func (p *Program) Folds() bool { return p.folded != nil }

// on returns the form of the expression that fits the path in v.
func (p *Program) on(v *rule.Variables) cel.Program {
	if p.folded != nil && v.Folded() {
		return p.folded
	}
	return p.cel
}

// Numbers returns the attributes whose values become part of the number that a `cost` gives.
func (p *Program) Numbers() []string { return p.numbers }

// Reads implements rule.Reader.
func (p *Program) Reads() (names []string, all bool) { return p.reads, len(p.whole) > 0 }

// ReadsWhole reports to rule.Compile which maps of fields it may read any entry of.
func (p *Program) ReadsWhole() (headers, query bool) {
	for _, prefix := range p.whole {
		headers = headers || strings.HasPrefix("header.", prefix)
		query = query || strings.HasPrefix("query.", prefix)
	}
	return headers, query
}

// Holds implements rule.Predicate.
func (p *Program) Holds(v *rule.Variables) (bool, error) {
	out, err := p.eval(v)
	if err != nil {
		return false, err
	}
	b, ok := out.(types.Bool)
	if !ok {
		return false, fmt.Errorf("the expression gave %s, not a bool", out.Type().TypeName())
	}
	return bool(b), nil
}

// eval evaluates an expression over a request, within the budget of that.
func (p *Program) eval(v *rule.Variables) (ref.Val, error) {
	spent := v.Spent()
	if *spent > budget {
		return nil, rule.ErrTooCostly
	}
	out, details, err := p.on(v).Eval(activationOf(v))
	if n := details.ActualCost(); n != nil && *n > freeCost {
		*spent += *n - freeCost
	}
	if err != nil {
		if c, ok := errors.AsType[interpreter.EvalCancelledError](err); ok && c.Cause == interpreter.CostLimitExceeded {
			*spent = budget + 1
			return nil, rule.ErrTooCostly
		}
	}
	return out, err
}

// Amount implements rule.Amount.
func (p *Program) Amount(v *rule.Variables) (int64, error) {
	out, err := p.eval(v)
	return intOf(out, err)
}

// Settle implements rule.Settlement.
func (p *Program) Settle(r rule.ResponseInfo) (int64, error) {
	out, _, err := p.cel.Eval(&responseVars{r})
	return intOf(out, err)
}

// intOf returns the number that an expression gave.
func intOf(out ref.Val, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	n, ok := out.(types.Int)
	if !ok {
		return 0, fmt.Errorf("the expression gave %s, not an int", out.Type().TypeName())
	}
	return int64(n), nil
}

// activation resolves the variables of an expression on one request. An attribute that is absent is
// the empty string; a key that is absent from a map is an error, as everywhere in CEL.
type activation struct {
	vars *rule.Variables
	maps [len(attributeMaps)]attributeMap
}

// attributeMaps are the maps of attributes that expressions know, each with the prefix of the names
// of its attributes.
var attributeMaps = [...]struct{ name, prefix string }{{"attr", ""}, {"header", "header."}, {"query", "query."}}

// activationOf returns the activation over v. It is made once and kept with v.
func activationOf(v *rule.Variables) *activation {
	a, ok := v.Scratch.(*activation)
	if !ok {
		a = &activation{vars: v}
		for i := range a.maps {
			a.maps[i] = attributeMap{vars: v, prefix: attributeMaps[i].prefix}
		}
		v.Scratch = a
	}
	return a
}

// Release implements rule.Scratch.
func (a *activation) Release() {
	for i := range a.maps {
		a.maps[i].all = nil
	}
}

// ResolveName implements cel.Activation.
func (a *activation) ResolveName(name string) (any, bool) {
	if name == "domain" {
		return types.String(a.vars.Domain()), true
	}
	for i := range attributeMaps {
		if attributeMaps[i].name == name {
			return &a.maps[i], true
		}
	}
	if !slices.Contains(rule.OwnVariables[:], name) {
		return nil, false
	}
	text, _ := a.vars.Attribute(name)
	return types.String(text), true
}

// Parent implements cel.Activation.
func (a *activation) Parent() cel.Activation { return nil }

// attributeMap is a map over the attributes whose names begin with prefix. A look-up by key asks
// for that one attribute; what needs the whole map makes it first.
type attributeMap struct {
	vars   *rule.Variables
	prefix string
	all    traits.Mapper // nil until it is needed
}

var _ traits.Mapper = (*attributeMap)(nil)

func (c *attributeMap) whole() traits.Mapper {
	if c.all == nil {
		c.all = types.NewStringStringMap(types.DefaultTypeAdapter, c.vars.All(c.prefix))
	}
	return c.all
}

// Find implements traits.Mapper.
func (c *attributeMap) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(key), false
	}
	// a look-up in a union goes through all entries: once is enough
	if c.all != nil || c.vars.FromDescriptors() {
		return c.whole().Find(key)
	}
	text, ok := c.vars.Attribute(c.prefix + string(name))
	if !ok {
		return nil, false
	}
	return types.String(text), true
}

// Get implements traits.Indexer.
func (c *attributeMap) Get(key ref.Val) ref.Val {
	v, found := c.Find(key)
	if !found && v == nil {
		return types.NewErr("no such key: %v", key)
	}
	return v
}

// Contains implements traits.Container.
func (c *attributeMap) Contains(key ref.Val) ref.Val {
	v, found := c.Find(key)
	if !found && v != nil {
		return v
	}
	return types.Bool(found)
}

// Iterator implements traits.Iterable.
func (c *attributeMap) Iterator() traits.Iterator { return c.whole().Iterator() }

// Size implements traits.Sizer.
func (c *attributeMap) Size() ref.Val { return c.whole().Size() }

// ConvertToNative implements ref.Val.
func (c *attributeMap) ConvertToNative(t reflect.Type) (any, error) {
	return c.whole().ConvertToNative(t)
}

// ConvertToType implements ref.Val.
func (c *attributeMap) ConvertToType(t ref.Type) ref.Val { return c.whole().ConvertToType(t) }

// Equal implements ref.Val.
func (c *attributeMap) Equal(other ref.Val) ref.Val { return c.whole().Equal(other) }

// Type implements ref.Val.
func (c *attributeMap) Type() ref.Type { return types.MapType }

// Value implements ref.Val.
func (c *attributeMap) Value() any { return c.whole().Value() }
