package gather

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/rule"
)

// A running server says why a rule is never met, by the requests that were recorded; and says it
// again when the rules have changed.
func TestUnmetLive(t *testing.T) {
	var asked int
	recorded := func(n int) []rule.Query {
		asked++
		list := []rule.Query{{Domain: "other", Attributes: rule.Pairs{{Name: "path", Value: "/login"}}}}
		for i := range min(n, 10) {
			list = append(list, rule.Query{Domain: "shop", Attributes: rule.Pairs{
				{Name: "path", Value: []string{"/login", "/"}[i%2]}, {Name: "method", Value: "PUT"}, {Name: "user", Value: "ada"}, {Name: "authorization", Value: "hidden:12"},
			}})
		}
		return list
	}
	b := newBench(t, Options{Recorded: recorded}, `
domain: shop
limits:
  - { name: login, when: { path: /login, method: POST }, per: [user], allow: 5/min }
  - { name: secret, when: { authorization: sesame }, per: [user], allow: 5/min }
  - { name: all, per: [user], allow: 500/min }
`)
	b.ask("ada")
	b.pass(2 * time.Second)
	b.judge()
	v := b.rule("login").Verdicts[0]
	want := "Too early to tell: none of 1 request of the domain met it in 2 s so far. About 24 h more. Of 10 requests looked at, 5 came nearest: when.method kept out 5 of these."
	if v.Sentence != want || v.Proposal == nil || v.Proposal.Sentence != "Most often so: PUT does not match POST." {
		t.Errorf("%+v %+v, want %q", v, v.Proposal, want)
	}
	if v := b.rule("secret").Verdicts[0]; strings.Contains(v.Sentence, "looked at") {
		t.Errorf("a hash tells nothing: %+v", v)
	}
	if b.judge(); asked != 1 {
		t.Errorf("the record was read %d times in a minute", asked)
	}
	for range 24 * 60 {
		for i := range 8 {
			b.ask(fmt.Sprint("user-", i))
		}
		b.pass(time.Minute)
	}
	v = b.rule("login").Verdicts[0]
	if v.Verdict != insight.NeverMet || !strings.HasSuffix(v.Sentence,
		" met it in 24 h. Of 10 requests looked at, 5 came nearest: when.method kept out 5 of these.") ||
		v.Proposal.Sentence != "Most often so: PUT does not match POST. Mend its conditions, or delete it." {
		t.Errorf("%+v %+v", v, v.Proposal)
	}
	// Not everybody may see what a client sent.
	if m := v.Masked(); m.Proposal.Sentence != "Mend its conditions, or delete it." ||
		v.Proposal.Sentence == m.Proposal.Sentence {
		t.Errorf("%+v", m.Proposal)
	}
	before := asked
	b.limiter.SetRules(
		load(t,
			"domain: shop\nlimits: [{name: login, when: {path: /log-in}, allow: 5/min}, {name: all, per: [user], allow: 500/min}]"))
	b.ask("ada")
	b.pass(2 * time.Second)
	b.judge()
	if v := b.rule("login").Verdicts[0]; asked != before+1 || !strings.Contains(v.Sentence, "when.path kept out 10.") {
		t.Errorf("read %d times more: %+v", asked-before, v)
	}
}

// Of a rule that was met, but long ago, it is said as well.
func TestUnmetLately(t *testing.T) {
	effort.Long(t, "goes through 37 hours, minute by minute")
	recorded := func(n int) (list []rule.Query) {
		for range min(n, 10) {
			list = append(list, rule.Query{Domain: "shop",
				Attributes: rule.Pairs{{Name: "path", Value: "/new"}, {Name: "user", Value: "ada"}}})
		}
		return list
	}
	b := newBench(t, Options{Recorded: recorded}, `
domain: shop
limits:
  - { name: old, when: { path: /old }, per: [user], allow: 5/min }
  - { name: all, per: [user], allow: 500/min }
`)
	b.send(weir.Request{Attributes: rule.Pairs{{Name: "path", Value: "/old"}, {Name: "user", Value: "ada"}}})
	for range 37 * 60 { // rules are judged by 36 h at most
		b.ask("ada")
		b.pass(time.Minute)
	}
	if v := b.rule("old").Verdicts[0]; v.Verdict != insight.NeverMet ||
		!strings.HasSuffix(v.Sentence, "Of 10 requests looked at, when.path kept out 10.") {
		t.Errorf("%+v", v)
	}
}
