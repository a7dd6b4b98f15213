package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/rule/file"
)

// A file of results has the median of each point with the least and the most, the points of a
// series together, and tells where it comes from.
func TestSamples(t *testing.T) {
	var s samples
	for _, v := range []float64{30, 10, 123456} {
		s.add("cpu_ns", "a, b", 1, v)
		s.add("cpu_ns", "c", 1, v/1e6)
		s.add("cpu_ns", "a, b", 2, 2*v)
	}
	s.add("cpu_ns", "c", 2, 0)
	path := filepath.Join(t.TempDir(), "folder", "x.csv")
	if err := s.writeFile(path, header{"2026-01-02", "abc", "a machine", "3 %", "1s"}); err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := `# date: 2026-01-02
# commit: abc
# machine: a machine
# others: 3 %
# took: 1s
measure,series,at,median,least,most,rounds
cpu_ns,"a, b",1,30,10,123500,3
cpu_ns,"a, b",2,60,20,246900,3
cpu_ns,c,1,0.00003,0.00001,0.1235,3
cpu_ns,c,2,0,0,0,1
`
	if string(have) != want {
		t.Errorf("have\n%s\nwant\n%s", have, want)
	}
}

// Each kind of rules can be loaded, and a request meets one of them; or none, where that is what is
// measured. rulesOf ends if it is not so.
func TestRuleKinds(t *testing.T) {
	for _, k := range ruleKinds {
		b := &bench{ctx: t.Context(), progress: io.Discard, rounds: 1}
		k.most = 10
		if err := b.rulesOf(&k); err != nil {
			t.Errorf("%s: %v", k.name, err)
		}
		for _, p := range b.samples.order {
			if v := b.samples.values[p]; len(v) != 1 || v[0] <= 0 {
				t.Errorf("%s: %v at %v", k.name, v, p.at)
			}
		}
	}
	k := &ruleKinds[3]
	if files := k.files(45_000); len(files) != 3 || !strings.Contains(files[2], "ip: \"10.175.199.0/24\"") {
		t.Errorf("%d files, the last one ends with %q", len(files), files[2][len(files[2])-100:])
	}
}

// A server has as many rules as is said, in both forms, of which the first is the one that is met.
func TestServedRules(t *testing.T) {
	for _, envoy := range []bool{false, true} {
		for _, n := range []int{10, 20_001} {
			b := &bench{dir: t.TempDir()}
			folder, err := b.servedRules(n, envoy)
			if err != nil {
				t.Fatal(err)
			}
			entries, err := os.ReadDir(folder)
			if err != nil {
				t.Fatal(err)
			}
			var files []file.Source
			for _, e := range entries {
				data, err := os.ReadFile(filepath.Join(folder, e.Name()))
				if err != nil {
					t.Fatal(err)
				}
				files = append(files, file.Source{Name: e.Name(), Data: data})
			}
			set, _, err := file.Load(files, file.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if rules := set.Rules(); len(rules) != n || !strings.Contains(rules[0].Name, "user") {
				t.Errorf("%d rules, of %d; the first is %q", len(rules), n, rules[0].Name)
			}
		}
	}
}

// A process that decides tells when it has its keys, and what each decision took when it is asked.
func TestDecide(t *testing.T) {
	for _, c := range inKeys {
		var out strings.Builder
		if err := decide([]string{c[0], "100"}, strings.NewReader("1\n1\n"), &out); err != nil {
			t.Fatalf("%s: %v", c[0], err)
		}
		if lines := strings.Fields(out.String()); len(lines) != 3 || lines[0] != "ready" {
			t.Errorf("%s writes %q", c[0], lines)
		}
	}
	for _, bad := range [][]string{{}, {"weir"}, {"nobody", "1"}, {"weir", "x"}} {
		if err := decide(bad, strings.NewReader(""), io.Discard); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestErrors(t *testing.T) {
	for args, want := range map[string]string{"colours": `no part "colours"`, "-rounds 0 keys": "at least 1",
		"-x": "not defined"} {
		err := run(t.Context(), strings.Fields(args), io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}
