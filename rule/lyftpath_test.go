package rule

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// pathMap reads "k=v k=v".
func pathMap(text string) Map {
	m := Map{}
	for _, f := range strings.Fields(text) {
		key, value, _ := strings.Cut(f, "=")
		m[key] = value
	}
	return m
}

// A request without descriptors meets each rule all of whose keys its attributes hold, under the
// key of that descriptor.
func TestLyftPaths(t *testing.T) {
	const tree = `
type=marketing
	to=555 rule
	to rule
to rule
a rule
	b rule
		c=1 rule
plan=gold unlimited
plan=f* rule
plan allow
twice=1
	twice=1 rule
	twice=2 rule
remote_address rule
remote_address=10.9.9.9 unlimited
path=/x rule
path rule
method rule
s shadow rule
q quota rule
n rule name:n
r replaces:n rule`
	s := testSet(t, &File{Rules: []*Rule{testRule(t, "native", "native")}, Descriptors: lyftTree(t, tree)})
	for _, c := range []struct{ request, want string }{
		{"", ""},
		{"type=marketing", ""},
		{"type=other to=1", "to[to=1]"},
		{"to=1 type=marketing", "type_marketing.to[type=marketing to=1], to[to=1]"},
		{"to=555 type=marketing", "type_marketing.to_555[type=marketing to=555], to[to=555]"},
		{"type=marketing to=", ""}, // an empty value counts as absent
		// Each rule on the way counts, whatever stands below it.
		{"a=1 b=2", "a[a=1], a.b[a=1 b=2]"},
		{"c=1 b=2 a=1", "a[a=1], a.b[a=1 b=2], a.b.c_1[a=1 b=2 c=1]"},
		{"b=2 c=1", ""},
		{"plan=gold", ""},
		{"plan=free", "plan_f*[plan=free]"},
		{"plan=silver", ""},
		{"twice=1", "twice_1.twice_1[twice=1 twice=1]"},
		// The address of the client is ip at doors without descriptors; a name of its own comes
		// before.
		{"ip=192.0.2.1", "remote_address[remote_address=192.0.2.1]"},
		{"ip=::ffff:192.0.2.1", "remote_address[remote_address=192.0.2.1]"},
		{"ip=2001:DB8:0::1", "remote_address[remote_address=2001:db8::1]"},
		{"ip=10.9.9.9", ""},
		{"ip=10.9.9.9 remote_address=10.9.9.8", "remote_address[remote_address=10.9.9.8]"},
		// Attributes are in their normal form.
		{"path=//x?y", "path_/x[path=/x]"},
		{"path=/y/%7Ea", "path[path=/y/~a]"},
		{"method=get", "method[method=GET]"},
		{"s=1 q=2", "s[s=1]~, q[q=2]?"},
		{"n=1", "n[n=1]"},
		{"n=1 r=2", "r[r=2]"},
		{"native=1 n=1", "n[n=1], native[native=1]"},
	} {
		m := matchMap(s, pathMap(c.request))
		if got := met(m); got != c.want {
			t.Errorf("%s: met %q, want %q", c.request, got, c.want)
		}
		for i, d := range m.Descriptors {
			if d.Rule == nil || d.Hit < 0 != d.Unlimited && len(d.Rule.Windows) > 0 {
				t.Errorf("%s: descriptor %d: %+v", c.request, i, d)
			}
			if d.Hit >= 0 && (m.Hits[d.Hit].Window.Rule != d.Rule || m.Hits[d.Hit].Descriptor != -1) {
				t.Errorf("%s: descriptor %d: %+v of %+v", c.request, i, m.Hits[d.Hit], d)
			}
		}
	}
	if m := matchMap(s, pathMap("plan=gold")); len(m.Descriptors) != 1 || !m.Descriptors[0].Unlimited {
		t.Errorf("unlimited: %+v", m.Descriptors)
	}
	// Descriptors of the request are all that counts where it brings some.
	var m Matches
	s.Match(&Query{Domain: "default", Attributes: pathMap("a=1 b=2"), Descriptors: descriptors("to=1")}, &m)
	if got := met(&m); got != "to[to=1]" {
		t.Errorf("with descriptors: met %q", got)
	}
}

// The names of statistics hold runtime values, as for descriptors.
func TestLyftPathStatsKey(t *testing.T) {
	s := testSet(t, &File{Descriptors: lyftTree(t, "a detailed rule\n\tb vtm rule\nc rule")})
	for request, want := range map[string]string{
		"a=1":     "default.a_1",
		"a=1 b=2": "default.a_1 default.a.b_2",
		"c=1":     "default.c",
	} {
		m := matchMap(s, pathMap(request))
		var got []string
		for _, d := range m.Descriptors {
			got = append(got, d.StatsKey)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: %q, want %q", request, got, want)
		}
	}
}

var (
	pathKeys   = []string{"a", "b", "c", "method", "remote_address"}
	pathValues = []string{"", "1", "2", "1*", "*"}
)

// drawLevel draws distinct nodes.
func drawLevel(rt *rapid.T, depth int, text *strings.Builder) {
	seen := map[string]bool{}
	for range rapid.IntRange(0, 4).Draw(rt, "nodes") {
		key, value := rapid.SampledFrom(pathKeys).Draw(rt, "key"), rapid.SampledFrom(pathValues).Draw(rt, "value")
		if seen[key+"="+value] {
			continue
		}
		seen[key+"="+value] = true
		fmt.Fprintf(text, "%s%s=%s", strings.Repeat("\t", depth), key, value)
		text.WriteString(rapid.SampledFrom([]string{"", " rule", " rule", " unlimited", " shadow rule", " rule name:x",
			" rule name:y replaces:x", " detailed rule"}).Draw(rt, "limit"))
		if value != "" && strings.Contains(value, "*") && rapid.Bool().Draw(rt, "share") {
			text.WriteString(" share")
		}
		text.WriteString("\n")
		if depth < 3 {
			drawLevel(rt, depth+1, text)
		}
	}
}

// Attributes meet what the descriptors of all paths through them meet over RLS, under the same
// keys.
func TestLyftPathsAgainstDescriptors(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		var text strings.Builder
		drawLevel(rt, 0, &text)
		var filler string // makes the first level one of many keys
		if n := rapid.SampledFrom([]int{0, 0, 6, 40}).Draw(rt, "filler"); n > 0 {
			for i := range n {
				filler += fmt.Sprintf("filler%d rule\n", i)
			}
		}
		if text.Len()+len(filler) == 0 {
			return
		}
		s := testSet(t, &File{Descriptors: lyftTree(t, text.String()+filler)})
		var m, reference Matches
		for range 10 {
			var q Pairs
			for _, key := range append(slices.Clone(pathKeys), "ip") {
				if rapid.IntRange(0, 3).Draw(rt, "has") > 0 {
					q = append(q, Pair{key, rapid.SampledFrom([]string{"", "1", "2", "12", "*"}).Draw(rt, key)})
				}
			}
			q = rapid.Permutation(q).Draw(rt, "order")
			if len(q) > 0 {
				q = append(q, q[0], Pair{q[0].Name, "another"})
			}
			s.Match(&Query{Domain: "default", Attributes: q}, &m)
			// All sequences of keys that lead somewhere, as the rules write them.
			var all []Descriptor
			seen := map[string]bool{}
			for _, r := range s.Rules() {
				var d Descriptor
				for _, l := range r.compiled.levels {
					key := l.node.Key
					value, _ := q.Attribute(key)
					if key == "remote_address" && value == "" {
						value, _ = q.Attribute("ip")
					}
					if value == "" {
						break
					}
					d.Entries = append(d.Entries, Entry{key, value})
				}
				if way := fmt.Sprint(d.Entries); len(d.Entries) == len(r.compiled.levels) && !seen[way] {
					seen[way] = true
					all = append(all, d)
				}
			}
			s.Match(&Query{Domain: "default", Descriptors: all}, &reference)
			spell := func(m *Matches) []string {
				var list []string
				for _, d := range m.Descriptors {
					switch {
					case d.Hit >= 0:
						h := m.Hits[d.Hit]
						list = append(list, fmt.Sprintf("%s %x %v %s", d.Rule.Name, h.Key, h.Mode, d.StatsKey))
					case d.Rule != nil:
						list = append(list, fmt.Sprintf("%s %v", d.Rule.Name, d.Unlimited))
					}
				}
				slices.Sort(list)
				return list
			}
			if got, want := spell(&m), spell(&reference); !slices.Equal(got, want) {
				rt.Fatalf("%v met %q, its descriptors %v %q", q, got, all, want)
			}
			if !slices.IsSortedFunc(m.Hits, func(a, b Hit) int { return a.Window.Rule.Index - b.Window.Rule.Index }) {
				rt.Fatalf("not in rule order: %q", met(&m))
			}
			for _, r := range s.Explain(&Query{Domain: "default", Attributes: q}) {
				if r.Applies != (r.Why == "") || r.Applies != slices.ContainsFunc(m.Descriptors,
					func(d DescriptorMatch) bool { return d.Rule == r.Rule }) {
					rt.Fatalf("%v: %s: %+v", q, r.Rule.Name, r)
				}
			}
		}
	})
}

// What the attributes do not hold is not looked at, and nothing is allocated.
func TestLyftPathsCost(t *testing.T) {
	var text strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&text, "user=u%d\n\tpath rule\n", i)
	}
	text.WriteString("user rule\nplan=gold\n\tuser detailed rule\nremote_address rule\n")
	s := testSet(t, &File{Descriptors: lyftTree(t, text.String())})
	q := &Query{Domain: "default", Attributes: Pairs{{"user", "u7"}, {"path", "//x"}, {"plan", "gold"},
		{"ip", "2001:DB8::1"}}}
	var m Matches
	s.Match(q, &m)
	if got, want := met(&m), "user_u7.path[user=u7 path=/x], plan_gold.user[plan=gold user=u7], remote_address[remote_address=2001:db8::1]"; got != want {
		t.Errorf("met %q, want %q", got, want)
	}
	if n := testing.AllocsPerRun(100, func() { s.Match(q, &m) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	c := counted{Map{"ip": "192.0.2.1"}, map[string]int{}}
	s.Match(&Query{Domain: "default", Attributes: c}, &m)
	for name, n := range c.asked {
		if n > 1 {
			t.Errorf("%s was asked for %d times", name, n)
		}
	}
	if len(c.asked) > 4 {
		t.Errorf("asked for %v", c.asked)
	}
	// Of a level of many keys only those are looked at that the request has.
	text.Reset()
	for i := range 5000 {
		fmt.Fprintf(&text, "k%d rule\n", i)
	}
	s = testSet(t, &File{Descriptors: lyftTree(t, text.String())})
	c = counted{Map{"k7": "1", "other": "2"}, map[string]int{}}
	s.Match(&Query{Domain: "default", Attributes: c}, &m)
	if got := met(&m); got != "k7[k7=1]" || len(c.asked) != 1 {
		t.Errorf("met %q, asked for %v", got, c.asked)
	}
}

// A name that a request brings many times leads down each level once.
func TestLyftPathNamedTwice(t *testing.T) {
	var tree strings.Builder
	for depth := range 3 {
		for i := range manySlots {
			fmt.Fprintf(&tree, "%sother%d rule\n", strings.Repeat("\t", depth), i)
		}
		fmt.Fprintf(&tree, "%sa rule\n", strings.Repeat("\t", depth))
	}
	s := testSet(t, &File{Descriptors: lyftTree(t, tree.String())})
	var request Pairs
	for range 20 {
		request = append(request, Pair{Name: "a", Value: "1"})
	}
	var m Matches
	s.Match(&Query{Domain: s.Domains()[0], Attributes: request}, &m)
	if len(m.Descriptors) != 3 || cap(m.leaves) > 16 {
		t.Errorf("met %d rules over %d leaves, want 3", len(m.Descriptors), cap(m.leaves))
	}
}
