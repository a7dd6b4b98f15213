package file

import (
	"fmt"
	"slices"
	"strings"
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
			[]rule.Map{{"user": "ada", "ip": "192.0.2.1"}, {"user": "bob", "ip": "192.0.2.1"},
				{"user": "ada", "ip": "192.0.2.1"}},
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
			[]rule.Map{{"user": "ada"}, {"user": "bob"}, {"user": "bob"}},
			[]string{"user [user=ada]", "user [user=bob]"}, false, 0},
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

// A request with several readings costs the most that it costs by any; and if expressions take too
// long on any one of them, it is refused for that.
func TestMatchAlsoCosts(t *testing.T) {
	set, _, err := load(t, "a.yaml", `
domain: d
limits:
  - { name: a, per: [ip], cost: 'attr.plan == "bulk" ? 50 : 1', allow: 100/s }
`)
	if err != nil {
		t.Fatal(err)
	}
	plan := func(name string) rule.Map { return rule.Map{"ip": "192.0.2.1", "plan": name} }
	for _, plans := range [][]string{{"bulk", "x"}, {"x", "bulk"}, {"x", "bulk", "y"}} {
		var m rule.Matches
		set.Match(&rule.Query{Domain: "d", Attributes: plan(plans[0])}, &m)
		for _, name := range plans[1:] {
			set.MatchAlso(&rule.Query{Domain: "d", Attributes: plan(name)}, &m)
		}
		if len(m.Hits) != 1 || m.Hits[0].Cost != 50 {
			t.Errorf("%q: %+v", plans, m.Hits)
		}
	}
	list := "[" + strings.TrimSuffix(strings.Repeat("1, ", 100), ", ") + "]"
	long := strings.ReplaceAll("LIST.all(a, LIST.all(b, LIST.all(c, a + b + c < 10)))", "LIST", list)
	set, _, err = load(t, "a.yaml", `
domain: d
limits:
  - { name: first, per: [user], allow: 1/s }
  - { name: a, per: [ip], if: 'attr.plan == "odd" && `+long+`', allow: 100/s }
`)
	if err != nil {
		t.Fatal(err)
	}
	for _, plans := range [][]string{{"odd", "x"}, {"x", "odd"}, {"x", "odd", "y"}} {
		var m rule.Matches
		attributes := plan(plans[0])
		attributes["user"] = "ada"
		set.Match(&rule.Query{Domain: "d", Attributes: attributes}, &m)
		for _, name := range plans[1:] {
			set.MatchAlso(&rule.Query{Domain: "d", Attributes: plan(name)}, &m)
		}
		if m.TooCostly == nil || len(m.Hits) != 1 || m.Hits[0].Window.Rule.Name != "a" {
			t.Errorf("%q: too costly %v, %d hits", plans, m.TooCostly, len(m.Hits))
		}
	}
}

// All readings of a request together may take as long as one may.
func TestMatchAlsoBudget(t *testing.T) {
	costly := func(items, readings int) bool {
		list := "[" + strings.TrimSuffix(strings.Repeat("1, ", items), ", ") + "]"
		set, _, err := load(t, "a.yaml", `{ domain: d, limits: [{ name: a, per: [ip], if: '`+list+`.all(a, `+list+
			`.all(b, a + b < 10 && attr.plan != ""))', allow: 100/s }] }`)
		if err != nil {
			t.Fatal(err)
		}
		var m rule.Matches
		set.Match(&rule.Query{Domain: "d", Attributes: rule.Map{"ip": "192.0.2.1", "plan": "x"}}, &m)
		for range readings - 1 {
			set.MatchAlso(&rule.Query{Domain: "d", Attributes: rule.Map{"ip": "192.0.2.1", "plan": "y"}}, &m)
		}
		return m.TooCostly != nil
	}
	items := 8
	for !costly(2*items, 1) {
		items *= 2
	}
	if costly(items, 1) || !costly(items, 8) {
		t.Errorf("%d items, which one reading may take: %t with one, %t with eight", items, costly(items, 1),
			costly(items, 8))
	}
}

// What a reading wrote in its own way belongs to its own hits.
func TestMatchAlsoWritten(t *testing.T) {
	set, _, err := load(t, "a.yaml", "domain: d\nlimits: [{ name: a, per: [user, path], allow: 1/s }]")
	if err != nil {
		t.Fatal(err)
	}
	var m rule.Matches
	for i, user := range []string{"ada", "eve", "ada", "bob"} {
		q := rule.Query{Domain: "d", Attributes: rule.Map{"user": user, "path": "/X"}}
		if i == 0 {
			set.Match(&q, &m)
		} else {
			set.MatchAlso(&q, &m)
		}
	}
	var got []string
	for i := range m.Hits {
		w := m.Hits[i].Window
		got = append(got, fmt.Sprint(w.KeyParts(m.Hits[i].Key), " as ", w.KeyParts(m.WrittenKey(i))))
	}
	want := []string{"[user=ada path=/x] as [user=ada path=/X]", "[user=eve path=/x] as [user=eve path=/X]",
		"[user=bob path=/x] as [user=bob path=/X]"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
