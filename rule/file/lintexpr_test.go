package file

import (
	"strings"
	"testing"

	"github.com/weir-rl/weir/rule"
)

func TestLintExpressions(t *testing.T) {
	for _, c := range []struct{ key, expression, want string }{
		{"if", `header["x-plan"] != "paid"`, `if: without header.x-plan the expression fails, so that the limit is not met, where an empty one would meet it (write get(header, "x-plan", ""))`},
		{"if", `!(header["x-plan"] == "paid")`, "without header.x-plan"},
		{"if", `!(header["x-plan"] in ["paid", "gold"])`, "without header.x-plan"},
		{"if", `!header["x-plan"].startsWith("pa")`, "without header.x-plan"},
		{"if", `!header["x-plan"].matches("^paid$")`, "without header.x-plan"},
		{"if", `header["x-plan"].matches("^(free)?$")`, "without header.x-plan"},
		{"if", `header["x-plan"] == ""`, "without header.x-plan"},
		{"if", `path == "/x" && header["x-plan"] != "paid"`, "without header.x-plan"},
		{"if", `path == "/x" || header["x-plan"] != "paid"`, "without header.x-plan"},
		{"if", `path == "/x" ? header["x-plan"] != "paid" : true`, "without header.x-plan"},
		{"if", `attr.plan != "paid"`, `write get(attr, "plan", "")`},
		{"if", `query["n"] != "1"`, `write get(query, "n", "")`},
		{"if", `int(header["x-age"]) < 18`, "without header.x-age"},
		{"if", `size(header["x-key"]) < 8`, "without header.x-key"},
		{"if", `header["a"] != header["b"]`, "without header.a"},
		{"if", `!["a", "b"].exists(p, header["x"].startsWith(p))`, "without header.x"},
		{"if", `header["x-plan"] == "free"`, ""},
		{"if", `header["x-plan"].startsWith("fr") && path != "/x"`, ""},
		{"if", `int(header["x-age"]) > 18`, ""},
		{"if", `size(header["x-key"]) > 8`, ""},
		{"if", `"x-plan" in header && header["x-plan"] != "paid"`, ""},
		{"if", `!("x-plan" in header) || header["x-plan"] != "paid"`, ""},
		{"if", `"x-plan" in header ? header["x-plan"] != "paid" : true`, ""},
		{"if", `has(attr.plan) && attr.plan != "paid"`, ""},
		{"if", `get(header, "x-plan", "") != "paid"`, ""},
		{"if", `path != "/x" && user != ""`, ""},
		{"if", `["a", "b"].exists(p, header["x"].startsWith(p))`, ""},
		{"cost", `int(header["x-prompt-tokens"])`, "a: cost: a client writes header.x-prompt-tokens as it likes, and so sets its own cost"},
		{"cost", `int(get(header, "x-n", "1")) + int(query["b"])`, "a client writes header.x-n and query.b"},
		{"cost", `int(attr.tokens)`, ""},
		{"cost", `int(user)`, "a: cost: a client writes user as it likes"},
		{"cost", `user == "" ? 0 : 1`, ""},
		{"cost", `path.startsWith("/api/") ? 2 : 1`, ""},
	} {
		set, _, err := load(t, "x.yaml", "limits:\n  - name: a\n    allow: 10/min\n    "+c.key+": '"+c.expression+"'\n")
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range Lint(set, LintOptions{}) {
			if p.Name == "absent-key" || p.Name == "forgeable-cost" {
				got = append(got, p.Error())
			}
		}
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) == 0 || !strings.Contains(got[0], c.want)) {
			t.Errorf("%s: %q, want %q", c.expression, got, c.want)
		}
		if c.key == "if" {
			proveAbsent(t, c.expression, c.want != "")
		}
	}
	for _, text := range []string{
		`{name: a, allow: 10/min, cost: int(attr.x), cost_min: 1}, {name: b, allow: 20/min, cost: int(attr.x), cost_min: 5}`,
		`{name: a, allow: 10/min, cost: 'int(header["x"])', cost_after: response.status}`,
		`{name: a, allow: 10/min, if: 'header["x"] != "a"', on_limit: shadow}`,
	} {
		set, _, err := load(t, "x.yaml", "limits: ["+text+"]")
		if err != nil {
			t.Fatal(err)
		}
		if got := Lint(set, LintOptions{}); len(got) > 0 {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// proveAbsent looks for a request that shows what the warning says: an expression that is not true
// without an attribute, and true where it is empty (0 where a number is made of it).
func proveAbsent(t *testing.T, expression string, warned bool) {
	t.Helper()
	empty := strings.NewReplacer(
		`int(header["x-age"])`, `0`, `header["x-plan"]`, `""`, `header["x-key"]`, `""`, `query["n"]`, `""`,
		`header["a"]`, `""`, `header["x"]`, `""`,
	).Replace(expression)
	if strings.Contains(empty, "has(attr.plan)") {
		empty = strings.ReplaceAll(strings.Replace(empty, "has(attr.plan)", "has(attr.Plan)", 1), "attr.plan", `""`)
	}
	empty = strings.ReplaceAll(empty, "attr.plan", `""`)
	shown := false
	for _, q := range []rule.Map{{"path": "/x", "header.b": "b"}, {"path": "/y", "header.b": "b"}} {
		shown = shown || !holds(t, expression, q) && holds(t, empty, q)
	}
	if shown != warned {
		t.Errorf("%s: it can be shown: %v; warned: %v", expression, shown, warned)
	}
}

// holds reports whether a request meets a limit with an expression.
func holds(t *testing.T, expression string, q rule.Map) bool {
	t.Helper()
	set, _, err := load(t, "x.yaml", "limits:\n  - name: a\n    allow: 10/min\n    if: '"+expression+"'\n")
	if err != nil {
		t.Fatalf("%s: %v", expression, err)
	}
	var m rule.Matches
	set.Match(&rule.Query{Domain: "default", Attributes: q}, &m)
	return len(m.Hits) > 0
}

// get looks up what may be absent, and is found by an index as a variable is.
func TestGet(t *testing.T) {
	for _, c := range []struct {
		expression string
		q          rule.Map
		want       bool
	}{
		{`get(header, "x-plan", "") != "paid"`, rule.Map{}, true},
		{`get(header, "x-plan", "") != "paid"`, rule.Map{"header.x-plan": "paid"}, false},
		{`get(header, "x-plan", "") == "free"`, rule.Map{"header.x-plan": "free"}, true},
		{`get(header, "x-plan", "") == "free"`, rule.Map{}, false},
		{`get(header, "x-plan", "free") == "free"`, rule.Map{}, true},
		{`get(header, "x-plan", "free") == "free"`, rule.Map{"header.x-plan": "paid"}, false},
		{`int(get(query, "n", "0")) > 5`, rule.Map{}, false},
		{`int(get(query, "n", "9")) > 5`, rule.Map{}, true},
		{`get(attr, "plan", user) == "ada"`, rule.Map{"user": "ada"}, true},
		{`get(attr, user, "none") == "x"`, rule.Map{"user": "ada", "ada": "x"}, true},
	} {
		if got := holds(t, c.expression, c.q); got != c.want {
			t.Errorf("%s on %v: %v", c.expression, c.q, got)
		}
		p, err := CompileIf(c.expression)
		if err != nil {
			t.Fatal(err)
		}
		if _, all := p.Reads(); all != strings.Contains(c.expression, "(attr, user,") {
			t.Errorf("%s may read any attribute: %v", c.expression, all)
		}
	}
	settle, err := CompileCostAfter(`int(get(response.header, "x-tokens", "7"))`)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		header string
		want   int64
	}{{"", 7}, {"12", 12}} {
		n, err := settle.Settle(rule.ResponseInfo{Header: func(string) string { return c.header }})
		if n != c.want || err != nil {
			t.Errorf("of x-tokens %q: %d, %v", c.header, n, err)
		}
	}
}

// Of an attribute of the identity the cost is forgeable if a client writes what it is taken from.
func TestForgeableCostOfIdentity(t *testing.T) {
	set, _, err := load(t, "x.yaml",
		"limits: [{name: a, allow: 10/min, cost: int(user)}, {name: b, allow: 10/min, cost: int(attr.size)}]")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range Lint(set, LintOptions{Identity: map[string]string{"user": "jwt:units", "size": "cookie:size"}}) {
		if p.Name == "forgeable-cost" {
			got = append(got, p.Error())
		}
	}
	if len(got) != 1 || !strings.Contains(got[0], "b: cost: a client writes size as it likes") {
		t.Errorf("%q", got)
	}
}

func TestCostMin(t *testing.T) {
	for _, c := range []struct {
		text string
		want int64
	}{
		{`cost: 'int(header["x"])'`, 1}, {`cost: 'int(query["x"])'`, 1}, {`cost: size(header)`, 1},
		{`cost: 'int(header["x"])', cost_min: 0`, 0}, {`cost: 'int(attr.x)', cost_min: 7`, 7},
		{`cost: int(attr.x)`, 1}, {`cost: int(user)`, 1}, {`cost: size(path)`, 1}, {`cost: 'host == "a" ? 0 : 2 * int(attr["x"])'`, 1}, {`cost: 'int(attr.x)', cost_min: 0`, 0},
		{`cost: '{"free": 0, "pro": int(attr.x)}[attr.plan]'`, 1}, {`cost: '[1, 2].map(n, int(attr.x)).size()'`, 1}, {`cost: 'int(get(attr, "x", "0"))'`, 1},
		{`cost: 'attr.plan == "free" ? 0 : 1'`, 0}, {`cost: '{"free": 0, "pro": 1}[attr.plan]'`, 0}, {`cost: '-(2 - 1) * 3'`, 0}, {`cost: '[0, 1][user == "" ? 0 : 1]'`, 0},
	} {
		set, _, err := load(t, "x.yaml", "limits: [{name: a, allow: 10/min, "+c.text+"}]")
		if err != nil {
			t.Fatal(err)
		}
		if got := set.Rules()[0].CostMin; got != c.want {
			t.Errorf("%s: %d, want %d", c.text, got, c.want)
		}
	}
	if _, _, err := load(t, "x.yaml", "limits: [{name: a, allow: 10/min, cost: 3, cost_min: 2}]"); err == nil ||
		!strings.Contains(err.Error(), "cost_min is for a cost that is an expression") {
		t.Errorf("cost_min beside a number: %v", err)
	}
}
