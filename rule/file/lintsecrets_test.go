package file

import (
	"slices"
	"testing"
)

// Rules whose keys hold what lets a client in are named, those that keep a hash are not.
func TestLintSecrets(t *testing.T) {
	identity := map[string]string{
		"bare": "header:Authorization", "key": "header:X-Api-Key", "session": "cookie:sid", "tenant": "header:X-Tenant",
		"hashed": "hash:header:X-Api-Key", "token": "bearer", "api": "apikey", "sub": "jwt:sub", "login": "basic",
	}
	for _, c := range []struct {
		text string
		want bool
	}{
		{"limits: [{name: a, per: [bare], allow: 1/s}]", true},
		{"limits: [{name: a, per: [key], allow: 1/s}]", true},
		{"limits: [{name: a, per: ['session|ip'], allow: 1/s}]", true},
		{"limits: [{name: a, per: [header.authorization], allow: 1/s}]", true},
		{"limits: [{name: a, per: [ip, header.x-api-key], allow: 1/s}]", true},
		{"limits: [{name: a, per: [query.access_token], allow: 1/s}]", true},
		{"limits: [{name: a, per: [key], allow: 1/s, on_limit: shadow}]", true},
		{"domain: d\ndescriptors: [{key: authorization, rate_limit: {unit: second, requests_per_unit: 1}}]", true},
		{"domain: d\ndescriptors: [{key: api_key, value: sk-*, rate_limit: {unit: second, requests_per_unit: 1}}]", true},
		{"domain: d\ndescriptors: [{key: X-Api-Key, rate_limit: {unit: second, requests_per_unit: 1}}]", true},

		{"domain: d\ndescriptors: [{key: tokens, rate_limit: {unit: second, requests_per_unit: 1}}]", false},
		{"domain: d\ndescriptors: [{key: api_key, value: known, rate_limit: {unit: second, requests_per_unit: 1}}]", false},
		{"domain: d\ndescriptors: [{key: api_key, rate_limit: {unlimited: true}}]", false},
		{"limits: [{name: a, per: [tenant], allow: 1/s}]", false},
		{"limits: [{name: a, per: [hashed], allow: 1/s}]", false},
		{"limits: [{name: a, per: [token], allow: 1/s}]", false},
		{"limits: [{name: a, per: [api], allow: 1/s}]", false},
		{"limits: [{name: a, per: [sub, login], allow: 1/s}]", false},
		{"limits: [{name: a, per: [header.x-tenant], allow: 1/s}]", false},
		{"limits: [{name: a, when: {header.x-api-key: [a, b]}, per: [header.x-api-key], allow: 1/s}]", false},
		{"limits: [{name: a, when: {key: '*'}, allow: 1/s}]", false},
		{"limits: [{name: a, per: [key], allow: unlimited}]", false},
		{"# lint: ignore kept-secret: the disk is ours\nlimits: [{name: a, per: [key], allow: 1/s}]", false},
	} {
		set, _, err := Load([]Source{{Name: "x.yaml", Data: []byte(c.text)}}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, w := range Lint(set, LintOptions{Identity: identity}) {
			names = append(names, w.Name)
		}
		if slices.Contains(names, KeptSecret) != c.want {
			t.Errorf("%s: %q", c.text, names)
		}
	}
}
