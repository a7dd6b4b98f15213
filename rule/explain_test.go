package rule

import (
	"strings"
	"testing"
)

func TestExplain(t *testing.T) {
	ifLong, err := CompileIf(`path.size() > 10`)
	if err != nil {
		t.Fatal(err)
	}
	ifHeader, err := CompileIf(`header["x"] == "1"`)
	if err != nil {
		t.Fatal(err)
	}
	s := testSet(t,
		&File{
			Exempt: []Condition{on(t, "ip", "10.0.0.0/8")},
			Rules: []*Rule{
				testRule(t, "path").when(on(t, "path", "/api/**")),
				testRule(t, "any").when(on(t, "path", "/a", "/b", "!/c")),
				testRule(t, "not").when(on(t, "plan", "!enterprise")),
				testRule(t, "per", "user|team"),
				testRule(t, "if").with(func(r *Rule) { r.Exprs = &Exprs{If: ifLong} }),
				testRule(t, "header").with(func(r *Rule) { r.Exprs = &Exprs{If: ifHeader} }),
				testRule(t, "old"),
				testRule(t,
					"new").with(func(r *Rule) { r.Replaces, r.Unlimited, r.Windows = []string{"old"}, true, nil }),
			},
		},
		&File{First: true, Rules: []*Rule{testRule(t, "first"), testRule(t, "second")}},
		&File{Descriptors: lyftTree(t, "d=1 rule name:one\n\te rule\nd=2 rule replaces:one\nd rule\nw=a* rule")},
		&File{Domain: "other", Rules: []*Rule{testRule(t, "elsewhere")}},
	)
	why := func(q *Query) map[string]string {
		out := map[string]string{}
		last := -1
		for _, r := range s.Explain(q) {
			if r.Rule.Index <= last {
				t.Errorf("%s comes out of order", r.Rule.Name)
			}
			last = r.Rule.Index
			text := r.Why
			if r.Applies {
				text = "applies" + strings.Repeat("+", len(r.Hits))
			}
			out[r.Rule.Name] = text
		}
		return out
	}
	for _, c := range []struct {
		q    Query
		want map[string]string
	}{
		{Query{Attributes: Map{"path": "//login?x", "plan": "enterprise"}}, map[string]string{
			"path":   "when.path: /login does not match /api/**",
			"any":    "when.path: /login does not match any of /a, /b, !/c",
			"not":    "when.plan: enterprise is ruled out by !enterprise",
			"per":    "per: the request has no user and no team",
			"if":     "if: the expression is false",
			"header": "if: the expression failed: no such key: x",
			"old":    "replaced by new",
			"new":    "applies",
			"first":  "applies+",
			"second": "groups: first: first of the same file is met before",
			"d":      "the request has no d",
		}},
		{Query{Attributes: Map{"path": "/c", "user": "ada"}}, map[string]string{
			"any": "when.path: /c is ruled out by !/c",
			"not": "applies+",
			"per": "applies+",
		}},
		{Query{Attributes: Map{}}, map[string]string{"path": "when.path: the request has no path"}},
		{Query{Attributes: Map{"ip": "10.1.2.3"}}, map[string]string{
			"per": "exempt: ip 10.1.2.3 matches 10.0.0.0/8",
			"d":   "exempt: ip 10.1.2.3 matches 10.0.0.0/8",
		}},
		{Query{Attributes: Map{"path": "/" + strings.Repeat("x", 1000)}}, map[string]string{
			"path": "when.path: /" + strings.Repeat("x", 63) + "… does not match /api/**",
		}},
		{Query{}, map[string]string{"d": "the request has no descriptors"}},
		{Query{Attributes: Map{"d": "1", "w": "b"}}, map[string]string{
			"d_1":   "applies+",
			"d_1.e": "the request has no e",
			"d_2":   "d=1 leads to d=1, which comes before",
			"w_a*":  "w=b does not match a*",
		}},
		{Query{Attributes: Map{"d": "9"}}, map[string]string{
			"d_1": "d=9 does not match 1, and leads to the default of d",
			"d":   "applies+",
		}},
		{Query{Descriptors: descriptors("d=1")}, map[string]string{
			"d_1":   "applies+",
			"d_1.e": "descriptor 1: it has 1 entries, this rule is for 2",
			"d_2":   "descriptor 1: d=1 leads to d=1, which comes before",
			"d":     "descriptor 1: d=1 leads to d=1, which comes before",
			"w_a*":  "descriptor 1: entry 1 is d, not w",
		}},
		{Query{Descriptors: descriptors("d=1 d=2 d=9 w=b d=1,e=2,f=3")}, map[string]string{
			"d_1":   "replaced by d_2",
			"d_2":   "applies+",
			"d":     "applies+",
			"w_a*":  "descriptor 4: w=b does not match a*",
			"d_1.e": "descriptor 5: it has 3 entries, this rule is for 2",
		}},
		{Query{Descriptors: []Descriptor{{Entries: []Entry{{"d", "1"}}, Override: &DescriptorLimit{1, "DAY"}}}},
			map[string]string{
				"d_1": "descriptor 1: it brings a limit of its own",
			}},
	} {
		c.q.Domain = "default"
		got := why(&c.q)
		if _, ok := got["elsewhere"]; ok {
			t.Error("a rule of another domain is explained")
		}
		for name, want := range c.want {
			if got[name] != want {
				t.Errorf("%v: %s: %q, want %q", c.q, name, got[name], want)
			}
		}
	}
	if s.Explain(&Query{Domain: "nowhere"}) != nil {
		t.Error("an unknown domain is explained")
	}
}

// How far a request is from a rule is told by how many of its conditions fail.
func TestExplainFails(t *testing.T) {
	set := testSet(t, &File{Rules: []*Rule{testRule(t, "a").when(on(t, "path", "/a"), on(t, "method", "POST"))}})
	for fails, request := range []Map{{"path": "/a", "method": "POST"}, {"path": "/a", "method": "GET"},
		{"path": "/b"}} {
		if r := set.Explain(&Query{Domain: "default", Attributes: request})[0]; r.Applies != (fails == 0) ||
			r.Fails != fails {
			t.Errorf("%v: %+v", request, r)
		}
	}
}
