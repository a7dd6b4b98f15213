package rule

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
)

// inheritSet makes a set of native limits from "name=algorithm:window,algorithm:window …".
func inheritSet(t *testing.T, text string) *Set {
	t.Helper()
	f := &File{}
	for _, def := range strings.Fields(text) {
		name, windows, _ := strings.Cut(def, "=")
		r := testRule(t, name, "user")
		r.Windows = nil
		for _, w := range strings.Split(windows, ",") {
			kind, length, _ := strings.Cut(w, ":")
			d, err := time.ParseDuration(length)
			if err != nil {
				t.Fatal(err)
			}
			a, ok := algo.ParseAlgorithm(map[string]string{"s": "sliding_window", "f": "fixed_window",
				"k": "sliding_window"}[kind])
			if !ok {
				t.Fatal(kind)
			}
			c := algo.Config{Algorithm: a, N: 5, Window: d}
			if kind == "k" {
				c.Buckets = 10
			}
			r.Windows = append(r.Windows, &Window{Name: fmt.Sprintf("%s:%s%s", name, kind, length),
				Limit: testLimit(t, c)})
		}
		f.Rules = append(f.Rules, r)
	}
	return testSet(t, f)
}

// chains spells which older windows each Counter carries on.
func chains(s *Set) string {
	var list []string
	for _, c := range s.counters {
		if c.Override {
			continue
		}
		text := c.Window
		for _, p := range c.Previous {
			text += "<" + p.Window
			if p.Previous != nil {
				text += "(holds on to its past)"
			}
		}
		list = append(list, text)
	}
	return strings.Join(list, " ")
}

func TestInherit(t *testing.T) {
	for _, c := range []struct {
		name  string
		steps []string
		want  string
	}{
		{"same", []string{"a=s:1m", "a=s:1m"}, "a:s1m"},
		{"another W", []string{"a=s:1m", "a=s:5m"}, "a:s5m<a:s1m"},
		{"another K", []string{"a=s:1m", "a=k:1m"}, "a:k1m<a:s1m"},
		{"another algorithm", []string{"a=s:1m", "a=f:1m"}, "a:f1m"},
		{"another name", []string{"a=s:1m", "b=s:5m"}, "b:s5m"},
		{"kept beside new", []string{"a=s:1m,s:1h", "a=s:1h,s:5m"}, "a:s1h a:s5m<a:s1m"},
		{"in order of W", []string{"a=s:1h,s:1m", "a=s:2m,s:2h"}, "a:s2m<a:s1m a:s2h<a:s1h"},
		{"one more", []string{"a=s:1m", "a=s:1m,s:1h"}, "a:s1m a:s1h"},
		{"one less", []string{"a=s:1m,s:1h", "a=s:5m"}, "a:s5m<a:s1m"},
		{"algorithms apart", []string{"a=s:1m,f:1h", "a=s:5m,f:2h"}, "a:s5m<a:s1m a:f2h<a:f1h"},
		{"chain", []string{"a=s:1m", "a=s:2m", "a=s:3m"}, "a:s3m<a:s2m<a:s1m"},
		{"chain goes on while nothing changes", []string{"a=s:1m", "a=s:2m", "a=s:2m", "a=s:2m"}, "a:s2m<a:s1m"},
		{"bounded", []string{"a=s:1m", "a=s:2m", "a=s:3m", "a=s:4m", "a=s:5m", "a=s:6m"}, "a:s6m<a:s5m<a:s4m<a:s3m<a:s2m"},
		{"there and back", []string{"a=s:1m", "a=s:2m", "a=s:1m"}, "a:s1m<a:s2m"},
	} {
		var s *Set
		for _, def := range c.steps {
			next := inheritSet(t, def)
			next.Inherit(s)
			s = next
		}
		if got := chains(s); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// The identity of a limit's state must not change from one version of Weir to the next: keys are
// kept under it.
func TestCounterIDIsStable(t *testing.T) {
	s := testSet(t, &File{Domain: "shop", Rules: []*Rule{testRule(t, "login", "ip")},
		Descriptors: lyftTree(t, "a=b\n\tc rule")})
	want := map[string]uint64{"login": 0xcde260392b91877f, "a_b.c": 0xf5de086d67ca8e43}
	for _, c := range s.counters[:2] {
		if c.ID != want[c.Rule] {
			t.Errorf("%s has the ID %#x, it was %#x", c.Rule, c.ID, want[c.Rule])
		}
	}
}

// Rules with the same spelling of their path are told apart by it.
func TestCounterIDsDiffer(t *testing.T) {
	s := testSet(t,
		&File{Descriptors: lyftTree(t, "a_b rule\na=b rule\na.b rule\na\n\tb rule")},
		&File{Domain: "d", Rules: []*Rule{testRule(t, "a")}},
		&File{Domain: "d2", Rules: []*Rule{testRule(t, "a")}},
	)
	if n := len(s.counters) - 3*len(overrideUnits); n != 6 {
		t.Errorf("%d counters of rules, want 6", n)
	}
}
