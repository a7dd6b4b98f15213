package rule

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// linear makes a Set that looks at every rule and every pattern, to hold the indexes against.
func linear(s *Set) *Set {
	for _, d := range s.domains {
		d.index = nil
		for _, r := range d.rules {
			if r.alike != nil {
				r.alike = nil
			}
			for i := range r.rule.When {
				r.rule.When[i].many = nil
			}
		}
		for i := range d.exempt {
			d.exempt[i].many = nil
		}
	}
	return s
}

// What the properties below draw from. Values and patterns are few and alike, so that they often
// meet.
var (
	indexPieces = []string{
		"a", "b", "ab", "svc1", "svc2", "/a/", "/b", "x77", "K", "s", "S", "k",
		"ſ", "\u212a", "é", "É", "\ufffd", "_", "0", "12345678", "23456789a", "A9",
	}
	indexNames = []string{"path", "user", "host", "attr.plan", "header.h", "plan", "method", "ip"}
)

func drawRegexp(t *rapid.T, depth int) string {
	piece := func() string { return regexp.QuoteMeta(rapid.SampledFrom(indexPieces).Draw(t, "piece")) }
	if depth == 0 {
		return piece()
	}
	sub := func() string { return drawRegexp(t, depth-1) }
	switch rapid.IntRange(0, 16).Draw(t, "kind") {
	case 0:
		return sub() + "|" + sub()
	case 1:
		return "(" + sub() + "|" + sub() + ")" + sub()
	case 2:
		times := []string{"*", "+", "?", "{2}", "{1,3}", "{0,2}", "{5}", "{2,}", "+?"}
		return "(?:" + sub() + ")" + rapid.SampledFrom(times).Draw(t, "times")
	case 3:
		return "(?i:" + sub() + ")" + piece()
	case 4:
		return "^" + sub()
	case 5:
		return sub() + "$"
	case 6:
		return "^" + sub() + "$"
	case 7:
		classes := []string{
			"[ab]", "[0-9]", "[^/]", "[A-Za-z]", "[kK]", "[s\u017f]", ".", `\w`, `\b`, "(?s:.)", `[\x{fffd}a]`,
			"(?m:^)", "(?m:$)", `\A`, `\z`, `\B`, `\pL`, "[a-c]+", ".*", "[^/]+",
		}
		return rapid.SampledFrom(classes).Draw(t, "class") + sub()
	case 8:
		return "(" + sub() + ")" + sub()
	case 9:
		return "(?i)" + sub()
	case 10:
		return "(" + sub() + "$|" + sub() + ")"
	case 11:
		return "(^|/)" + sub()
	case 12:
		return "(?P<n>^" + sub() + "|^" + sub() + ")" + piece()
	case 13:
		return "(" + sub() + ")?" + sub()
	default:
		return sub() + sub()
	}
}

func drawValue(t *rapid.T) string {
	pieces := append(indexPieces, "", "/", "A", "\xff", "\xc5", "\xe2\x84", "SVC1", "X77")
	return strings.Join(rapid.SliceOfN(rapid.SampledFrom(pieces), 0, 5).Draw(t, "value"), "")
}

// A regular expression that matches a value has its literals in it, by each of the ways to anchor
// it.
func TestRegexpAnchorsAreHeld(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		source := drawRegexp(rt, rapid.IntRange(0, 3).Draw(rt, "depth"))
		re, err := regexp.Compile(source)
		if err != nil {
			rt.Skip(err)
		}
		values := rapid.SliceOfN(rapid.Custom(drawValue), 1, 8).Draw(rt, "values")
		if !strings.ContainsAny(source, `\`) || strings.Contains(source, `\x{fffd}`) {
			func() {
				defer func() { _ = recover() }() // what rapid cannot make a text for
				values = append(values, rapid.StringMatching(source).Draw(rt, "matching"))
			}()
		}
		ways, matchesEmpty := regexpAnchors(source)
		if re.MatchString("") && !matchesEmpty {
			rt.Fatalf("%s matches the empty string", source)
		}
		for _, v := range values {
			if v == "" || !re.MatchString(v) {
				continue
			}
			for _, way := range ways {
				if !holds(way, v) {
					rt.Fatalf("%s matches %q, which holds none of %v", source, v, way)
				}
			}
		}
	})
}

// holds reports whether an index of these anchors finds a value.
func holds(way []anchor, value string) bool {
	var x valueIndex
	for _, a := range way {
		x.add(a, 7)
	}
	x.finish()
	return len(x.appendIDs(&Matches{}, nil, value, netip.Addr{})) > 0
}

func FuzzRegexpAnchors(f *testing.F) {
	for _, s := range [][2]string{
		{"^/svc1/[a-z]+$", "/svc1/abc"}, {"(?i)^/Login|kS$", "x\u212aſ"},
		{"(a|b)+c{2,5}", "abccc"}, {"^(a|b)?x[0-9]y", "bx7y"},
		{"\\x{fffd}a", "\xffa"}, {"(?m)^x$", "y\nx"}, {"(^a|b)c", "ac"},
		{"[a-cA-C]z(?i:k)", "Bz\u212a"}, {"(?:a$)+", "a"}, {"x{3,}y", "xxxxxxy"},
	} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, source, value string) {
		if len(source) > 1000 || len(value) > 1000 {
			return
		}
		re, err := regexp.Compile(source)
		if err != nil {
			return
		}
		ways, matchesEmpty := regexpAnchors(source)
		if re.MatchString("") && !matchesEmpty {
			t.Fatalf("%q matches the empty string", source)
		}
		if value == "" || !re.MatchString(value) {
			return
		}
		for _, way := range ways {
			if !holds(way, value) {
				t.Fatalf("%q matches %q, which holds none of %v", source, value, way)
			}
		}
	})
}

func drawIndexPattern(t *rapid.T, attribute string) string {
	piece := func() string { return rapid.SampledFrom(indexPieces[:8]).Draw(t, "piece") }
	lead := ""
	if attribute == "path" {
		lead = "/"
	}
	s := ""
	switch rapid.IntRange(0, 9).Draw(t, "form") {
	case 0:
		s = lead + piece()
	case 1:
		s = lead + piece() + "*"
	case 2:
		s = "**" + piece()
	case 3:
		s = lead + "**/" + piece() + "/**"
	case 4:
		s = lead + piece() + "/**"
	case 5:
		s = lead + "*" + piece() + "*" + piece() + "**"
	case 6:
		s = "**" + piece() + "**"
	default:
		s = "~" + drawRegexp(t, rapid.IntRange(0, 2).Draw(t, "depth"))
	}
	if rapid.IntRange(0, 5).Draw(t, "negated") == 0 {
		s = "!" + s
	}
	return s
}

func drawIndexCondition(t *rapid.T, tb testing.TB) Condition {
	c := Condition{Attribute: rapid.SampledFrom(indexNames).Draw(t, "attribute")}
	for range rapid.SampledFrom([]int{1, 1, 2, 3, 20}).Draw(t, "patterns") {
		if p, err := ParsePattern(c.Attribute, drawIndexPattern(t, c.Attribute)); err == nil {
			c.Patterns = append(c.Patterns, p)
		}
	}
	if len(c.Patterns) == 0 {
		return on(tb, c.Attribute, "**")
	}
	return c
}

func drawExpression(t *rapid.T, depth int) string {
	text := func() string {
		if s := rapid.SampledFrom(append(indexPieces[:12:12], "", "/a/b", "/A/B/", "/")).Draw(t, "text"); s != "" ||
			rapid.Bool().Draw(t, "empty") {
			return fmt.Sprintf("%q", s)
		}
		return `"a"`
	}
	operand := rapid.SampledFrom([]string{
		"path", "user", "host", "attr.plan", `attr["plan"]`, "header.h", `header["h"]`, `attr["header.h"]`, "query.q",
		`attr["path"]`, "ip",
	}).Draw(t, "operand")
	if depth > 0 {
		a, b := drawExpression(t, depth-1), drawExpression(t, depth-1)
		return rapid.SampledFrom([]string{
			a + " && " + b, "(" + a + " || " + b + ")", "!(" + a + ")", a + " && " + b,
			"(" + a + " ? " + b + " : false)",
		}).Draw(t, "operator")
	}
	switch rapid.IntRange(0, 14).Draw(t, "comparison") {
	case 0, 1, 2:
		return operand + " == " + text()
	case 3:
		return text() + " == " + operand
	case 4:
		return operand + " in [" + text() + ", " + text() + "]"
	case 5:
		return operand + ".startsWith(" + text() + ")"
	case 6:
		return operand + ".endsWith(" + text() + ")"
	case 7:
		return operand + ".contains(" + text() + ")"
	case 8:
		return operand + ".matches(" + fmt.Sprintf("%q", drawRegexp(t, 1)) + ")"
	case 9:
		return rapid.SampledFrom([]string{
			"has(attr.plan)", `"plan" in attr`, "has(header.h)", "has(query.q)", `"path" in attr`,
		}).Draw(t, "presence")
	case 10:
		return operand + " != " + text()
	case 11, 12, 13:
		return drawNumbers(t)
	}
	return operand + ".size() > 2"
}

// drawNumbers draws a comparison of a number that an attribute is made, or a range of them.
func drawNumbers(t *rapid.T) string {
	function := rapid.SampledFrom([]string{"int", "int", "uint", "double", "size"}).Draw(t, "function")
	number := func() string {
		n := rapid.IntRange(-3, 12).Draw(t, "number")
		switch function {
		case "uint":
			return fmt.Sprint(max(n, 0), "u")
		case "double":
			return fmt.Sprintf("%d.5", n)
		}
		return fmt.Sprint(n)
	}
	operand := function + "(" + rapid.SampledFrom([]string{
		"attr.n", `attr["n"]`, "attr.n", "header.h", "user", `attr["user"]`,
	}).Draw(t, "number of") + ")"
	switch rapid.IntRange(0, 7).Draw(t, "numbers") {
	case 0:
		return operand + " in [" + number() + ", " + number() + "]"
	case 1:
		return number() + rapid.SampledFrom([]string{" < ", " >= ", " == "}).Draw(t, "turned") + operand
	case 2, 3:
		return operand + " >= " + number() + " && " + operand + " < " + number()
	case 4:
		return "(" + operand + " < " + number() + " || " + operand + " > " + number() + ")"
	}
	return operand + rapid.SampledFrom([]string{" < ", " <= ", " > ", " >= ", " == "}).Draw(t, "compare") + number()
}

// drawIndexFiles draws rules of all kinds, often so many that they are indexed.
func drawIndexFiles(t *rapid.T, tb testing.TB) func() []*File {
	n := 0
	type drawn struct {
		when   []Condition
		per    []Key
		shadow bool
		exact  bool
		source string
		prog   Predicate
	}
	var all [][]drawn
	var first []bool
	var exempt []Condition
	if rapid.IntRange(0, 5).Draw(t, "exempt") == 0 {
		exempt = append(exempt, drawIndexCondition(t, tb))
	}
	for range rapid.IntRange(1, 2).Draw(t, "files") {
		first = append(first, rapid.IntRange(0, 3).Draw(t, "first") == 0)
		var rules []drawn
		for range rapid.SampledFrom([]int{1, 3, 12, 30}).Draw(t, "rules") {
			var d drawn
			for range rapid.SampledFrom([]int{0, 0, 1, 1, 2}).Draw(t, "conditions") {
				d.when = append(d.when, drawIndexCondition(t, tb))
			}
			if rapid.IntRange(0, 2).Draw(t, "if") == 0 {
				d.source = drawExpression(t, rapid.IntRange(0, 2).Draw(t, "depth"))
				p, err := CompileIf(d.source)
				if err != nil {
					t.Fatalf("%s: %v", d.source, err)
				}
				d.prog = p
			}
			for range rapid.SampledFrom([]int{0, 0, 1}).Draw(t, "per") {
				d.per = append(d.per, rapid.SliceOfNDistinct(rapid.SampledFrom(indexNames), 1, 2, rapid.ID).Draw(t,
					"key"))
			}
			d.shadow = rapid.IntRange(0, 5).Draw(t, "shadow") == 0
			d.exact = rapid.IntRange(0, 3).Draw(t, "exact") == 0
			rules = append(rules, d)
		}
		all = append(all, rules)
	}
	wide := rapid.IntRange(0, 5).Draw(t, "wide") == 0
	return func() []*File { // each Set has rules of its own
		var files []*File
		n = 0
		for i := range all {
			f := &File{Domain: "default", First: first[i], Exempt: exempt}
			for _, d := range all[i] {
				r := testRule(tb, fmt.Sprint("r", n)).when(d.when...)
				n++
				r.Per, r.Shadow, r.ExactPaths, r.If, r.Exprs = d.per, d.shadow, d.exact, d.source, &Exprs{If: d.prog}
				f.Rules = append(f.Rules, r)
			}
			if wide { // more attributes than are gone through
				for k := range manySlots + 2 {
					f.Rules = append(f.Rules, testRule(tb, fmt.Sprint("w", n)).when(on(tb, fmt.Sprint("w", k), "1")))
					n++
				}
			}
			files = append(files, f)
		}
		return files
	}
}

// Whatever an index leaves out, Match finds what a look at every rule finds, and counts the same
// expressions as failed: for regular expressions, globs, expressions and lists of patterns, on
// attributes and on descriptors.
func TestIndexAgainstLinear(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		files := drawIndexFiles(rt, t)
		s, problems := Compile(files(), Options{})
		if problems != nil {
			rt.Fatalf("%v", problems)
		}
		plain, _ := Compile(files(), Options{})
		plain = linear(plain)
		var a, b Matches
		for range 12 {
			q := &Query{Domain: "default"}
			attributes := Map{}
			for _, name := range []string{"path", "user", "host", "header.h", "plan", "query.q", "n", "attr.plan",
				"w7"} {
				if rapid.IntRange(0, 3).Draw(rt, "has") > 0 {
					attributes[name] = drawValue(rt)
				}
			}
			for _, name := range []string{"n", "user", "header.h"} {
				if attributes[name] != "" && rapid.Bool().Draw(rt, "a number") {
					attributes[name] = rapid.SampledFrom([]string{
						"0", "1", "2", "3", "5", "7", "9", "11", "99", "-1", "-0", "+4", "007", "2.5", "1e1", "nan", "-inf",
						"1e999", "9223372036854775807", "9223372036854775808", "18446744073709551615", "0x5", " 5", "5_0",
					}).Draw(rt, "number")
				}
			}
			q.Attributes = attributes
			if rapid.IntRange(0, 4).Draw(rt, "union") == 0 {
				q.Attributes = nil
				q.Descriptors = []Descriptor{{}}
				for k, v := range attributes {
					q.Descriptors[0].Entries = append(q.Descriptors[0].Entries, Entry{k, v})
				}
				slices.SortFunc(q.Descriptors[0].Entries, func(a, b Entry) int { return strings.Compare(a.Key, b.Key) })
			}
			s.Match(q, &a)
			plain.Match(q, &b)
			if met(&a) != met(&b) || a.CELErrors != b.CELErrors || a.Exempt != b.Exempt {
				rt.Fatalf("%q: met %q with %d failed expressions (exempt %v); one by one %q with %d (%v)",
					attributes, met(&a), a.CELErrors, a.Exempt, met(&b), b.CELErrors, b.Exempt)
			}
			if a.looked > b.looked {
				rt.Fatalf("looked at %d rules, there are %d", a.looked, b.looked)
			}
		}
	})
}

// TestIndexOfWrittenPaths: the index finds rules whose expression is true of the path as it is
// written, and not of the folded one.
func TestIndexOfWrittenPaths(t *testing.T) {
	for source, path := range map[string]string{
		`path.matches("(?i)a")`:                                 "/\u00e9", // %C3%A9
		`path.matches("(?i:a)a")`:                               "/\u212aa",
		`path.contains("A9")`:                                   "/\u00e9",
		`path.startsWith("/%C4%B")`:                             "/\u0130",
		`path in ["/\u0130", "/%C4%B0"] || path.endsWith("B0")`: "/\u0130",
	} {
		expression, err := CompileIf(source)
		if err != nil {
			t.Fatal(err)
		}
		f := &File{Domain: "default"}
		for range 2 * fewRules { // enough for an index
			r := testRule(t, fmt.Sprint("r", len(f.Rules)))
			r.If, r.Exprs = source, &Exprs{If: expression}
			f.Rules = append(f.Rules, r)
		}
		s, problems := Compile([]*File{f}, Options{})
		if problems != nil {
			t.Fatal(problems)
		}
		var m Matches
		s.Match(&Query{Domain: "default", Attributes: Map{"path": path}}, &m)
		if len(m.Hits) != len(f.Rules) {
			t.Errorf("%s on %q: %d of %d rules are met", source, path, len(m.Hits), len(f.Rules))
		}
	}
}

// Expressions that fail where an attribute is absent are counted as if each had been evaluated,
// also where one rule stands for many that are alike.
func TestFailedExpressionsAreCounted(t *testing.T) {
	requests := []Map{
		{}, {"path": "/a"}, {"plan": "p7"}, {"plan": "p7", "path": "/a"},
		{"plan": "p7", "path": "/7", "method": "GET"},
		{"method": "GET"}, {"n": "1"}, {"plan": "p3", "n": "1", "ip": "10.0.0.1"},
		{"path": "/7", "ip": "10.0.0.1", "method": "GET"},
		{"n": "x"}, {"n": "x", "ip": "10.0.0.1", "plan": "p3"}, {"n": "12.25"}, {"n": "nan"}, {"n": "12", "plan": "p3"},
	}
	for _, c := range []struct {
		expr string
		most int // rules to look at on any of the requests
	}{
		{`attr.plan == "p#"`, 2},
		{`has(attr.plan) && attr.plan == "p#"`, 2},
		{`"plan" in attr && attr["plan"] == "p#"`, 2},
		{`path == "/a" && attr.plan == "p#"`, 2},
		{`attr.plan == "p#" && (path == "/a" || path == "/7")`, 2},
		{`attr.plan == "p#" && int(attr.n) > 0`, 2},
		{`int(attr.n) == #`, 2},
		{`int(attr.n) >= #0 && int(attr.n) <= #9`, 2},
		{`has(attr.n) && int(attr.n) == #`, 2},
		{`int(attr.n) == # || int(attr.n) > 1#00`, 2},
		{`int(attr.n) == # || uint(attr.n) == #u`, 40},
		{`int(attr.n) == # && attr.n != "x"`, 40},
		{`int(attr.n) == # && attr.n.startsWith("1")`, 40},
		{`int(attr.n) == # && attr.plan == "p3"`, 2},
		{`double(attr.n) > #.0 && double(attr.n) <= #.5`, 2},
		{`double(attr.n) == #.0`, 2},
		{`int(path) == #`, 2},
		{`size(path) == #`, 2},
		{`int(attr["path"]) == # && path.size() < 2`, 40},
		{`int(attr.n) > 0 && path == "/#"`, 2},
		{`path == "/#" && attr["path"] == "/#"`, 2},
		{`attr["path"] == "/#" && path == ""`, 40},
		{`path in ["", "/#"]`, 40},
		{`attr.plan in ["p#", ""]`, 2},
		{`attr.plan == "p#" || attr.plan.startsWith("q#")`, 2},
		{`attr.plan == "p#" || path == "/#"`, 40},
		{`attr.plan == "p#" && !(method == "GET")`, 40},
	} {
		compiled := func() *Set {
			f := &File{}
			for i := range 40 {
				source := strings.ReplaceAll(c.expr, "#", fmt.Sprint(i/2))
				p, err := CompileIf(source)
				if err != nil {
					t.Fatal(err)
				}
				r := testRule(t, fmt.Sprint("r", i), [][]string{{}, {"ip"}}[i%2]...)
				r.If, r.Exprs = source, &Exprs{If: p}
				f.Rules = append(f.Rules, r)
			}
			return testSet(t, f)
		}
		s, plain := compiled(), linear(compiled())
		for _, q := range requests {
			got, want := matchMap(s, q), matchMap(plain, q)
			if met(got) != met(want) || got.CELErrors != want.CELErrors {
				t.Errorf("%s on %v: met %q with %d failed, one by one %q with %d",
					c.expr, q, met(got), got.CELErrors, met(want), want.CELErrors)
			}
			if told, each := failed(got), failed(want); !slices.Equal(told, each) {
				t.Errorf("%s on %v: told of %q, one by one of %q", c.expr, q, told, each)
			}
			if len(got.Failures()) > c.most {
				t.Errorf("%s on %v: told of one by one, %d times", c.expr, q, len(got.Failures()))
			}
			if got.looked > c.most {
				t.Errorf("%s on %v: looked at %d rules, %d would do", c.expr, q, got.looked, c.most)
			}
		}
	}
}

// A variable that is absent is empty, and a look-up of the same attribute fails: these are no like
// rules.
func TestLookUpIsToldApart(t *testing.T) {
	a, errA := CompileIf(`path == "/a"`)
	b, errB := CompileIf(`attr["path"] == "/a"`)
	if errA != nil || errB != nil || asksOf(askKey{a, false}).list[0].text == asksOf(askKey{b, false}).list[0].text {
		t.Errorf("%v, %v: not told apart", errA, errB)
	}
}
