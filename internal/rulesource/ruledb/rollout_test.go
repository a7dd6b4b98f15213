package ruledb

import (
	"errors"
	"strings"
	"testing"

	"github.com/weir-rl/weir/rule/file"
)

// TestEnforce: a rule comes from shadow, or from a share, to another share of its keys by a few
// words; comments and layout stay.
func TestEnforce(t *testing.T) {
	const head = "# of the shop\ndomain: shop\nlimits:\n"
	const other = "  - { name: other, per: [user], allow: 9/min, on_limit: shadow }\n"
	for name, c := range map[string]struct {
		before, after string
		percent       int
	}{
		"block":      {"  - name: api # ours\n    per: [user]\n    allow: 5/min\n    on_limit: shadow # for now\n", "  - name: api # ours\n    per: [user]\n    allow: 5/min\n    enforce: 10% # for now\n", 10},
		"first":      {"  - on_limit: shadow\n    name: api\n    per: [user]\n    allow: 5/min\n", "  - enforce: 50%\n    name: api\n    per: [user]\n    allow: 5/min\n", 50},
		"flow":       {"  - { name: api, per: [user], allow: 5/min, on_limit: \"shadow\" }\n", "  - { name: api, per: [user], allow: 5/min, enforce: all }\n", 100},
		"more":       {"  - { name: api, per: [user], allow: 5/min, enforce: 10% }\n", "  - { name: api, per: [user], allow: 5/min, enforce: 50% }\n", 50},
		"all":        {"  - name: api\n    enforce: '50%'\n    per: [user]\n    allow: 5/min\n", "  - name: api\n    enforce: all\n    per: [user]\n    allow: 5/min\n", 100},
		"both":       {"  - { name: api, on_limit: shadow, enforce: 10%, per: [user], allow: 5/min }\n", "  - { name: api, on_limit: reject, enforce: 50%, per: [user], allow: 5/min }\n", 50},
		"back":       {"  - name: api\n    per: [user]\n    allow: 5/min\n", "  - enforce: 10%\n    name: api\n    per: [user]\n    allow: 5/min\n", 10},
		"back, flow": {"  - { name: api, per: [user], allow: 5/min }\n", "  - { enforce: 10%, name: api, per: [user], allow: 5/min }\n", 10},
		"comment":    {"  - name: api\n    # not on_limit: shadow\n    per: [user]\n    allow: 5/min\n    on_limit: shadow\n", "  - name: api\n    # not on_limit: shadow\n    per: [user]\n    allow: 5/min\n    enforce: 10%\n", 10},
		"no per":     {"  - { name: api, allow: 5/min, on_limit: shadow }\n", "  - { name: api, allow: 5/min, enforce: all }\n", 100},
	} {
		files := []file.Source{{Name: "a.yaml", Data: []byte("domain: b\nlimits: [{ name: api, per: [ip], allow: 1/s }]\n")}, {Name: "shop.yaml", Data: []byte(head + other + c.before)}}
		out, changed, err := Enforce(files, "shop", "api", c.percent)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got := string(out[1].Data); got != head+other+c.after || changed != "shop.yaml" {
			t.Errorf("%s: %s is\n%s", name, changed, got)
		}
		if string(files[1].Data) != head+other+c.before {
			t.Errorf("%s: the files before are others now", name)
		}
	}
}

// TestEnforceLyft does the same for descriptors, which know shadow by another word.
func TestEnforceLyft(t *testing.T) {
	const head = "domain: shop\ndescriptors:\n"
	for name, c := range map[string]struct {
		before, after string
		percent       int
	}{
		"all":   {"  - key: tenant\n    shadow_mode: true\n    rate_limit: { unit: minute, requests_per_unit: 5 }\n", "  - key: tenant\n    shadow_mode: false\n    rate_limit: { unit: minute, requests_per_unit: 5 }\n", 100},
		"share": {"  - key: tenant\n    shadow_mode: true\n    rate_limit: { unit: minute, requests_per_unit: 5 }\n", "  - key: tenant\n    shadow_mode: false\n    rate_limit: { enforce: 10%, unit: minute, requests_per_unit: 5 }\n", 10},
		"block": {"  - key: tenant\n    rate_limit:\n      unit: minute\n      requests_per_unit: 5\n", "  - key: tenant\n    rate_limit:\n      enforce: 50%\n      unit: minute\n      requests_per_unit: 5\n", 50},
	} {
		out, _, err := Enforce([]file.Source{{Name: "shop.yaml", Data: []byte(head + c.before)}}, "shop", "tenant", c.percent)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got := string(out[0].Data); got != head+c.after {
			t.Errorf("%s:\n%s", name, got)
		}
	}
}

// TestCannotEnforce: what cannot be changed so is left alone, and the error says why.
func TestCannotEnforce(t *testing.T) {
	enforce := func(text, name string, percent int) error {
		_, _, err := Enforce([]file.Source{{Name: "shop.yaml", Data: []byte(text)}}, "shop", name, percent)
		return err
	}
	var unknown *UnknownRuleError
	if err := enforce("domain: shop\nlimits: [{ name: api, per: [ip], allow: 1/s }]\n", "nobody", 10); !errors.As(err, &unknown) {
		t.Errorf("an unknown rule: %v", err)
	}
	for want, text := range map[string]string{
		"one counter for all":            "domain: shop\nlimits:\n  - { name: api, allow: 1/s, on_limit: shadow }\n",
		"write enforce: 10% into shop.y": "domain: shop\nlimits: [{ name: api, per: [ip], allow: 1/s, on_limit: shadow }]\n",
		"shop/api: cannot be changed":    "domain: shop\nlimits:\n  - name: api\n    per: [ip]\n    allow: 1/s\n    \"on_limit\": shadow\n",
	} {
		if err := enforce(text, "api", 10); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", want, err)
		}
	}
}
