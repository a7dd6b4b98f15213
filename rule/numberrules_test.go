package rule

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var (
	numberOperands = []string{
		"attr.n", "attr.n", `attr["n"]`, "header.h", "path", `attr["path"]`, "user", "host", "ip", `attr["ip"]`, "method",
	}
	numberTexts = []string{
		"", "0", "1", "2", "3", "5", "-1", "-0", "+4", "007", "2.5", "1e1", "nan", "-inf", "Infinity", "1e999", "-1e999", "0x1p-2",
		"9223372036854775807", "-9223372036854775808", "9223372036854775808", "18446744073709551615", "0x5", " 5", "5_0", "5e-324",
		"1.7976931348623157e308", "é", "éé\xff", "x", "A", "10.0.0.1", "::ffff:1.2.3.4", "2001:DB8::1%eth0", "/1", "//2", "/%41",
	}
	numberLiterals = map[string][]string{
		"int":    {"0", "1", "2", "3", "5", "-1", "9223372036854775807", "-9223372036854775808"},
		"uint":   {"0u", "1u", "2u", "5u", "9223372036854775808u", "18446744073709551615u"},
		"double": {"0.0", "-0.0", "1.0", "2.5", "5e-324", "-5e-324", "1.7976931348623157e308", "-1.7976931348623157e308"},
		"size":   {"0", "1", "2", "3", "8", "-1", "9223372036854775807"},
	}
)

// drawForm draws an expression with # for each literal, and the functions beside those literals.
func drawForm(t *rapid.T) (form string, functions []string) {
	atom := func() string {
		operand := rapid.SampledFrom(numberOperands).Draw(t, "operand")
		switch rapid.IntRange(0, 9).Draw(t, "atom") {
		case 0:
			return rapid.SampledFrom([]string{"has(attr.n)", `"h" in header`, "has(attr.path)", `"ip" in attr`}).Draw(t,
				"presence")
		case 1:
			return operand + rapid.SampledFrom([]string{` == "5"`, ` != "5"`, ` == ""`, `.startsWith("1")`}).Draw(t,
				"text")
		case 2:
			return "!(int(" + operand + ") > 2)"
		}
		function := rapid.SampledFrom([]string{"int", "int", "uint", "double", "size"}).Draw(t, "function")
		number := function + "(" + operand + ")"
		switch rapid.IntRange(0, 5).Draw(t, "shape") {
		case 0:
			functions = append(functions, function, function)
			return number + " in [#, #]"
		case 1:
			functions = append(functions, function, function)
			return number + " >= # && " + number + " < #"
		case 2:
			functions = append(functions, function)
			return "#" + rapid.SampledFrom([]string{" < ", " <= ", " > ", " >= ", " == "}).Draw(t, "turned") + number
		case 3:
			if function == "int" {
				return number + rapid.SampledFrom([]string{" < dyn(2.5)", " >= dyn(1u)", " in [2, 3u, 5.0]"}).Draw(t,
					"mixed")
			}
		}
		functions = append(functions, function)
		return number + rapid.SampledFrom([]string{" < ", " <= ", " > ", " >= ", " == ", " != "}).Draw(t, "compare") +
			"#"
	}
	form = atom()
	for range rapid.IntRange(0, 2).Draw(t, "more") {
		joint := rapid.SampledFrom([]string{"%s && %s", "%s && %s", "(%s) || %s"}).Draw(t, "joint")
		form = fmt.Sprintf(joint, form, "("+atom()+")")
	}
	return form, functions
}

// Of rules that are alike except for numbers, the same ones are met, and the same ones fail and say
// so for the reason, as when each is looked at.
func TestNumberRulesAgainstLinear(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		type drawn struct {
			source string
			p      Predicate
			when   []Condition
			per    []Key
		}
		var rules []drawn
		for range rapid.IntRange(1, 3).Draw(rt, "forms") {
			form, functions := drawForm(rt)
			for range rapid.IntRange(4, 20).Draw(rt, "rules") {
				source := form
				for _, f := range functions {
					source = strings.Replace(source, "#", rapid.SampledFrom(numberLiterals[f]).Draw(rt, "literal"), 1)
				}
				p, err := CompileIf(source)
				if err != nil {
					rt.Fatalf("%s: %v", source, err)
				}
				d := drawn{source: source, p: p}
				if rapid.IntRange(0, 4).Draw(rt, "when") == 0 {
					d.when = []Condition{on(t, "method", "GET")}
				}
				if rapid.IntRange(0, 3).Draw(rt, "per") == 0 {
					d.per = []Key{{"ip"}}
				}
				rules = append(rules, d)
			}
		}
		compiled := func() *Set {
			f := &File{}
			for i, d := range rules {
				r := testRule(t, fmt.Sprint("r", i)).when(d.when...)
				r.Per, r.If, r.Exprs = d.per, d.source, &Exprs{If: d.p}
				f.Rules = append(f.Rules, r)
			}
			return testSet(t, f)
		}
		s, plain := compiled(), linear(compiled())
		var a, b Matches
		for range 10 {
			attributes := Map{}
			for _, name := range []string{"n", "header.h", "path", "user", "host", "ip", "method"} {
				if rapid.IntRange(0, 3).Draw(rt, "has") > 0 {
					attributes[name] = rapid.SampledFrom(numberTexts).Draw(rt, name)
				}
			}
			if rapid.Bool().Draw(rt, "get") {
				attributes["method"] = "GET"
			}
			q := &Query{Domain: "default", Attributes: attributes}
			s.Match(q, &a)
			plain.Match(q, &b)
			if met(&a) != met(&b) || a.CELErrors != b.CELErrors || !slices.Equal(failed(&a), failed(&b)) {
				rt.Fatalf("%q: met %q, failed %q; one by one %q, failed %q", attributes, met(&a), failed(&a), met(&b),
					failed(&b))
			}
		}
	})
}

// failed returns the expressions that failed, and why.
func failed(m *Matches) (all []string) {
	for _, f := range m.Failures() {
		rules := []*Rule{f.Rule}
		if f.Alike != nil {
			rules = f.Alike.Rules
		}
		for _, r := range rules {
			all = append(all, fmt.Sprintf("%s %s: %v", r.Name, f.Key, f.Err))
		}
	}
	slices.Sort(all)
	return all
}
