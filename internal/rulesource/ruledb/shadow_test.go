package ruledb

import (
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/rule/file"
)

func TestShadow(t *testing.T) {
	const (
		shop  = "domain: shop\nlimits:\n  - name: a\n    allow: 1/s\n"
		lists = "domain: shop\nexempt: { ip: 192.0.2.1 }\nlimits:\n  - { name: a, allow: 1/s }\n  # the second\n  - { name: b, allow: 9/min }\n"
		foo   = "domain: lyft\ndescriptors:\n  - key: foo\n    rate_limit: { unit: second, requests_per_unit: 3 }\n"
	)
	for name, c := range map[string]struct {
		before, text, want string
		names              []string
	}{
		"block": {shop,
			shop + "\n  # new\n  - name: b\n    allow: 1/s\n  -\n    allow: 3/s\n    name: c\n",
			shop +
				"\n  # new\n  - on_limit: shadow\n    name: b\n    allow: 1/s\n  -\n    on_limit: shadow\n    allow: 3/s\n    name: c\n",
			[]string{"shop/b", "shop/c"},
		},
		"flow": {shop,
			"domain: shop\nlimits: [{ name: a, allow: 1/s }, {name: b, allow: 1/s}, { name: c, allow: 1/s, on_limit: shadow }]\n",
			"domain: shop\nlimits: [{ name: a, allow: 1/s }, { on_limit: shadow,name: b, allow: 1/s}, { name: c, allow: 1/s, on_limit: shadow }]\n",
			[]string{"shop/b"},
		},
		"a new descriptor": {foo,
			foo + "  - key: bar\n    rate_limit: { unit: second, requests_per_unit: 3 }\n",
			foo + "  - shadow_mode: true\n    key: bar\n    rate_limit: { unit: second, requests_per_unit: 3 }\n",
			[]string{"lyft/bar"},
		},
		"nothing new": {shop, shop, shop, nil},
		"a comment":   {shop, shop + "# done\n", shop + "# done\n", nil},
		"one with an on_limit": {"",
			"domain: shop\nlimits:\n  - name: b\n    allow: 1/s\n    on_limit: { wait: 2s }\n", "shop/b: cannot be put in shadow here", nil,
		},
		"changed": {shop,
			"domain: shop\nlimits:\n  - name: a   # by user\n    allow: 2/s # more\n",
			shop + "  - on_limit: shadow\n    name: a-next   # by user\n    allow: 2/s # more\n",
			[]string{"shop/a-next"},
		},
		"changed in braces, beside a new one": {lists,
			strings.Replace(lists, "allow: 1/s }\n", "allow: 2/s, per: [ip] }\n  - { name: c, allow: 3/s }\n", 1),
			strings.Replace(lists, "allow: 1/s }\n",
				"allow: 1/s }\n  - { on_limit: shadow, name: a-next, allow: 2/s, per: [ip] }\n  - { on_limit: shadow, name: c, allow: 3/s }\n", 1),
			[]string{"shop/a-next", "shop/c"},
		},
		"changed once more": {shop + "  - { on_limit: shadow, name: a-next, allow: 2/s }\n",
			"domain: shop\nlimits:\n  - name: a\n    allow: 4/s\n  - { on_limit: shadow, name: a-next, allow: 2/s }\n",
			shop +
				"  - on_limit: shadow\n    name: a-next-2\n    allow: 4/s\n  - { on_limit: shadow, name: a-next, allow: 2/s }\n",
			[]string{"shop/a-next-2"},
		},
		"changed in shadow": {shop + "  - { on_limit: shadow, name: b, allow: 2/s }\n",
			shop + "  - { on_limit: shadow, name: b, allow: 3/s }\n",
			shop + "  - { on_limit: shadow, name: b, allow: 3/s }\n", nil,
		},
		"from shadow into force": {shop + "  - { on_limit: shadow, name: b, allow: 2/s }\n",
			shop + "  - { name: b, allow: 2/s }\n", "this cannot be put in shadow, and would come into force: shop/b;",
			nil,
		},
		"removed":        {lists, "domain: shop\nexempt: { ip: 192.0.2.1 }\nlimits:\n  - { name: a, allow: 1/s }\n", "this cannot be put in shadow, and would come into force: shop/b (removed);", nil},
		"another exempt": {lists, strings.Replace(lists, "192.0.2.1", "192.0.2.2", 1), "this cannot be put in shadow, and would come into force: a.yaml: exempt;", nil},
		"another order": {lists, "domain: shop\nexempt: { ip: 192.0.2.1 }\nlimits:\n  - { name: b, allow: 9/min }\n  - { name: a, allow: 1/s }\n",
			"this cannot be put in shadow, and would come into force: a.yaml: the order of limits;", nil},
		"a changed list in brackets": {"domain: shop\nlimits: [{ name: a, allow: 1/s }]\n", "domain: shop\nlimits: [{ name: a, allow: 2/s }]\n", "shop/a-next: cannot be put in shadow here", nil},
		"a changed descriptor":       {foo, strings.Replace(foo, "unit: 3", "unit: 4", 1), "this cannot be put in shadow, and would come into force: a.yaml: descriptors;", nil},
		"a descriptor that takes requests of another": {foo,
			foo + "  - key: foo\n    value: x\n    rate_limit: { unit: second, requests_per_unit: 9 }\n",
			"lyft/foo_x: in shadow it would take requests from lyft/foo,", nil,
		},
	} {
		var before []file.Source
		if c.before != "" {
			before = []file.Source{{Name: "a.yaml", Data: []byte(c.before)}}
		}
		files := []file.Source{{Name: "a.yaml", Data: []byte(c.text)},
			{Name: "a_test.yaml", Data: []byte("tests: []\n")}}
		got, names, err := Shadow(files, before)
		text := ""
		if err != nil {
			text = err.Error()
		} else {
			text = string(got[0].Data)
		}
		if err != nil && !strings.HasPrefix(text, c.want) || err == nil && text != c.want ||
			!slices.Equal(names, c.names) || string(files[0].Data) != c.text {
			t.Errorf("%s: got %q, %s", name, names, text)
		}
	}
}
