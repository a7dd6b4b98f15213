package fleet

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/snapshot"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// agreed makes nodes that hear each other, and sample the same keys.
func agreed(t *testing.T, number int, rules string) []*member {
	t.Helper()
	all := newFleet(t, redistest.Start(t).URL(), number, rules)
	all[0].insight.SetSeed(1)
	for _, m := range all {
		m.look(t.Context())
	}
	return all
}

// send asks this node with an attribute, and lets it take in the decision.
func (m *member) send(t *testing.T, name, value string) bool {
	t.Helper()
	defer m.insight.Snapshot(snapshot.Want{OnlyTop: true})
	d, err := m.limiter.Allow(t.Context(), weir.Request{Attributes: rule.Map{name: value}})
	if err != nil {
		t.Fatal(err)
	}
	return d.Allowed
}

// All figures of a rule are the same wherever they are asked for, and equal the log of the traffic,
// although a load balancer spreads each client over the nodes.
func TestFiguresAgree(t *testing.T) {
	t.Parallel()
	all := agreed(t, 3, "limits: [{ name: search, per: [user|ip], allow: 3/hour, algorithm: sliding_log }]")
	// 20 clients that are known, and 10 that are not; each is refused once, by one of the nodes.
	const clients, known = 30, 20
	for i := range clients {
		name, value := "user", fmt.Sprint("u", i)
		if i >= known {
			name, value = "ip", fmt.Sprint("192.0.2.", i)
		}
		for k := range 4 {
			if allowed := all[(i+k)%3].send(t, name, value); allowed != (k < 3) {
				t.Fatalf("request %d of %s is allowed: %t", k, value, allowed)
			}
		}
	}
	var first *insight.RuleReport
	for _, m := range all {
		m.forgetAsked()
		o, err := m.Overview(t.Context(), "", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if g := o.GoodRefused; g.Requests != known || g.Of != clients || g.Clients != known || o.Clients != clients ||
			o.ClientsRefused != clients || o.Nodes.Apart != nil {
			t.Errorf("%s: overview %+v of %d clients, %d refused, %+v", m.Self(), g, o.Clients, o.ClientsRefused,
				o.Nodes.Apart)
		}
		list, _, err := m.Rules(t.Context(), "", time.Hour)
		if err != nil || len(list) != 1 {
			t.Fatal(list, err)
		}
		one, _, err := m.Rule(t.Context(), "default", "search", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		for what, r := range map[string]*insight.RuleReport{"list": &list[0], "rule": one} {
			if r.Met != 4*clients || r.Refused != clients || r.Good.Refused != known || r.Good.Of != clients ||
				r.Good.Keys != known || r.Keys != clients || r.KeysRefused != clients {
				t.Errorf("%s: %s: %d met, %d refused, %d of %d keys, %+v", m.Self(), what, r.Met, r.Refused,
					r.KeysRefused, r.Keys, r.Good)
			}
			if first == nil {
				first = r
			}
			if r.Fill != first.Fill || r.MaxFill != first.MaxFill || !reflect.DeepEqual(r.Good, first.Good) ||
				r.Episodes != first.Episodes {
				t.Errorf("%s: %s: %+v, %v, %+v, and before %+v, %v, %+v", m.Self(), what, r.Fill, r.MaxFill, r.Good,
					first.Fill, first.MaxFill, first.Good)
			}
		}
	}
}

// The leader judges the rules that any node met, however many there are: no node calls such a rule
// unmet.
func TestLeaderJudgesWhatOthersMet(t *testing.T) {
	t.Parallel()
	var rules strings.Builder
	rules.WriteString("limits:\n")
	for i := range 1_100 {
		fmt.Fprintf(&rules, "  - { name: rule-%d, when: { path: /%d }, allow: 100/hour }\n", i, i)
	}
	all := agreed(t, 2, rules.String())
	for range 30 {
		all[1].send(t, "path", "/7")
	}
	all[0].judge(t.Context())
	all[1].look(t.Context())
	for _, m := range all {
		m.forgetAsked()
		one, _, err := m.Rule(t.Context(), "default", "rule-7", time.Hour)
		if err != nil || one.Met != 30 || len(one.Verdicts) == 0 || one.Verdicts[0].Evidence["met"] != 30 {
			t.Errorf("%s: %+v, %v", m.Self(), one, err)
		}
	}
}

// With more rules and keys than an answer holds, refusals still add up over all nodes, and the
// samples that are left say how sure they are.
func TestFiguresOfManyRules(t *testing.T) {
	t.Parallel()
	var rules strings.Builder
	rules.WriteString("limits:\n")
	const number, clients = 100, 400
	for i := range number {
		fmt.Fprintf(&rules, "  - { name: rule-%d, per: [user], allow: 100/hour }\n", i)
	}
	all := agreed(t, 2, rules.String())
	for i := range clients {
		all[i%2].send(t, "user", fmt.Sprint("u", i))
	}
	s := all[1].insight.Snapshot(snapshot.Want{Top: true, Clients: true})
	if b, err := s.AppendBinary(nil); err != nil || len(b) <= 2*surelyFits {
		t.Fatalf("an answer of %d bytes is not shortened, %v", len(b), err)
	}
	for _, m := range all {
		list, n, err := m.Rules(t.Context(), "", time.Hour)
		if err != nil || len(list) != number || n.Answered != 2 {
			t.Fatal(len(list), n, err)
		}
		for _, r := range list {
			off := float64(r.Keys)/clients - 1
			if r.Met != clients || r.KeysError == 0 || r.KeysError > 0.2 || off < -4*r.KeysError ||
				off > 4*r.KeysError {
				t.Errorf("%s: %d requests of %d keys, ± %v", r.Name, r.Met, r.Keys, r.KeysError)
			}
		}
	}
}

// A node whose rule differs is left out of the rule, and the answer says so; a rule that changed
// counts anew, and the answer says from when.
func TestRuleDiffers(t *testing.T) {
	t.Parallel()
	all := agreed(t, 3, shop)
	for i := range 9 {
		all[i%3].send(t, "user", fmt.Sprint("u", i))
	}
	change := func(text string) {
		t.Helper()
		set, _, err := file.Load([]file.Source{{Name: "shop.yaml", Data: []byte(text)}}, file.Options{})
		if err != nil {
			t.Fatal(err)
		}
		all[2].limiter.SetRules(set)
	}
	change(strings.Replace(shop, "5/hour", "7/hour", 1))
	for i, m := range all {
		m.forgetAsked()
		one, n, err := m.Rule(t.Context(), "default", "search", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		met, left := uint64(6), 1
		if i == 2 {
			met, left = 0, 2
		}
		if one.Met != met || n.Asked != 3 || n.Answered != 3-left || n.Apart == nil || len(n.Apart.Differ) != left {
			t.Fatalf("%s: %d, %+v, %+v", m.Self(), one.Met, n, n.Apart)
		}
		if d := n.Apart.Differ[0]; i < 2 && (d.Node != "node-2" || d.Rule != "search" || d.Here != "5 per hour" ||
			d.There != "7 per hour") {
			t.Errorf("%+v", d)
		}
		if !strings.Contains(n.Remark, "another rule default/search: ") {
			t.Errorf("%q", n.Remark)
		}
		o, err := m.Overview(t.Context(), "", time.Hour)
		if err != nil || o.Requests != 9 || !strings.HasPrefix(o.Sentences[0],
			"The nodes do not have the same rules: ") {
			t.Errorf("%d, %q, %v", o.Requests, o.Sentences, err)
		}
	}
}

// Many who ask different things at the same time are all told of all nodes: nobody gets a third of
// the truth.
func TestManyAskAtOnce(t *testing.T) {
	t.Parallel()
	all := agreed(t, 3, shop)
	for i := range 9 {
		all[i%3].send(t, "user", fmt.Sprint("u", i))
	}
	var asking sync.WaitGroup
	for i := range 60 { // of them no two share an answer
		asking.Go(func() {
			list, n, err := all[i%3].Rules(t.Context(), "", time.Hour+time.Duration(i)*time.Minute)
			if err != nil || n.Answered != 3 || n.Remark != "" || len(list) != 1 || list[0].Met != 9 {
				t.Errorf("%+v, %+v, %v", list, n, err)
			}
		})
	}
	asking.Wait()
}

// What is asked about all rules is asked once, whatever it is asked for.
func TestOneQuestion(t *testing.T) {
	t.Parallel()
	all := agreed(t, 2, shop)
	m := all[0]
	asked := 0
	ask := m.View.Ask
	m.View.Ask = func(ctx context.Context, want snapshot.Want) (*snapshot.Snapshot, insight.Nodes, error) {
		m.mu.Lock()
		if m.asked[want] == nil {
			asked++
		}
		m.mu.Unlock()
		return ask(ctx, want)
	}
	if _, err := m.Overview(t.Context(), "", 0); err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.Rules(t.Context(), "", snapshot.DefaultOver); err != nil {
		t.Fatal(err)
	}
	if _, _, err := m.Candidates(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	if asked != 1 {
		t.Errorf("%d questions", asked)
	}
}
