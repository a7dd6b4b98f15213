//go:build !race

package gather

import (
	"fmt"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/rule"
)

// Under the race detector a sync.Pool drops what it holds at random.

// Allocations are none, whatever is looked at.
func TestAllocations(t *testing.T) {
	b := newBench(t, Options{Known: []string{"user"}}, `
domain: shop
limits:
  - { name: search, per: [user], allow: [10/min, 100/hour], algorithm: fixed_window }
  - { name: all, allow: 30/min, algorithm: fixed_window }
`)
	users := make([]rule.Pairs, 64)
	for i := range users {
		users[i] = rule.Pairs{{Name: "user", Value: fmt.Sprint("user-", i)}}
	}
	i := 0
	r := weir.Request{Door: "http"}
	step := func() {
		i++
		r.Attributes = &users[i%len(users)]
		if err := b.limiter.Decide(t.Context(), &r, &b.d); err != nil {
			t.Fatal(err)
		}
		if b.d.Allowed {
			b.limiter.Phases().Answered(&r, &b.d, weir.Answer{Status: 200})
		}
	}
	for range 2000 {
		step()
	}
	b.gather(false)
	if n := testing.AllocsPerRun(1000, step); n > 0.1 {
		t.Errorf("%v allocations a decision", n)
	}
}

// Nor do rules in shadow, and those that are enforced on a share of their keys.
func TestCandidateAllocations(t *testing.T) {
	b := newBench(t, Options{},
		"domain: shop\nlimits: [{name: a, per: [user], allow: 0/min, on_limit: shadow}, {name: b, per: [user], allow: 0/min, enforce: 10%}]")
	users := make([]rule.Pairs, 100)
	for i := range users {
		users[i] = rule.Pairs{{Name: "user", Value: fmt.Sprint("user-", i)}}
	}
	i, r := 0, weir.Request{Hits: 1}
	step := func() {
		i++
		r.Attributes = &users[i%len(users)]
		if err := b.limiter.Decide(t.Context(), &r, &b.d); err != nil {
			t.Fatal(err)
		}
	}
	for range 300 {
		step()
	}
	b.gather(false)
	if n := testing.AllocsPerRun(1000, step); n > 0.1 {
		t.Errorf("%v allocations a decision", n)
	}
}

// Nor do commands that bring their limit, admitted or refused.
func TestCommandAllocations(t *testing.T) {
	b := newBench(t, Options{}, "domain: shop\nlimits: [{name: a, allow: 30/min}]")
	keys := make([][]byte, 64)
	for i := range keys {
		keys[i] = fmt.Append(nil, "user-", i)
	}
	i := 0
	r := new(algo.Result)
	step := func() {
		i++
		r.Allowed = i%2 == 0
		b.Command(insight.CLThrottle, keys[i%len(keys)], 1, b.µs.Load(), r)
	}
	for range 2000 {
		step()
	}
	b.gather(false)
	if n := testing.AllocsPerRun(1000, step); n > 0 {
		t.Errorf("%v allocations a command", n)
	}
}
