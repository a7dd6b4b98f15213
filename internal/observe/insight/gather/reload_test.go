package gather

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/internal/observe/insight/series"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/rule"
)

// Rules that come into force while others are judged have what is proven of them said.
func TestProvenOverReload(t *testing.T) {
	var b *bench
	var next *rule.Set
	proven := func(s *rule.Set) map[[2]string]judge.Proof {
		if next != nil {
			set := next
			next = nil
			b.limiter.SetRules(set)
		}
		proofs := map[[2]string]judge.Proof{}
		for _, r := range s.Rules() {
			if r.Name == "r7" || r.Name == "r1500" {
				why := "no request can meet it"
				proofs[[2]string{r.Domain, r.Name}] = judge.Proof{Verdict: insight.NeverMet, Why: why}
			}
		}
		return proofs
	}
	b = newBench(t, Options{Proven: proven}, "limits: [{name: a, allow: unlimited}]")
	b.limiter.SetRules(manyRules(t, explainedRules+100))
	next = manyRules(t, explainedRules+600)
	b.judge() // the other rules come into force meanwhile
	b.judge()
	for _, name := range []string{"r7", "r1500"} {
		if v := b.rule(name).Verdicts; len(v) != 1 || v[0].Verdict != insight.NeverMet {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// A rule that goes out of force while it is judged takes nothing any more.
func TestJudgedOverReload(t *testing.T) {
	var b *bench
	asked := false
	recorded := func(int) []rule.Query {
		if !asked {
			asked = true
			b.limiter.SetRules(load(t, "domain: shop\nlimits: [{name: all, per: [user], allow: 500/min}]"))
		}
		return nil
	}
	b = newBench(t, Options{Recorded: recorded}, `
domain: shop
limits:
  - { name: gone, when: { path: /login }, allow: 5/min }
  - { name: all, per: [user], allow: 500/min }
`)
	b.ask("ada")
	b.pass(2 * time.Second)
	if b.judge(); !asked {
		t.Fatal("the rules did not change")
	}
	for _, r := range b.counted {
		if !slices.Contains(b.rules, r) {
			t.Errorf("%s is counted, and is not in force", r.name)
		}
	}
}

// rulesOfDomains returns rules in n domains, one in each, for the path /x.
func rulesOfDomains(t testing.TB, n int) *rule.Set {
	t.Helper()
	limit, err := algo.New(algo.Config{Algorithm: algo.FixedWindow, N: 1000, Window: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	pattern, err := rule.ParsePattern("path", "/x")
	if err != nil {
		t.Fatal(err)
	}
	var files []*rule.File
	for i := range n {
		r := rule.New("r", fmt.Sprint("d", i))
		r.When = []rule.Condition{{Attribute: "path", Patterns: []rule.Pattern{pattern}}}
		r.Windows = []*rule.Window{{Rule: r, Name: r.Name, Seconds: 60, Limit: limit}}
		files = append(files, &rule.File{Domain: r.Domain, Rules: []*rule.Rule{r}})
	}
	set, problems := rule.Compile(files, rule.Options{})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return set
}

// However many kins there are, a part of them is judged at a time, and each has its turn. A kin is
// not judged once all of its rules have verdicts of their own.
func TestKinsInTurn(t *testing.T) {
	b := newBench(t, Options{}, "limits: [{name: a, allow: unlimited}]")
	b.limiter.SetRules(rulesOfDomains(t, judgedKins+1000))
	for n, want := range []int{judgedKins, judgedKins + 1000} {
		before := b.judgements
		b.judge()
		if got := b.judgements - before; got > judgedKins {
			t.Errorf("%d judgements at once", got)
		}
		if got := len(b.Judged()); got != want {
			t.Errorf("after judging %d times, %d rules have verdicts, want %d", n+1, got, want)
		}
	}
	b.limiter.SetRules(rulesOfDomains(t, explainedRules+100))
	for i := range 100 {
		b.send(weir.Request{Domain: fmt.Sprint("d", i), Attributes: rule.Pairs{{Name: "path", Value: "/x"}}})
	}
	b.pass(time.Second)
	before := b.judgements
	// Once as a rule of its own, or once for all that nobody met.
	if b.judge(); b.judgements-before != explainedRules+100 {
		t.Errorf("%d judgements of %d rules", b.judgements-before, explainedRules+100)
	}
}

// Of a domain for which there is no memory, the requests that met none of its rules are known.
func TestDomainMetUnfollowed(t *testing.T) {
	b := newBench(t, Options{Memory: LeastMemory}, "limits: [{name: a, allow: unlimited}]")
	b.limiter.SetRules(rulesOfDomains(t, 500))
	for range 2 {
		for i := range 500 {
			b.send(weir.Request{Domain: fmt.Sprint("d", i)})
		}
		b.pass(time.Second)
	}
	sum := int64(0)
	for _, d := range b.domains {
		sum += d.series.Bytes()
	}
	if b.inDomains != sum || sum == 0 || sum > LeastMemory/2 {
		t.Errorf("the domains take %d bytes, and %d are told", sum, b.inDomains)
	}
	last := b.domains[len(b.domains)-1]
	if last.series != &series.Nothing {
		t.Fatal("all domains are followed")
	}
	b.µs.Add((40 * time.Hour).Microseconds())
	b.gather(true)
	s := b.Snapshot(snapshot.Want{Domain: last.name, Over: 36 * time.Hour, Samples: true})
	if got := s.Rules[0].DomainMet; got != 2 {
		t.Errorf("%d requests of the domain, want 2", got)
	}
	b.limiter.SetRules(rulesOfDomains(t, 1))
	if want := b.domains[0].series.Bytes(); b.inDomains != want {
		t.Errorf("of one domain %d bytes are told, want %d", b.inDomains, want)
	}
}
