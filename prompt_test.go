package weir_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

const promptRules = `
limits:
  - {name: api, per: [user|ip], allow: [3/min, 5/hour], algorithm: sliding_log}
  - {name: bucket, when: {kind: bucket}, per: [user], allow: {rate: 6/min, burst: 3}, algorithm: token_bucket, throttle: {soft: {over: 50%, for: 1m}}}
  - {name: slots, when: {kind: slots}, per: [user], allow: 2, algorithm: concurrency}
  - {name: tried, when: {kind: bucket}, per: [user], allow: 1/min, on_limit: shadow}
  - {name: strict, when: {kind: strict}, per: [user], allow: 1/min, ban: {after: 2, within: 1m, for: 5m}}
exempt: {user: [root]}
`

// way is a Limiter that decides in one of the ways that there are.
type way struct {
	*weir.Limiter
	store  *doortest.WaitingStore
	decide func(r *weir.Request, d *weir.Decision) error
	told   []string
	d      weir.Decision
}

func newWay(t rapid.TB, c *clock, waits func([]store.Charge) bool, inTwo bool) *way {
	inner, err := memory.New(memory.Options{Clock: c.read})
	if err != nil {
		t.Fatal(err)
	}
	set, _, err := file.Load([]file.Source{{Name: "test.yaml", Data: []byte(promptRules)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w := &way{store: &doortest.WaitingStore{Store: inner, Waits: waits}}
	w.Limiter, err = weir.New(w.store, weir.WithRules(set), weir.WithClock(c.read), weir.WithHooks(weir.Hooks{
		Decided: func(r *weir.Request, d *weir.Decision) { w.told = append(w.told, shown(r, d)) },
	}))
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	w.decide = func(r *weir.Request, d *weir.Decision) error { return w.Decide(ctx, r, d) }
	if inTwo {
		w.decide = func(r *weir.Request, d *weir.Decision) error {
			p := w.Phases()
			if p.Match(r, d) && !p.ChargeNow(r, d) {
				if err := p.Charge(ctx, r, d); err != nil {
					return err
				}
			}
			p.Tell(ctx, r, d)
			return nil
		}
	}
	return w
}

// shown is all of a decision that does not differ from one store to another.
func shown(r *weir.Request, d *weir.Decision) string {
	var b strings.Builder
	ban := ""
	if d.Banned.Rule != nil {
		ban = d.Banned.Rule.Name
	}
	fmt.Fprintf(&b, "%v allowed=%v at=%d retry=%d delay=%d exempt=%v known=%v id=%v banned=%s near=%v soft=%v hits=%d",
		r.Attributes, d.Allowed, d.Time, d.RetryAfter, d.Delay, d.Exempt, d.Known, d.ID != 0, ban, d.NearLimit(),
		d.SoftExceeded(), len(d.Matches.Hits))
	for i := range d.Limits {
		l := &d.Limits[i]
		fmt.Fprintf(&b, "; %s %s %+v mode=%v near=%v slot=%v of=%+v", l.Window.Rule.Name, l.Window.Name, l.Result,
			l.Mode, l.Near, l.Slot != "", d.InForce(i).Config())
	}
	return b.String()
}

// TestChargeNow: a decision is the same whether the store makes it at once, says that it has to
// wait and is asked again, or is not asked in two steps; so is what hooks are told, what leads to a
// ban, and what grants change.
func TestChargeNow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newClock()
		n := 0
		ways := []*way{
			newWay(t, c, nil, false),
			newWay(t, c, func([]store.Charge) bool { return false }, true),
			newWay(t, c, nil, true),
			newWay(t, c, func([]store.Charge) bool { n++; return n%2 == 0 }, true),
		}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			c.wait(time.Duration(rapid.IntRange(0, 20).Draw(t, "seconds")) * time.Second)
			if rapid.IntRange(0, 9).Draw(t, "grant") == 0 {
				allow := rapid.SampledFrom([]string{"[10/min, 20/hour]", "[1/min, 2/hour]", "unlimited"}).Draw(t,
					"allow")
				for _, w := range ways {
					if _, err := w.Grants().Set(context.Background(), "", "api", []string{"ada"}, allow, time.UnixMicro(c.read()).Add(time.Minute), "test"); err != nil {
						t.Fatal(err)
					}
				}
			}
			r := weir.Request{
				Attributes: weir.Pairs{
					{Name: "user", Value: rapid.SampledFrom([]string{"ada", "bob", "root"}).Draw(t, "user")},
					{Name: "kind", Value: rapid.SampledFrom([]string{"", "bucket", "slots", "strict"}).Draw(t, "kind")},
				},
				Hits: rapid.Int64Range(-1, 3).Draw(t, "hits"), MaxDelay: weir.AnyDelay,
			}
			for _, w := range ways {
				own := r
				if err := w.decide(&own, &w.d); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, w := range ways[1:] {
			if len(w.told) != len(ways[0].told) {
				t.Fatalf("%d decisions were told of, and %d", len(w.told), len(ways[0].told))
			}
			for i := range w.told {
				if w.told[i] != ways[0].told[i] {
					t.Fatalf("decision %d:\n%s\n%s", i, w.told[i], ways[0].told[i])
				}
			}
		}
		if ways[0].store.AtOnce.Load() != 0 || ways[2].store.AtOnce.Load() != 0 {
			t.Fatal("what has to wait did not")
		}
	})
}

// TestChargeNowNever: a store that is no store.Prompt decides nothing at once, and is asked once.
func TestChargeNowNever(t *testing.T) {
	c := newClock()
	l, counting := banLimiter(t, c, "limits: [{name: api, per: [user], allow: 2/min}]")
	p, r, d := l.Phases(), as("ada"), new(weir.Decision)
	if !p.Match(&r, d) || p.ChargeNow(&r, d) {
		t.Fatal("it was decided at once")
	}
	if err := p.Charge(t.Context(), &r, d); err != nil || !d.Allowed || d.Limits[0].Remaining != 1 ||
		counting.takes.Load() != 1 {
		t.Fatalf("%v, %+v, %d calls", err, d, counting.takes.Load())
	}
	none := weir.Request{}
	if !p.Match(&none, d) || !p.ChargeNow(&none, d) || !d.Allowed {
		t.Error("a request without limits has to wait")
	}
}
