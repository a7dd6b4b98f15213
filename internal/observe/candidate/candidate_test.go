package candidate

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

// watcher follows the candidates of a limiter.
type watcher struct {
	tracker *Tracker
	set     atomic.Pointer[Set]
}

func (w *watcher) byName() map[string]Reading {
	out := map[string]Reading{}
	for _, r := range w.set.Load().Readings("") {
		out[r.Limit] = r
	}
	return out
}

func load(t testing.TB, text string) *rule.Set {
	t.Helper()
	set, _, err := file.Load([]file.Source{{Name: "0.yaml", Data: []byte(text)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// limiter makes a limiter of rules, and what follows its candidates.
func limiter(t testing.TB, text string) (*weir.Limiter, *watcher) {
	t.Helper()
	now := int64(1_767_225_600_000_000)
	store, err := memory.New(memory.Options{Clock: func() int64 { return now }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	w := &watcher{tracker: New(nil)}
	l, err := weir.New(store, weir.WithRules(load(t, text)), weir.WithHooks(weir.Hooks{
		RulesChanged: func(s *rule.Set, _ uint64) { w.set.Store(w.tracker.Of(s, w.set.Load())) },
		Decided:      func(_ *weir.Request, d *weir.Decision) { w.set.Load().Count(d) },
	}))
	if err != nil {
		t.Fatal(err)
	}
	return l, w
}

func allow(t testing.TB, l *weir.Limiter, attributes rule.Map) {
	t.Helper()
	if _, err := l.Allow(context.Background(), weir.Request{Domain: "shop", Attributes: attributes}); err != nil {
		t.Fatal(err)
	}
}

// A rule that is enforced on a share of its keys reports these keys separately.
func TestCandidateOnAShare(t *testing.T) {
	l, w := limiter(t, `
domain: shop
limits:
  - { name: trial, per: [user], allow: 1/min, algorithm: sliding_log, enforce: 10% }
`)
	refused, shadowed := 0, 0
	for i := range 500 {
		r := weir.Request{Domain: "shop", Attributes: rule.Map{"user": fmt.Sprint("user-", i)}}
		for k := range 3 {
			d, err := l.Allow(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case k == 2 && !d.Allowed:
				refused++
			case k == 2:
				shadowed++
			}
		}
	}
	c := w.byName()["trial"]
	if c.Enforce != 10 || c.EnforcedAdmitted != uint64(refused) || c.EnforcedRefused != 2*uint64(refused) ||
		c.BothAdmit != uint64(shadowed) || c.WouldRefuse != 2*uint64(shadowed) || c.BothRefuse+c.WouldAdmit != 0 || refused == 0 || refused+shadowed != 500 {
		t.Errorf("%d refused, %d in shadow: %+v", refused, shadowed, c)
	}
	for _, e := range []struct{ got, want uint64 }{{c.KeysRefused, uint64(shadowed)}, {c.EnforcedKeysRefused, uint64(refused)}} {
		if off := math.Abs(float64(e.got)/float64(e.want) - 1); off > 0.2 { // six standard errors
			t.Errorf("%d keys estimated, %d counted", e.got, e.want)
		}
	}
	if len(c.Top) != topKeys || c.Top[0].Count < c.Top[9].Count {
		t.Errorf("top: %v", c.Top)
	}
}

// A reload keeps what is known of a candidate that it does not change, and forgets what is known of
// one that it does.
func TestCandidateReload(t *testing.T) {
	const before = "domain: shop\nlimits: [{name: a, allow: 1/min, on_limit: shadow}, {name: b, allow: 1/min, on_limit: shadow}, {name: c, allow: 1/min, on_limit: shadow}]"
	l, w := limiter(t, before)
	allow(t, l, nil)
	allow(t, l, nil)
	if n := w.tracker.watched.Load(); n != 3 {
		t.Errorf("the keys of %d candidates are kept", n)
	}
	l.SetRules(load(t, "domain: shop\nlimits: [{name: new, allow: 9/min}, {name: a, allow: 1/min, on_limit: shadow}, {name: b, allow: 2/min, on_limit: shadow}, {name: c, allow: 1/min}]"))
	got := w.byName()
	if len(got) != 2 || got["a"].WouldRefuse != 1 || got["b"].WouldRefuse != 0 || got["b"].BothAdmit != 0 {
		t.Errorf("got %+v", got)
	}
	if n := w.tracker.watched.Load(); n != 1 {
		t.Errorf("the keys of %d candidates are kept", n)
	}
	allow(t, l, nil)
	if got := w.byName(); got["a"].WouldRefuse+got["a"].WouldAdmit+got["a"].BothAdmit+got["a"].BothRefuse != 3 {
		t.Errorf("got %+v", got)
	}
}

// Secrets and long values do not come out with the keys.
func TestCandidateKeysAreFitToBeShown(t *testing.T) {
	l, w := limiter(t, "domain: shop\nlimits: [{name: a, per: [header.x-api-key, user], allow: 0/min, on_limit: shadow}]")
	allow(t, l, rule.Map{"header.x-api-key": "sesame", "user": strings.Repeat("ü", 100)})
	top := w.byName()["a"].Top
	if len(top) != 1 || strings.Contains(top[0].Key, "sesame") || !strings.HasPrefix(top[0].Key, "header.x-api-key=hidden:") || !strings.HasSuffix(top[0].Key, "ü…") || len(top[0].Key) > maxHeavyText {
		t.Errorf("got %+v", top)
	}
}
