package weir_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/memory"
)

// epoch is the virtual time of the tests' first step, in µs: 2026-01-01T00:00:00Z.
const epoch = int64(1767225600) * 1e6

// clock is a virtual clock. Safe for concurrent use: sweeps of reservations read it in the
// background.
type clock struct{ now atomic.Int64 }

func (c *clock) read() int64          { return c.now.Load() }
func (c *clock) set(at int64)         { c.now.Store(at) }
func (c *clock) wait(d time.Duration) { c.now.Add(d.Microseconds()) }
func newClock() *clock                { return clockAt(epoch) }
func clockAt(at int64) *clock {
	c := new(clock)
	c.set(at)
	return c
}

func load(t testing.TB, yaml string) *rule.Set {
	t.Helper()
	set, _, err := file.Load([]file.Source{{Name: "test.yaml", Data: []byte(yaml)}}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func newLimiter(t testing.TB, c *clock, options ...weir.Option) *weir.Limiter {
	t.Helper()
	store, err := memory.New(memory.Options{Clock: c.read})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	limiter, err := weir.New(store, options...)
	if err != nil {
		t.Fatal(err)
	}
	return limiter
}

func allow(t testing.TB, l *weir.Limiter, r weir.Request) *weir.Decision {
	t.Helper()
	d, err := l.Allow(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func decide(t testing.TB, l *weir.Limiter, r weir.Request) *weir.Decision {
	t.Helper()
	d := new(weir.Decision)
	if err := l.Decide(context.Background(), &r, d); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestSingleLimit(t *testing.T) {
	c := newClock()
	l := newLimiter(t, c, weir.Limit("logins", "2/min", "key"))
	ada, bob := weir.Request{Attributes: weir.Map{"key": "ada"}}, weir.Request{Attributes: weir.Map{"key": "bob"}}
	for i := range 2 {
		if d := allow(t, l, ada); !d.Allowed || d.Limits[0].Remaining != int64(1-i) {
			t.Fatalf("request %d: %+v", i, d.Limits)
		}
	}
	d := allow(t, l, ada)
	if d.Allowed || d.RetryAfter <= 0 || strings.Join(d.LimitedBy(nil), " ") != "logins" {
		t.Fatalf("third request: allowed %v, retry after %d, by %v", d.Allowed, d.RetryAfter, d.LimitedBy(nil))
	}
	if !allow(t, l, bob).Allowed {
		t.Fatal("bob pays for ada")
	}
	c.now.Add(d.RetryAfter - 1)
	if allow(t, l, ada).Allowed {
		t.Fatal("admitted a microsecond before retry_after")
	}
	c.now.Add(1)
	if !allow(t, l, ada).Allowed {
		t.Fatal("refused at retry_after")
	}
}

func TestOptionsThatContradict(t *testing.T) {
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for name, options := range map[string][]weir.Option{
		"bad rate":         {weir.Limit("x", "ten a minute")},
		"no unit":          {weir.Limit("x", "5", "user")},
		"one name twice":   {weir.Limit("x", "1/s"), weir.Limit("x", "1/h")},
		"limits and rules": {weir.Limit("x", "1/s"), weir.WithRules(load(t, "limits: [{name: y, allow: 1/s}]"))},
		"nil rules":        {weir.WithRules(nil)},
	} {
		if _, err := weir.New(store, options...); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := weir.New(nil); err == nil {
		t.Error("nil store: no error")
	}
}

func TestNoRulesAllowsAll(t *testing.T) {
	l := newLimiter(t, newClock())
	if d := allow(t, l, weir.Request{}); !d.Allowed || d.Known || d.Nearest() != nil || d.Generation != 0 {
		t.Fatalf("%+v", d)
	}
}

func TestDomains(t *testing.T) {
	l := newLimiter(t, newClock(),
		weir.WithRules(load(t, "domain: shop\nlimits: [{name: one, allow: 1/min, algorithm: sliding_log}]")))
	if d := allow(t, l, weir.Request{}); !d.Known || d.Domain != "shop" || len(d.Limits) != 1 {
		t.Fatalf("without a domain the only one holds: %+v", d)
	}
	if d := allow(t, l, weir.Request{Domain: "other"}); d.Known || !d.Allowed {
		t.Fatalf("unknown domain: %+v", d)
	}
}

// With DenyUnknownDomains a request for a domain that no rule declares is refused for good, whether
// it asks or peeks, and a refund passes. Known domains, and requests while there are no rules, are
// as without it.
func TestDenyUnknownDomains(t *testing.T) {
	var decided []string
	l := newLimiter(t, newClock(), weir.DenyUnknownDomains(),
		weir.WithHooks(weir.Hooks{Decided: func(_ *weir.Request, d *weir.Decision) {
			decided = append(decided, strings.Join(d.LimitedBy(nil), ","))
		}}))
	if d := allow(t, l, weir.Request{Domain: "other", Hits: 1}); !d.Allowed || d.UnknownDomain() {
		t.Errorf("without rules: %+v", d)
	}
	l.SetRules(load(t, "domain: shop\nlimits: [{name: one, per: [user], allow: 1/min, algorithm: sliding_log}]"))
	for _, r := range []weir.Request{{Domain: "other", Hits: 1}, {Domain: "other", Peek: true}} {
		d := allow(t, l, r)
		if d.Allowed || !d.UnknownDomain() || d.RetryAfter != algo.Never || d.ID == 0 || d.Nearest() == nil ||
			d.Nearest().Window.Name != weir.UnknownDomainLimit {
			t.Errorf("%+v: %+v", r, d)
		}
	}
	if d := allow(t, l, weir.Request{Domain: "other", Hits: -1}); !d.Allowed || !d.UnknownDomain() {
		t.Errorf("a refund: %+v", d)
	}
	if d := allow(t, l, weir.Request{Domain: "shop", Hits: 1, Attributes: weir.Map{"user": "ada"}}); !d.Allowed ||
		d.UnknownDomain() {
		t.Errorf("a known domain: %+v", d)
	}
	if want := []string{"", weir.UnknownDomainLimit, weir.UnknownDomainLimit, "", ""}; !slices.Equal(decided, want) {
		t.Errorf("hooks heard of %q", decided)
	}
}

func TestAllOrNothing(t *testing.T) {
	c := newClock()
	l := newLimiter(t, c, weir.WithRules(load(t, `
limits:
  - {name: address, per: [ip], allow: 3/min, algorithm: sliding_log}
  - {name: user, per: [user], allow: 1/min, algorithm: sliding_log}
  - {name: watched, allow: 1/min, algorithm: sliding_log, on_limit: shadow}
`)))
	r := weir.Request{Attributes: weir.Map{"ip": "192.0.2.1", "user": "ada"}}
	if d := allow(t, l, r); !d.Allowed || len(d.Limits) != 3 {
		t.Fatalf("%+v", d.Limits)
	}
	for range 5 {
		d := allow(t, l, r)
		if d.Allowed {
			t.Fatal("the user's limit did not refuse")
		}
		if got := d.LimitedBy(nil); len(got) != 1 || got[0] != "user" {
			t.Fatalf("limited by %v", got)
		}
		if d.Limits[0].Remaining != 2 {
			t.Fatalf("the address was charged for a refused request: %d left", d.Limits[0].Remaining)
		}
		if n := d.Nearest(); n.Window.Name != "user" {
			t.Fatalf("a refusal speaks of %s", n.Window.Name)
		}
	}
	r.Attributes = weir.Map{"ip": "192.0.2.1"}
	d := allow(t, l, r)
	if !d.Allowed || d.Limits[0].Remaining != 1 || d.Limits[1].Allowed {
		t.Fatalf("shadow must report a denial and not refuse: %+v", d.Limits)
	}
	if n := d.Nearest(); n.Window.Name != "address" {
		t.Fatalf("headers would speak of %s", n.Window.Name)
	}
}

func TestNearLimitAndSoft(t *testing.T) {
	l := newLimiter(t, newClock(), weir.WithRules(load(t, `
limits: [{name: a, allow: 10/min, algorithm: sliding_log, throttle: {soft: 20%}}]
`)))
	for i := 1; i <= 13; i++ {
		d := allow(t, l, weir.Request{})
		lim := d.Limits[0]
		if d.Allowed != (i <= 12) || lim.Near != (i >= 8) || lim.Soft != (i == 11 || i == 12) || lim.Limit != 10 ||
			lim.SoftLimit != 12 {
			t.Fatalf("request %d: allowed %v, %+v", i, d.Allowed, lim)
		}
		if lim.Remaining != int64(max(10-i, 0)) {
			t.Fatalf("request %d: remaining %d", i, lim.Remaining)
		}
	}
}

func TestCostAndPeekAndRefund(t *testing.T) {
	l := newLimiter(t, newClock(), weir.WithRules(load(t, `
limits: [{name: a, allow: 10/min, algorithm: token_bucket, cost: 3}]
`)))
	for i, step := range []struct{ hits, remaining int64 }{{0, 10}, {2, 4}, {0, 4}, {-1, 7}, {-9, 10}, {3, 1}} {
		d := decide(t, l, weir.Request{Hits: step.hits, Peek: step.hits == 0})
		if !d.Allowed || d.Limits[0].Remaining != step.remaining {
			t.Fatalf("step %d: %+v", i, d.Limits[0])
		}
	}
	if d := decide(t, l, weir.Request{Hits: 1 << 62}); d.Allowed || d.RetryAfter != algo.Never {
		t.Fatalf("a huge cost: %+v", d.Limits[0])
	}
}

func TestLeakyBucketDelay(t *testing.T) {
	l := newLimiter(t, newClock(), weir.WithRules(load(t, `
limits:
  - {name: q, per: [k], allow: {rate: 1/s, burst: 4}, algorithm: leaky_bucket, on_limit: {wait: 2s}}
`)))
	for _, tc := range []struct {
		name     string
		max      time.Duration
		admitted int
	}{{"none", 0, 1}, {"any", weir.AnyDelay, 5}, {"the rule's", weir.RuleDelay, 3},
		{"1.5s", 1500 * time.Millisecond, 2}} {
		for i := range 6 {
			d := decide(t, l, weir.Request{Attributes: weir.Map{"k": tc.name}, Hits: 1, MaxDelay: tc.max})
			if d.Allowed != (i < tc.admitted) {
				t.Fatalf("max delay %s, request %d: allowed %v", tc.name, i, d.Allowed)
			}
			if want := int64(i) * 1e6; d.Allowed && d.Delay != want {
				t.Fatalf("max delay %s, request %d: delay %d", tc.name, i, d.Delay)
			}
		}
	}
}

func TestConcurrencySlots(t *testing.T) {
	l := newLimiter(t, newClock(), weir.WithRules(load(t, `
limits: [{name: jobs, per: [user], allow: 2 concurrent}]
`)))
	r := weir.Request{Attributes: weir.Map{"user": "ada"}}
	first := allow(t, l, r).Limits[0].Slot
	if first == "" || allow(t, l, r).Limits[0].Slot == "" {
		t.Fatal("no slot")
	}
	if d := allow(t, l, r); d.Allowed || d.Limits[0].Slot != "" {
		t.Fatalf("a third: %+v", d.Limits[0])
	}
	release := func(slot string) bool {
		ok, err := l.Release(context.Background(), slot)
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if !release(first) || release(first) || release("") || release("!") || release("AAAAAAAAAAAAAAAAAAAAAAAA") {
		t.Fatal("release must hold once, for a slot that was given")
	}
	if !allow(t, l, r).Allowed {
		t.Fatal("the slot did not come back")
	}
}

// A reload keeps what was consumed: with the same window, with another N, and with another W.
func TestReloadCarriesCounters(t *testing.T) {
	c := newClock()
	l := newLimiter(t, c, weir.WithRules(load(t, "limits: [{name: a, allow: 5/min, algorithm: sliding_log}]")))
	for range 5 {
		allow(t, l, weir.Request{})
	}
	for i, step := range []struct {
		rules     string
		remaining int64
	}{
		{"limits: [{name: a, allow: 5/min, algorithm: sliding_log}]", 0},
		{"limits: [{name: a, allow: 8/min, algorithm: sliding_log}]", 3},
		{"limits: [{name: a, allow: 9/hour, algorithm: sliding_log}]", 4},
		{"limits: [{name: a, allow: 9/hour, algorithm: token_bucket}]", 9},
	} {
		l.SetRules(load(t, step.rules))
		d := decide(t, l, weir.Request{Peek: true})
		if d.Generation != uint64(i+2) || d.Limits[0].Remaining != step.remaining {
			t.Fatalf("step %d: generation %d, %+v", i, d.Generation, d.Limits[0])
		}
	}
	again, _ := l.Rules()
	l.SetRules(again)
	if _, generation := l.Rules(); generation != 5 {
		t.Fatalf("putting the same set in force again made generation %d", generation)
	}
}

type brokenStore struct{ store.Store }

var errBroken = errors.New("broken")

func (brokenStore) Take(context.Context, []store.Charge, []algo.Result) (int64, error) {
	return 0, errBroken
}

func TestStoreErrorIsAnError(t *testing.T) {
	var told error
	decided := 0
	l, err := weir.New(brokenStore{}, weir.Limit("a", "1/s"), weir.WithHooks(weir.Hooks{
		StoreError: func(err error) { told = err },
		Decided:    func(*weir.Request, *weir.Decision) { decided++ },
	}))
	if err != nil {
		t.Fatal(err)
	}
	_, err = l.Allow(context.Background(), weir.Request{Attributes: weir.Map{"key": "x"}})
	if !errors.Is(err, errBroken) || !errors.Is(told, errBroken) || decided != 0 {
		t.Fatalf("err %v, hook %v, %d decisions", err, told, decided)
	}
}

// A request passes without the store only if each enforcing limit that it met lets it. Hooks hear
// of it.
func TestWithoutStore(t *testing.T) {
	for name, c := range map[string]struct {
		rules string
		want  bool
	}{
		"all say allow":      {"{name: a, allow: 1/s, on_store_error: allow}, {name: b, allow: 1/s, on_store_error: allow}", true},
		"one says nothing":   {"{name: a, allow: 1/s, on_store_error: allow}, {name: b, allow: 1/s}", false},
		"one says deny":      {"{name: a, allow: 1/s, on_store_error: deny}, {name: b, allow: 1/s, on_store_error: allow}", false},
		"a shadow says deny": {"{name: a, allow: 1/s, on_store_error: allow}, {name: b, allow: 1/s, on_store_error: deny, on_limit: shadow}", true},
	} {
		told := false
		hooks := weir.Hooks{Decided: func(_ *weir.Request,
			d *weir.Decision) {
			told = d.Allowed && d.WithoutStore != nil
		}}
		l, err := weir.New(brokenStore{}, weir.WithRules(load(t, "limits: ["+c.rules+"]")), weir.WithHooks(hooks))
		if err != nil {
			t.Fatal(err)
		}
		var d weir.Decision
		err = l.Decide(context.Background(), &weir.Request{Hits: 1}, &d)
		switch {
		case d.Allowed != c.want || (err == nil) != c.want:
			t.Errorf("%s: err %v, allowed %v, want %v", name, err, d.Allowed, c.want)
		case !errors.Is(cmp.Or(err, d.WithoutStore), errBroken) || told != c.want || len(d.Limits) != 0:
			t.Errorf("%s: err %v, without store %v, told %v, %d limits", name, err, d.WithoutStore, told, len(d.Limits))
		}
	}
}

// The domain of requests that name none follows the rules.
func TestSoleDomain(t *testing.T) {
	l, err := weir.New(memoryStore(t))
	if err != nil {
		t.Fatal(err)
	}
	is := func(want string) {
		t.Helper()
		if got := l.Phases().SoleDomain(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	is(weir.DefaultDomain)
	l.SetRules(load(t, "domain: shop\nlimits: [{name: a, allow: 1/s}]\n"))
	is("shop")
	two, _, err := file.Load([]file.Source{
		{Name: "a.yaml", Data: []byte("domain: shop\nlimits: [{name: a, allow: 1/s}]\n")},
		{Name: "b.yaml", Data: []byte("domain: mail\nlimits: [{name: a, allow: 1/s}]\n")},
	}, file.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l.SetRules(two)
	is("")
}

// Decisions while rules change: each is made by one whole set.
func TestSetRulesWhileDeciding(t *testing.T) {
	set := func(n int) *rule.Set {
		return load(t,
			fmt.Sprintf(
				"limits: [{name: a, allow: %[1]d/hour, algorithm: fixed_window}, {name: b, allow: %[1]d/hour, algorithm: fixed_window}]", n))
	}
	l := newLimiter(t, newClock(), weir.WithRules(set(1_000_000)))
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			var d weir.Decision
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := l.Decide(context.Background(), &weir.Request{Hits: 1}, &d); err != nil {
					t.Error(err)
					return
				}
				if len(d.Limits) != 2 || d.Limits[0].Limit != d.Limits[1].Limit {
					t.Errorf("half a set: %+v", d.Limits)
					return
				}
			}
		})
	}
	for i := range 100 {
		l.SetRules(set(1_000_000 + i))
	}
	close(done)
	wg.Wait()
}

func ExampleLimit() {
	store, err := memory.New(memory.Options{})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	limiter, err := weir.New(store, weir.Limit("logins", "2/day", "user"))
	if err != nil {
		panic(err)
	}
	for range 3 {
		d, err := limiter.Allow(context.Background(), weir.Request{Attributes: weir.Map{"user": "ada"}})
		if err != nil {
			panic(err)
		}
		fmt.Println(d.Allowed, d.LimitedBy(nil))
	}
	// Output:
	// true []
	// true []
	// false [logins]
}

// A limit without per is one counter for all requests, whatever they bring.
func TestSingleLimitForAll(t *testing.T) {
	c := newClock()
	l := newLimiter(t, c, weir.Limit("jobs", "3/hour"))
	for i, attributes := range []weir.Map{{"key": "ada"}, {"user": "bob"}, nil} {
		if d := allow(t, l, weir.Request{Attributes: attributes}); !d.Allowed || d.Limits[0].Remaining != int64(2-i) {
			t.Fatalf("request %d: %+v", i+1, d.Limits)
		}
	}
	if allow(t, l, weir.Request{}).Allowed {
		t.Fatal("the fourth request passes")
	}
}

// What a user reads as a duration is one, also where a limit never admits.
func TestDurations(t *testing.T) {
	l := newLimiter(t, newClock(), weir.WithRules(load(t, `
limits:
  - {name: log, when: {path: /log}, allow: 1/min, algorithm: sliding_log}
  - {name: queue, when: {path: /queue}, allow: {rate: 1/s, burst: 10}, algorithm: leaky_bucket}
  - {name: closed, when: {path: /closed}, allow: 0/min}
`)))
	ask := func(path string) *weir.Decision {
		return allow(t, l, weir.Request{Attributes: weir.Map{"path": path}, MaxDelay: weir.AnyDelay})
	}
	ask("/log")
	d := ask("/log")
	retry, ok := d.Retry()
	if retry != time.Minute || !ok || d.Wait() != 0 {
		t.Errorf("the decision: retry %v, %v, wait %v", retry, ok, d.Wait())
	}
	if retry, ok = d.Limits[0].Retry(); retry != time.Minute || !ok {
		t.Errorf("the limit: retry %v, %v", retry, ok)
	}
	if reset, ok := d.Limits[0].Reset(); reset != time.Minute || !ok {
		t.Errorf("the limit: reset %v, %v", reset, ok)
	}
	ask("/queue")
	if d = ask("/queue"); d.Wait() != time.Second {
		t.Errorf("a turn after %v", d.Wait())
	}
	if retry, ok = ask("/closed").Retry(); retry != 0 || ok {
		t.Errorf("a closed limit: retry %v, %v", retry, ok)
	}
}

// A Request that says nothing of its cost costs one hit, however it is decided. A peek must be
// asked for.
func TestZeroRequestIsOneHit(t *testing.T) {
	l := newLimiter(t, newClock(), weir.Limit("jobs", "3/hour"))
	if d := allow(t, l, weir.Request{}); d.Limits[0].Remaining != 2 {
		t.Errorf("Allow: %+v", d.Limits)
	}
	if d := decide(t, l, weir.Request{}); d.Limits[0].Remaining != 1 {
		t.Errorf("Decide: %+v", d.Limits)
	}
	if d := decide(t, l, weir.Request{Peek: true, Hits: 3}); !d.Allowed || d.Limits[0].Remaining != 1 {
		t.Errorf("a peek: %+v", d.Limits)
	}
	if d := allow(t, l, weir.Request{Hits: -1}); d.Limits[0].Remaining != 2 {
		t.Errorf("a refund: %+v", d.Limits)
	}
	if d := allow(t, l, weir.Request{Hits: 3}); d.Allowed {
		t.Errorf("more than there is: %+v", d.Limits)
	}
}

// Decisions go on by the rules before until the hook has made what it needs of the new ones.
func TestHookBeforeRules(t *testing.T) {
	var l *weir.Limiter
	var seen []uint64
	decide := func() uint64 {
		d, err := l.Allow(t.Context(), weir.Request{Hits: 1})
		if err != nil {
			t.Fatal(err)
		}
		return d.Generation
	}
	l = newLimiter(t, newClock(), weir.WithHooks(weir.Hooks{
		RulesChanged: func(_ *rule.Set, generation uint64) { seen = append(seen, generation, decide()) },
	}))
	for range 2 {
		l.SetRules(load(t, "limits: [{name: all, allow: 5/min}]"))
		seen = append(seen, decide())
	}
	if want := []uint64{1, 0, 1, 2, 1, 2}; !slices.Equal(seen, want) {
		t.Errorf("told of and decided by generations %d, want %d", seen, want)
	}
}

// A rate whose unit was forgotten is no bound on how many are under way.
func TestLimitWithoutUnit(t *testing.T) {
	store, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	const want = `limit "a": allow: 5 names no unit (did you mean 5/min? for at most 5 at a time write 5 concurrent)`
	if _, err := weir.New(store, weir.Limit("a", "5", "user")); err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
	l, err := weir.New(store, weir.Limit("a", "1 concurrent", "user"))
	if err != nil {
		t.Fatal(err)
	}
	ask := weir.Request{Attributes: weir.Map{"user": "ada"}}
	first, second := allow(t, l, ask), allow(t, l, ask)
	if !first.Allowed || second.Allowed {
		t.Fatalf("admitted: %v, %v", first.Allowed, second.Allowed)
	}
	if ok, err := l.Release(t.Context(), first.Limits[0].Slot); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if !allow(t, l, ask).Allowed {
		t.Error("a slot that was given back is not free")
	}
}
