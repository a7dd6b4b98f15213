package ruledb

import (
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/rule/file"
)

func TestShadow(t *testing.T) {
	before := []file.Source{{Name: "a.yaml", Data: []byte("domain: shop\nlimits:\n  - name: a\n    allow: 1/s\n")}}
	for name, c := range map[string]struct {
		text, want string
		names      []string
	}{
		"block": {
			"domain: shop\nlimits:\n  - name: a\n    allow: 2/s # more\n\n  # new\n  - name: b\n    allow: 1/s\n  -\n    allow: 3/s\n    name: c\n",
			"domain: shop\nlimits:\n  - name: a\n    allow: 2/s # more\n\n  # new\n  - on_limit: shadow\n    name: b\n    allow: 1/s\n  -\n    on_limit: shadow\n    allow: 3/s\n    name: c\n",
			[]string{"shop/b", "shop/c"},
		},
		"flow": {
			"domain: shop\nlimits: [{ name: a, allow: 1/s }, {name: b, allow: 1/s}, { name: c, allow: 1/s, on_limit: shadow }]\n",
			"domain: shop\nlimits: [{ name: a, allow: 1/s }, { on_limit: shadow,name: b, allow: 1/s}, { name: c, allow: 1/s, on_limit: shadow }]\n",
			[]string{"shop/b"},
		},
		"descriptors": {
			"domain: lyft\ndescriptors:\n  - key: foo\n    rate_limit: { unit: second, requests_per_unit: 3 }\n",
			"domain: lyft\ndescriptors:\n  - shadow_mode: true\n    key: foo\n    rate_limit: { unit: second, requests_per_unit: 3 }\n",
			[]string{"lyft/foo"},
		},
		"nothing new": {string(before[0].Data), string(before[0].Data), nil},
		"one with an on_limit": {
			"domain: shop\nlimits:\n  - name: b\n    allow: 1/s\n    on_limit: { wait: 2s }\n", "shop/b: cannot be put in shadow here", nil,
		},
	} {
		files := []file.Source{{Name: "a.yaml", Data: []byte(c.text)}, {Name: "a_test.yaml", Data: []byte("tests: []\n")}}
		got, names, err := Shadow(files, before)
		text := ""
		if err != nil {
			text = err.Error()
		} else {
			text = string(got[0].Data)
		}
		if err != nil && !strings.HasPrefix(text, c.want) || err == nil && text != c.want || !slices.Equal(names, c.names) || string(files[0].Data) != c.text {
			t.Errorf("%s: got %q, %s", name, names, text)
		}
	}
}
