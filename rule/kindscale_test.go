package rule

import (
	"fmt"
	"strings"
	"testing"
)

// ruleKind is a kind of rules of which a request meets one at most. Each # is a rule's number.
type ruleKind struct {
	name  string
	when  []string // attribute=pattern
	expr  string   // of if
	meets Map      // a request that meets rule 7
	other Map      // one that meets none
	least int      // rules that either is looked at for; 0 for 1
}

// ruleKinds are the kinds whose cost does not grow with their number: something tells them apart.
var ruleKinds = []ruleKind{
	{name: "path prefix", when: []string{"path=/svc#/**"},
		meets: Map{"path": "/svc7/items"}, other: Map{"path": "/other/items"}},
	{name: "exact value", when: []string{"user=u#"},
		meets: Map{"user": "u7"}, other: Map{"user": "x"}},
	{name: "host suffix", when: []string{"host=*.c#.example"},
		meets: Map{"host": "a.c7.example"}, other: Map{"host": "a.example"}},
	{name: "network", when: []string{"ip=#.0/24"},
		meets: Map{"ip": "10.0.7.9"}, other: Map{"ip": "192.0.2.1"}},
	{name: "/**/x/**", when: []string{"path=/**/svc#/**"},
		meets: Map{"path": "/api/svc7/items"}, other: Map{"path": "/api/other/items"}},
	{name: "*x*y*", when: []string{"path=**svc#-**end**"},
		meets: Map{"path": "/api/svc7-and/end/"}, other: Map{"path": "/api/svc-and/end/"}},
	{name: "regexp ^x", when: []string{"path=~^/svc#/[a-z]+$"},
		meets: Map{"path": "/svc7/items"}, other: Map{"path": "/other/items"}},
	{name: "regexp ^(a|x)", when: []string{"path=~^/(svc#|item#)/[a-z]+$"},
		meets: Map{"path": "/item7/items"}, other: Map{"path": "/other/items"}},
	{name: "regexp (?i)^x", when: []string{"path=~(?i)^/svc#/"},
		meets: Map{"path": "/SVC7/items"}, other: Map{"path": "/other/items"}},
	{name: "regexp x", when: []string{"path=~/svc#/[a-z]+"},
		meets: Map{"path": "/api/svc7/items"}, other: Map{"path": "/api/other/items"}},
	{name: "regexp (?i)x", when: []string{"path=~(?i)/svc#/"},
		meets: Map{"path": "/api/Svc7/items"}, other: Map{"path": "/api/other/items"}},
	{name: "regexp x$", when: []string{"path=~[a-z]+/item#$"},
		meets: Map{"path": "/api/item7"}, other: Map{"path": "/api/other"}},
	{name: "regexp .*x.*y", when: []string{"path=~^/api/.*/svc#/.*/x[0-9]"},
		meets: Map{"path": "/api/v1/svc7/a/x1"}, other: Map{"path": "/api/v1/other/a/x1"}},
	{name: "if ==", expr: `path == "/svc#"`,
		meets: Map{"path": "/svc7"}, other: Map{"path": "/other"}},
	{name: "if && ==", expr: `method == "GET" && attr.plan == "p#" && attr.n.size() > 0`,
		meets: Map{"method": "GET", "plan": "p7", "n": "1"}, other: Map{"method": "GET", "plan": "x"}},
	{name: "if startsWith", expr: `path.startsWith("/svc#/")`,
		meets: Map{"path": "/svc7/items"}, other: Map{"path": "/other/items"}},
	{name: "if matches", expr: `path.matches("^/svc#/[a-z]+$")`,
		meets: Map{"path": "/svc7/items"}, other: Map{"path": "/other/items"}},
	{name: "if contains", expr: `has(header.h) && header.h.contains("svc#;")`,
		meets: Map{"header.h": "a; svc7; b"}, other: Map{"header.h": "a; b"}},
	{name: "if in", expr: `user in ["u#", "v#"]`,
		meets: Map{"user": "v7"}, other: Map{"user": "x"}},
	{name: "if range", expr: `int(attr.n) >= #0 && int(attr.n) <= #9`,
		meets: Map{"n": "75"}, other: Map{"n": "-5"}},
	{name: "if double", expr: `double(header.h) > #.25 && #.75 > double(header.h)`,
		meets: Map{"header.h": "7.5"}, other: Map{"header.h": "7"}},
	{name: "if size", expr: `size(path) == #`,
		meets: Map{"path": "/seven7"}, other: Map{"path": "/" + strings.Repeat("x", 2000)}},
	{name: "if, no number", expr: `int(attr.n) == #`,
		meets: Map{"n": "7"}, other: Map{"n": "seven"}, least: 1},
	{name: "if, absent", expr: `attr.plan == "p#"`,
		meets: Map{"plan": "p7"}, other: Map{"path": "/"}, least: 1},
}

// looseKinds are kinds that nothing tells apart: each of them is looked at.
var looseKinds = []ruleKind{
	{name: "regexp without a literal", when: []string{"user=~^[a-z]{#,}[0-9]$"}, other: Map{"user": "-"}},
	{name: "if without a comparison", expr: `path.size() + host.size() == 1# + 100`, other: Map{"path": "/"}},
}

func (k *ruleKind) rules(t testing.TB, n, from int) []*Rule {
	var rules []*Rule
	w := testWindow(t, "", 10, 60e9)
	for i := range n {
		i += from
		number := func(attribute, s string) string {
			if attribute == "ip" {
				return strings.ReplaceAll(s, "#", fmt.Sprintf("%d.%d.%d", 10+i>>16, i>>8&255, i&255))
			}
			if strings.Contains(s, "{#,}") {
				return strings.ReplaceAll(s, "#", fmt.Sprint(i%100))
			}
			return strings.ReplaceAll(s, "#", fmt.Sprint(i))
		}
		name := fmt.Sprint("r", i)
		r := &Rule{Name: name, Cost: 1, EnforcePercent: 100, Windows: []*Window{{Name: name, Limit: w.Limit}}}
		for _, c := range k.when {
			attribute, pattern, _ := strings.Cut(c, "=")
			r.When = append(r.When, on(t, attribute, number(attribute, pattern)))
		}
		if k.expr != "" {
			p, err := CompileIf(number("", k.expr))
			if err != nil {
				t.Fatal(err)
			}
			r.If, r.Exprs = number("", k.expr), &Exprs{If: p}
		}
		rules = append(rules, r)
	}
	return rules
}

// A request is looked at by as many rules of a thousand as of ten, of each kind and of all mixed:
// one where one is met. It is the number that is held, not the time.
func TestLawOfRules(t *testing.T) {
	look := func(name string, s *Set, q Map, want string, most int) {
		t.Helper()
		var m Matches
		s.Match(&Query{Domain: "default", Attributes: q}, &m)
		if got := met(&m); got != want || m.looked > most {
			t.Errorf("%s: met %q, want %q; looked at %d of %d rules, %d would do",
				name, got, want, m.looked, len(s.rules), most)
		}
	}
	for _, n := range []int{10, 1000} {
		var mixed []*Rule
		for i, k := range ruleKinds {
			s := testSet(t, &File{Rules: k.rules(t, n, 0)})
			name := fmt.Sprintf("%d × %s", n, k.name)
			look(name, s, k.meets, "r7", 1)
			look(name, s, k.other, "", k.least)
			mixed = append(mixed, k.rules(t, n/10, i*1000)...)
		}
		s := testSet(t, &File{Rules: mixed})
		look("mixed", s, Map{
			"path": "/nothing/of/it", "user": "-", "host": "x", "method": "PUT", "plan": "-", "header.h": "-1", "n": "-1",
		}, "", 0)
	}
	for _, k := range looseKinds {
		s := testSet(t, &File{Rules: k.rules(t, 50, 0)})
		look(k.name, s, k.other, "", 50)
		if n := len(s.domains[0].index.loose); n != 50 {
			t.Errorf("%s: %d rules are known as such that nothing tells apart, want 50", k.name, n)
		}
	}
}

// A list of patterns in one condition, or under exempt, is looked up likewise.
func TestLawOfPatterns(t *testing.T) {
	for _, form := range []string{
		"/**/svc%d/**", "~^/svc%d/[a-z]+$", "~/svc%d/", "~(?i)/svc%d/", "/svc%d/**", "**/svc%d/*",
	} {
		var patterns []string
		for i := range 1000 {
			patterns = append(patterns, fmt.Sprintf(form, i))
		}
		s := testSet(t, &File{
			Rules:  []*Rule{testRule(t, "a").when(on(t, "path", patterns...))},
			Exempt: []Condition{on(t, "path", patterns...)},
		})
		var m Matches
		s.Match(&Query{Domain: "default", Attributes: Map{"path": "/a/svc/x"}}, &m)
		if m.tried > 0 || len(m.Hits) > 0 || m.Exempt {
			t.Errorf("%s: %d patterns tried on a path without any of their literals", form, m.tried)
		}
		s.Match(&Query{Domain: "default", Attributes: Map{"path": "/svc77/svc77/x"}}, &m)
		if m.tried > 2 {
			t.Errorf("%s: %d patterns tried", form, m.tried)
		}
	}
}

// BenchmarkRules measures a decision of which one rule applies, or none, by kind and number of
// rules: the tables of docs/operating/capacity.md.
func BenchmarkRules(b *testing.B) {
	mixed := ruleKind{name: "mixed", meets: ruleKinds[6].meets, other: ruleKinds[6].other}
	for _, k := range append(append(ruleKinds[:len(ruleKinds):len(ruleKinds)], mixed), looseKinds...) {
		b.Run(strings.ReplaceAll(k.name, "/", "_"), func(b *testing.B) {
			for _, n := range []int{10, 1000, 10_000, 100_000} {
				b.Run(fmt.Sprint(n), func(b *testing.B) {
					rules := k.rules
					if k.name == "mixed" {
						rules = mixedRules
					}
					s := testSet(b, &File{Rules: rules(b, n, 0)})
					for i, q := range []Map{k.other, k.meets} {
						if q == nil {
							continue
						}
						b.Run([]string{"none", "one"}[i], func(b *testing.B) {
							pairs := Pairs{{"ip", "203.0.113.77"}, {"method", "GET"}, {"host", "shop.example.com"}}
							for name, v := range q {
								pairs = append(Pairs{{name, v}}, pairs...)
							}
							var m Matches
							query := &Query{Domain: "default", Attributes: pairs}
							b.ReportAllocs()
							for b.Loop() {
								s.Match(query, &m)
							}
							b.ReportMetric(float64(m.looked), "rules-looked-at")
						})
					}
				})
			}
		})
	}
}

// mixedRules are rules of the first fourteen kinds in turn.
func mixedRules(t testing.TB, n, _ int) []*Rule {
	var all []*Rule
	for i := range n {
		k := &ruleKinds[i%14]
		all = append(all, k.rules(t, 1, i/14)...)
		all[i].Name = fmt.Sprint("m", i)
	}
	return all
}
