package file_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// said is all that a set says of its rules.
func said(s *rule.Set) string {
	var b strings.Builder
	for _, r := range s.Rules() {
		fmt.Fprintf(&b, "%d %s %s %s %+v", r.Index, r.Domain, r.Name, r.Pos, *r.Lyft)
		for _, w := range r.Windows {
			fmt.Fprintf(&b, " %s %d %+v %d %d", w.Name, w.Seconds, w.Limit.Config(), w.Counter.ID, w.Counter.Index)
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// TestKept: of files that are kept comes what reading them gives, a set of its own each time, and
// what is no plain descriptor is read anew.
func TestKept(t *testing.T) {
	source := func(name, text string) file.Source { return file.Source{Name: name, Data: []byte(text)} }
	plain := source("a.yaml", `domain: a
descriptors:
- key: route
  value: "r*"
  shadow_mode: true
  descriptors:
  - key: user
    rate_limit: { unit: hour, requests_per_unit: 3, name: three }
  - key: ip
    quota_mode: true
    rate_limit: { unit: day, requests_per_unit: 4, replaces: [{ name: three }] }
  - key: free
    rate_limit: { unlimited: true }
- key: listed
`)
	other := source("b.yaml", "domain: b\ndescriptors: [{ key: k, rate_limit: { unit: week, requests_per_unit: 1 } }]\n")
	changed := source("b.yaml", "domain: b\ndescriptors: [{ key: k, rate_limit: { unit: week, requests_per_unit: 2 } }]\n")
	read := func(o file.Options, files ...file.Source) *rule.Set {
		t.Helper()
		set, _, err := file.Load(files, o)
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	kept := new(file.Kept)
	before := 0
	for _, step := range []struct {
		files []file.Source
		reads int
	}{
		{[]file.Source{plain, other}, 2}, {[]file.Source{plain, other}, 0}, {[]file.Source{plain, changed}, 1},
		{[]file.Source{changed}, 0}, {[]file.Source{plain, changed}, 1}, {[]file.Source{other, plain}, 1},
	} {
		fresh := read(file.Options{}, step.files...)
		got := read(file.Options{Kept: kept}, step.files...)
		if said(got) != said(fresh) {
			t.Errorf("kept:\n%s\nfresh:\n%s", said(got), said(fresh))
		}
		if n := kept.Reads() - before; n != step.reads {
			t.Errorf("%d files were read, want %d", n, step.reads)
		}
		before = kept.Reads()
	}
	// Two sets of the same files share no rule.
	one, two := read(file.Options{Kept: kept}, plain), read(file.Options{Kept: kept}, plain)
	for i, r := range one.Rules() {
		o := two.Rules()[i]
		if r == o || r.File == o.File || len(r.Windows) > 0 && r.Windows[0] == o.Windows[0] {
			t.Errorf("%s is shared", r.Name)
		}
	}
	one.Inherit(two)
	for name, text := range map[string]string{
		"a condition":  "domain: a\ndescriptors: [{ key: k, rate_limit: { unit: hour, requests_per_unit: 1, when: { x: y } } }]\n",
		"a ban":        "domain: a\ndescriptors: [{ key: k, rate_limit: { unit: hour, requests_per_unit: 1, ban: { after: 3, within: 1m, for: 1h } } }]\n",
		"a limit":      "domain: a\nlimits: [{ name: n, per: [k], allow: 1/h }]\n",
		"an exemption": "domain: a\nexempt: { ip: 10.0.0.1 }\ndescriptors: [{ key: k, rate_limit: { unit: hour, requests_per_unit: 1 } }]\n",
		"a comment":    "# lint: ignore unused-ignore\ndomain: a\ndescriptors: [{ key: k, rate_limit: { unit: hour, requests_per_unit: 1 } }]\n",
		"a warning":    "domain: a\ndescriptors: [{ key: k, rate_limit: { unit: hour, requests_per_unit: 1 }, descriptors: }]\n",
	} {
		kept := new(file.Kept)
		for range 2 {
			if _, _, err := file.Load([]file.Source{source("a.yaml", text)}, file.Options{Kept: kept}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if kept.Reads() != 2 {
			t.Errorf("%s was kept", name)
		}
	}
	// A broken file is no obstacle to what is kept of the others.
	broken := source("c.yaml", "domain: c\ndescriptors: [{ value: v }]\n")
	if _, _, err := file.Load([]file.Source{plain, other, broken}, file.Options{Kept: kept}); err == nil {
		t.Error("it loads")
	}
	before = kept.Reads()
	if got := read(file.Options{Kept: kept}, plain, other); kept.Reads() != before || len(got.Rules()) != 5 {
		t.Errorf("%d files were read, %d rules", kept.Reads()-before, len(got.Rules()))
	}
	if set, _, err := file.Load(nil, file.Options{None: true}); err != nil || len(set.Rules()) > 0 || !slices.Equal(set.Domains(), nil) {
		t.Errorf("no files: %v", err)
	}
}
