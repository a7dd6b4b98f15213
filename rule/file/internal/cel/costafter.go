//go:build !nocel

package cel

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"

	"cel.dev/cel-go/cel"
	celast "cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"

	"github.com/weir-rl/weir/rule"
)

// The variables of cost_after. The checker takes a name with a dot as one name.
const (
	varStatus   = "response.status"
	varHeader   = "response.header"
	varBytes    = "response.bytes"
	varDuration = "response.duration"
	varEstimate = "estimate"
)

var costAfterEnv = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.Variable(varStatus, cel.IntType),
		cel.Variable(varHeader, textMap),
		cel.Variable(varBytes, cel.IntType),
		cel.Variable(varDuration, cel.DoubleType),
		cel.Variable(varEstimate, cel.IntType),
		getFunction,
		cel.ASTValidators(cel.ValidateRegexProgramSizeLimit(maxProgram)),
	)
})

// compileCostAfter compiles the CEL expression of `cost_after`, which must give an int.
func compileCostAfter(source string, shapes shapeCache) (*Program, error) {
	return compileText(source, shapes, dialect{
		env: costAfterEnv, result: cel.IntType, what: `an int, such as int(response.header["x-tokens"])`,
		known: `response.status, response.header["…"], response.bytes, response.duration and estimate; what the request brought is for cost`,
		check: onlyLookUps,
	})
}

// onlyLookUps refuses to use the headers as a whole: a door can look a header up, but not list them
// all.
func onlyLookUps(a *cel.Ast) error {
	bad := false
	isHeader := func(e celast.Expr) bool {
		r, ok := a.NativeRep().ReferenceMap()[e.ID()]
		return ok && r.Name == varHeader
	}
	var walk func(e celast.Expr)
	walk = func(e celast.Expr) {
		if isHeader(e) {
			bad = true
			return
		}
		switch e.Kind() {
		case celast.SelectKind:
			if o := e.AsSelect().Operand(); !isHeader(o) {
				walk(o)
			}
		case celast.CallKind:
			c := e.AsCall()
			if c.IsMemberFunction() {
				walk(c.Target())
			}
			for i, arg := range c.Args() {
				lookUp := i == 0 && (c.FunctionName() == operators.Index || c.FunctionName() == get) ||
					i == 1 && c.FunctionName() == operators.In
				if !lookUp || !isHeader(arg) {
					walk(arg)
				}
			}
		default:
			for _, part := range partsOf(e) {
				walk(part)
			}
		}
	}
	walk(a.NativeRep().Expr())
	if bad {
		return errors.New(
			`response.header can only be looked up by name, as in response.header["x-tokens"] or "x-tokens" in response.header`)
	}
	return nil
}

// responseVars resolves the variables of cost_after.
type responseVars struct{ resp rule.ResponseInfo }

// ResolveName implements cel.Activation.
func (v *responseVars) ResolveName(name string) (any, bool) {
	switch name {
	case varStatus:
		return types.Int(v.resp.Status), true
	case varHeader:
		return headerMap{v.resp.Header}, true
	case varBytes:
		return types.Int(v.resp.Bytes), true
	case varDuration:
		return types.Double(v.resp.Duration.Seconds()), true
	case varEstimate:
		return types.Int(v.resp.Estimate), true
	}
	return nil, false
}

// Parent implements cel.Activation.
func (v *responseVars) Parent() cel.Activation { return nil }

// headerMap is a map that allows only look-ups of single entries. An empty header counts as absent.
type headerMap struct{ get func(string) string }

var _ traits.Mapper = headerMap{}

// Find implements traits.Mapper.
func (h headerMap) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(key), false
	}
	if h.get == nil {
		return nil, false
	}
	value := h.get(strings.ToLower(string(name)))
	if value == "" {
		return nil, false
	}
	return types.String(value), true
}

// Get implements traits.Indexer.
func (h headerMap) Get(key ref.Val) ref.Val {
	v, found := h.Find(key)
	if !found && v == nil {
		return types.NewErr("no such key: %v", key)
	}
	return v
}

// Contains implements traits.Container.
func (h headerMap) Contains(key ref.Val) ref.Val {
	v, found := h.Find(key)
	if !found && v != nil {
		return v
	}
	return types.Bool(found)
}

// Iterator implements traits.Iterable. No expression that was compiled asks for it.
func (h headerMap) Iterator() traits.Iterator {
	return types.NewStringStringMap(types.DefaultTypeAdapter, nil).Iterator()
}

// Size implements traits.Sizer.
func (h headerMap) Size() ref.Val { return types.IntZero }

// ConvertToNative implements ref.Val.
func (h headerMap) ConvertToNative(t reflect.Type) (any, error) {
	return nil, fmt.Errorf("headers cannot be made %v", t)
}

// ConvertToType implements ref.Val.
func (h headerMap) ConvertToType(t ref.Type) ref.Val {
	return types.NewErr("headers cannot be made %s", t.TypeName())
}

// Equal implements ref.Val.
func (h headerMap) Equal(ref.Val) ref.Val { return types.False }

// Type implements ref.Val.
func (h headerMap) Type() ref.Type { return types.MapType }

// Value implements ref.Val.
func (h headerMap) Value() any { return h.get }
