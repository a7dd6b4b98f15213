package rule

import (
	"fmt"
	"iter"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/effort"
)

// counted counts how often each attribute is asked for.
type counted struct {
	Map
	asked map[string]int
}

func (c counted) Attribute(name string) (string, bool) { c.asked[name]++; return c.Map.Attribute(name) }

func (c counted) All() iter.Seq2[string, string] { return c.Map.All() }

// scaled makes n rules by format, each with its number wherever %d stands in the patterns.
func scaled(t testing.TB, n int, per []string, conditions ...string) *Set {
	f := &File{}
	for i := range n {
		r := testRule(t, fmt.Sprint("r", i), per...)
		r.Windows = nil // only matching is of interest; see below
		for _, c := range conditions {
			attribute, pattern, _ := strings.Cut(c, "=")
			number := fmt.Sprint(i)
			if attribute == "ip" {
				number = fmt.Sprintf("10.%d.%d", i/256, i%256)
			}
			r.When = append(r.When, on(t, strings.ReplaceAll(attribute, "#", number),
				strings.ReplaceAll(pattern, "#", number)))
		}
		f.Rules = append(f.Rules, r)
	}
	w := testWindow(t, "", 10, 60e9)
	for _, r := range f.Rules {
		r.Windows = []*Window{{Name: r.Name, Limit: w.Limit}}
	}
	return testSet(t, f)
}

// With ten thousand rules, Match looks at the few that may apply, asks for each attribute once, and
// at all only for those that it needs.
func TestCandidatesDoNotGrow(t *testing.T) {
	effort.Long(t, "compiles ten thousand rules of each kind")
	for _, c := range []struct {
		name       string
		conditions []string
		per        []string
		q          Map
		most       int // rules to look at
		met        string
	}{
		{"exact paths", []string{"path=/p/#"}, nil, Map{"path": "/p/77"}, 1, "r77"},
		{"path and method", []string{"method=POST", "path=/p/#"}, nil, Map{"path": "/p/77", "method": "POST"}, 1, "r77"},
		{"folders", []string{"path=/tenant/#/**"}, nil, Map{"path": "/tenant/77/x/y"}, 1, "r77"},
		{"the folder itself", []string{"path=/tenant/#/**"}, nil, Map{"path": "/tenant/77"}, 1, "r77"},
		{"prefixes", []string{"path=/p#x**"}, nil, Map{"path": "/p77xyz"}, 1, "r77"},
		{"suffixes", []string{"host=*.c#.example"}, nil, Map{"host": "A.C77.example:80"}, 1, "r77"},
		{"prefix in common, suffixes apart", []string{"path=/tenants/*/item-#"}, nil, Map{"path": "/tenants/x/item-77"}, 2, "r77"},
		{"users", []string{"path=/api/**", "user=u#"}, nil, Map{"path": "/api/x", "user": "u77"}, 1, "r77"},
		{"nobody", []string{"path=/api/**", "user=u#"}, nil, Map{"path": "/api/x"}, 0, ""},
		{"addresses", []string{"ip=#.0/24"}, nil, Map{"ip": "10.0.77.200"}, 1, "r77"},
		{"single addresses", []string{"ip=#.7"}, nil, Map{"ip": "::ffff:10.0.77.7"}, 1, "r77"},
		{"regex and user", []string{"path=~^/x", "user=u#"}, nil, Map{"path": "/x", "user": "u77"}, 1, "r77"},
		{"negation and user", []string{"plan=!free", "user=u#"}, nil, Map{"user": "u77"}, 1, "r77"},
		{"regex on an absent attribute", []string{"user=~x#"}, nil, Map{"path": "/"}, 0, ""},
		{"absent part of the key", []string{"plan=!free"}, []string{"user"}, Map{"path": "/"}, 0, ""},
		{"other attributes", []string{"header.h#=1"}, nil, Map{"header.h77": "1", "header.h78": "2", "x": "1"}, 1, "r77"},
		{"no such value", []string{"path=/p/#"}, nil, Map{"path": "/p/x"}, 0, ""},
	} {
		s := scaled(t, 10_000, c.per, c.conditions...)
		q := counted{c.q, map[string]int{}}
		var m Matches
		s.Match(&Query{Domain: "default", Attributes: q}, &m)
		if got := met(&m); got != c.met || m.looked > c.most {
			t.Errorf("%s: met %q, want %q; looked at %d rules, at most %d would do", c.name, got, c.met, m.looked,
				c.most)
		}
		for name, n := range q.asked {
			if n > 1 {
				t.Errorf("%s: asked for %s %d times", c.name, name, n)
			}
		}
	}
}

// The same for the Lyft form, counted in look-ups: a level finds its node by one look-up for each
// step.
func TestLyftCandidatesDoNotGrow(t *testing.T) {
	var lines []string
	for i := range 10_000 {
		lines = append(lines, fmt.Sprintf("k=v%d rule", i), fmt.Sprintf("w=p%d/* rule", i))
	}
	s := testSet(t, &File{Descriptors: lyftTree(t, strings.Join(lines, "\n"))})
	var m Matches
	s.Match(&Query{Domain: "default", Descriptors: descriptors("k=v77 w=p77/x")}, &m)
	if got, want := met(&m), "k_v77[k=v77], w_p77/*[w=p77/x]"; got != want {
		t.Fatalf("met %q, want %q", got, want)
	}
	if len(m.candidates) != 1 {
		t.Errorf("%d wildcards looked at, want 1", len(m.candidates))
	}
}

func TestMatchAllocates(t *testing.T) {
	var lines []string
	for i := range 50 {
		lines = append(lines, fmt.Sprintf("k=p%d* rule", i))
	}
	mixed := &File{
		First:  true,
		Exempt: []Condition{on(t, "ip", "192.168.0.0/16")},
		Rules: []*Rule{
			testRule(t, "a", "user|ip", "path").when(on(t, "path", "/api/**"),
				on(t, "method", "POST")).with(func(r *Rule) {
				r.Overrides = []Override{{Values: []string{"10.0.0.1", "/api/x"}, Unlimited: true}}
				r.EnforcePercent = 50
			}),
			testRule(t, "b", "ip").when(on(t, "host", "*.example.com"), on(t, "path", "~^/x", "/api/**")),
			testRule(t, "c", "user").with(func(r *Rule) { r.Replaces = []string{"b"} }),
		},
		Descriptors: lyftTree(t, strings.Join(lines, "\n")+"\nu rule detailed\nplain rule"),
	}
	for i := range 100 {
		mixed.Rules = append(mixed.Rules, testRule(t, fmt.Sprint("other", i),
			"ip").when(on(t, "path", fmt.Sprintf("/o%d/**", i), fmt.Sprintf("**o%d", i))))
	}
	s := testSet(t, mixed)
	for name, q := range map[string]*Query{
		"plain":       {Attributes: Pairs{{"path", "/api/x"}, {"ip", "10.0.0.1"}, {"method", "POST"}}},
		"not normal":  {Attributes: Pairs{{"path", "//api/./%78?q"}, {"ip", "::ffff:10.0.0.1"}, {"method", "post"}, {"host", "A.Example.com:80"}, {"user", "ada"}}},
		"ipv6":        {Attributes: Pairs{{"path", "/o7/x"}, {"ip", "2001:db8::1"}}},
		"text for ip": {Attributes: Pairs{{"path", "/api/x"}, {"ip", "host.example.com"}}},
		"long value":  {Attributes: Pairs{{"path", "/api/x"}, {"user", strings.Repeat("x", 10_000)}, {"method", "POST"}}},
		"map":         {Attributes: Map{"path": "/api/x", "ip": "10.0.0.1", "method": "POST"}},
		"nothing":     {Attributes: Pairs{}},
		"descriptors": {Descriptors: descriptors("plain=1,x=2 plain=7 k=p33x u=5 remote_address=10.0.0.1 path=//api/x")},
		"unknown":     {Domain: "nowhere", Descriptors: descriptors("a=b")},
	} {
		if q.Domain == "" {
			q.Domain = "default"
		}
		var m Matches
		s.Match(q, &m)
		if n := testing.AllocsPerRun(200, func() { s.Match(q, &m) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// Hostile requests: the work is bounded by their size, and the memory by the counters.
func TestHostileRequests(t *testing.T) {
	f := &File{
		Rules: []*Rule{
			testRule(t, "glob", "user").when(on(t, "user", "*a*a*a*a*b", "**a**a**c", "a*")),
			testRule(t, "regexp").when(on(t, "user", `~^(a+)+$`)),
			testRule(t, "header", "header.x", "path"),
		},
		Descriptors: lyftTree(t, "k rule replaces:n\nn rule name:n\nw=*a*a*b rule\nw=a*a*a*c rule\nw=a* share rule"),
	}
	for i := range 100 {
		f.Rules = append(f.Rules, testRule(t, fmt.Sprint("other", i)).when(on(t, "user", fmt.Sprintf("*a*%d*", i))))
	}
	s := testSet(t, f)
	long := strings.Repeat("a", 1<<20)
	var m Matches
	s.Match(&Query{Domain: "default", Attributes: Map{"user": long, "header.x": long,
		"path": "/" + strings.Repeat("../%2e%2E//", 1<<16)}}, &m)
	if got := m.Hits; len(got) != 3 || got[0].Window.Name != "glob" || got[1].Window.Name != "regexp" ||
		got[2].Window.Name != "header" {
		t.Errorf("met %d limits", len(got))
	}
	for _, h := range m.Hits {
		if len(h.Key) > 64 {
			t.Errorf("%s has a key of %d bytes", h.Window.Name, len(h.Key))
		}
	}

	many := make([]Descriptor, 10_000)
	for i := range many {
		many[i].Entries = []Entry{{[]string{"k", "n", "w", "user"}[i%4], fmt.Sprint("a", i)}}
	}
	many[2].Entries[0].Value = long
	s.Match(&Query{Domain: "default", Descriptors: many}, &m)
	if len(m.Descriptors) != len(many) {
		t.Fatalf("%d answers", len(m.Descriptors))
	}
	for i, d := range m.Descriptors {
		if met := d.Hit >= 0; met != (i%4 == 0 || i%4 == 2) {
			t.Fatalf("descriptor %d: %+v", i, d)
		}
	}
	if m.looked > len(f.Rules) {
		t.Errorf("looked at rules %d times, there are %d", m.looked, len(f.Rules))
	}

	// One attribute given ten thousand times over brings its rules in once.
	wide := scaled(t, 200, nil, "header.h#=1")
	pairs := make(Pairs, 10_000)
	for i := range pairs {
		pairs[i] = Pair{"header.h7", "1"}
	}
	wide.Match(&Query{Domain: "default", Attributes: pairs}, &m)
	if got := met(&m); got != "r7" || cap(m.candidates) > 1000 {
		t.Errorf("met %q with room for %d candidates", got, cap(m.candidates))
	}
}

// An expression that would run for long on hostile input is stopped, and its rule refuses the
// request; one that looks through a large value is not.
func TestCELIsBounded(t *testing.T) {
	p, err := CompileIf(`header.all(a, header.all(b, header.all(c, a + b + c != "")))`)
	if err != nil {
		t.Fatal(err)
	}
	scan, err := CompileIf(`header["big"].contains("needle") || header["big"].matches("n[aeiou]+dle(x|y)*$")`)
	if err != nil {
		t.Fatal(err)
	}
	cubic := func(r *Rule) { r.Exprs = &Exprs{If: p} }
	scans := testRule(t, "scan").with(func(r *Rule) { r.Exprs = &Exprs{If: scan} })
	q := Map{"header.big": strings.Repeat("x", 1<<20-10) + "needle"}
	for i := range 400 {
		q[fmt.Sprint("header.h", i)] = "x"
	}
	for _, c := range []struct {
		rules []*Rule
		want  string
	}{
		{[]*Rule{scans}, "scan, 0 failed"},
		{[]*Rule{testRule(t, "all"), scans, testRule(t, "cubic").with(cubic)}, "cubic, 1 failed, refused"},
		{[]*Rule{testRule(t, "shadow").with(cubic).with(func(r *Rule) { r.Shadow = true }), scans}, "scan, 1 failed"},
		{[]*Rule{testRule(t, "free").with(cubic).with(func(r *Rule) { r.Unlimited, r.Windows = true, nil }), scans}, "scan, 1 failed, refused"},
		{[]*Rule{testRule(t, "first").with(cubic), testRule(t, "second").with(cubic)}, "first, 1 failed, refused"},
	} {
		m := matchMap(testSet(t, &File{Rules: c.rules}), q)
		got := fmt.Sprintf("%s, %d failed", met(m), m.CELErrors)
		if m.TooCostly != nil {
			got += ", refused"
		}
		if got != c.want {
			t.Errorf("met %s, want %s", got, c.want)
		}
	}
}

func BenchmarkMatch(b *testing.B) {
	small := func() *Set {
		return testSet(b, &File{Rules: []*Rule{
			testRule(b, "login", "ip").when(on(b, "path", "/login")),
			testRule(b, "api", "user").when(on(b, "path", "/api/**")),
			testRule(b, "all", "ip"),
		}})
	}
	bench := func(name string, set func() *Set, q *Query) {
		b.Run(name, func(b *testing.B) {
			s := set()
			b.ReportAllocs()
			var m Matches
			q.Domain = "default"
			for b.Loop() {
				s.Match(q, &m)
			}
		})
	}
	bench("3 rules", small,
		&Query{Attributes: Pairs{{"method", "GET"}, {"path", "/api/v1/items"}, {"ip", "203.0.113.77"},
			{"user", "user-12345"}}})
	bench("3 rules, one met", small, &Query{Attributes: Pairs{{"path", "/static/x.css"}, {"ip", "203.0.113.77"}}})
	one := func() *Set { return testSet(b, &File{Rules: []*Rule{testRule(b, "all", "key")}}) }
	bench("1 rule", one, &Query{Attributes: Pairs{{"key", "user-12345"}}})
	for _, n := range []int{10, 10_000} {
		bench(fmt.Sprintf("%d paths", n), func() *Set { return scaled(b, n, []string{"ip"}, "path=/p/#") },
			&Query{Attributes: Pairs{{"path", "/p/7"}, {"ip", "203.0.113.77"}}})
		bench(fmt.Sprintf("%d folders", n), func() *Set { return scaled(b, n, []string{"ip"}, "path=/p/#/**") },
			&Query{Attributes: Pairs{{"path", "/p/7/x"}, {"ip", "203.0.113.77"}}})
		bench(fmt.Sprintf("%d users", n),
			func() *Set {
				return scaled(b, n, []string{"user"}, "path=/api/**",
					"user=u#")
			}, &Query{Attributes: Pairs{{"path", "/api/x"}, {"user", "u7"}}})
		var lines []string
		for i := range n {
			lines = append(lines, fmt.Sprintf("k=v%d rule", i))
		}
		bench(fmt.Sprintf("%d descriptor values", n),
			func() *Set {
				return testSet(b,
					&File{Descriptors: lyftTree(b, strings.Join(lines, "\n"))})
			}, &Query{Descriptors: descriptors("k=v7")})
	}
}
