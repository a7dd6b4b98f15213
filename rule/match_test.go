package rule

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
)

// Rules for tests, made by hand: loading has tests of its own.

func testLimit(t testing.TB, c algo.Config) *algo.Limit {
	t.Helper()
	l, err := algo.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func testWindow(t testing.TB, name string, n int64, w time.Duration) *Window {
	return &Window{Name: name, Seconds: int64(w / time.Second), Limit: testLimit(t, algo.Config{N: n, Window: w})}
}

func on(t testing.TB, attribute string, patterns ...string) Condition {
	t.Helper()
	c := Condition{Attribute: attribute}
	for _, s := range patterns {
		p, err := ParsePattern(attribute, s)
		if err != nil {
			t.Fatal(err)
		}
		c.Patterns = append(c.Patterns, p)
	}
	return c
}

func testRule(t testing.TB, name string, per ...string) *Rule {
	r := &Rule{Name: name, Cost: 1, WarnPercent: 80, EnforcePercent: 100,
		Windows: []*Window{testWindow(t, name, 10, time.Minute)}}
	for _, p := range per {
		r.Per = append(r.Per, strings.Split(p, "|"))
	}
	return r
}

func (r *Rule) when(c ...Condition) *Rule { r.When = append(r.When, c...); return r }

func (r *Rule) with(f func(*Rule)) *Rule { f(r); return r }

func testSet(t testing.TB, files ...*File) *Set {
	t.Helper()
	for _, f := range files {
		if f.Domain == "" {
			f.Domain = "default"
		}
	}
	s, problems := Compile(files, Options{})
	for _, p := range problems {
		t.Fatalf("%s: %s (%s)", p.Rule, p.Message, p.Hint)
	}
	return s
}

// met spells what was met: window[key parts] in order, with ~ for shadow and ? for quota, and xN
// for a cost other than 1.
func met(m *Matches) string {
	var list []string
	for _, h := range m.Hits {
		s := h.Window.Name
		if parts := h.Window.KeyParts(h.Key); len(parts) > 0 {
			s += "[" + strings.Join(parts, " ") + "]"
		}
		s += map[Mode]string{Enforce: "", Shadow: "~", Quota: "?"}[h.Mode]
		if h.Cost != 1 {
			s += fmt.Sprintf("x%d", h.Cost)
		}
		list = append(list, s)
	}
	return strings.Join(list, ", ")
}

func matchMap(s *Set, attributes Map) *Matches {
	var m Matches
	s.Match(&Query{Domain: "default", Attributes: attributes}, &m)
	return &m
}

func TestMatch(t *testing.T) {
	ifFree, err := CompileIf(`header["x-plan"] == "free" && path.size() > 3`)
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := CompileCost(`int(attr.tokens)`)
	if err != nil {
		t.Fatal(err)
	}
	s := testSet(t, &File{
		Exempt: []Condition{on(t, "ip", "192.168.0.0/16"), on(t, "user", "monitoring")},
		Rules: []*Rule{
			testRule(t, "login", "ip").when(on(t, "path", "/login"), on(t, "method", "POST")),
			testRule(t, "api", "user|ip").when(on(t, "path", "/api/**")),
			testRule(t, "pair", "user", "ip").when(on(t, "path", "/pair")),
			testRule(t, "not-enterprise", "user").when(on(t, "path", "/orders"), on(t, "plan", "!enterprise")),
			testRule(t, "some", "user").when(on(t, "path", "/some"), on(t, "plan", "free*", "!freedom", "paid")),
			testRule(t, "cel").when(on(t, "path", "/cel*")).with(func(r *Rule) { r.Exprs = &Exprs{If: ifFree} }),
			testRule(t, "tokens").when(on(t, "path", "/tokens")).with(func(r *Rule) { r.Exprs = &Exprs{Cost: tokens} }),
			testRule(t, "shadow").when(on(t, "path", "/shadow")).with(func(r *Rule) { r.Shadow = true }),
			testRule(t, "two", "user").when(on(t, "path", "/two")).with(func(r *Rule) {
				r.Windows = []*Window{testWindow(t, "two:60s", 10, time.Minute),
					testWindow(t, "two:3600s", 500, time.Hour)}
				r.Overrides = []Override{
					{Values: []string{"acme"}, Windows: []*Window{testWindow(t, "two:60s", 1000, time.Minute), testWindow(t, "two:1s", 50, time.Second)}},
					{Values: []string{"root"}, Unlimited: true},
				}
			}),
			testRule(t, "group", "user|ip").when(on(t, "path", "/over")).with(func(r *Rule) {
				r.Overrides = []Override{{Values: []string{"2001:db8::77"},
					Windows: []*Window{testWindow(t, "group", 99, time.Minute)}}}
			}),
			testRule(t, "absent").when(on(t, "path", "/absent"), on(t, "user", "!**")),
		},
	})
	for _, c := range []struct {
		q    Map
		want string
	}{
		{Map{"path": "/login", "method": "post", "ip": "203.0.113.9"}, "login[ip=203.0.113.9]"},
		{Map{"path": "//login?x", "method": "POST", "ip": "::ffff:203.0.113.9"}, "login[ip=203.0.113.9]"},
		{Map{"path": "/%6cogin", "method": "POST", "ip": "fe80::1%eth0"}, "login[ip=fe80::/64]"},
		{Map{"path": "/login", "method": "POST", "ip": "host.example"}, "login[ip=host.example]"},
		{Map{"path": "/login", "method": "POST", "ip": "192.168.3.4"}, "exempt"},
		{Map{"path": "/login", "method": "POST", "ip": "::ffff:192.168.3.4"}, "exempt"},
		{Map{"path": "/login", "method": "POST", "ip": "1.1.1.1", "user": "monitoring"}, "exempt"},
		{Map{"path": "/login", "method": "POST"}, ""},
		{Map{"path": "/login", "method": "POST", "ip": ""}, ""},
		{Map{"path": "/login", "method": "GET", "ip": "1.1.1.1"}, ""},
		{Map{}, ""},
		{Map{"path": "/api", "user": "ada", "ip": "1.1.1.1"}, "api[user=ada]"},
		{Map{"path": "/api/x", "user": "", "ip": "1.1.1.1"}, "api[ip=1.1.1.1]"},
		{Map{"path": "/api/x", "user": "1.1.1.1"}, "api[user=1.1.1.1]"},
		{Map{"path": "/apix", "user": "ada"}, ""},
		{Map{"path": "/pair", "user": "ada", "ip": "2001:db8:1:2:3::4"}, "pair[user=ada ip=2001:db8:1:2::/64]"},
		{Map{"path": "/pair", "user": "ada"}, ""},
		{Map{"path": "/orders", "user": "ada"}, "not-enterprise[user=ada]"},
		{Map{"path": "/orders", "user": "ada", "plan": "free"}, "not-enterprise[user=ada]"},
		{Map{"path": "/orders", "user": "ada", "plan": "enterprise"}, ""},
		{Map{"path": "/some", "user": "ada", "plan": "free2"}, "some[user=ada]"},
		{Map{"path": "/some", "user": "ada", "plan": "paid"}, "some[user=ada]"},
		{Map{"path": "/some", "user": "ada", "plan": "freedom"}, ""},
		{Map{"path": "/some", "user": "ada", "plan": "other"}, ""},
		{Map{"path": "/some", "user": "ada"}, ""},
		{Map{"path": "/cel", "header.x-plan": "free"}, "cel"},
		{Map{"path": "/cel", "header.x-plan": "paid"}, ""},
		{Map{"path": "/cel"}, "1 failed"},
		{Map{"path": "/tokens", "tokens": "250"}, "tokensx250"},
		{Map{"path": "/tokens", "tokens": "0"}, "tokensx0"},
		{Map{"path": "/tokens", "tokens": "-3"}, "tokensx0, 1 failed"},
		{Map{"path": "/tokens", "tokens": "many"}, "tokens, 1 failed"},
		{Map{"path": "/tokens"}, "tokens, 1 failed"},
		{Map{"path": "/tokens", "tokens": "9000000000"}, "tokensx9000000000"},
		{Map{"path": "/shadow"}, "shadow~"},
		{Map{"path": "/two", "user": "ada"}, "two:60s[user=ada], two:3600s[user=ada]"},
		{Map{"path": "/two", "user": "acme"}, "two:60s[user=acme], two:1s[user=acme]"},
		{Map{"path": "/two", "user": "root"}, ""},
		{Map{"path": "/over", "ip": "2001:db8::1"}, "group[ip=2001:db8::/64]"},
		{Map{"path": "/absent"}, "absent"},
		{Map{"path": "/absent", "user": ""}, "absent"},
		{Map{"path": "/absent", "user": "ada"}, ""},
	} {
		m := matchMap(s, c.q)
		got := met(m)
		if m.Exempt {
			got = strings.TrimPrefix(got+", exempt", ", ")
		}
		if m.CELErrors > 0 {
			got = strings.TrimPrefix(got+fmt.Sprintf(", %d failed", m.CELErrors), ", ")
		}
		if got != c.want || !m.Known {
			t.Errorf("%v: met %q, want %q", c.q, got, c.want)
		}
	}

	m := matchMap(s, Map{"path": "/over", "ip": "2001:db8::1"})
	if n := m.Hits[0].Limit.Config().N; n != 99 {
		t.Errorf("the override of the address's block gives N = %d, want 99", n)
	}
	m = matchMap(s, Map{"path": "/two", "user": "acme"})
	if m.Hits[0].Window.Counter != s.byName["default"].rules[8].rule.Windows[0].Counter ||
		m.Hits[1].Window.Counter == nil {
		t.Error("an override must share the counter of its rule where W agrees, and have its own elsewhere")
	}
	var unknown Matches
	s.Match(&Query{Domain: "nowhere", Descriptors: make([]Descriptor, 2)}, &unknown)
	if unknown.Known || len(unknown.Hits) != 0 || len(unknown.Descriptors) != 2 || unknown.Descriptors[1].Hit != -1 {
		t.Errorf("an unknown domain gives %+v", unknown)
	}
	if s.HasDomain("nowhere") || !s.HasDomain("default") || !slices.Equal(s.Domains(), []string{"default"}) {
		t.Errorf("domains: %v", s.Domains())
	}
}

func TestGroupsAndReplaces(t *testing.T) {
	shadow := func(r *Rule) { r.Shadow = true }
	replaces := func(names ...string) func(*Rule) { return func(r *Rule) { r.Replaces = names } }
	s := testSet(t,
		&File{First: true, Rules: []*Rule{
			testRule(t, "g1").when(on(t, "a", "1")),
			testRule(t, "g2").when(on(t, "b", "1")).with(shadow),
			testRule(t, "g3", "key").when(on(t, "c", "1")),
			testRule(t, "g4").when(on(t, "d", "1")).with(shadow),
			testRule(t, "g5").when(on(t, "e", "1")),
		}},
		&File{Rules: []*Rule{
			testRule(t, "r1").when(on(t, "f", "1")).with(replaces("r2", "g5")),
			testRule(t, "r2").when(on(t, "g", "1")).with(replaces("r3")),
			testRule(t, "r3").when(on(t, "h", "1")),
			testRule(t, "r4").when(on(t, "i", "1")).with(replaces("r3")).with(shadow),
			testRule(t, "r5").when(on(t, "j", "1")).with(replaces("r3")).with(
				func(r *Rule) { r.Unlimited, r.Windows = true, nil }),
			testRule(t, "r6").when(on(t, "k", "1")).with(replaces("r4")),
		}},
	)
	for on, want := range map[string]string{
		"a":    "g1",
		"abc":  "g1",
		"bc":   "g2~", // c has no key: g3 is not met
		"bcK":  "g2~, g3[key=1]",
		"bde":  "g2~, g5",
		"bd":   "g2~",
		"de":   "g4~, g5",
		"cKde": "g3[key=1]",
		"ade":  "g1",
		"fgh":  "r1", // r2 is replaced, and still replaces r3
		"gh":   "r2",
		"h":    "r3",
		"fe":   "r1", // groups come first, then replaces
		"fh":   "r1, r3",
		"ih":   "r3, r4~", // a rule in shadow replaces none that is enforced
		"jh":   "",
		"j":    "",
		"ik":   "r6",
		"":     "",
	} {
		q := Map{}
		for _, c := range on {
			if c == 'K' {
				q["key"] = "1"
			} else {
				q[string(c)] = "1"
			}
		}
		if got := met(matchMap(s, q)); got != want {
			t.Errorf("%s: met %q, want %q", on, got, want)
		}
	}
}

func TestEnforcePercent(t *testing.T) {
	share := func(name string, percent int) map[string]bool {
		s := testSet(t,
			&File{Rules: []*Rule{testRule(t, name, "user").with(func(r *Rule) { r.EnforcePercent = percent })}})
		enforced := map[string]bool{}
		for i := range 10000 {
			user := fmt.Sprint("user-", i)
			if matchMap(s, Map{"user": user}).Hits[0].Mode == Enforce {
				enforced[user] = true
			}
		}
		return enforced
	}
	none, some, more, all, other := share("a", 0), share("a", 10), share("a", 40), share("a", 100), share("b", 10)
	if len(none) != 0 || len(all) != 10000 {
		t.Errorf("0%% enforces %d, 100%% enforces %d of 10000 keys", len(none), len(all))
	}
	// Six standard deviations of the binomial.
	if len(some) < 820 || len(some) > 1180 || len(more) < 3706 || len(more) > 4294 {
		t.Errorf("10%% enforces %d, 40%% enforces %d of 10000 keys", len(some), len(more))
	}
	both := 0
	for u := range some {
		if !more[u] {
			t.Fatalf("%s is enforced at 10%% and not at 40%%", u)
		}
		if other[u] {
			both++
		}
	}
	if both > 250 {
		t.Errorf("two rules at 10%% share %d of 1000 keys: they should choose apart", both)
	}
	if again := share("a", 10); !mapsEqual(again, some) {
		t.Error("the same rule chooses other keys when it is loaded again")
	}
}

func mapsEqual(a, b map[string]bool) bool {
	for k := range a {
		if !b[k] {
			return false
		}
	}
	return len(a) == len(b)
}

func TestBuildProblems(t *testing.T) {
	at := func(line int, r *Rule) *Rule { r.Pos = Position{File: "a.yaml", Line: line}; return r }
	replacing := func(name string, names ...string) *Rule {
		return testRule(t, name).with(func(r *Rule) { r.Replaces = names })
	}
	for _, c := range []struct {
		name  string
		files []*File
		want  []string // parts of the messages, in order
	}{
		{"same name", []*File{{Rules: []*Rule{at(3, testRule(t, "x"))}}, {Rules: []*Rule{testRule(t, "x")}}}, []string{`a limit named "x" is there already, at a.yaml:3`}},
		{"other domain", []*File{{Rules: []*Rule{testRule(t, "x")}}, {Domain: "b", Rules: []*Rule{testRule(t, "x")}}}, nil},
		{"unknown replaced", []*File{{Rules: []*Rule{testRule(t, "orders"), replacing("y", "order")}}}, []string{`"order", which does not exist (did you mean "orders"?)`}},
		{"replaces itself", []*File{{Rules: []*Rule{replacing("y", "y")}}}, []string{"cannot replace itself"}},
		{"cycle", []*File{{Rules: []*Rule{replacing("a", "b"), replacing("b", "c"), replacing("c", "a")}}}, []string{"replace each other"}},
		{"chain", []*File{{Rules: []*Rule{replacing("a", "b", "c"), replacing("b", "c"), testRule(t, "c")}}}, nil},
		{"same window", []*File{{Rules: []*Rule{testRule(t, "a").with(func(r *Rule) {
			r.Windows = []*Window{testWindow(t, "a:60s", 1, time.Minute), testWindow(t, "a:60s", 2, time.Minute)}
		})}}}, []string{"same window, a:60s"}},
		{"override values", []*File{{Rules: []*Rule{testRule(t, "a", "user").with(func(r *Rule) {
			r.Overrides = []Override{{Values: []string{"x", "y"}, Unlimited: true}}
		})}}}, []string{"2 values for keys of 1 part"}},
		{"override twice", []*File{{Rules: []*Rule{testRule(t, "a", "ip").with(func(r *Rule) {
			r.Overrides = []Override{{Values: []string{"2001:db8::1"}, Unlimited: true},
				{Values: []string{"2001:db8::2"}, Unlimited: true}}
		})}}}, []string{"for the same key"}},
		{"same descriptor", []*File{
			{Descriptors: []*Node{{Key: "k", Value: "v", Pos: Position{File: "a.yaml", Line: 2}}}},
			{Descriptors: []*Node{{Key: "k", Value: "v"}, {Key: "k"}}},
		}, []string{"duplicate descriptor composite key 'default.k_v': it is there already, at a.yaml:2"}},
		{"limit and descriptor", []*File{{Rules: []*Rule{testRule(t, "k")}, Descriptors: []*Node{{Key: "k", Rule: lyftTestRule(t, "k", 1)}}}}, []string{`limit "k" has the name of the descriptor`}},
	} {
		for _, f := range c.files {
			if f.Domain == "" {
				f.Domain = "default"
			}
		}
		s, problems := Compile(c.files, Options{})
		if (s == nil) != (len(problems) > 0) || len(problems) != len(c.want) {
			t.Errorf("%s: %d problems, want %d: %v", c.name, len(problems), len(c.want), problems)
			continue
		}
		for i, p := range problems {
			if text := p.Message + " (" + p.Hint + ")"; !strings.Contains(text, c.want[i]) {
				t.Errorf("%s: %q, want %q", c.name, text, c.want[i])
			}
		}
	}
	if _, problems := Compile(nil, Options{IPv6Prefix: 129}); len(problems) != 1 {
		t.Errorf("IPv6Prefix 129: %v", problems)
	}
}

func TestOrderAndIndex(t *testing.T) {
	leaf := lyftTestRule(t, "k", 1)
	leaf.Pos.Line = 5
	a, b, c := testRule(t, "a"), testRule(t, "b"), testRule(t, "c")
	a.Pos.Line, b.Pos.Line = 2, 9
	s := testSet(t,
		&File{Domain: "one", Rules: []*Rule{a, b}, Descriptors: []*Node{{Key: "k", Rule: leaf}}},
		&File{Domain: "empty"},
		&File{Domain: "two", Rules: []*Rule{c}},
	)
	if !slices.Equal(s.Rules(), []*Rule{a, leaf, b, c}) {
		t.Errorf("order: %v", s.Rules())
	}
	for i, r := range s.Rules() {
		if r.Index != i || r.Windows[0].Rule != r || r.Windows[0].Counter != s.Counters()[i] {
			t.Errorf("rule %s: index %d, want %d; counter %+v", r.Name, r.Index, i, r.Windows[0].Counter)
		}
	}
	ids := map[uint64]bool{}
	for i, c := range s.Counters() {
		if c.Index != i || ids[c.ID] || c.Override != (i >= 4) {
			t.Errorf("counter %d: %+v", i, c)
		}
		ids[c.ID] = true
	}
	if !slices.Equal(s.Domains(), []string{"one", "empty", "two"}) || !s.HasDomain("empty") {
		t.Errorf("domains: %v", s.Domains())
	}
}
