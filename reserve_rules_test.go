package weir_test

import (
	"errors"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

// The rules change between reservation and commit: what is still counted is settled by the numbers
// in force, the rest is passed over.
func TestCommitAfterReload(t *testing.T) {
	c := newClock()
	l, spy := newSpy(t, c, weir.WithRules(load(t, `
limits:
  - {name: stays, per: [user], allow: 1000/hour, algorithm: token_bucket}
  - {name: named, per: [user], allow: 100/hour, algorithm: token_bucket, override: {ada: 5000/hour}}
  - {name: goes, per: [user], allow: 1000/hour}
  - {name: window, per: [user], allow: 1000/hour}
`)))
	id, _ := reserve(t, l, "ada", 900, 0)
	wantUsed(t, l, "ada", 900, 900, 900, 900)
	l.SetRules(load(t, `
limits:
  - {name: comes, per: [user], allow: 50/hour}
  - {name: stays, per: [user], allow: 2000/hour, algorithm: token_bucket}
  - {name: named, per: [user], allow: 200/hour, algorithm: token_bucket, override: {ada: 6000/hour}}
  - {name: window, per: [user], allow: 1000/day}
`))
	if !commit(t, l, id, 100) {
		t.Fatal("the reservation is gone")
	}
	wantUsed(t, l, "ada", 0, 100, 100, 900)
	if n := spy.settled.Load(); n != 2 {
		t.Errorf("%d settlements", n)
	}
	// An override that lifts the limit meanwhile: there is nothing to settle.
	id, _ = reserve(t, l, "ada", 10, 0)
	l.SetRules(load(t, `
limits:
  - {name: named, per: [user], allow: 200/hour, algorithm: token_bucket, override: {ada: unlimited}}
`))
	if before := spy.settled.Load(); !commit(t, l, id, 5) || spy.settled.Load() != before {
		t.Error("a lifted limit was settled")
	}
}

// An override counts under its own numbers; a commit above the base limit does not lose any of it.
func TestCommitOfOverride(t *testing.T) {
	for _, per := range []string{"[user]", "[user|ip]", "[\"account|user\"]"} {
		l, _ := newSpy(t, newClock(),
			weir.WithRules(load(t, `limits: [{name: named, per: `+per+
				`, allow: 10/hour, algorithm: sliding_log, override: {ada: 5000/hour}}]`)))
		id, _ := reserve(t, l, "ada", 1000, 0)
		if !commit(t, l, id, 3000) {
			t.Fatal("the reservation is gone")
		}
		wantUsed(t, l, "ada", 3000)
	}
}

// An elastic limit is settled by the numbers that the signal leaves.
func TestCommitOfElastic(t *testing.T) {
	signal := &percent{value: 10}
	l, _ := newSpy(t, newClock(), weir.WithSignals(signal), weir.WithRules(load(t, `
limits: [{name: tokens, per: [user], allow: 1000/hour, algorithm: token_bucket, throttle: {elastic: {signal: cpu, curve: {50%: 400%, 95%: 100%}}}}]
`)))
	id, _ := reserve(t, l, "ada", 3000, 0)
	if !commit(t, l, id, 3500) {
		t.Fatal("the reservation is gone")
	}
	wantUsed(t, l, "ada", 3500)
}

// A grant gives a key other numbers, by which it is settled too.
func TestCommitOfGrant(t *testing.T) {
	c := newClock()
	l, _ := newSpy(t, c, weir.WithClock(c.read), weir.WithRules(load(t, `
limits:
  - {name: tokens, per: [user], allow: 100/hour, algorithm: token_bucket}
  - {name: more, per: [user], allow: 100/hour, algorithm: sliding_log, cost_after: "estimate"}
`)))
	grant := func(limit, allow string) {
		t.Helper()
		// Nobody shares the store.
		if _, err := l.Grants().Set(t.Context(), "", limit, []string{"user=ada"}, allow, time.UnixMicro(c.read()).Add(time.Hour), ""); err != nil && !errors.Is(err, weir.ErrNotShared) {
			t.Fatal(err)
		}
	}
	grant("tokens", "5000/hour")
	grant("more", "5000/hour")
	id, _ := reserve(t, l, "ada", 3000, 0)
	if !commit(t, l, id, 3500) {
		t.Fatal("the reservation is gone")
	}
	wantUsed(t, l, "ada", 3500, 3500)
	var d weir.Decision
	if err := l.Decide(t.Context(), &weir.Request{Attributes: weir.Map{"user": "ada"}, Hits: 100}, &d); err != nil ||
		!d.Allowed {
		t.Fatal(err, d.Allowed)
	}
	if err := l.Settle(t.Context(), &d, func(*rule.Rule, int64) (int64, bool) { return 500, true }); err != nil {
		t.Fatal(err)
	}
	wantUsed(t, l, "ada", 4000, 4000)
	// What the limit is lifted for afterwards was charged before.
	id, _ = reserve(t, l, "bob", 90, 0)
	if _, err := l.Grants().Set(t.Context(), "", "tokens", []string{"user=bob"}, "unlimited", time.UnixMicro(c.read()).Add(time.Hour), ""); err != nil && !errors.Is(err, weir.ErrNotShared) {
		t.Fatal(err)
	}
	if !commit(t, l, id, 10) {
		t.Fatal("the reservation is gone")
	}
	wantUsed(t, l, "bob", 10) // of more
	c.wait(2 * time.Hour)
	wantUsed(t, l, "bob", 0, 0)
}

type percent struct{ value int }

func (p *percent) Signal(string) (int, bool) { return p.value, true }

// Limiter.Settle is for those who have the decision.
func TestSettle(t *testing.T) {
	c := newClock()
	l, spy := newSpy(t, c, weir.WithRules(load(t, `
limits:
  - {name: tokens, per: [user], allow: [1000/min, 9000/hour], cost: 100, cost_after: "estimate", algorithm: sliding_log}
  - {name: requests, per: [user], allow: 50/hour}
  - {name: odd, per: [user], allow: 5000/hour, cost: 10, cost_after: "estimate"}
`)))
	var d weir.Decision
	r := weir.Request{Attributes: weir.Map{"user": "ada"}, Hits: 1}
	if err := l.Decide(t.Context(), &r, &d); err != nil || !d.Allowed {
		t.Fatal(err, d.Allowed)
	}
	c.wait(20 * time.Second)
	err := l.Settle(t.Context(), &d, func(r *rule.Rule, estimate int64) (int64, bool) {
		return 23, r.Name == "tokens" && estimate == 100
	})
	if err != nil {
		t.Fatal(err)
	}
	wantUsed(t, l, "ada", 23, 23, 1, 10)
	if s := l.Reservations().Stats(); s.Unknown != 1 || s.Made != 0 || spy.holds.Load() != 0 {
		t.Errorf("%+v, %d notes", s, spy.holds.Load())
	}
	// Other numbers meanwhile.
	if err := l.Decide(t.Context(), &r, &d); err != nil || !d.Allowed {
		t.Fatal(err, d.Allowed)
	}
	l.SetRules(
		load(t,
			`limits: [{name: tokens, per: [user], allow: [2000/min, 100000/hour], cost: 100, cost_after: "estimate", algorithm: sliding_log}]`))
	if err := l.Settle(t.Context(), &d, func(*rule.Rule, int64) (int64, bool) { return 1500, true }); err != nil {
		t.Fatal(err)
	}
	wantUsed(t, l, "ada", 1523, 1523)
	// A refusal has nothing to settle.
	r.Hits = 1000
	if err := l.Decide(t.Context(), &r, &d); err != nil || d.Allowed {
		t.Fatal(err, d.Allowed)
	}
	before := spy.settled.Load()
	if err := l.Settle(t.Context(), &d, func(*rule.Rule, int64) (int64, bool) { return 0, true }); err != nil ||
		spy.settled.Load() != before {
		t.Errorf("%v, %d settlements of a refusal", err, spy.settled.Load()-before)
	}
}
