package sim

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/weir-rl/weir/internal/util/suggest"
	"github.com/weir-rl/weir/rule"
)

// TestFile is one parsed file of rule tests. The format is docs/reference/rules.md, "Rule tests".
type TestFile struct {
	Name   string
	Domain string // "" if the file names none
	Tests  []*Test
}

// Test is one test of a file. It starts with an empty store.
type Test struct {
	Name  string
	Line  int
	Start int64 // µs since the Unix epoch
	Steps []*Step
}

// Step is one step of a test: exactly one of Send, Wait, Release and Set is set.
type Step struct {
	Line    int
	Send    *Send
	Wait    time.Duration
	Release int
	Set     *SetSignal
	Expect  *Expect // after Send; nil if nothing is expected
}

// SetSignal is a step that sets a signal. Elastic limits then follow it without delay.
type SetSignal struct {
	Signal string
	To     int // percent
}

// Send is a step that sends requests.
type Send struct {
	Attributes  rule.Pairs
	Descriptors []rule.Descriptor // as Envoy sends them; nil for a request that comes without
	Times       int
	Hits        int64
	MaxDelay    time.Duration // below 0: any
}

// Expect describes the answer required of each request of a Send; nil fields are not compared.
type Expect struct {
	Allowed   *bool
	DeniedBy  []string // empty but not nil: denied by none
	Remaining *int64
	// RemainingOf is the remaining number required of single limits, by the name of the limit or
	// the rule.
	RemainingOf map[string]int64
	RetryAfter  *int64 // µs, or algo.Never
	ResetAfter  *int64
	Delay       *int64
	// SoftExceeded, NearLimit: of an enforcing limit that was met.
	SoftExceeded, NearLimit *bool
	// Shadow are the limits in shadow that would have refused; empty but not nil: none.
	Shadow []string
	Banned *bool
	// Wait requires whether a door that can hold requests would hold the request.
	Wait *bool
	// Defer is the queue into which a door that can defer would put the request; empty but not nil:
	// none.
	Defer []string
}

// maxTestFile is the size in bytes up to which test files are read.
const maxTestFile = 4 << 20

// maxTimes bounds `times` and `release`.
const maxTimes = 10_000_000

// DefaultStart is the virtual time of a test's first step unless it says otherwise:
// 2000-01-01T00:00:00Z.
const DefaultStart = 946_684_800_000_000

// ParseTests parses a file of rule tests. The error is a rule.Problems with everything that is
// wrong.
func ParseTests(name string, data []byte) (*TestFile, error) {
	p := &testParser{name: name, lines: strings.Split(string(data), "\n")}
	f := p.file(data)
	if len(p.problems) > 0 {
		return nil, p.problems
	}
	return f, nil
}

type testParser struct {
	name     string
	lines    []string
	problems rule.Problems
}

func (p *testParser) fail(n ast.Node, hint, format string, args ...any) {
	line, column := 0, 0
	if n != nil {
		if t := n.GetToken(); t != nil && t.Position != nil {
			line, column = t.Position.Line, t.Position.Column
		}
	}
	p.failAt(line, column, hint, fmt.Sprintf(format, args...))
}

func (p *testParser) failAt(line, column int, hint, message string) {
	pr := rule.Problem{Pos: rule.Position{File: p.name, Line: line, Column: column}, Message: message, Hint: hint}
	if line > 0 && line <= len(p.lines) {
		text := strings.TrimRight(p.lines[line-1], "\r")
		if utf8.RuneCountInString(text) <= 160 {
			pr.Quote = fmt.Sprintf("  %s\n  %s^", text, strings.Repeat(" ", max(column-1, 0)))
		}
	}
	p.problems = append(p.problems, pr)
}

func (p *testParser) file(data []byte) (f *TestFile) {
	if len(data) > maxTestFile {
		p.failAt(0, 0, "split it", fmt.Sprintf("the file has %d bytes; at most %d are read", len(data), maxTestFile))
		return nil
	}
	// The library is known to panic on some broken input. One test file must not prevent the others
	// from running.
	defer func() {
		if r := recover(); r != nil {
			f = nil
			p.failAt(0, 0, "", fmt.Sprintf("not YAML that can be read (%v)", r))
		}
	}()
	tree, err := parser.ParseBytes(bytes.TrimPrefix(data, []byte("\ufeff")), 0)
	if err != nil {
		var at interface {
			GetToken() *token.Token
			GetMessage() string
		}
		if errors.As(err, &at) && at.GetToken() != nil && at.GetToken().Position != nil {
			p.failAt(at.GetToken().Position.Line, at.GetToken().Position.Column, "", "not valid YAML: "+at.GetMessage())
		} else {
			p.failAt(0, 0, "", "not valid YAML: "+err.Error())
		}
		return nil
	}
	f = &TestFile{Name: p.name}
	var body ast.Node
	for _, d := range tree.Docs {
		if d.Body == nil || d.Body.Type() == ast.CommentType {
			continue
		}
		if body != nil {
			p.fail(d.Body, "", "a test file holds one document")
			return nil
		}
		body = d.Body
	}
	if body == nil {
		p.failAt(0, 0, "", `the file is empty: expected "tests"`)
		return nil
	}
	start := int64(DefaultStart)
	var tests ast.Node
	p.mapping(body, "a test file", []string{"domain", "start", "tests"}, func(key string, v ast.Node) {
		switch key {
		case "domain":
			f.Domain, _ = p.text(v, "domain")
		case "start":
			start = p.start(v)
		case "tests":
			tests = v
		}
	})
	if tests == nil {
		if len(p.problems) == 0 {
			p.fail(body, "", `expected a list "tests"`)
		}
		return f
	}
	for _, n := range p.list(tests, "tests") {
		f.Tests = append(f.Tests, p.test(n, start))
	}
	return f
}

func (p *testParser) test(n ast.Node, start int64) *Test {
	t := &Test{Start: start, Line: n.GetToken().Position.Line}
	p.mapping(n, "a test", []string{"name", "start", "steps"}, func(key string, v ast.Node) {
		switch key {
		case "name":
			t.Name, _ = p.text(v, "name")
		case "start":
			t.Start = p.start(v)
		case "steps":
			for _, s := range p.list(v, "steps") {
				if step := p.step(s); step != nil {
					t.Steps = append(t.Steps, step)
				}
			}
		}
	})
	if t.Name == "" {
		t.Name = fmt.Sprintf("test in line %d", t.Line)
	}
	if len(t.Steps) == 0 && len(p.problems) == 0 {
		p.fail(n, "", "test %q has no steps", t.Name)
	}
	return t
}

func (p *testParser) step(n ast.Node) *Step {
	s := &Step{Line: n.GetToken().Position.Line}
	before := len(p.problems)
	var kinds []string
	var expect ast.Node
	p.mapping(n, "a step", []string{"send", "expect", "wait", "release", "set"}, func(key string, v ast.Node) {
		if key != "expect" {
			kinds = append(kinds, key)
		}
		switch key {
		case "send":
			s.Send = p.send(v)
		case "expect":
			expect = v
			s.Expect = p.expect(v)
		case "wait":
			if us := p.duration(v, "wait", false); us != nil {
				s.Wait = time.Duration(*us) * time.Microsecond
			}
		case "release":
			if n, ok := p.integer(v, "release", 1, maxTimes); ok {
				s.Release = int(n)
			}
		case "set":
			s.Set = p.set(v)
		}
	})
	if len(p.problems) > before {
		return nil
	}
	switch {
	case len(kinds) != 1:
		p.fail(n, "", "a step has exactly one of send, wait, release and set, not %d of them", len(kinds))
	case expect != nil && s.Send == nil:
		p.fail(expect, "", "expect belongs to a send")
	}
	return s
}

func (p *testParser) set(n ast.Node) *SetSignal {
	const example = "as in: set: { signal: cpu, to: 80% }"
	s := &SetSignal{To: -1}
	before := len(p.problems)
	p.mapping(n, "set", []string{"signal", "to"}, func(key string, v ast.Node) {
		text, ok := p.text(v, key)
		switch {
		case !ok:
		case key == "signal":
			if s.Signal = text; !rule.SignalName(text) {
				p.fail(v, example, "signal: expected 1 to 100 lower-case letters, digits, _, . and -, not %q", text)
			}
		default:
			to, err := strconv.Atoi(strings.TrimSuffix(text, "%"))
			if s.To = to; err != nil || to < 0 || to > 100 {
				p.fail(v, example, "to: expected a whole percentage from 0%% to 100%%, not %q", text)
			}
		}
	})
	if len(p.problems) == before && (s.Signal == "" || s.To < 0) {
		p.fail(n, example, "set needs signal and to")
	}
	return s
}

func (p *testParser) send(n ast.Node) *Send {
	s := &Send{Times: 1, Hits: 1, MaxDelay: -1}
	p.mapping(n, "send", nil, func(key string, v ast.Node) {
		switch key {
		case "times":
			if n, ok := p.integer(v, "times", 1, maxTimes); ok {
				s.Times = int(n)
			}
		case "hits":
			s.Hits, _ = p.integer(v, "hits", -math.MaxInt32, math.MaxInt32)
		case "descriptors":
			s.Descriptors = p.descriptors(v)
		case "max_delay":
			if us := p.duration(v, "max_delay", false); us != nil {
				s.MaxDelay = time.Duration(*us) * time.Microsecond
			}
		default:
			if value, ok := p.text(v, key); ok {
				s.Attributes = append(s.Attributes, rule.Pair{Name: key, Value: value})
			}
		}
	})
	if s.Descriptors != nil && (len(s.Attributes) > 0 || s.MaxDelay >= 0) {
		p.fail(n, "write them into a descriptor",
			"send: Envoy sends descriptors, and neither attributes nor a max_delay beside them")
	}
	return s
}

var expectKeys = []string{"allowed", "denied_by", "remaining", "retry_after", "reset_after", "delay", "soft_exceeded",
	"near_limit", "shadow", "banned", "wait", "defer"}

func (p *testParser) expect(n ast.Node) *Expect {
	e := &Expect{}
	n = unwrap(n)
	if s, ok := scalar(n); ok {
		if s != "allowed" {
			p.fail(n, hintFor(s, []string{"allowed"}),
				"expect: expected the word allowed, or a mapping such as { denied_by: a-limit }, not %q", s)
			return nil
		}
		yes := true
		e.Allowed = &yes
		return e
	}
	p.mapping(n, "expect", expectKeys, func(key string, v ast.Node) {
		switch key {
		case "allowed":
			e.Allowed = p.boolean(v, key)
		case "soft_exceeded":
			e.SoftExceeded = p.boolean(v, key)
		case "near_limit":
			e.NearLimit = p.boolean(v, key)
		case "banned":
			e.Banned = p.boolean(v, key)
		case "denied_by":
			e.DeniedBy = p.names(v, key)
		case "shadow":
			e.Shadow = p.names(v, key)
		case "remaining":
			p.remaining(v, e)
		case "wait":
			e.Wait = p.boolean(v, key)
		case "defer":
			if e.Defer = p.names(v, key); len(e.Defer) > 1 {
				p.fail(v, "", "defer: a request goes into one queue, not into %d", len(e.Defer))
			}
		case "retry_after":
			e.RetryAfter = p.duration(v, key, true)
		case "reset_after":
			e.ResetAfter = p.duration(v, key, false)
		case "delay":
			e.Delay = p.duration(v, key, false)
		}
	})
	return e
}

func (p *testParser) boolean(n ast.Node, what string) *bool {
	s, _ := scalar(unwrap(n))
	if s != "true" && s != "false" {
		p.fail(n, "", "%s: expected true or false", what)
		return nil
	}
	yes := s == "true"
	return &yes
}

// names reads a name, or a list of names.
func (p *testParser) names(n ast.Node, what string) []string {
	names := []string{}
	items := []ast.Node{n}
	if n = unwrap(n); n.Type() == ast.SequenceType {
		items = p.list(n, what)
	}
	for _, item := range items {
		if name, ok := p.text(item, what); ok {
			names = append(names, name)
		}
	}
	return names
}

// mapping calls f for each entry of a mapping. Keys that are not among known are an error; a nil
// known takes any.
func (p *testParser) mapping(n ast.Node, what string, known []string, f func(key string, v ast.Node)) {
	var values []*ast.MappingValueNode
	switch n := unwrap(n).(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		p.fail(n, "", "%s: expected a mapping, not %s", what, shape(n))
		return
	}
next:
	for _, v := range values {
		key, ok := scalar(v.Key)
		if !ok {
			p.fail(v.Key, "", "%s: a key must be a plain word", what)
			continue
		}
		for _, k := range known {
			if k == key {
				f(key, v.Value)
				continue next
			}
		}
		if known == nil {
			f(key, v.Value)
			continue
		}
		p.fail(v.Key, hintFor(key, known), "%s has no key %q: expected %s", what, key, strings.Join(known, ", "))
	}
}

func (p *testParser) list(n ast.Node, what string) []ast.Node {
	s, ok := unwrap(n).(*ast.SequenceNode)
	if !ok {
		p.fail(n, "", "%s: expected a list, not %s", what, shape(n))
		return nil
	}
	return s.Values
}

// text reads a scalar as it is written.
func (p *testParser) text(n ast.Node, what string) (string, bool) {
	s, ok := scalar(unwrap(n))
	if !ok {
		p.fail(n, "", "%s: expected a word or a number, not %s", what, shape(n))
	}
	return s, ok
}

func (p *testParser) integer(n ast.Node, what string, least, most int64) (int64, bool) {
	s, ok := p.text(n, what)
	if !ok {
		return 0, false
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v < least || v > most {
		if most == math.MaxInt64 {
			p.fail(n, "", "%s: expected an integer from %d, not %q", what, least, s)
		} else {
			p.fail(n, "", "%s: expected an integer from %d to %d, not %q", what, least, most, s)
		}
		return 0, false
	}
	return v, true
}

// duration reads a Go duration as µs.
func (p *testParser) duration(n ast.Node, what string, never bool) *int64 {
	s, ok := p.text(n, what)
	if !ok {
		return nil
	}
	if never && s == "never" {
		v := int64(-1)
		return &v
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil:
		alternative := ""
		if never {
			alternative = ", or never"
		}
		p.fail(n, "units are us, ms, s, m and h", "%s: expected a duration such as 1m30s%s, not %q", what,
			alternative, s)
	case d < 0:
		p.fail(n, "", "%s: a duration below 0: %s", what, s)
	case d%time.Microsecond != 0:
		p.fail(n, "", "%s: %s is no whole number of microseconds", what, s)
	default:
		v := d.Microseconds()
		return &v
	}
	return nil
}

func (p *testParser) start(n ast.Node) int64 {
	s, ok := p.text(n, "start")
	if !ok {
		return 0
	}
	t, err := time.Parse(time.RFC3339Nano, s)
	switch {
	case err != nil:
		p.fail(n, "", "start: expected a time such as 2026-01-01T00:00:00Z, not %q", s)
	case t.Nanosecond()%1000 != 0:
		p.fail(n, "", "start: %s is no whole number of microseconds", s)
	case t.Year() < 1970 || t.Year() > 2200:
		p.fail(n, "", "start: %s lies outside the years 1970 to 2200", s)
	}
	return t.UnixMicro()
}

// unwrap removes anchors and tags from a node.
func unwrap(n ast.Node) ast.Node {
	for {
		switch x := n.(type) {
		case *ast.AnchorNode:
			n = x.Value
		case *ast.TagNode:
			n = x.Value
		default:
			return n
		}
	}
}

// scalar returns the text of a scalar as written, without quotes.
func scalar(n ast.Node) (string, bool) {
	switch x := n.(type) {
	case *ast.StringNode:
		return x.Value, true
	case *ast.LiteralNode:
		return x.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, true
	}
	return "", false
}

func shape(n ast.Node) string {
	switch unwrap(n).(type) {
	case nil, *ast.NullNode:
		return "nothing"
	case *ast.SequenceNode:
		return "a list"
	case *ast.MappingNode, *ast.MappingValueNode:
		return "a mapping"
	case *ast.AliasNode:
		return "an alias, which test files cannot use"
	}
	return "a single value"
}

// hintFor suggests the word of known that is nearest to the given one.
func hintFor(word string, known []string) string {
	if near := suggest.Nearest(word, known); near != "" {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return ""
}
