package gather

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/insight/series"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"pgregory.net/rapid"
)

// spec is a rule of these tests: rules of one spec are the same one.
type spec struct{ name, line string }

// text is a rule file.
func rulesText(specs []spec, head string) string {
	var b strings.Builder
	b.WriteString("domain: shop\n" + head + "limits:\n")
	for _, s := range specs {
		fmt.Fprintf(&b, "  - { name: %s, %s }\n", s.name, s.line)
	}
	return b.String()
}

// failingForms are the rules to choose from, with a number for #. Some are alike except for the
// number, if the attribute is absent, or no number, or both. Others fail alone.
var failingForms = []string{
	"if: 'int(attr.n) == #', allow: 9/min",
	"if: 'int(attr.n) == #', allow: 8/min",
	"if: 'double(attr.n) > #.5', allow: 9/min",
	"if: 'attr.plan == \"p#\"', allow: 9/min",
	"if: 'attr.plan == \"p#\" && int(attr.n) > 2', allow: 9/min",
	"if: 'int(attr.n) % 7 == #', allow: 9/min",
	"cost: 'int(attr.n) + #', allow: 9/min",
	"if: 'int(attr.n) == # && attr.n != \"x\"', per: [user], allow: 9/min",
}

func drawSpecs(t *rapid.T) (specs []spec) {
	seen := map[string]bool{}
	for range rapid.IntRange(2, 4).Draw(t, "kinds") {
		form := rapid.SampledFrom(failingForms).Draw(t, "form")
		for i := range rapid.IntRange(1, 6).Draw(t, "rules") {
			s := spec{fmt.Sprint("r", len(specs)), strings.ReplaceAll(form, "#", fmt.Sprint(i))}
			if !seen[s.line] {
				specs = append(specs, s)
			}
			seen[s.line] = true
		}
	}
	return specs
}

// eachRule counts what the expressions of each rule do, as a set of the rule alone says: no other
// one is looked at for it.
type eachRule struct {
	set   *rule.Set
	n     uint64
	first string
}

func (e *eachRule) see(attributes rule.Pairs) {
	var m rule.Matches
	e.set.Match(&rule.Query{Domain: "shop", Attributes: attributes}, &m)
	e.n += uint64(m.CELErrors)
	for _, f := range m.Failures() {
		e.first = cmp.Or(e.first, failureText(f.Key, f.Err))
	}
}

// Each rule has as many failures as if each were counted for it alone, and the first of them in
// words: whatever rules it is alike to, and over reloads, which change them around it, while
// decisions are under way. One that changes begins anew.
func TestFailuresAreThoseOfEachRule(t *testing.T) {
	effort.Fewer(t, 10)
	alone := map[string]*rule.Set{} // by line
	setOf := func(s spec) *rule.Set {
		if alone[s.line] == nil {
			alone[s.line] = load(t, rulesText([]spec{{"alone", s.line}}, ""))
		}
		return alone[s.line]
	}
	rapid.Check(t, func(rt *rapid.T) {
		specs := drawSpecs(rt)
		b := newBench(t, Options{}, rulesText(specs, ""))
		known := map[spec]*eachRule{}
		begin := func() {
			old := known
			known = map[spec]*eachRule{}
			for _, s := range specs {
				if known[s] = old[s]; known[s] == nil {
					known[s] = &eachRule{set: setOf(s)}
				}
			}
		}
		begin()
		draw := func(rt *rapid.T) rule.Pairs {
			p := rule.Pairs{{Name: "user", Value: "ada"}}
			if v := rapid.SampledFrom([]string{"", "x", "y", "3", "1.5", "-"}).Draw(rt, "n"); v != "" {
				p = append(p, rule.Pair{Name: "n", Value: v})
			}
			if v := rapid.SampledFrom([]string{"", "p1", "p3"}).Draw(rt, "plan"); v != "" {
				p = append(p, rule.Pair{Name: "plan", Value: v})
			}
			return p
		}
		check := func() {
			s := b.Snapshot(snapshot.Want{Domain: "shop", Over: 24 * time.Hour})
			if len(s.Rules) < len(specs) { // behind them are the limits that requests bring
				rt.Fatalf("%d rules, there are %d", len(s.Rules), len(specs))
			}
			for i := range specs {
				r, want := &s.Rules[i], known[specs[i]]
				why := ""
				if want.n > 0 {
					why = fmt.Sprintf("shop.yaml:%d: %s", r.Line, want.first)
				}
				if r.Name != specs[i].name || r.Errors != want.n || r.Error != why {
					rt.Fatalf("%s (%s): %d failed, %q; one by one %d, %q", r.Name, specs[i].line, r.Errors, r.Error,
						want.n, why)
				}
			}
		}
		send := func(p rule.Pairs) {
			b.send(weir.Request{Attributes: p})
			for _, e := range known {
				e.see(p)
			}
		}
		reload := func(rt *rapid.T) {
			more := drawSpecs(rt)
			for i := range more {
				more[i].name = "s" + more[i].name
			}
			switch rapid.SampledFrom([]string{"same", "fewer", "more", "change", "all"}).Draw(rt, "reload") {
			case "fewer":
				if len(specs) > 1 {
					at := rapid.IntRange(0, len(specs)-1).Draw(rt, "which")
					specs = slices.Delete(slices.Clone(specs), at, at+1)
				}
			case "more":
				have := map[string]bool{}
				for _, s := range specs {
					have[s.name] = true
				}
				more = slices.DeleteFunc(more, func(s spec) bool { return have[s.name] })
				at := rapid.IntRange(0, len(specs)).Draw(rt, "where")
				specs = slices.Insert(slices.Clone(specs), at, more...)
			case "change":
				at := rapid.IntRange(0, len(specs)-1).Draw(rt, "which")
				specs = slices.Clone(specs)
				specs[at].line = "if: 'int(attr.n) == 3', allow: 7/min"
			case "all":
				specs = more
			}
			b.limiter.SetRules(load(t, rulesText(specs, rapid.SampledFrom([]string{"", "\n"}).Draw(rt, "head"))))
		}
		rt.Repeat(map[string]func(*rapid.T){
			"request": func(rt *rapid.T) {
				for p := draw(rt); ; p = draw(rt) {
					send(p)
					if rapid.Bool().Draw(rt, "enough") {
						return
					}
				}
			},
			"time": func(rt *rapid.T) {
				b.µs.Add(rapid.Int64Range(0, 3600).Draw(rt, "s") * 1e6)
				b.pass(time.Second)
			},
			"reload": func(rt *rapid.T) { reload(rt); begin() },
			// A decision of the previous rules that ends after the reload.
			"under way": func(rt *rapid.T) {
				p := draw(rt)
				r := weir.Request{Attributes: p, Hits: 1}
				var d weir.Decision
				if b.limiter.Phases().Match(&r, &d) {
					if err := b.limiter.Phases().Charge(t.Context(), &r, &d); err != nil {
						rt.Fatal(err)
					}
				}
				was := maps.Clone(known)
				reload(rt)
				b.limiter.Phases().Tell(t.Context(), &r, &d)
				for _, e := range was {
					e.see(p)
				}
				begin()
			},
			"": func(*rapid.T) { check() },
		})
	})
}

// alikeSpecs returns n rules that are alike except for a number.
func alikeSpecs(n int) (specs []spec) {
	for i := range n {
		specs = append(specs, spec{fmt.Sprint("r", i), fmt.Sprintf("if: 'int(attr.n) == %d', allow: 9/min", i)})
	}
	return specs
}

// A request on which the expressions of many rules fail that are alike takes memory for one of
// them, not for each; and so it is over a reload that leaves one out and brings another.
func TestFailuresTakeLittleMemory(t *testing.T) {
	specs := alikeSpecs(500)
	b := newBench(t, Options{}, rulesText(specs, ""))
	fail := func() {
		b.send(weir.Request{Attributes: rule.Pairs{{Name: "n", Value: "x"}}})
		b.pass(time.Second)
	}
	b.send(weir.Request{Attributes: rule.Pairs{{Name: "n", Value: "500"}}}) // meets none
	b.pass(time.Second)
	before := b.Bytes()
	one := (&failureHistory{tally: series.NewTally(600, snapshot.Eras*snapshot.EraLasts/600+1)}).bytes()
	fail()
	if took := b.Bytes() - before; took != one {
		t.Errorf("%d bytes for the failures of %d rules, those of one take %d", took, len(specs), one)
	}
	specs[0].name = "other"
	before = b.Bytes() + one
	b.limiter.SetRules(load(t, rulesText(specs, "")))
	fail()
	if took := b.Bytes() - before; took < 0 || took > one {
		t.Errorf("after a reload %d bytes more than for two: those of one take %d", took, one)
	}
	s := b.Snapshot(snapshot.Want{Domain: "shop"})
	if a, b := s.Rules[0].Errors, s.Rules[499].Errors; a != 1 || b != 2 {
		t.Errorf("%d failed of the new rule, %d of the others", a, b)
	}
}

// BenchmarkFailing decides requests on which the expressions of all rules fail, which are alike but
// for a number, with and without the hook. docs/operating/capacity.md has its figures.
func BenchmarkFailing(b *testing.B) {
	for _, n := range []int{10, 1000, 100_000} {
		specs := alikeSpecs(n)
		var files []file.Source
		for part := range slices.Chunk(specs, 10_000) { // a file holds some 20,000
			files = append(files, file.Source{Name: fmt.Sprint("f", len(files), ".yaml"),
				Data: []byte(rulesText(part, ""))})
		}
		rules, _, err := file.Load(files, file.Options{})
		if err != nil {
			b.Fatal(err)
		}
		for _, with := range []bool{false, true} {
			b.Run(fmt.Sprintf("%d/hook=%t", n, with), func(b *testing.B) {
				l := gathered(b, rules, with)
				r := weir.Request{Attributes: rule.Pairs{{Name: "n", Value: "x"}}}
				var d weir.Decision
				b.ResetTimer()
				for range b.N {
					if err := l.Decide(b.Context(), &r, &d); err != nil || d.Matches.CELErrors != n {
						b.Fatal(d.Matches.CELErrors, err)
					}
				}
			})
		}
	}
}
