package rule

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
)

func lyftTestRule(t testing.TB, name string, n int64) *Rule {
	l := testLimit(t, algo.Config{Algorithm: algo.FixedWindow, N: n, Window: time.Minute, CountDenied: true})
	return &Rule{
		Name: name, Cost: 1, EnforcePercent: 100, Windows: []*Window{{Name: name, Seconds: 60, Limit: l}},
		Lyft: &Lyft{RequestsPerUnit: uint32(n), Unit: "MINUTE", StatsKey: "default." + name},
	}
}

// lyftTree makes nodes from lines, indented by one tab a level: key, optionally =value, then words:
// rule (a rate limit), allow (no limit), unlimited, shadow, quota, detailed, vtm, share, name:x,
// replaces:x.
func lyftTree(t testing.TB, text string) []*Node {
	var roots []*Node
	var path []*Node
	for line := range strings.Lines(strings.Trim(text, "\n")) {
		line = strings.TrimRight(line, "\n")
		depth := len(line) - len(strings.TrimLeft(line, "\t"))
		words := strings.Fields(line)
		n := &Node{}
		n.Key, n.Value, _ = strings.Cut(words[0], "=")
		path = append(path[:depth:depth], n)
		var names []string
		for _, p := range path {
			names = append(names, strings.TrimSuffix(p.Key+"_"+p.Value, "_"))
		}
		r := lyftTestRule(t, strings.Join(names, "."), 10)
		for _, w := range words[1:] {
			what, arg, _ := strings.Cut(w, ":")
			switch what {
			case "rule":
				n.Rule = r
			case "allow":
				r.Windows, n.Rule = nil, r
			case "unlimited":
				r.Windows, r.Unlimited, n.Rule = nil, true, r
			case "shadow":
				r.Lyft.Shadow = true
			case "quota":
				r.Lyft.Quota = true
			case "detailed":
				r.Lyft.DetailedMetric = true
			case "vtm":
				n.ValueToMetric = true
			case "share":
				n.ShareThreshold = true
			case "name":
				r.Lyft.LimitName = arg
			case "replaces":
				r.Replaces = strings.Split(arg, ",")
			default:
				t.Fatalf("what is %q?", w)
			}
		}
		if depth == 0 {
			roots = append(roots, n)
		} else {
			path[depth-1].Children = append(path[depth-1].Children, n)
		}
	}
	return roots
}

// descriptors reads "k=v,k=v k=v": two descriptors.
func descriptors(text string) []Descriptor {
	var list []Descriptor
	for _, d := range strings.Fields(text) {
		var desc Descriptor
		if d != "-" {
			for _, e := range strings.Split(d, ",") {
				key, value, _ := strings.Cut(e, "=")
				desc.Entries = append(desc.Entries, Entry{key, value})
			}
		}
		list = append(list, desc)
	}
	return list
}

// spell spells what each descriptor met: the rule's name, with its key; "-" for none.
func spellDescriptors(m *Matches) string {
	var list []string
	for i, d := range m.Descriptors {
		s := "-"
		switch {
		case d.Hit >= 0:
			h := m.Hits[d.Hit]
			s = d.Rule.Name + "[" + strings.Join(h.Window.KeyParts(h.Key), " ") + "]" +
				map[Mode]string{Shadow: "~", Quota: "?"}[h.Mode]
			if h.Descriptor != i {
				s += "(wrong descriptor)"
			}
		case d.Unlimited:
			s = d.Rule.Name + "(unlimited)"
		case d.Rule != nil:
			s = d.Rule.Name + "(allowed)"
		}
		list = append(list, s)
	}
	return strings.Join(list, " ")
}

func TestLyftMatch(t *testing.T) {
	s := testSet(t, &File{Descriptors: lyftTree(t, `
user rule
user=ada rule
	path rule
	path=/x rule
dir=a* rule
dir=ab* rule
dir=*z rule
dir=*m*n* rule
dir=aexact rule
deep
	mid rule
		low=1 rule
	mid=q
		low=2 rule
open allow
open=x unlimited
a_b rule
a=c rule
k=* rule
share=files/* share rule
share=logs/* share
	who rule
each=files/* rule
sh rule shadow
qu rule quota
both=1 rule name:one
both=2 rule name:two replaces:one
both=3 rule name:three replaces:two,four
both=4 unlimited name:four replaces:five
both=5 rule name:five replaces:six
both=6 unlimited name:six
both=7 rule replaces:one
`)})
	for _, c := range []struct{ q, want string }{
		{"user=bob", "user[user=bob]"},
		{"user=", "user[user=]"},
		{"user=ada", "user_ada[user=ada]"},
		{"user=ADA", "user[user=ADA]"},
		{"user=ada,path=/y", "user_ada.path[user=ada path=/y]"},
		{"user=ada,path=/x", "user_ada.path_/x[user=ada path=/x]"},
		// the default has no children, and its own limit is for one entry
		{"user=bob,path=/x", "-"},
		{"user=ada,path=/x,more=1", "-"},         // longer than the rule
		{"user=ada,other=1", "-"},                // no such key below
		{"path=/x", "-"},                         // not at this level
		{"-", "-"},                               // no entries
		{"nobody=1", "-"},                        // no such key
		{"dir=ab1", "dir_a*[dir=ab1]"},           // the order in the file decides
		{"dir=aexact", "dir_aexact[dir=aexact]"}, // exact beats wildcards
		{"dir=a", "dir_a*[dir=a]"},
		{"dir=b", "-"},
		{"dir=bz", "dir_*z[dir=bz]"},
		{"dir=z/a/z", "dir_*z[dir=z/a/z]"},
		{"dir=x/m/n/y", "dir_*m*n*[dir=x/m/n/y]"},
		{"dir=xnm", "-"},
		{"dir=", "-"},
		{"deep=1", "-"}, // no limit of its own
		{"deep=1,mid=2", "deep.mid[deep=1 mid=2]"},
		{"deep=1,mid=2,low=1", "deep.mid.low_1[deep=1 mid=2 low=1]"},
		{"deep=1,mid=2,low=2", "-"},
		{"deep=1,mid=q", "-"}, // the exact child is final: no way back to the default
		{"deep=1,mid=q,low=1", "-"},
		{"deep=1,mid=q,low=2", "deep.mid_q.low_2[deep=1 mid=q low=2]"},
		{"open=1", "open(allowed)"},
		{"open=x", "open_x(unlimited)"},
		{"a=b", "-"}, // keys and values are apart, unlike in the reference
		{"a_b=1", "a_b[a_b=1]"},
		{"a=c", "a_c[a=c]"},
		{"k=", "k_*[k=]"},
		{"k=a/b", "k_*[k=a/b]"},
		{"k_x=1", "-"},
		{"share=files/a", "share_files/*[share=files/*]"},
		{"share=files/b", "share_files/*[share=files/*]"},
		{"share=files/*", "share_files/*[share=files/*]"},
		{"share=logs/a,who=1", "share_logs/*.who[share=logs/* who=1]"},
		{"each=files/a", "each_files/*[each=files/a]"},
		{"sh=1", "sh[sh=1]~"},
		{"qu=1", "qu[qu=1]?"},
		{"user=bob user=ada nobody=1 user=bob", "user[user=bob] user_ada[user=ada] - user[user=bob]"},
		{"both=1 both=2", "- both_2[both=2]"},
		{"both=2 both=1", "both_2[both=2] -"},
		{"both=1 both=2 both=3", "- - both_3[both=3]"}, // a replaced one still replaces
		// so does an unlimited one, and may be replaced
		{"both=3 both=4 both=5", "both_3[both=3] - -"},
		{"both=5 both=6", "both_5[both=5] -"},
		{"both=4 both=6", "both_4(unlimited) both_6(unlimited)"},
		{"both=7 both=1 both=1", "both_7[both=7] - -"},
		{"both=1", "both_1[both=1]"},
	} {
		var m Matches
		s.Match(&Query{Domain: "default", Descriptors: descriptors(c.q)}, &m)
		if got := spellDescriptors(&m); got != c.want || !m.Known {
			t.Errorf("%s: %s, want %s", c.q, got, c.want)
		}
		for _, d := range m.Descriptors {
			if (d.StatsKey == "") != (d.Hit < 0) {
				t.Errorf("%s: stats key %q with hit %d", c.q, d.StatsKey, d.Hit)
			}
		}
		checkExplainLyft(t, s, c.q, &m)
	}
}

func checkExplainLyft(t *testing.T, s *Set, q string, m *Matches) {
	t.Helper()
	applies := map[*Rule]bool{}
	for _, d := range m.Descriptors {
		if d.Rule != nil {
			applies[d.Rule] = true
		}
	}
	for _, r := range s.Explain(&Query{Domain: "default", Descriptors: descriptors(q)}) {
		if r.Applies != applies[r.Rule] || r.Applies != (r.Why == "") {
			t.Errorf("%s: Explain says of %s: %v %q", q, r.Rule.Name, r.Applies, r.Why)
		}
	}
}

// Many wildcards at one level are indexed: the first in the file's order must still win.
func TestLyftManyWildcards(t *testing.T) {
	var lines []string
	for i := range 300 {
		lines = append(lines, fmt.Sprintf("k=*%d rule", i), fmt.Sprintf("k=%d* rule", i),
			fmt.Sprintf("k=%d*%d rule", i, i))
	}
	lines = append(lines, "k=*a*b* rule", "k=* rule")
	nodes := lyftTree(t, strings.Join(lines, "\n"))
	s := testSet(t, &File{Descriptors: nodes})
	var m Matches
	for _, value := range []string{"", "0", "10", "1x", "x299", "299x299", "7.7", "xaxb", "abc", "25025", "*1"} {
		want := ""
		for _, n := range nodes {
			if globRegexp(n.Value, true).MatchString(value) {
				want = n.Rule.Name
				break
			}
		}
		if value == "*1" {
			want = "k_*1" // the text of a wildcard is its exact value
		}
		s.Match(&Query{Domain: "default", Descriptors: []Descriptor{{Entries: []Entry{{"k", value}}}}}, &m)
		if got := m.Descriptors[0].Rule.Name; got != want {
			t.Errorf("%q: %s, want %s", value, got, want)
		}
	}
}

func TestLyftStatsKey(t *testing.T) {
	s := testSet(t, &File{Descriptors: lyftTree(t, `
plain
	leaf rule
v=x vtm
	d vtm rule
	e rule
w=a* vtm rule
s=a* vtm share rule
det=a* rule detailed
dets=a* share
	low rule detailed
det2
	low=1 rule detailed
`)})
	for _, c := range []struct{ q, want string }{
		{"plain=1,leaf=2", "default.plain.leaf"},
		{"v=x,d=7", "default.v_x.d_7"},
		{"v=x,d=", "default.v_x.d"},
		{"v=x,e=7", "default.v_x.e"},
		{"w=abc", "default.w_abc"},
		{"s=abc", "default.s_a*"},
		{"det=abc", "default.det_abc"},
		{"dets=abc,low=9", "default.dets_a*.low_9"},
		{"dets=abc,low=", "default.dets_a*.low"},
		{"det2=,low=1", "default.det2_.low_1"},
	} {
		var m Matches
		for range 2 {
			s.Match(&Query{Domain: "default", Descriptors: descriptors(c.q)}, &m)
			if got := m.Descriptors[0].StatsKey; got != c.want {
				t.Errorf("%s: %s, want %s", c.q, got, c.want)
			}
		}
	}
}

func TestRequestOverride(t *testing.T) {
	s := testSet(t, &File{Descriptors: lyftTree(t, "user rule name:u\nother rule replaces:u")},
		&File{Domain: "native", Rules: []*Rule{testRule(t, "r")}})
	limit := func(requests uint32, unit string) []Descriptor {
		return []Descriptor{{Entries: []Entry{{"user", "ada"}, {"x", ""}}, Override: &DescriptorLimit{requests, unit}}}
	}
	match := func(domain string, d []Descriptor) *Matches {
		m := &Matches{}
		s.Match(&Query{Domain: domain, Descriptors: d}, m)
		return m
	}
	m := match("default", limit(42, "MINUTE"))
	if got, want := spellDescriptors(m), "request_override[user=ada x=]"; got != want {
		t.Fatalf("met %s, want %s", got, want)
	}
	h, d := m.Hits[0], m.Descriptors[0]
	if c := h.Limit.Config(); c.N != 42 || c.Window != time.Minute || c.Algorithm != algo.FixedWindow ||
		!c.CountDenied {
		t.Errorf("limit %+v", c)
	}
	if d.StatsKey != "default.user_ada.x" || d.Rule.Lyft.RequestsPerUnit != 42 || d.Rule.Lyft.Unit != "MINUTE" ||
		h.Window.Seconds != 60 || h.Window.Name != "request_override:60s" {
		t.Errorf("match %+v of window %+v", d, h.Window)
	}
	if again := match("default", limit(42, "MINUTE")).Hits[0]; again.Window != h.Window {
		t.Error("the same limit is compiled again")
	}
	if other := match("default", limit(43, "MINUTE")).Hits[0]; other.Window.Counter != h.Window.Counter ||
		string(other.Key) != string(h.Key) || other.Limit.Config().N != 43 {
		t.Error("another number must keep the counter")
	}
	if other := match("default", limit(42, "HOUR")).Hits[0]; other.Window.Counter.ID == h.Window.Counter.ID {
		t.Error("another unit must have another counter")
	}
	if other := match("native", limit(42, "MINUTE")); len(other.Hits) != 2 ||
		other.Hits[0].Window.Counter.ID == h.Window.Counter.ID || other.Hits[1].Window.Name != "r" {
		t.Errorf("in another domain: %s", met(other))
	}
	if other := match("nowhere", limit(42, "MINUTE")); len(other.Hits) != 0 || other.Descriptors[0].Hit != -1 {
		t.Error("an unknown domain has no limit")
	}
	if other := match("default", limit(42, "FORTNIGHT")); other.Descriptors[0].Hit != -1 {
		t.Error("an unknown unit is a limit")
	}
	if n := match("default", limit(4294967295, "YEAR")).Hits[0].Limit.Config().N; n != 4294967295 {
		t.Errorf("the largest limit gives N = %d", n)
	}
	two := append(limit(1, "SECOND"), descriptors("other=1 user=bob")...)
	if got, want := spellDescriptors(match("default", two)), "request_override[user=ada x=] other[other=1] -"; got != want {
		t.Errorf("met %s, want %s", got, want)
	}
	for i := range 3 * maxOverrides {
		match("default", limit(uint32(i), "DAY"))
	}
	if n := len(s.overrides.windows); n > maxOverrides {
		t.Errorf("%d limits of requests are kept, at most %d may be", n, maxOverrides)
	}
	for _, r := range s.Rules() {
		if r.Name == overrideName {
			t.Error("Rules lists what no file holds")
		}
	}
}

func TestNativeLimitsOverDescriptors(t *testing.T) {
	ifx, err := CompileIf(`attr.x == "1" && attr.size() >= 2 && !("nope" in attr)`)
	if err != nil {
		t.Fatal(err)
	}
	f := &File{
		Exempt: []Condition{on(t, "user", "monitoring")},
		Rules: []*Rule{
			testRule(t, "by-ip", "ip"),
			testRule(t, "by-user", "user").when(on(t, "path", "/api/**")),
			testRule(t, "by-remote", "remote_address"),
			testRule(t, "cel", "x").with(func(r *Rule) { r.Exprs = &Exprs{If: ifx} }),
		},
		Descriptors: lyftTree(t, "user rule"),
	}
	few := testSet(t, f)
	for i := range 100 {
		f.Rules = append(f.Rules, testRule(t, fmt.Sprint("other", i),
			fmt.Sprint("attribute", i)).when(on(t, "user", fmt.Sprint("other", i))))
	}
	many := testSet(t, f)
	for name, s := range map[string]*Set{"few": few, "many": many} {
		for _, c := range []struct{ q, want string }{
			{"remote_address=1.2.3.4", "by-ip[ip=1.2.3.4], by-remote[remote_address=1.2.3.4]"},
			{"remote_address=2001:db8::9", "by-ip[ip=2001:db8::/64], by-remote[remote_address=2001:db8::9]"},
			{"remote_address=1.2.3.4,ip=5.6.7.8", "by-ip[ip=5.6.7.8], by-remote[remote_address=1.2.3.4]"},
			{"path=//api/x?q user=ada", "user[user=ada], by-user[user=ada]"},
			{"user=ada,path=/api user=bob", "user[user=bob], by-user[user=ada]"},
			// the first value of a key holds, and an empty one is absent
			{"user=,path=/api user=bob", "user[user=bob]"},
			{"x=1,y=2", "cel[x=1]"},
			{"x=1", ""},
			{"user=monitoring remote_address=1.2.3.4", ""},
			{"user=ada user=ada", "user[user=ada], user[user=ada]"},
		} {
			var m Matches
			s.Match(&Query{Domain: "default", Descriptors: descriptors(c.q)}, &m)
			if got := met(&m); got != c.want {
				t.Errorf("%s: %s: met %q, want %q", name, c.q, got, c.want)
			}
			if m.Exempt != strings.Contains(c.q, "monitoring") {
				t.Errorf("%s: exempt %v", c.q, m.Exempt)
			}
		}
		// Attributes that the door gives itself take the place of the entries.
		var m Matches
		s.Match(&Query{Domain: "default", Attributes: Map{"ip": "9.9.9.9"},
			Descriptors: descriptors("remote_address=1.2.3.4")}, &m)
		if got, want := met(&m), "by-ip[ip=9.9.9.9]"; got != want {
			t.Errorf("met %q, want %q", got, want)
		}
	}
}

// Native keys of a rate_limit: conditions, if, per and overrides.
func TestLyftWithNativeKeys(t *testing.T) {
	s := testSet(t, &File{Descriptors: func() []*Node {
		nodes := lyftTree(t, "a\n\tb rule\nwhen rule\nper rule name:p\nover=1 rule replaces:p")
		nodes[1].Rule.When = []Condition{on(t, "plan", "free")}
		nodes[2].Rule.Per = []Key{{"user"}}
		nodes[0].Children[0].Rule.Overrides = []Override{{Values: []string{"x", "y"},
			Windows: []*Window{testWindow(t, "big", 99, time.Minute)}}}
		nodes[3].Rule.When = []Condition{on(t, "plan", "free")}
		return nodes
	}()})
	for _, c := range []struct{ q, want string }{
		{"a=x,b=y", "big[a=x b=y]"},
		{"a=x,b=z", "a.b[a=x b=z]"},
		{"when=1", ""},
		{"when=1 plan=free", "when[when=1]"},
		{"per=1", ""},
		{"per=1 user=ada", "per[user=ada]"},
		{"per=1 user=ada over=1", "per[user=ada]"}, // what does not hold replaces nothing
		{"per=1 user=ada over=1 plan=free", "over_1[over=1]"},
	} {
		var m Matches
		s.Match(&Query{Domain: "default", Descriptors: descriptors(c.q)}, &m)
		if got := met(&m); got != c.want {
			t.Errorf("%s: met %q, want %q", c.q, got, c.want)
		}
		checkExplainLyft(t, s, c.q, &m)
	}
}
