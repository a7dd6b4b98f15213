//go:build !nocel

package cel

import (
	"fmt"
	"regexp"
	"regexp/syntax"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/overloads"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
)

// A regular expression takes time in proportion to the length of the text and to how many places of
// the expression the text can be at together. So a call of `matches` is charged for both, and is
// not begun where the budget does not hold it.
const (
	maxProgram = 10_000 // instructions
	// regexpSteps is how many steps, each of one byte at one place, cost one unit. One takes up to
	// 25 ns.
	regexpSteps = 8
)

// withMatches makes each call of `matches` of an expression a matchesCall.
var withMatches = []cel.ProgramOption{
	cel.OptimizeRegex(knownMatches(overloads.Matches), knownMatches(overloads.MatchesString)),
	cel.CustomDecoratorV2(func(i interpreter.InterpretableV2) (interpreter.InterpretableV2, error) {
		call, ok := i.(interpreter.InterpretableCall)
		if !ok || call.Function() != overloads.Matches || len(call.Args()) != 2 {
			return i, nil
		}
		if _, known := call.Args()[1].(interpreter.InterpretableConst); known {
			return i, nil
		}
		return &matchesCall{InterpretableCall: call}, nil
	}),
}

// knownMatches makes the calls of one form that have a constant pattern a matchesCall.
func knownMatches(overload string) *interpreter.RegexOptimization {
	return &interpreter.RegexOptimization{Function: overloads.Matches, OverloadID: overload, RegexIndex: 1,
		Factory: func(call interpreter.InterpretableCall, pattern string) (interpreter.InterpretableCall, error) {
			re, err := regexp.Compile(pattern)
			if err != nil {
				return nil, err
			}
			size, err := types.RegexProgramSize(pattern)
			if err != nil {
				return nil, err
			}
			if size > maxProgram {
				return nil, tooLarge(size)
			}
			parsed, err := syntax.Parse(pattern, syntax.Perl)
			if err != nil {
				return nil, err
			}
			return &matchesCall{call, re, placesOf(parsed.Simplify())}, nil
		}}
}

func tooLarge(size int) error {
	return fmt.Errorf("a regular expression compiles to %d instructions; at most %d are allowed", size, maxProgram)
}

// matchesCall is a call of `matches`.
type matchesCall struct {
	interpreter.InterpretableCall
	re     *regexp.Regexp // nil if the pattern is not known before the call
	places int
}

// Eval implements interpreter.Interpretable.
func (m *matchesCall) Eval(a interpreter.Activation) ref.Val {
	return interpreter.EvalActivation(a, m.Exec)
}

// Exec implements interpreter.InterpretableV2.
func (m *matchesCall) Exec(frame *interpreter.ExecutionFrame) ref.Val {
	val := m.Args()[0].Exec(frame)
	text, ok := val.(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(val)
	}
	re, places := m.re, m.places
	if re == nil {
		val := m.Args()[1].Exec(frame)
		pattern, ok := val.(types.String)
		if !ok {
			return types.MaybeNoSuchOverloadErr(val)
		}
		m.charge(frame, len(pattern))
		parsed, err := syntax.Parse(string(pattern), syntax.Perl)
		if err != nil {
			return types.WrapErr(err)
		}
		if places = mostInstructions(parsed); places > maxProgram {
			return types.WrapErr(tooLarge(places))
		}
		m.charge(frame, places)
		if re, err = regexp.Compile(string(pattern)); err != nil {
			return types.WrapErr(err)
		}
	}
	m.charge(frame, 1+len(text)*places/regexpSteps)
	return types.Bool(re.MatchString(string(text)))
}

// charge takes units from the budget. It ends the evaluation if that is more than is left.
func (m *matchesCall) charge(frame *interpreter.ExecutionFrame, units int) {
	if costs := frame.CostTracker(); costs != nil {
		costs.EvalUnary(frame, m.ID(), m, types.Int(units), nil)
	}
}

// matchesCost is the cost that matchesCall.charge gives in place of the arguments of a call.
func matchesCost(args []ref.Val, _ ref.Val) *uint64 {
	n := uint64(1)
	if units, ok := args[0].(types.Int); ok {
		n = uint64(units)
	}
	return &n
}

// mostInstructions returns how many instructions a regular expression compiles to at most, without
// compiling it: a{1000} is a thousand.
func mostInstructions(re *syntax.Regexp) int {
	n := 2
	for _, sub := range re.Sub {
		n += mostInstructions(sub)
	}
	switch re.Op {
	case syntax.OpLiteral:
		n += len(re.Rune)
	case syntax.OpRepeat:
		n *= max(re.Min+1, re.Max)
	}
	return n
}

// placesOf returns at how many places of a regular expression, which is simplified, a text can be
// together, about.
func placesOf(re *syntax.Regexp) int {
	n := 1
	for _, sub := range re.Sub {
		n += placesOf(sub)
	}
	switch re.Op {
	case syntax.OpLiteral:
		n = overlapsOf(re.Rune)
	case syntax.OpConcat:
		n--
	case syntax.OpAlternate:
		n += len(re.Sub) - 2
	}
	return n
}

// overlapsOf returns at how many places of a literal a text can be at together: a literal that no
// part of it begins anew, such as bot, is begun once, and aaa three times.
func overlapsOf(literal []rune) (most int) {
	// By the borders of its parts, as Knuth, Morris and Pratt (1977) find them.
	border, depth := make([]int, len(literal)), make([]int, len(literal)+1)
	for i, r := range literal {
		k := 0
		if i > 0 {
			for k = border[i-1]; k > 0 && literal[k] != r; k = border[k-1] {
			}
			if literal[k] == r {
				k++
			}
		}
		border[i], depth[i+1] = k, depth[k]+1
		most = max(most, depth[i+1])
	}
	return most
}
