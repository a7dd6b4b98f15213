// Package yaml reads YAML files into trees of Nodes with their lines and columns, at which errors
// and warnings point. It is safe on hostile input: the size, the nesting and the expansion of
// aliases are bounded.
//
// Begin with Parse: scan checks the words of a file, the library parses them, and a converter makes
// Nodes (node.go) of its tree.
package yaml

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/scanner"
	"github.com/goccy/go-yaml/token"

	"github.com/weir-rl/weir/rule"
)

// Bounds on one file. They keep the time and the memory of a load within reason whatever the file
// holds: the parser is recursive in depth, and quadratic in the number of keys of a mapping.
const (
	maxFileSize   = 8 << 20
	maxTokens     = 1 << 19
	maxDepth      = 128       // nested mappings and lists
	maxMapKeys    = 20_000    // keys of one mapping
	maxMapWork    = 400 << 20 // sum of the squares of the sizes of all mappings
	maxNullWork   = 3 << 30   // keys without a value × tokens
	maxProperties = 10_000    // anchors, aliases and tags
	maxDocuments  = 100
	maxExpanded   = 2 << 20 // values after the expansion of aliases
)

// Error is a fault of the YAML.
type Error struct {
	Line, Column  int
	Message, Hint string
}

// Comment is a comment that speaks to lint.
type Comment struct {
	Line, Column int
	Text         string // without the #, trimmed
}

// Parse reads the documents of the file of that name. Documents without content are left out.
// misread are places where a single value could not be read; a failure is of the whole file.
// comments are those that speak to lint.
func Parse(name, text string) (documents []*Node, comments []Comment, misread []*Error, failure *Error) {
	if len(text) > maxFileSize {
		return nil, nil, nil, &Error{Message: fmt.Sprintf("the file has %d bytes; at most %d are read", len(text),
			maxFileSize), Hint: "split it into several files of the same domain"}
	}
	text = strings.TrimPrefix(text, "\ufeff")
	if !utf8.ValidString(text) {
		line, column := badUTF8(text)
		return nil, nil, nil, (&Error{Line: line, Column: column, Message: "the file is not valid UTF-8"}).hinted(text)
	}
	// The YAML library is the one place where a panic is caught: a bug in it must not take the
	// server down.
	defer func() {
		if r := recover(); r != nil {
			documents, comments, misread, failure = nil, nil, nil,
				&Error{Message: fmt.Sprintf("not YAML that can be read (%v)", r)}
		}
	}()
	tokens, comments, failure := scan(text)
	if failure != nil {
		return nil, nil, nil, failure.hinted(text)
	}
	tree, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		return nil, nil, nil, asSyntaxError(err).hinted(text)
	}
	c := converter{file: name, anchors: map[string]*Node{}}
	for _, d := range tree.Docs {
		if d.Body == nil {
			continue
		}
		if t := d.Body.Type(); t == ast.CommentType || t == ast.DirectiveType {
			continue
		}
		clear(c.anchors)
		v, failure := c.convert(d.Body)
		if failure != nil {
			return nil, nil, nil, failure.hinted(text)
		}
		documents = append(documents, v)
	}
	return documents, comments, c.misread, nil
}

func badUTF8(text string) (line, column int) {
	line, column = 1, 1
	for i, r := range text {
		if r == utf8.RuneError {
			if _, n := utf8.DecodeRuneInString(text[i:]); n == 1 {
				return line, column
			}
		}
		column++
		if r == '\n' {
			line, column = line+1, 1
		}
	}
	return line, column
}

func asSyntaxError(err error) *Error {
	var withToken interface {
		GetToken() *token.Token
		GetMessage() string
	}
	if errors.As(err, &withToken) {
		s := &Error{Message: "not valid YAML: " + withToken.GetMessage()}
		if t := withToken.GetToken(); t != nil && t.Position != nil {
			s.Line, s.Column = t.Position.Line, t.Position.Column
		}
		return s
	}
	return &Error{Message: "not valid YAML: " + firstLine(err.Error())}
}

// unquoted finds values that YAML reads as tags, aliases and the like, and that were meant as
// patterns.
var unquoted = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[:\[,-]\s*[!*&%@\x60]`) })

// hinted gives e a hint at the cause of a fault of text, where it has none.
func (e *Error) hinted(text string) *Error {
	if e.Hint != "" {
		return e
	}
	e.Hint = syntaxHint(text, e.Line)
	return e
}

// mostLooked is up to how many bytes of a line syntaxHint looks at.
const mostLooked = 160

// syntaxHint guesses the cause of a fault by its line and the line above.
func syntaxHint(text string, at int) string {
	above, line := "", ""
	for range at {
		above = line
		line, text, _ = strings.Cut(text, "\n")
	}
	for _, s := range []string{line, above} {
		s = s[:min(len(s), mostLooked)]
		switch {
		case strings.TrimSpace(s) == "":
		case unquoted().MatchString(s):
			return `a value that begins with ! * & % @ or a backquote must be quoted, as in "!free"`
		case strings.Contains(s, "\t"):
			return "YAML is indented by spaces, never by tabs"
		case strings.Contains(s, "{{"):
			return "this looks like a template, such as Helm has: render it first"
		}
	}
	return ""
}

func firstLine(s string) string {
	s, _, _ = strings.Cut(s, "\n")
	return s
}

// scan cuts text into tokens, and refuses input that the parser would choke on.
func scan(text string) (token.Tokens, []Comment, *Error) {
	var s scanner.Scanner
	s.Init(text)
	var tokens token.Tokens
	g := guard{}
	for {
		next, err := s.Scan()
		if err == io.EOF {
			break
		}
		for _, t := range next {
			if t.Type == token.InvalidType {
				return nil, nil, &Error{Line: t.Position.Line, Column: t.Position.Column,
					Message: "not valid YAML: " + t.Error}
			}
			if failure := g.check(t); failure != nil {
				return nil, nil, failure
			}
		}
		tokens.Add(next...)
		if err != nil {
			return nil, nil, &Error{Message: "not valid YAML: " + err.Error()}
		}
		if len(tokens) > maxTokens {
			return nil, nil, &Error{Message: fmt.Sprintf("the file has more than %d words and signs", maxTokens),
				Hint: "split it into several files of the same domain"}
		}
	}
	return tokens, g.comments, g.finish(len(tokens))
}

// guard watches the tokens of one file go by, and bounds the counts that the parser's time and
// depth depend on.
type guard struct {
	last       *token.Token
	beforeLast *token.Token
	flow       []token.Type // open brackets
	flowKeys   map[int]int  // keys in them, by column
	open       []openLevel  // block collections around the token
	work       int64
	nulls      int // values that the parser will have to put in
	properties int
	documents  int
	comments   []Comment // that speak to lint
}

// openLevel is an open block collection.
type openLevel struct{ column, keys int }

func (g *guard) check(t *token.Token) *Error {
	if t.Type == token.CommentType {
		if text := strings.TrimSpace(t.Value); strings.HasPrefix(text, "lint:") {
			g.comments = append(g.comments, Comment{Line: t.Position.Line, Column: t.Position.Column, Text: text})
		}
		return nil
	}
	fail := func(format string, args ...any) *Error {
		return &Error{Line: t.Position.Line, Column: t.Position.Column, Message: fmt.Sprintf(format, args...)}
	}
	if g.lacksValue(t) {
		g.nulls++
	}
	switch t.Type {
	case token.MappingStartType, token.SequenceStartType:
		g.flow = append(g.flow, t.Type)
	case token.MappingEndType, token.SequenceEndType:
		if n := len(g.flow); n > 0 {
			g.flow = g.flow[:n-1]
		}
		if len(g.flow) == 0 {
			g.flowKeys = nil
		}
	case token.AnchorType, token.AliasType, token.TagType:
		if g.properties++; g.properties > maxProperties {
			return fail("more than %d anchors, aliases and tags", maxProperties)
		}
	case token.DocumentHeaderType, token.DocumentEndType:
		g.closeTo(0)
		if g.documents++; g.documents > 2*maxDocuments {
			return fail("more than %d documents in one file", maxDocuments)
		}
	case token.SequenceEntryType, token.MappingKeyType:
		if len(g.flow) == 0 {
			g.openAt(t.Position.Column, 0)
		}
	case token.MappingValueType:
		if g.last == nil {
			break
		}
		column := g.last.Position.Column
		if b := g.beforeLast; b != nil && b.Position.Line == g.last.Position.Line &&
			(b.Type == token.AnchorType || b.Type == token.AliasType) {
			column = b.Position.Column
		}
		keys := 0
		if len(g.flow) == 0 {
			keys = g.openAt(column, 1)
		} else {
			if g.flowKeys == nil {
				g.flowKeys = map[int]int{}
			}
			g.flowKeys[column]++
			keys = g.flowKeys[column]
		}
		if keys > maxMapKeys {
			return fail("a mapping of more than %d keys", maxMapKeys)
		}
	}
	if len(g.flow)+len(g.open) > maxDepth {
		return fail("nested more than %d levels deep", maxDepth)
	}
	g.beforeLast, g.last = g.last, t
	return nil
}

// lacksValue reports whether the token before t began an entry whose value is left out, as t shows.
func (g *guard) lacksValue(t *token.Token) bool {
	if g.last == nil {
		return false
	}
	begins := g.last.Type == token.MappingValueType || g.last.Type == token.SequenceEntryType
	if n := len(g.flow); n > 0 {
		if t.Type != token.CollectEntryType && t.Type != token.MappingEndType && t.Type != token.SequenceEndType {
			return false
		}
		// {a: , b} lacks both values.
		return begins || g.flow[n-1] == token.MappingStartType && g.beforeLast != nil &&
			(g.beforeLast.Type == token.CollectEntryType || g.beforeLast.Type == token.MappingStartType)
	}
	if !begins || len(g.open) == 0 || t.Position.Line == g.last.Position.Line {
		return false
	}
	around := g.open[len(g.open)-1].column
	return t.Position.Column < around || t.Position.Column == around &&
		(t.Type != token.SequenceEntryType || g.last.Type == token.SequenceEntryType)
}

// openAt notes a key (keys = 1) or a sign of structure at column, and returns the number of keys
// there so far.
func (g *guard) openAt(column, keys int) int {
	n := len(g.open)
	for n > 0 && g.open[n-1].column > column {
		n--
	}
	g.closeTo(n)
	if n == 0 || g.open[n-1].column < column {
		g.open = append(g.open, openLevel{column: column})
		n++
	}
	g.open[n-1].keys += keys
	return g.open[n-1].keys
}

func (g *guard) closeTo(n int) {
	for _, l := range g.open[n:] {
		g.work += int64(l.keys) * int64(l.keys)
	}
	g.open = g.open[:n]
}

func (g *guard) finish(tokens int) *Error {
	g.closeTo(0)
	if g.work > maxMapWork {
		return &Error{Message: "the file has too many mappings with thousands of keys",
			Hint: "split it into several files of the same domain"}
	}
	if int64(g.nulls)*int64(tokens) > maxNullWork {
		return &Error{Message: fmt.Sprintf("the file has too many keys without a value (%d)", g.nulls)}
	}
	return nil
}

// converter turns the parser's tree into values.
type converter struct {
	file    string
	anchors map[string]*Node // nil while the anchor's own value is being read
	misread []*Error
	work    int
}

// bad turns v into a value that could not be read.
func (c *converter) bad(v *Node, hint, format string, args ...any) (*Node, *Error) {
	c.misread = append(c.misread, &Error{Line: v.Line, Column: v.Column, Hint: hint,
		Message: fmt.Sprintf(format, args...)})
	v.Kind = Bad
	return v, nil
}

func (c *converter) convert(n ast.Node) (*Node, *Error) {
	if c.work++; c.work > maxExpanded {
		return nil, failAt(n, "aliases and merge keys make the file grow beyond %d values", maxExpanded)
	}
	v := &Node{Position: rule.Position{File: c.file}, size: 1, depth: 1}
	if n == nil {
		return v, nil
	}
	if t := n.GetToken(); t != nil && t.Position != nil {
		v.Line, v.Column = t.Position.Line, t.Position.Column
	}
	scalar := func(t *token.Token) (*Node, *Error) {
		v.Kind, v.Text = Scalar, strings.TrimSpace(t.Value)
		return v, nil
	}
	switch n := n.(type) {
	case *ast.NullNode:
		return v, nil
	case *ast.IntegerNode:
		return scalar(n.Token)
	case *ast.FloatNode:
		return scalar(n.Token)
	case *ast.BoolNode:
		return scalar(n.Token)
	case *ast.InfinityNode:
		return scalar(n.Token)
	case *ast.NanNode:
		return scalar(n.Token)
	case *ast.MergeKeyNode:
		return scalar(n.Token)
	case *ast.StringNode:
		v.Kind, v.Text = Scalar, n.Value
		v.Quoted = n.Token.Type == token.SingleQuoteType || n.Token.Type == token.DoubleQuoteType
		return v, nil
	case *ast.LiteralNode:
		v.Kind, v.Quoted = Scalar, true
		if n.Value != nil {
			v.Text = n.Value.Value
		}
		return v, nil
	case *ast.MappingKeyNode:
		return c.convert(n.Value)
	case *ast.MappingNode:
		return c.mapping(v, n, n.Values)
	case *ast.MappingValueNode:
		return c.mapping(v, n, []*ast.MappingValueNode{n})
	case *ast.SequenceNode:
		v.Kind = List
		for _, item := range n.Values {
			i, failure := c.convert(item)
			if failure != nil {
				return nil, failure
			}
			v.Items = append(v.Items, i)
			if failure := v.hold(n, i); failure != nil {
				return nil, failure
			}
		}
		return v, nil
	case *ast.AnchorNode:
		name := n.Name.GetToken().Value
		c.anchors[name] = nil
		inner, failure := c.convert(n.Value)
		if failure == nil {
			c.anchors[name] = inner
		}
		return inner, failure
	case *ast.AliasNode:
		name := n.Value.GetToken().Value
		target, ok := c.anchors[name]
		if !ok {
			return c.bad(v, fmt.Sprintf("a pattern that begins with * must be quoted: \"*%s\"", name),
				"unknown alias *%s: no anchor &%s stands before it", name, name)
		}
		if target == nil {
			return c.bad(v, "", "the alias *%s stands inside its own anchor", name)
		}
		return target, nil
	case *ast.TagNode:
		return c.tagged(v, n)
	}
	return nil, failAt(n, "%s is not expected here", strings.ToLower(n.Type().String()))
}

func failAt(n ast.Node, format string, args ...any) *Error {
	f := &Error{Message: fmt.Sprintf(format, args...)}
	if n != nil {
		if t := n.GetToken(); t != nil && t.Position != nil {
			f.Line, f.Column = t.Position.Line, t.Position.Column
		}
	}
	return f
}

// hold accounts for child inside v.
func (v *Node) hold(n ast.Node, child *Node) *Error {
	v.size += child.size
	v.depth = max(v.depth, child.depth+1)
	if v.size > maxExpanded {
		return failAt(n, "aliases make the file grow beyond %d values", maxExpanded)
	}
	if v.depth > maxDepth {
		return failAt(n, "nested more than %d levels deep", maxDepth)
	}
	return nil
}

func (c *converter) mapping(v *Node, n ast.Node, entries []*ast.MappingValueNode) (*Node, *Error) {
	v.Kind = Mapping
	var merges []*Node
	for _, e := range entries {
		key, failure := c.convert(e.Key)
		if failure != nil {
			return nil, failure
		}
		child, failure := c.convert(e.Value)
		if failure != nil {
			return nil, failure
		}
		if failure := v.hold(n, child); failure != nil {
			return nil, failure
		}
		if len(v.Pairs) == 0 && len(merges) == 0 {
			v.Line, v.Column = key.Line, key.Column
		}
		if key.Kind == Scalar && key.Text == "<<" && !key.Quoted {
			switch {
			case child.Kind == Mapping:
				merges = append(merges, child)
				continue
			case child.Kind == List:
				for _, item := range child.Items {
					if item.Kind == Mapping {
						merges = append(merges, item)
					} else if item.Kind != Bad {
						c.misread = append(c.misread, &Error{Line: item.Line, Column: item.Column,
							Message: "a merge key << takes mappings only"})
					}
				}
				continue
			case child.Kind != Bad:
				c.misread = append(c.misread, &Error{Line: key.Line, Column: key.Column,
					Message: "a merge key << takes a mapping, or a list of mappings"})
			}
			continue
		}
		v.Pairs = append(v.Pairs, Pair{Key: key, Value: child})
	}
	if m, ok := n.(*ast.MappingNode); ok && m.IsFlowStyle && m.Start != nil {
		v.Line, v.Column = m.Start.Position.Line, m.Start.Position.Column
	}
	if len(merges) == 0 {
		return v, nil
	}
	present := make(map[string]bool, len(v.Pairs))
	for _, p := range v.Pairs {
		present[p.Key.Text] = true
	}
	for _, m := range merges {
		if c.work += len(m.Pairs); c.work > maxExpanded {
			return nil, failAt(n, "merge keys make the file grow beyond %d values", maxExpanded)
		}
		for _, p := range m.Pairs {
			if !present[p.Key.Text] {
				present[p.Key.Text] = true
				v.Pairs = append(v.Pairs, Pair{Key: p.Key, Value: p.Value})
				if failure := v.hold(n, p.Value); failure != nil {
					return nil, failure
				}
			}
		}
	}
	return v, nil
}

func (c *converter) tagged(v *Node, n *ast.TagNode) (*Node, *Error) {
	inner, failure := c.convert(n.Value)
	if failure != nil {
		return nil, failure
	}
	tag := n.Start.Value
	switch token.ReservedTagKeyword(tag) {
	case token.StringTag:
		if inner.Kind != Scalar && inner.Kind != Null {
			break
		}
		v.Kind, v.Quoted, v.Text = Scalar, true, inner.Text
		return v, nil
	case token.IntegerTag, token.FloatTag, token.BooleanTag, token.TimestampTag:
		if inner.Kind != Scalar {
			break
		}
		v.Kind, v.Text = Scalar, inner.Text
		return v, nil
	case token.NullTag:
		return v, nil
	case token.MappingTag:
		if inner.Kind == Mapping {
			return inner, nil
		}
	case token.SequenceTag:
		if inner.Kind == List {
			return inner, nil
		}
	}
	if inner.Kind == Bad {
		return inner, nil
	}
	hint := "leave the tag out"
	if !strings.HasPrefix(tag, "!!") {
		hint = fmt.Sprintf("a pattern that begins with ! must be quoted: %q", tag)
	}
	return c.bad(v, hint, "the YAML tag %s is not supported", tag)
}
