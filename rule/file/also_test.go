package file

import (
	"fmt"
	"slices"
	"testing"

	"github.com/weir-rl/weir/rule"
)

// A request with several readings meets the limits of each, and a limit under one key once.
func TestMatchAlso(t *testing.T) {
	for _, c := range []struct {
		name, text string
		readings   []rule.Map
		want       []string
		exempt     bool
		priority   rule.Priority
	}{
		{"each key", "limits: [{ name: a, per: [user], allow: 1/s }, { name: b, per: [ip], allow: 1/s }]",
			[]rule.Map{{"user": "ada", "ip": "192.0.2.1"}, {"user": "bob", "ip": "192.0.2.1"}, {"user": "ada", "ip": "192.0.2.1"}},
			[]string{"a [user=ada]", "b [ip=192.0.2.1]", "a [user=bob]"}, false, 0},
		{"a condition that one of them meets", `limits: [{ name: a, when: { plan: free }, allow: 1/s }, { name: b, when: { plan: "!free" }, allow: 1/s }]`,
			[]rule.Map{{"plan": "free"}, {"plan": "paid"}}, []string{"a []", "b []"}, false, 0},
		{"exempt by one", `
exempt: { user: [root] }
limits: [{ name: a, per: [user], allow: 1/s }]
`, []rule.Map{{"user": "root"}, {"user": "eve"}}, []string{"a [user=eve]"}, false, 0},
		{"exempt by the other", `
exempt: { user: [root] }
limits: [{ name: a, per: [user], allow: 1/s }]
`, []rule.Map{{"user": "eve"}, {"user": "root"}}, []string{"a [user=eve]"}, false, 0},
		{"exempt by both", `
exempt: { user: [root, admin] }
limits: [{ name: a, per: [user], allow: 1/s }]
`, []rule.Map{{"user": "root"}, {"user": "admin"}}, nil, true, 0},
		{"the least priority", `limits: [{ name: a, when: { user: vip }, per: [user], allow: 1/s, priority: critical }]`,
			[]rule.Map{{"user": "vip"}, {"user": "eve"}}, []string{"a [user=vip]"}, false, rule.DefaultPriority},
		{"descriptors", "descriptors: [{ key: user, rate_limit: { unit: day, requests_per_unit: 5 } }]",
			[]rule.Map{{"user": "ada"}, {"user": "bob"}, {"user": "bob"}}, []string{"user [user=ada]", "user [user=bob]"}, false, 0},
	} {
		set, _, err := load(t, "a.yaml", "domain: d\n"+c.text)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		var m rule.Matches
		for range 2 { // the second time into the same Matches
			set.Match(&rule.Query{Domain: "d", Attributes: c.readings[0]}, &m)
			for _, also := range c.readings[1:] {
				set.MatchAlso(&rule.Query{Domain: "d", Attributes: also}, &m)
			}
			var got []string
			for i := range m.Hits {
				got = append(got, fmt.Sprint(m.Hits[i].Window.Rule.Name, " ", m.Hits[i].Window.KeyParts(m.Hits[i].Key)))
			}
			if !slices.Equal(got, c.want) || m.Exempt != c.exempt || m.Priority != c.priority {
				t.Errorf("%s: %q, exempt %t, priority %d", c.name, got, m.Exempt, m.Priority)
			}
			for _, d := range m.Descriptors {
				if d.Hit < 0 || m.Hits[d.Hit].Window.Rule != d.Rule {
					t.Errorf("%s: %+v", c.name, d)
				}
			}
		}
	}
}

// The keys by which rules ban in the whole domain, and the expressions that fail, are of all
// readings.
func TestMatchAlsoBans(t *testing.T) {
	set, _, err := load(t, "a.yaml", `
domain: d
limits:
  - { name: a, when: { path: /never }, per: [user], allow: 1/s, ban: { after: 3, within: 1m, for: 1h, scope: domain } }
  - { name: b, if: 'int(attr.n) > 1', allow: 1/s }
`)
	if err != nil {
		t.Fatal(err)
	}
	var m rule.Matches
	set.Match(&rule.Query{Domain: "d", Attributes: rule.Map{"user": "ada", "n": "x"}}, &m)
	set.MatchAlso(&rule.Query{Domain: "d", Attributes: rule.Map{"user": "bob", "n": "y"}}, &m)
	var keys []string
	set.BanKeys(&m, func(r *rule.Rule, key []byte) bool {
		keys = append(keys, fmt.Sprint(r.Windows[0].KeyParts(key)))
		return true
	})
	if want := []string{"[user=ada]", "[user=bob]"}; !slices.Equal(keys, want) {
		t.Errorf("%q", keys)
	}
	if m.CELErrors != 2 || len(m.Failures()) != 2 {
		t.Errorf("%d errors, %v", m.CELErrors, m.Failures())
	}
}
