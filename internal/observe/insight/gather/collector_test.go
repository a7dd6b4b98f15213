package gather

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

// bench is a limiter with a Collector on a clock of its own.
type bench struct {
	t testing.TB
	*Collector
	limiter *weir.Limiter
	*clock
	d weir.Decision
}

// clock is the time of a store and of a Collector.
type clock struct{ µs atomic.Int64 }

// begun is when the clock of a bench begins: a full day, so that windows begin with it.
var begun = time.Date(2026, 1, 5, 0, 0, 0, 0, time.UTC)

func newBench(t testing.TB, o Options, rules string) *bench {
	t.Helper()
	return startBench(t, o, begun, "", rules)
}

// startBench is newBench at another time, with a history file unless path is "".
func startBench(t testing.TB, o Options, at time.Time, path, rules string) *bench {
	t.Helper()
	b := &bench{t: t, clock: new(clock)}
	b.µs.Store(at.UnixMicro())
	store, err := memory.New(memory.Options{Clock: b.µs.Load})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	if o.Seed == 0 {
		o.Seed = 1
	}
	o.Now = b.time
	b.Collector = New(o)
	if path != "" {
		if err := b.Open(path); err != nil {
			t.Fatal(err)
		}
	}
	b.limiter, err = weir.New(store, weir.WithRules(load(t, rules)), weir.WithHooks(b.Hooks()),
		weir.WithClock(b.µs.Load))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func load(t testing.TB, rules string) *rule.Set {
	t.Helper()
	set, _, err := file.Load([]file.Source{{Name: "shop.yaml", Data: []byte(rules)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func (b *bench) time() time.Time { return time.UnixMicro(b.µs.Load()) }

// pass lets time pass, as Run would see it.
func (b *bench) pass(d time.Duration) {
	for d > 0 {
		step := min(d, time.Second)
		b.µs.Add(step.Microseconds())
		if b.gather(true) {
			b.judge()
		}
		d -= step
	}
}

// ask asks for a user, and returns whether it was admitted.
func (b *bench) ask(user string) bool {
	return b.send(weir.Request{Attributes: rule.Pairs{{Name: "user", Value: user}}})
}

func (b *bench) send(r weir.Request) bool {
	b.t.Helper()
	if err := b.limiter.Decide(b.t.Context(), &r, &b.d); err != nil {
		b.t.Fatal(err)
	}
	return b.d.Allowed
}

func (b *bench) rule(name string) *insight.RuleReport {
	b.t.Helper()
	r, _, err := b.Rule(b.t.Context(), "", name, time.Hour)
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// What is counted of a rule is what happened: once for each request, however many windows it met.
func TestCounts(t *testing.T) {
	b := newBench(t, Options{}, `
domain: shop
limits:
  - { name: search, per: [user], allow: [10/min, 100/hour], algorithm: fixed_window }
  - { name: all, allow: 30/min, algorithm: fixed_window }
  - { name: trial, per: [user], allow: 5/min, algorithm: fixed_window, on_limit: shadow }
`)
	for range 20 {
		b.ask("ada")
	}
	for i := range 25 {
		b.ask(fmt.Sprint("user-", i))
	}
	b.send(weir.Request{Attributes: rule.Pairs{{Name: "user", Value: "ada"}}, Peek: true})
	b.send(weir.Request{Attributes: rule.Pairs{{Name: "user", Value: "user-1"}}, Hits: -1})
	b.pass(time.Second)
	// search refuses ada 10 times; all admits 30 of the 35 others. ada is near at search from her
	// 8th to her 10th request, and everybody at all from the 24th on.
	search, all, trial := b.rule("search"), b.rule("all"), b.rule("trial")
	for _, e := range []struct {
		what      string
		got, want uint64
	}{
		{"search met", search.Met, 45}, {"search refused", search.Refused, 10}, {"search alone", search.RefusedAlone, 10},
		{"search near", search.Near, 3}, {"all met", all.Met, 45}, {"all refused", all.Refused, 5}, {"all alone", all.RefusedAlone, 5},
		{"trial met", trial.Met, 45}, {"trial refused", trial.Refused, 0}, {"trial would", trial.WouldRefuse, 15},
	} {
		if e.got != e.want {
			t.Errorf("%s: %d, want %d", e.what, e.got, e.want)
		}
	}
	o, err := b.Overview(t.Context(), "shop", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if o.Requests != 45 || o.Refused != 15 || o.Step != 60 || len(o.Series.T) != 61 && len(o.Series.T) != 60 {
		t.Errorf("%d requests, %d refused, step %d, %d steps", o.Requests, o.Refused, o.Step, len(o.Series.T))
	}
	if n := o.Series.Admitted[len(o.Series.T)-1]; n != 30 {
		t.Errorf("%d admitted in the last minute", n)
	}
	keys, _, err := b.Keys(t.Context(), insight.KeysQuery{By: insight.ByRefused, Over: time.Minute})
	if err != nil || len(keys) == 0 || keys[0].Key != "user=ada" {
		t.Fatalf("keys %+v, %v", keys, err)
	}
}

// The share of a key's requests that was refused counts those that were admitted, too.
func TestRefusedShare(t *testing.T) {
	b := newBench(t, Options{},
		"domain: shop\nlimits: [{name: a, per: [user], allow: 1000/min, algorithm: fixed_window}]")
	for range 2000 {
		b.ask("ada")
		b.gather(false)
	}
	b.pass(time.Second)
	keys, _, err := b.Keys(t.Context(), insight.KeysQuery{By: insight.ByRefused, Over: time.Minute})
	if err != nil || len(keys) != 1 || keys[0].RefusedShare < 0.4 || keys[0].RefusedShare > 0.6 {
		t.Errorf("%+v, %v", keys, err)
	}
}

// A rule that stays as it is keeps what is known of it over a reload; one that changes begins anew.
func TestReload(t *testing.T) {
	b := newBench(t, Options{},
		"domain: shop\nlimits: [{name: a, per: [user], allow: 1/min}, {name: b, per: [user], allow: 9/min}]")
	b.ask("ada")
	b.ask("ada")
	b.pass(time.Second)
	b.limiter.SetRules(
		load(t,
			"domain: shop\n\nlimits: [{name: new, allow: 50/min}, {name: a, per: [user], allow: 1/min}, {name: b, per: [user], allow: 8/min}]"))
	b.pass(time.Second)
	if r := b.rule("a"); r.Met != 2 || r.Refused != 1 || r.Line != 3 {
		t.Errorf("unchanged: %+v", r)
	}
	if r := b.rule("b"); r.Met != 0 || !r.Since.After(begun) {
		t.Errorf("changed: %+v", r)
	}
	b.ask("ada")
	b.pass(time.Second)
	if r := b.rule("b"); r.Met != 1 {
		t.Errorf("changed, and met: %+v", r)
	}
	if _, _, err := b.Rule(t.Context(), "shop", "gone", 0); err != insight.ErrUnknown {
		t.Errorf("no rule: %v", err)
	}
}
