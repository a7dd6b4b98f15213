//go:build !nocel

package cel

import (
	"strconv"
	"strings"

	"cel.dev/cel-go/cel"
	celast "cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

// shapeCache remembers expressions that were parsed and checked, by their text without literals.
// Large sets of rules are made by programs, so that most expressions differ in a text or a number
// only, and parsing is three quarters of the cost of compiling one.
type shapeCache map[string]*parsedShape

// parsedShape is an expression whose literals can be exchanged for others of the same types.
type parsedShape struct {
	ast      *cel.Ast
	literals []celast.Expr // in the order in which they stand in the text
}

// parse parses and checks an expression. The result is valid until the next call; s may be nil.
func (s shapeCache) parse(source string, env *cel.Env, known string) (*cel.Ast, error) {
	shape, values, offsets, ok := "", []ref.Val(nil), []int32(nil), false
	if s != nil {
		shape, values, offsets, ok = splitLiterals(source)
	}
	if ok && s[shape] != nil {
		return s[shape].with(values), nil
	}
	ast, issues := env.Compile(source)
	if issues.Err() != nil {
		return nil, compileError(issues, known)
	}
	if _, tried := s[shape]; ok && !tried {
		s[shape] = newShape(ast, values, offsets)
	}
	return ast, nil
}

// with returns the expression with other literals, until it is called again.
func (s *parsedShape) with(values []ref.Val) *cel.Ast {
	for i, e := range s.literals {
		e.SetKindCase(celast.NewExprFactory().NewLiteral(e.ID(), values[i]))
	}
	return s.ast
}

// newShape returns the shape of an expression with these literals in its text; nil if they are
// not all found in it, each once.
func newShape(ast *cel.Ast, values []ref.Val, offsets []int32) *parsedShape {
	s := &parsedShape{ast: ast, literals: make([]celast.Expr, len(values))}
	at := map[int32]int{}
	for i, o := range offsets {
		at[o] = i
	}
	found := 0
	info := ast.NativeRep().SourceInfo()
	celast.PreOrderVisit(ast.NativeRep().Expr(), celast.NewExprVisitor(func(e celast.Expr) {
		if e.Kind() != celast.LiteralKind {
			return
		}
		where, ok := info.GetOffsetRange(e.ID())
		i, known := at[where.Start]
		if ok && known && e.AsLiteral().Type() == values[i].Type() && e.AsLiteral().Equal(values[i]) == types.True {
			s.literals[i] = e
			found++
		}
	}))
	for _, e := range s.literals {
		if e == nil || found != len(values) {
			return nil
		}
	}
	return s
}

// splitLiterals takes the texts and whole numbers out of an expression that has nothing in it which
// makes that hard: characters beyond ASCII, escapes, other kinds of quotes, comments.
func splitLiterals(source string) (shape string, values []ref.Val, offsets []int32, ok bool) {
	var b strings.Builder
	word := func(i int) bool {
		return i < len(source) && (source[i] == '_' || isLetter(source[i]) || isDigit(source[i]))
	}
	for i := 0; i < len(source); {
		c, begin := source[i], i
		switch {
		case c == '"' || c == '\'':
			end := strings.IndexByte(source[i+1:], c)
			if end < 0 || strings.HasPrefix(source[i+1+end+1:], string(c)) {
				return "", nil, nil, false
			}
			text := source[i+1 : i+1+end]
			for k := range len(text) {
				if text[k] < ' ' || text[k] == '\\' || text[k] >= 0x7f {
					return "", nil, nil, false
				}
			}
			b.WriteByte(0)
			values, offsets = append(values, types.String(text)), append(offsets, int32(begin))
			i += end + 2
		case isDigit(c) || c == '_' || isLetter(c):
			whole := isDigit(c)
			for ; word(i); i++ {
				whole = whole && isDigit(source[i])
			}
			if i < len(source) && (source[i] == '"' || source[i] == '\'') {
				return "", nil, nil, false // r"…" or b"…"
			}
			n, err := strconv.ParseInt(source[begin:i], 10, 64)
			before := strings.TrimRight(source[:begin], " \t\r\n")
			if !whole || err != nil || strings.HasSuffix(before, "-") || strings.HasSuffix(before, ".") ||
				strings.HasPrefix(source[i:], ".") {
				b.WriteString(source[begin:i])
				break
			}
			b.WriteByte(1)
			values, offsets = append(values, types.Int(n)), append(offsets, int32(begin))
		case c < ' ' && c != '\t' && c != '\n' && c != '\r', c >= 0x7f, c == '\\', c == '`', c == '/':
			return "", nil, nil, false
		default:
			b.WriteByte(c)
			i++
		}
	}
	return b.String(), values, offsets, true
}

func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' }

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
