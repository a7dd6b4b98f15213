package file

import (
	"slices"
	"testing"
)

// The fields by which a domain decides are those that rules in force and exemptions read.
func TestFields(t *testing.T) {
	for _, c := range []struct {
		name, text                string
		headers, query            []string
		allHeaders, allParameters bool
	}{
		{"none", "limits: [{ name: a, when: { path: /x }, per: [user|ip], allow: 1/s }]", nil, nil, false, false},
		{"conditions, keys and exemptions", `
exempt: { header.x-probe: ["on"] }
limits:
  - { name: a, when: { query.page: "1" }, per: ["header.x-api-key|query.key"], allow: 1/s }
`, []string{"x-api-key", "x-probe"}, []string{"key", "page"}, false, false},
		{"lists are joined, and no request has upper case", "limits: [{ name: a, per: [header.accept, header.x-forwarded-for, header.X-Y], allow: 1/s }]", nil, nil, false, false},
		{"shadow decides nothing", `
limits:
  - { name: a, per: [header.x-a], allow: 1/s, on_limit: shadow }
  - { name: b, per: [header.x-b], allow: 1/s, enforce: 0% }
  - { name: c, per: [header.x-c], allow: 1/s, enforce: 1% }
`, []string{"x-c"}, nil, false, false},
		{"expressions", `limits: [{ name: a, if: 'header["x-plan"] == "free" && has(query.q)', cost: 'int(header["x-n"])', allow: 9/s }]`,
			[]string{"x-n", "x-plan"}, []string{"q"}, false, false},
		{"all parameters", `limits: [{ name: a, if: 'query.size() > 3', allow: 1/s }]`, nil, nil, false, true},
		{"a name that is computed", `limits: [{ name: a, if: 'header[path] == "x"', allow: 1/s }]`, nil, nil, true, false},
		{"all attributes", `limits: [{ name: a, if: 'attr.exists(k, k == "x")', allow: 1/s }]`, nil, nil, true, true},
		{"descriptors", "descriptors: [{ key: header.x-kind, rate_limit: { unit: day, requests_per_unit: 5 } }]", []string{"x-kind"}, nil, false, false},
	} {
		set, _, err := load(t, "a.yaml", "domain: d\n"+c.text)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		var headers, query []string
		allHeaders, allQuery := false, false
		if f := set.Fields("d"); f != nil {
			for _, h := range f.Headers {
				headers = append(headers, h.Name)
			}
			query, allHeaders, allQuery = f.Query, f.AllHeaders, f.AllQuery
		}
		if !slices.Equal(headers, c.headers) || !slices.Equal(query, c.query) || allHeaders != c.allHeaders ||
			allQuery != c.allParameters {
			t.Errorf("%s: %q, %q, all %t, %t", c.name, headers, query, allHeaders, allQuery)
		}
		if set.Fields("other") != nil {
			t.Errorf("%s: another domain has fields", c.name)
		}
	}
}
