package examples

import (
	"fmt"
	"testing"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// For every kind of rule there are values to paste that meet it.
func TestExampleRequest(t *testing.T) {
	for name, c := range map[string]struct{ rules, want string }{
		"exact":   {"limits: [{ name: a, when: { path: /login }, per: [ip], allow: 5/min }]", "a path=/login ip=192.0.2.1"},
		"glob":    {"limits: [{ name: a, when: { path: /api/** }, per: [user], allow: 5/min }]", "a path=/api/x user=ada"},
		"host":    {`limits: [{ name: a, when: { host: "*.shop.example" }, allow: 5/min }]`, "a host=x.shop.example"},
		"block":   {"limits: [{ name: a, when: { ip: 10.1.0.0/16 }, per: [ip], allow: 5/min }]", "a ip=10.1.0.0"},
		"negated": {`limits: [{ name: a, when: { plan: "!free" }, allow: 5/min }]`, "a plan=ada"},
		"not the first": {`limits:
  - { name: a, when: { path: "~^/[0-9]+$" }, allow: 5/min }
  - { name: b, if: method == 'NEVER', allow: 5/min }
  - { name: c, on_limit: shadow, allow: 5/min }
  - { name: d, allow: unlimited }
  - { name: e, per: [key], allow: 5/min }`, "e key=ada"},
		"two domains": {"domain: blog\nlimits: [{ name: a, allow: 5/min }]", "a"},
		"Lyft": {`domain: messaging
descriptors:
  - key: message_type
    value: marketing
    descriptors: [{ key: to_number, rate_limit: { unit: day, requests_per_unit: 5 } }]`,
			"message_type_marketing.to_number message_type=marketing to_number=ada"},
		"a cost":      {"limits: [{ name: a, per: [user], cost: int(attr.tokens), allow: 100/min }]", "a user=ada tokens=1"},
		"a condition": {"limits: [{ name: a, per: [user], if: attr.plan.startsWith('a'), allow: 100/min }]", "a user=ada plan=ada"},
		"the cost of another rule": {`limits:
  - { name: a, per: [ip], allow: 5/min }
  - { name: b, per: [ip], cost: int(attr.tokens), allow: 100/min }`, "a ip=192.0.2.1 tokens=1"},
		"a failing expression": {`limits: [{ name: a, per: [user], cost: "int('x' + attr.size)", allow: 5/min }]`, "a user=ada"},
		"exempt":               {"exempt: { ip: 192.0.2.0/24 }\nlimits: [{ name: a, per: [ip], allow: 5/min }]", ""},
	} {
		t.Run(name, func(t *testing.T) {
			set, _, err := file.Load([]file.Source{{Name: "a.yaml", Data: []byte(c.rules)}}, file.Options{})
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if e := exampleRequest(set); e != nil {
				var m rule.Matches
				set.Match(&rule.Query{Domain: e.rule.Domain, Attributes: rule.Pairs(e.attributes)}, &m)
				if failing := name == "a failing expression"; m.CELErrors > 0 != failing {
					t.Errorf("%d expressions fail on it", m.CELErrors)
				}
				got = e.rule.Name
				for _, a := range e.attributes {
					got += fmt.Sprintf(" %s=%s", a.Name, a.Value)
				}
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
