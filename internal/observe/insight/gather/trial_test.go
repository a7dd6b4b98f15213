package gather

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/rule"
)

const candidateRules = `
domain: shop
limits:
  - name: live
    when: { kind: both }
    per: [user]
    allow: 2/min
    algorithm: sliding_log
  - name: tighter
    per: [user]
    allow: [1/min, 100/hour]
    algorithm: sliding_log
    on_limit: shadow
  - name: looser
    when: { kind: both }
    per: [user]
    allow: 3/min
    algorithm: sliding_log
    on_limit: shadow
  - name: plain
    allow: 1000/min
`

// candidates returns the candidates in force by name.
func (b *bench) candidates() map[string]insight.Candidate {
	b.t.Helper()
	list, _, err := b.Candidates(b.t.Context(), "")
	if err != nil {
		b.t.Fatal(err)
	}
	out := map[string]insight.Candidate{}
	for _, c := range list {
		out[c.Limit] = c
	}
	return out
}

func TestCandidates(t *testing.T) {
	b := newBench(t, Options{}, candidateRules)
	for range 4 {
		// live: 2 pass, 2 refused; tighter passes 1, looser 3
		b.send(weir.Request{Hits: 1, Attributes: rule.Map{"user": "ada", "kind": "both"}})
	}
	bob := rule.Map{"user": "bob"}
	b.send(weir.Request{Hits: 1, Attributes: bob})
	b.send(weir.Request{Hits: 1, Attributes: bob})
	b.send(weir.Request{Peek: true, Attributes: bob}) // peeks and refunds do not count
	b.send(weir.Request{Hits: -1, Attributes: rule.Map{"user": "eve"}})
	got := b.candidates()
	if len(got) != 2 {
		t.Fatalf("got %+v", got)
	}
	tight, loose := got["tighter"], got["looser"]
	// The candidate's windows are one verdict.
	if tight.WouldRefuse != 2 || tight.BothRefuse != 2 || tight.BothAdmit != 2 || tight.WouldAdmit != 0 ||
		tight.KeysRefused != 2 ||
		math.Abs(tight.Share-2.0/6) > 1e-9 || tight.Enforce != 0 || tight.Domain != "shop" ||
		!tight.Since.Equal(begun) {
		t.Errorf("tighter: %+v", tight)
	}
	if loose.WouldRefuse != 0 || loose.BothRefuse != 1 || loose.BothAdmit != 2 || loose.WouldAdmit != 1 ||
		loose.KeysRefused != 1 || loose.Share != 0 {
		t.Errorf("looser: %+v", loose)
	}
	if top := fmt.Sprint(tight.Top); top != "[{user=ada 3 0} {user=bob 1 0}]" {
		t.Errorf("top: %s", top)
	}
	if list := b.Trials(); len(list) != 2 || list[0].Limit != "tighter" || list[0].WouldRefuse != 2 ||
		list[1].WouldAdmit != 1 {
		t.Errorf("for metrics: %+v", list)
	}
	for domain, want := range map[string]int{"shop": 2, "other": 0} {
		if list, _, _ := b.Candidates(t.Context(), domain); len(list) != want {
			t.Errorf("%d candidates in %s", len(list), domain)
		}
	}
}

// A rule that is enforced on a share of its keys reports these keys separately.
func TestCandidateOnAShare(t *testing.T) {
	b := newBench(t, Options{}, `
domain: shop
limits:
  - { name: trial, per: [user], allow: 1/min, algorithm: sliding_log, enforce: 10% }
`)
	refused, shadowed := 0, 0
	for i := range 500 {
		for k := range 3 {
			switch admitted := b.ask(fmt.Sprint("user-", i)); {
			case k == 2 && !admitted:
				refused++
			case k == 2:
				shadowed++
			}
		}
		b.gather(false) // as Run does, before a ring is full
	}
	c := b.candidates()["trial"]
	if c.Enforce != 10 || c.EnforcedAdmitted != uint64(refused) || c.EnforcedRefused != 2*uint64(refused) ||
		c.BothAdmit != uint64(shadowed) || c.WouldRefuse != 2*uint64(shadowed) || c.BothRefuse+c.WouldAdmit != 0 ||
		refused == 0 || refused+shadowed != 500 {
		t.Errorf("%d refused, %d in shadow: %+v", refused, shadowed, c)
	}
	if c.KeysRefused != uint64(shadowed) || c.EnforcedKeysRefused != uint64(refused) { // the samples hold them all
		t.Errorf("%d and %d keys refused: %+v", shadowed, refused, c)
	}
	if len(c.Top) != 10 || c.Top[0].Count < c.Top[9].Count {
		t.Errorf("top: %v", c.Top)
	}
}

// A reload keeps what is known of a candidate that it does not change, and forgets what is known of
// one that it does.
func TestCandidateReload(t *testing.T) {
	const shadow = ", per: [user], on_limit: shadow}"
	b := newBench(t, Options{}, "domain: shop\nlimits: [{name: a, allow: 1/min"+shadow+", {name: b, allow: 1/min"+
		shadow+", {name: c, allow: 1/min"+shadow+"]")
	b.ask("ada")
	b.ask("ada")
	b.limiter.SetRules(load(t, "domain: shop\nlimits: [{name: new, allow: 9/min}, {name: a, allow: 1/min"+shadow+
		", {name: b, allow: 2/min"+shadow+", {name: c, per: [user], allow: 1/min}]"))
	got := b.candidates()
	if len(got) != 2 || got["a"].WouldRefuse != 1 || got["b"].WouldRefuse != 0 || got["b"].BothAdmit != 0 {
		t.Errorf("got %+v", got)
	}
	b.ask("ada")
	if a := b.candidates()["a"]; a.WouldRefuse+a.WouldAdmit+a.BothAdmit+a.BothRefuse != 3 {
		t.Errorf("got %+v", a)
	}
}

// Secrets and long values do not come out with the keys.
func TestCandidateKeysAreFitToBeShown(t *testing.T) {
	b := newBench(t, Options{},
		"domain: shop\nlimits: [{name: a, per: [header.x-api-key, user], allow: 0/min, on_limit: shadow}]")
	b.send(weir.Request{Attributes: rule.Map{"header.x-api-key": "sesame", "user": strings.Repeat("ü", 100)}})
	top := b.candidates()["a"].Top
	if len(top) != 1 || strings.Contains(top[0].Key, "sesame") ||
		!strings.HasPrefix(top[0].Key, "header.x-api-key=hidden:") || !strings.HasSuffix(top[0].Key, "ü…") ||
		len(top[0].Key) > keyText {
		t.Errorf("got %+v", top)
	}
}

// Two nodes count together: their requests add up, and a key that both refuse is one key.
func TestCandidatesOfTwoNodes(t *testing.T) {
	const rules = "domain: shop\nlimits: [{name: a, per: [user], allow: 1/min, on_limit: shadow}, {name: b, per: [user], allow: 1/min, enforce: 50%}]"
	one, two := newBench(t, Options{}, rules), newBench(t, Options{}, rules)
	for range 3 {
		for _, user := range []string{"ada", "bob", "cyd", "dan", "eve", "fay"} {
			one.ask(user)
			two.ask(user)
		}
		two.ask("gus")
	}
	own := one.candidates()
	want := snapshot.Want{Top: true, Samples: true}
	b, err := two.Snapshot(want).AppendBinary(nil)
	if err != nil {
		t.Fatal(err)
	}
	sent := new(snapshot.Snapshot)
	if err := sent.UnmarshalBinary(b); err != nil {
		t.Fatal(err)
	}
	merged := snapshot.Merge(one.Snapshot(want), sent)
	a, share := &merged.Rules[0], &merged.Rules[1]
	if a.Trial.WouldRefuse <= own["a"].WouldRefuse || a.Trial.BothAdmit+a.Trial.WouldAdmit != 13 ||
		a.Summary.KeysRefused != 7 {
		t.Errorf("in shadow: %+v, %v keys; one node has %+v", a.Trial, a.Summary.KeysRefused, own["a"])
	}
	c := own["b"]
	if n := share.Summary.KeysWould + share.Summary.KeysRefused; n != 7 || c.KeysRefused+c.EnforcedKeysRefused != 6 ||
		share.Trial.Enforce != 50 {
		t.Errorf("on a share: %v keys, %+v; one node has %+v", n, share.Trial, c)
	}
	if len(share.WouldTop) == 0 || share.WouldTop[0].Count != 4 && share.WouldTop[0].Text != "user=gus" {
		t.Errorf("the keys that it would have refused: %+v", share.WouldTop)
	}
}

func TestCandidatesConcurrent(t *testing.T) {
	b := newBench(t, Options{}, "domain: shop\nlimits: [{name: a, per: [user], allow: 0/min, on_limit: shadow}]")
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			var d weir.Decision
			for k := range 500 {
				r := weir.Request{Hits: 1, Attributes: rule.Map{"user": fmt.Sprint(i, k)}}
				if err := b.limiter.Decide(t.Context(), &r, &d); err != nil {
					t.Error(err)
				}
				if k%100 == 0 {
					b.candidates()
				}
			}
		})
	}
	all.Wait()
	if c := b.candidates()["a"]; c.WouldRefuse != 2000 || math.Abs(float64(c.KeysRefused)/2000-1) > 0.4 {
		t.Errorf("got %+v", c)
	}
}
