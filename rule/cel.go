package rule

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
)

// celCostLimit bounds what one evaluation may cost, in CEL's own units (about one a simple step, a tenth for each byte of a
// string that is looked through). It is far above what an expression over a request of ordinary size needs.
const celCostLimit = 5_000_000

// program is a compiled CEL expression.
type program struct{ cel cel.Program }

// celNames are the attributes that expressions know as variables of their own.
var celNames = []string{"method", "path", "host", "ip", "user"}

var celEnv = sync.OnceValues(func() (*cel.Env, error) {
	attributes := cel.MapType(cel.StringType, cel.StringType)
	options := []cel.EnvOption{
		cel.Variable("domain", cel.StringType),
		cel.Variable("header", attributes),
		cel.Variable("query", attributes),
		cel.Variable("attr", attributes),
		cel.RegexProgramSizeLimit(10_000),
	}
	for _, n := range celNames {
		options = append(options, cel.Variable(n, cel.StringType))
	}
	return cel.NewEnv(options...)
})

// celDialect is what expressions of one key may use and give.
type celDialect struct {
	env    func() (*cel.Env, error)
	result *cel.Type
	what   string               // what it must give, in words
	known  string               // the variables, in words
	check  func(*cel.Ast) error // of what the types do not show; nil for nothing
}

const celKnown = `domain, method, path, host, ip, user, header["…"], query["…"] and attr["…"]`

// compileIf compiles the CEL expression of `if`, which must give a bool.
func compileIf(source string) (*program, error) {
	return compileCEL(source, celDialect{env: celEnv, result: cel.BoolType, what: "true or false", known: celKnown})
}

// compileCost compiles the CEL expression of `cost`, which must give an int.
func compileCost(source string) (*program, error) {
	return compileCEL(source, celDialect{env: celEnv, result: cel.IntType, what: "an int, such as int(attr.tokens)", known: celKnown})
}

func compileCEL(source string, d celDialect) (*program, error) {
	if strings.TrimSpace(source) == "" {
		return nil, errors.New("the expression is empty")
	}
	env, err := d.env()
	if err != nil {
		return nil, err
	}
	ast, issues := env.Compile(source)
	if err := issues.Err(); err != nil {
		return nil, celError(issues, d.known)
	}
	if out := ast.OutputType(); !out.IsExactType(d.result) {
		return nil, fmt.Errorf("the expression gives %s: it must give %s", cel.FormatCELType(out), d.what)
	}
	if d.check != nil {
		if err := d.check(ast); err != nil {
			return nil, err
		}
	}
	prg, err := env.Program(ast, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(celCostLimit))
	if err != nil {
		return nil, fmt.Errorf("the expression cannot be compiled: %w", err)
	}
	return &program{prg}, nil
}

// celError turns what the compiler found into one line. known are the variables that there are.
func celError(issues *cel.Issues, known string) error {
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

// holds evaluates an `if`.
func (p *program) holds(v *celVars) (bool, error) {
	out, _, err := p.cel.Eval(v)
	if err != nil {
		return false, err
	}
	b, ok := out.(types.Bool)
	if !ok {
		return false, fmt.Errorf("the expression gave %s, not a bool", out.Type().TypeName())
	}
	return bool(b), nil
}

// amount evaluates a `cost`.
func (p *program) amount(v *celVars) (int64, error) {
	out, _, err := p.cel.Eval(v)
	if err != nil {
		return 0, err
	}
	n, ok := out.(types.Int)
	if !ok {
		return 0, fmt.Errorf("the expression gave %s, not an int", out.Type().TypeName())
	}
	return int64(n), nil
}

// celVars resolves the variables of an expression on one request. An attribute that is absent is the empty string; a
// key that is absent from a map is an error, as everywhere in CEL.
type celVars struct {
	m    *Matches
	maps [3]celMap // attr, header, query; made when first asked for
}

var celMapNames = [...]string{"attr", "header", "query"}
var celMapPrefixes = [...]string{"", "header.", "query."}

// reset makes v resolve on the request that m is matching.
func (v *celVars) reset(m *Matches) {
	v.m = m
	for i, p := range celMapPrefixes {
		v.maps[i] = celMap{m: m, prefix: p}
	}
}

// ResolveName implements cel.Activation.
func (v *celVars) ResolveName(name string) (any, bool) {
	if name == "domain" {
		return types.String(v.m.domain.name), true
	}
	for i, n := range celMapNames {
		if n == name {
			return &v.maps[i], true
		}
	}
	for _, n := range celNames {
		if n == name {
			text, _ := v.m.attribute(name)
			return types.String(text), true
		}
	}
	return nil, false
}

// Parent implements cel.Activation.
func (v *celVars) Parent() cel.Activation { return nil }

// celMap is a map over the attributes whose names begin with prefix. A look-up by key asks for that one attribute; what
// needs the whole map makes it first.
type celMap struct {
	m      *Matches
	prefix string
	all    traits.Mapper // nil until it is needed
}

var _ traits.Mapper = (*celMap)(nil)

func (c *celMap) whole() traits.Mapper {
	if c.all == nil {
		all := map[string]string{}
		for name, value := range c.m.attributes() {
			key, ok := strings.CutPrefix(name, c.prefix)
			if _, twice := all[key]; ok && !twice {
				all[key] = value
			}
		}
		for key, value := range all { // an empty value counts as absent; a special attribute has its normal form
			if slot, known := c.m.domain.slotOf[c.prefix+key]; known {
				value = c.m.value(slot).text
				all[key] = value
			}
			if value == "" {
				delete(all, key)
			}
		}
		c.all = types.NewStringStringMap(types.DefaultTypeAdapter, all)
	}
	return c.all
}

// Find implements traits.Mapper.
func (c *celMap) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(key), false
	}
	if c.all != nil || c.m.union { // a look-up in a union goes through all entries: once is enough
		return c.whole().Find(key)
	}
	text, ok := c.m.attribute(c.prefix + string(name))
	if !ok {
		return nil, false
	}
	return types.String(text), true
}

// Get implements traits.Indexer.
func (c *celMap) Get(key ref.Val) ref.Val {
	v, found := c.Find(key)
	if !found && v == nil {
		return types.NewErr("no such key: %v", key)
	}
	return v
}

// Contains implements traits.Container.
func (c *celMap) Contains(key ref.Val) ref.Val {
	v, found := c.Find(key)
	if !found && v != nil {
		return v
	}
	return types.Bool(found)
}

// Iterator implements traits.Iterable.
func (c *celMap) Iterator() traits.Iterator { return c.whole().Iterator() }

// Size implements traits.Sizer.
func (c *celMap) Size() ref.Val { return c.whole().Size() }

// ConvertToNative implements ref.Val.
func (c *celMap) ConvertToNative(t reflect.Type) (any, error) { return c.whole().ConvertToNative(t) }

// ConvertToType implements ref.Val.
func (c *celMap) ConvertToType(t ref.Type) ref.Val { return c.whole().ConvertToType(t) }

// Equal implements ref.Val.
func (c *celMap) Equal(other ref.Val) ref.Val { return c.whole().Equal(other) }

// Type implements ref.Val.
func (c *celMap) Type() ref.Type { return types.MapType }

// Value implements ref.Val.
func (c *celMap) Value() any { return c.whole().Value() }
