package gather

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/rule"
)

// manyRules returns n rules with a path each, without the text that 100,000 rules take seconds to
// read.
func manyRules(t testing.TB, n int) *rule.Set {
	t.Helper()
	limit, err := algo.New(algo.Config{Algorithm: algo.FixedWindow, N: 1000, Window: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	f := &rule.File{Domain: "shop"}
	for i := range n {
		pattern, err := rule.ParsePattern("path", fmt.Sprintf("/p%d/**", i))
		if err != nil {
			t.Fatal(err)
		}
		r := rule.New(fmt.Sprint("r", i), "shop")
		r.When = []rule.Condition{{Attribute: "path", Patterns: []rule.Pattern{pattern}}}
		r.Windows = []*rule.Window{{Rule: r, Name: r.Name, Seconds: 60, Limit: limit}}
		f.Rules = append(f.Rules, r)
	}
	set, problems := rule.Compile([]*rule.File{f}, rule.Options{})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return set
}

// askPath asks for the path of one of manyRules.
func (b *bench) askPath(i int) {
	b.send(weir.Request{Domain: "shop", Attributes: rule.Pairs{{Name: "path", Value: fmt.Sprintf("/p%d/x", i)}}})
}

// What watching takes does not grow with the rules that nobody asks: it judges those that were
// asked since, and once for all the others, of which each has its verdict.
func TestRest(t *testing.T) {
	const n = 100_000
	b := newBench(t, Options{}, "limits: [{name: a, allow: unlimited}]")
	b.limiter.SetRules(manyRules(t, n))
	b.pass(time.Minute)
	minute := func(asked int, what string) {
		t.Helper()
		before, reads := b.judgements, len(b.asked)
		// A snapshot, the facts and the verdicts of few rules, and 60 readings of nothing.
		most := float64(300 + 600*asked)
		if took := testing.AllocsPerRun(1, func() { b.pass(time.Minute) }); took > most {
			t.Errorf("%s: a minute takes %.0f allocations, at most %.0f", what, took, most)
		}
		if got := b.judgements - before; got > 2*(len(b.kins)+asked) { // AllocsPerRun warms up
			t.Errorf("%s: %d judgements in two minutes, of %d that were asked", what, got, asked)
		}
		if reads > asked {
			t.Errorf("%s: the counters of %d rules are read, %d were asked", what, reads, asked)
		}
	}
	if len(b.kins) > 2 { // the rules, and the limits that requests bring
		t.Errorf("%d kins", len(b.kins))
	}
	minute(0, "at rest")
	for i := range 3 {
		b.askPath(i * 1000)
	}
	b.gather(true)
	minute(3, "asked")
	minute(3, "no more asked")
	if len(b.asked) > 3 || len(b.counted) != 3 {
		t.Errorf("%d rules are read, %d have counts", len(b.asked), len(b.counted))
	}
	told := map[string]int{}
	for _, j := range b.Judged() {
		told[strings.Join(j.Verdicts, " ")]++
	}
	if len(told) != 1 || told[insight.TooEarly] != n {
		t.Errorf("%v", told)
	}
	if v := b.rule("r7").Verdicts; len(v) != 1 || v[0].Rule != "r7" ||
		!strings.HasPrefix(v[0].Sentence, "Too early to tell: none of 3 requests of the domain met it in ") {
		t.Errorf("%+v", v)
	}
}

// Each rule that somebody met is judged again now and then, though nobody asks for it any more.
func TestUnaskedAreJudgedInTurn(t *testing.T) {
	const n = 3 * judgedUnasked
	b := newBench(t, Options{Memory: 1 << 30}, "limits: [{name: a, allow: unlimited}]")
	b.limiter.SetRules(manyRules(t, n))
	for i := range n {
		b.askPath(i)
	}
	b.pass(2 * time.Minute)
	before := b.judgements
	b.pass(time.Minute)
	if got := b.judgements - before; got > judgedUnasked+len(b.kins) {
		t.Errorf("%d judgements in a minute", got)
	}
	b.pass(2 * time.Minute)
	for i := range n {
		if r := b.rules[i]; !strings.Contains(r.verdicts[0].Sentence, "1 request in 3 min so far") &&
			!strings.Contains(r.verdicts[0].Sentence, "1 request in 4 min so far") &&
			!strings.Contains(r.verdicts[0].Sentence, "1 request in 5 min so far") {
			t.Fatalf("rule %d: %+v", i, r.verdicts)
		}
	}
}

// Rules that nobody meets take a few words, and the bound holds for those that somebody meets.
func TestMemoryOfManyRules(t *testing.T) {
	const n = 40_000
	set := manyRules(t, n)
	before := heap()
	b := newBench(t, Options{}, "limits: [{name: a, allow: unlimited}]")
	b.limiter.SetRules(set)
	b.pass(time.Minute)
	b.Collector.Judged()
	// The counts that all watchers share are among them.
	if took := heap() - before; took > n*640 || b.Bytes() > n*500 {
		t.Errorf("%d rules that nobody met take %d bytes of the heap; %d are told", n, took, b.Bytes())
	}
	for i := range n {
		b.askPath(i)
		if i%1000 == 0 {
			b.pass(time.Second)
		}
	}
	b.pass(time.Second)
	if took := b.Bytes(); took > DefaultMemory {
		t.Errorf("%d rules that were met take %d bytes", n, took)
	}
	for _, i := range []int{0, n / 2, n - 1} {
		if r := b.rule(fmt.Sprint("r", i)); r.Met != 1 {
			t.Errorf("rule %d was met %d times", i, r.Met)
		}
	}
}

// Domains that nobody asks take next to nothing, and all together half of the memory at most.
func TestMemoryOfManyDomains(t *testing.T) {
	const n = 2000
	var files []*rule.File
	for i := range n {
		r := rule.New("r", fmt.Sprint("d", i))
		r.Unlimited = true
		files = append(files, &rule.File{Domain: r.Domain, Rules: []*rule.Rule{r}})
	}
	set, problems := rule.Compile(files, rule.Options{})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	b := newBench(t, Options{Memory: 16 << 20}, "limits: [{name: a, allow: unlimited}]")
	b.limiter.SetRules(set)
	b.pass(time.Second)
	if took := b.Bytes(); took > 2000*n {
		t.Errorf("%d domains that nobody asked take %d bytes", n, took)
	}
	for i := range n {
		b.send(weir.Request{Domain: fmt.Sprint("d", i)})
	}
	b.pass(time.Second)
	if took := b.Bytes(); took > 16<<20 {
		t.Errorf("%d domains take %d bytes", n, took)
	}
	for _, i := range []int{0, n - 1} {
		if o, err := b.Overview(t.Context(), fmt.Sprint("d", i), time.Hour); err != nil || i == 0 && o.Requests != 1 {
			t.Errorf("domain %d: %+v, %v", i, o, err)
		}
	}
}

// One judgement for all rules that nobody met says of each what its own would.
func TestKinVerdicts(t *testing.T) {
	const some = `
  - { name: plain, when: { path: /plain }, per: [user], allow: 5/min }
  - { name: shadow, when: { path: /shadow }, per: [user], allow: 5/min, on_limit: shadow }
  - { name: share, when: { path: /share }, per: [user], allow: 5/min, enforce: 10% }
  - { name: free, when: { path: /free }, allow: unlimited }
  - { name: fails, if: 'int(attr.n) == 5', per: [user], allow: 5/min }
  - { name: too, if: 'int(attr.n) == 6', per: [user], allow: 5/min }
  - { name: lonely, if: 'int(attr.m) > 5 && path == "/x"', per: [user], allow: 5/min }
  - { name: late, when: { path: /late }, per: [user], allow: 5/min }
  - { name: met, when: { path: /met }, per: [user], allow: 5000/min }
`
	broken := ""
	start := func(others int, more string) *bench {
		b := newBench(t, Options{Broken: func() string { return broken }}, "domain: shop\nlimits:"+some)
		b.limiter.SetRules(load(t, "domain: shop\nlimits:"+some+more+fillers(others)))
		return b
	}
	each, kin := start(1, ""), start(explainedRules+1, "")
	names := []string{"plain", "shadow", "share", "free", "fails", "too", "lonely", "late", "met", "new"}
	check := func(when string) {
		t.Helper()
		for _, name := range names {
			var told [2]string
			for i, b := range []*bench{each, kin} {
				s := b.Snapshot(snapshot.Want{Rule: name})
				if len(s.Rules) == 0 {
					continue
				}
				verdicts := slices.Clone(s.Rules[0].Verdicts)
				for i := range verdicts {
					verdicts[i].Examples = nil // ids, which are random
				}
				text, err := json.Marshal(verdicts)
				if err != nil {
					t.Fatal(err)
				}
				told[i] = string(text)
			}
			if told[0] != told[1] {
				t.Errorf("%s: of %s\n%s\nis said, and as one of many\n%s", when, name, told[0], told[1])
			}
		}
	}
	both := func(f func(b *bench)) { f(each); f(kin) }
	ask := func(attributes rule.Pairs) { both(func(b *bench) { b.send(weir.Request{Attributes: attributes}) }) }
	pass := func(d time.Duration) { both(func(b *bench) { b.pass(d) }) }
	check("before the first judgement")
	pass(time.Second)
	for range 600 {
		ask(rule.Pairs{{Name: "path", Value: "/met"}, {Name: "user", Value: "ada"}, {Name: "n", Value: "1"},
			{Name: "m", Value: "1"}})
	}
	pass(time.Minute)
	check("too early")
	if len(kin.counted) != 1 {
		t.Errorf("%d rules are counted, of which one was met", len(kin.counted))
	}
	broken = "shop.yaml:1: no"
	pass(time.Minute)
	check("not in force")
	broken = ""
	both(func(b *bench) {
		b.limiter.SetRules(load(t, "domain: shop\nlimits:"+some+
			"  - { name: new, when: { path: /new }, per: [user], allow: 5/min }\n"+
			fillers(len(b.rules)-10)))
	})
	pass(2 * time.Minute)
	check("after a reload")
	ask(rule.Pairs{{Name: "path", Value: "/x"}, {Name: "n", Value: "x"}, {Name: "m", Value: "y"}})
	pass(time.Minute)
	check("expressions failed")
	for range 25 {
		for range 60 {
			ask(rule.Pairs{{Name: "path", Value: "/met"}, {Name: "user", Value: "ada"}, {Name: "n", Value: "1"},
				{Name: "m", Value: "1"}})
		}
		for range 6 { // minutes at which all are judged
			both(func(b *bench) { b.µs.Add((9 * time.Minute).Microseconds()) })
			pass(time.Minute)
		}
		check("hour by hour")
	}
	if v := kin.rule("plain").Verdicts; v[0].Verdict != insight.NeverMet || kin.rules[0].isCounted() {
		t.Errorf("after a day: %+v", v)
	}
	ask(rule.Pairs{{Name: "path", Value: "/late"}, {Name: "user", Value: "ada"}, {Name: "n", Value: "1"},
		{Name: "m", Value: "1"}})
	pass(time.Minute)
	check("met at last")
	for range 30 {
		both(func(b *bench) { b.µs.Add((59 * time.Minute).Microseconds()) })
		pass(time.Minute)
		check("nobody asks any more")
	}
}

// fillers are rules that nobody meets.
func fillers(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "  - { name: filler%d, when: { path: /filler%d }, per: [user], allow: 5/min }\n", i, i)
	}
	return b.String()
}
