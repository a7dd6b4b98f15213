package gather

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
)

// A file that does not load says so once, and takes no verdict from the rules in force.
func TestBrokenSourceIsNoVerdict(t *testing.T) {
	broken := ""
	b := newBench(t, Options{Broken: func() string { return broken }},
		"domain: shop\nlimits:\n  - { name: a, per: [user], allow: 3/hour }\n  - { name: b, allow: 1000/min }")
	for range 40 {
		b.ask("ada")
		b.pass(2 * time.Minute)
	}
	b.judge()
	names := func() (all []string) {
		list, _, err := b.Rules(t.Context(), "", time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list {
			for _, v := range r.Verdicts {
				all = append(all, r.Name+" "+v.Verdict)
			}
		}
		return all
	}
	before := names()
	if len(before) < 2 {
		t.Fatal(before)
	}
	broken = "shop.yaml:3:5: the list is not closed"
	b.judge()
	if now := names(); !slices.Equal(now, before) {
		t.Errorf("they were %q, and are %q", before, now)
	}
	o, err := b.Overview(context.Background(), "", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if a := o.Nodes.Apart; a == nil || len(a.Broken) != 1 || a.Broken[0].Error != broken ||
		!strings.HasPrefix(o.Sentences[0], "The rules as they lie in the source") {
		t.Errorf("%+v, %q", o.Nodes, o.Sentences)
	}
}

// Limits that requests bring are no rule, until one is brought.
func TestBroughtLimitIsNoRule(t *testing.T) {
	b := newBench(t, Options{},
		"domain: shop\ndescriptors: [{ key: user, rate_limit: { unit: minute, requests_per_unit: 5 } }]")
	b.judge()
	list, _, err := b.Rules(t.Context(), "", time.Hour)
	if err != nil || len(list) != 1 || list[0].Name == insight.CommandRule {
		t.Errorf("%+v, %v", list, err)
	}
	for _, j := range b.Judged() {
		if j.Rule != list[0].Name {
			t.Errorf("%+v is judged", j)
		}
	}
}
