//go:build !nocel

package cel

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/weir-rl/weir/rule"
)

// sameProgram compiles an expression alone, and after others of its shape, and tells how the two
// differ.
func sameProgram(t *testing.T, shapes shapeCache, source string) {
	t.Helper()
	alone, errAlone := compileIf(source, nil)
	shared, err := compileIf(source, shapes)
	if fmt.Sprint(err) != fmt.Sprint(errAlone) {
		t.Fatalf("%s: %v; after others %v", source, errAlone, err)
	}
	if err != nil {
		return
	}
	if !reflect.DeepEqual(alone.asks, shared.asks) || alone.asksAll != shared.asksAll ||
		!reflect.DeepEqual(alone.reads, shared.reads) || !reflect.DeepEqual(alone.whole, shared.whole) {
		t.Fatalf("%s asks %v and reads %v; after others %v and %v", source, alone.asks, alone.reads, shared.asks,
			shared.reads)
	}
	for _, q := range []rule.Pairs{
		{}, {{Name: "path", Value: "/a"}, {Name: "n", Value: "5"}, {Name: "a", Value: "x"}},
		{{Name: "path", Value: "/b1"}, {Name: "n", Value: "12"}, {Name: "user", Value: "a"}, {Name: "x", Value: "a"}},
	} {
		if a, b := metBy(t, source, alone, q), metBy(t, source, shared, q); a != b {
			t.Fatalf("%s on %v: %s; after others %s", source, q, a, b)
		}
	}
}

// metBy says what a rule with the compiled if makes of a request.
func metBy(t *testing.T, source string, p *Program, q rule.Pairs) string {
	t.Helper()
	r := rule.New("r", "default")
	r.Unlimited, r.If, r.Exprs, r.Priority = true, source, &rule.Exprs{If: p}, rule.Critical
	set, problems := rule.Compile([]*rule.File{{Domain: "default", Rules: []*rule.Rule{r}}}, rule.Options{})
	if problems != nil {
		t.Fatal(problems)
	}
	var m rule.Matches
	set.Match(&rule.Query{Domain: "default", Attributes: q}, &m)
	why := ""
	for _, f := range m.Failures() {
		why = f.Err.Error()
	}
	return fmt.Sprint(m.Priority == rule.Critical, " ", why)
}

// An expression that shares what was parsed of another one is what it would be alone.
func TestShapesAreShared(t *testing.T) {
	for _, c := range []struct {
		form   string // with a literal for each #
		shared bool
	}{
		{`path == "#"`, true},
		{`path == '#'`, true},
		{`path.startsWith("/#") && int(attr.n) > # || attr["#"] == "a"`, true},
		{`user in ["#", "b"] && path.size() + # > 3`, true},
		{`path.matches("^/[a#]$")`, true},
		{`[1, 2, 3].exists_one(x, x == #) && attr.exists(k, k == "#")`, true},
		{`has(attr.a#) && attr.a# == "x"`, false},
		{`int(attr.n) > -# && 1.# < double(attr.n)`, false},
		{`int(attr.n) - # > 0`, false},
		{`path == r"/#"`, false},
		{`path == """/#"""`, false},
		{`path == "\\x2f#"`, false},
		{`path == "é#"`, false},
		{`path == "/#" // "b"`, false},
		{`b"#" == bytes(path)`, false},
		{`int(attr.n) == 0x#`, false},
		{`uint(attr.n) == #u`, false},
	} {
		shapes := shapeCache{}
		sources := map[string]bool{}
		for _, literal := range []string{"1", "5", "b1", "a", "(", "0", "12", "08"} {
			source := strings.ReplaceAll(c.form, "#", literal)
			if _, err := compileIf(source, nil); err == nil {
				sources[source] = true
			}
			sameProgram(t, shapes, source)
		}
		held := 0
		for _, s := range shapes {
			if s != nil {
				held++
			}
		}
		if len(sources) < 2 || (held == 1 && len(shapes) == 1) != c.shared {
			t.Errorf("%s: %d of %d shapes of %d expressions are shared, want %v", c.form, held, len(shapes),
				len(sources), c.shared)
		}
	}
}

func FuzzShapes(f *testing.F) {
	for _, s := range []string{
		`path == "/a"`, `int(attr.n) >= 5 && attr["x"] == 'a'`, `attr.exists(k, k == "a" && attr[k] != '1')`,
		`user in ["a", "b"] ? path.size() == 3 : 1 < 2`, `"" == path || path == ''`, `-1 < 5 && 1.5 > 0.5`,
	} {
		f.Add(s, "b", int64(7))
	}
	f.Fuzz(func(t *testing.T, source, text string, n int64) {
		if len(source) > 200 || len(text) > 50 || strings.Contains(source, "all(") || n < 0 {
			return
		}
		shape, values, _, ok := splitLiterals(source)
		if !ok || len(values) == 0 {
			return
		}
		shapes := shapeCache{}
		sameProgram(t, shapes, source)
		other := strings.NewReplacer("\x00", `"`+text+`"`, "\x01", fmt.Sprint(n)).Replace(shape)
		sameProgram(t, shapes, other)
		sameProgram(t, shapes, source)
	})
}
