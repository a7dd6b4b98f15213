package file

import (
	"slices"
	"testing"

	"github.com/weir-rl/weir/rule"
)

func TestReads(t *testing.T) {
	// Where there is an expression, the variables that it may name count as read.
	with := func(names ...string) []string {
		names = append(names, rule.OwnVariables[:]...)
		slices.Sort(names)
		return names
	}
	for _, c := range []struct {
		name, text string
		want       []string
		all        bool
	}{
		{"conditions, keys and exemptions", `
domain: d
exempt: { ip: [10.0.0.0/8], header.x-probe: ["on"] }
limits:
  - { name: a, when: { path: /x, plan: free }, per: [user, org], allow: 1/s }
`, []string{"header.x-probe", "ip", "org", "path", "plan", "user"}, false},
		{"another domain", "domain: other\nlimits: [{ name: a, per: [org], allow: 1/s }]", nil, false},
		{"nothing", "domain: d\nlimits: [{ name: a, allow: 1/s }]", nil, false},
		{"descriptors", `
domain: d
descriptors:
  - key: kind
    value: mail
    descriptors: [{ key: to, rate_limit: { unit: day, requests_per_unit: 5 } }]
`, []string{"kind", "to"}, false},
		{"members of maps", `
domain: d
limits: [{ name: a, if: 'attr.plan == "x" || attr [ "a-b" ] == "y" || "z" in attr || has(query.page)', allow: 1/s }]
`, with("a-b", "plan", "query.page", "z"), false},
		{"headers and variables", `
domain: d
limits: [{ name: a, if: "header['x-plan'] == 'free' && user != '' && method == 'GET'", allow: 1/s }]
`, with("header.x-plan"), false},
		{"a cost", "domain: d\nlimits: [{ name: a, cost: int(attr.tokens), allow: 1/s }]", with("tokens"), false},
		{"a name that is computed", `
domain: d
limits: [{ name: a, if: 'attr[path] == "x"', allow: 1/s }]
`, with(), true},
		{"all of them", `
domain: d
limits: [{ name: a, if: 'attr.exists(k, k == "x") && attr.plan == "free"', allow: 1/s }]
`, with("plan"), true},
		{"their number", `
domain: d
limits: [{ name: a, if: 'query.size () > 3', allow: 1/s }]
`, with(), true},
		{"calls on a value", `
domain: d
limits: [{ name: a, if: 'attr.plan.startsWith("x")', allow: 1/s }]
`, with("plan"), false},
	} {
		set, _, err := load(t, "a.yaml", c.text)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if names, all := set.Reads("d"); !slices.Equal(names, c.want) || all != c.all {
			t.Errorf("%s: reads %q, all %t; want %q, %t", c.name, names, all, c.want, c.all)
		}
	}
}
