package observe_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/internal/testkit/doortest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store/memory"
)

// seen is what a watcher was told.
type seen struct {
	name  string
	calls *[]string
	facts func(*weir.Request, *weir.Decision, observe.Facts)
}

func (s *seen) Decided(r *weir.Request, d *weir.Decision, f observe.Facts) {
	if s.calls != nil {
		*s.calls = append(*s.calls, s.name)
	}
	if s.facts != nil {
		s.facts(r, d, f)
	}
}

func (s *seen) Others() weir.Hooks {
	return weir.Hooks{StoreError: func(error) { *s.calls = append(*s.calls, s.name+" error") }}
}

func limiter(t *testing.T, hooks weir.Hooks, rules string) *weir.Limiter {
	t.Helper()
	s, err := memory.New(memory.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	l, err := weir.New(s, weir.WithHooks(hooks), weir.WithRules(doortest.Load(t, rules)))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func decide(t *testing.T, l *weir.Limiter, r weir.Request) *weir.Decision {
	t.Helper()
	d, err := l.Allow(context.Background(), r)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// Each watcher is told each decision once, in the order in which they were joined, however many
// there are.
func TestJoin(t *testing.T) {
	for n := range 7 {
		var calls, want []string
		var watchers []observe.Watcher
		for i := range n {
			watchers = append(watchers, &seen{name: fmt.Sprint(i), calls: &calls})
			want = append(want, fmt.Sprint(i))
		}
		hooks := observe.NewTally().Join(watchers...)
		decide(t, limiter(t, hooks, "limits: [{name: a, allow: 1/min}]"), weir.Request{})
		if !slices.Equal(calls, want) {
			t.Errorf("%d watchers: %v were told", n, calls)
		}
		if n > 0 {
			calls = nil
			if hooks.StoreError(context.Canceled); len(calls) != n {
				t.Errorf("%d watchers: %v were told of an error", n, calls)
			}
		}
	}
}

// seldom is a watcher that is told seldom.
type seldom struct{ *seen }

func (seldom) Seldom() {}

// A watcher that is told seldom is told all that is not counted, and of the rest the first one and
// one in 256.
func TestSeldom(t *testing.T) {
	for _, always := range []int{0, 1, 3} {
		var first, unclear int
		watchers := []observe.Watcher{seldom{&seen{facts: func(_ *weir.Request, _ *weir.Decision, f observe.Facts) {
			if f.Outcome == observe.Unclear {
				unclear++
			} else if first++; !f.First {
				t.Error("told of one that is counted and not the first")
			}
		}}}}
		told := 0
		for range always {
			watchers = append(watchers, &seen{facts: func(*weir.Request, *weir.Decision, observe.Facts) { told++ }})
		}
		l := limiter(t, observe.NewTally().Join(watchers...), "limits: [{name: a, when: {path: /a}, allow: 0/min}]")
		const n = 600
		var d weir.Decision // one, since another one may count in another cell
		for range n {
			for _, path := range []string{"/a", "/b"} {
				if err := l.Decide(t.Context(), &weir.Request{Attributes: rule.Map{"path": path}}, &d); err != nil {
					t.Fatal(err)
				}
			}
		}
		if first != 3 || unclear != n || told != 2*n*always {
			t.Errorf("beside %d others: told of %d first ones and %d others; the others of %d", always, first, unclear,
				told)
		}
	}
}

// The Tally finds out and counts the outcome of a request that met one limit. It leaves any other
// request to the watchers, and does not count it.
func TestOutcomes(t *testing.T) {
	const rules = `
limits:
  - {name: soft, when: {path: /soft}, per: [user], allow: 4/h, algorithm: sliding_log, throttle: {soft: 50%}, warn: 75%}
  - {name: shadow, when: {path: /shadow}, per: [user], allow: 1/h, enforce: 0%}
  - {name: partly, when: {path: /partly}, per: [user], allow: 1/h, enforce: 99%}
  - {name: fails, when: {path: /fails}, if: "int(method) > 0", per: [user], allow: 1/h}
  - {name: two, when: {path: /two}, per: [user], allow: [1/h, 5/day]}
  - {name: one, when: {path: /one}, per: [user], allow: 3/h}
  - {name: banned, when: {path: /banned}, per: [user], allow: 0/h, ban: {after: 1, within: 1m, for: 1h}}
exempt: {user: root}
`
	tally := observe.NewTally()
	var got []observe.Outcome
	l := limiter(t, tally.Join(&seen{facts: func(_ *weir.Request, d *weir.Decision, f observe.Facts) {
		got = append(got, f.Outcome)
		if f.Outcome == observe.Unclear {
			return
		}
		if key := d.Matches.Hits[0].Key; f.Key != tally.Hash(key) {
			t.Errorf("the hash of %q is %x, want %x", key, f.Key, tally.Hash(key))
		}
		if d.ID != 0 && f.Random != uint64(d.ID) {
			t.Errorf("the random number of decision %s is %x", d.ID, f.Random)
		}
	}}), rules)
	ask := func(path string, n int, change func(*weir.Request)) []observe.Outcome {
		got = nil
		for range n {
			r := weir.Request{Door: "rls", Attributes: rule.Map{"path": path, "user": "ada"}}
			if change != nil {
				change(&r)
			}
			decide(t, l, r)
		}
		return got
	}
	const p, n, s, r, u = observe.Passed, observe.Near, observe.Soft, observe.Refused, observe.Unclear
	for _, c := range []struct {
		path   string
		n      int
		change func(*weir.Request)
		want   []observe.Outcome
	}{
		{"/soft", 2, func(r *weir.Request) { r.Peek = true }, []observe.Outcome{u, u}},
		{"/soft", 8, nil, []observe.Outcome{p, p, n, n, s, s, r, r}},
		{"/soft", 1, func(r *weir.Request) { r.Hits = -1 }, []observe.Outcome{u}},
		{"/soft", 1, func(r *weir.Request) { r.Attributes = rule.Map{"path": "/soft", "user": "root"} }, []observe.Outcome{u}},
		{"/shadow", 2, nil, []observe.Outcome{u, u}},
		{"/partly", 2, nil, []observe.Outcome{u, u}},
		{"/fails", 1, nil, []observe.Outcome{u}},
		{"/two", 2, nil, []observe.Outcome{u, u}},
		{"/banned", 2, nil, []observe.Outcome{r, u}},
		{"/none", 1, nil, []observe.Outcome{u}},
		{"", 2, described(rule.Descriptor{}), []observe.Outcome{p, p}},
		{"", 1, described(rule.Descriptor{Hits: 1, HasHits: true}), []observe.Outcome{u}},
		{"", 1, described(rule.Descriptor{}, rule.Descriptor{}), []observe.Outcome{u}},
	} {
		if got := ask(c.path, c.n, c.change); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.path, got, c.want)
		}
	}
	set := decide(t, l, weir.Request{Peek: true}).Rules
	counts := tally.Of(set, 1)
	for _, k := range set.Counters() {
		want := [observe.Outcomes]uint64{}
		switch k.Rule {
		case "soft":
			want = [observe.Outcomes]uint64{p: 2, n: 2, s: 2, r: 2}
		case "one":
			want = [observe.Outcomes]uint64{p: 2}
		case "banned":
			want = [observe.Outcomes]uint64{r: 1}
		}
		for door, got := range counts[k.Index].Read() {
			if want := want; got != want && (observe.DoorNames[door] == "rls" || got != [observe.Outcomes]uint64{}) {
				t.Errorf("%s: %v at door %q, want %v at rls", k.Rule, got, observe.DoorNames[door], want)
			}
		}
	}
}

// described makes a request bring descriptors that meet the rule "one", instead of attributes.
func described(list ...rule.Descriptor) func(*weir.Request) {
	for i := range list {
		list[i].Entries = []rule.Entry{{Key: "path", Value: "/one"}, {Key: "user", Value: "ada"}}
	}
	return func(r *weir.Request) { r.Attributes, r.Descriptors = nil, list }
}

// Where somebody counts descriptors, what became of a request that brought one is left to the
// watchers.
func TestTellDescriptors(t *testing.T) {
	tally := observe.NewTally()
	var got []observe.Outcome
	l := limiter(t,
		tally.Join(
			&seen{facts: func(_ *weir.Request, _ *weir.Decision, f observe.Facts) { got = append(got, f.Outcome) }}),
		"limits: [{name: one, when: {path: /one}, per: [user], allow: 3/h}]")
	r := weir.Request{}
	described(rule.Descriptor{})(&r)
	decide(t, l, r)
	tally.TellDescriptors()
	decide(t, l, r)
	if !slices.Equal(got, []observe.Outcome{observe.Passed, observe.Unclear}) {
		t.Errorf("%v", got)
	}
}

// Requests are counted by door, and one in 256 of a kind is the first.
func TestFirst(t *testing.T) {
	tally, first := observe.NewTally(), map[string]int{}
	l := limiter(t, tally.Join(&seen{facts: func(r *weir.Request, _ *weir.Decision, f observe.Facts) {
		if f.First {
			first[r.Door]++
		}
	}}), "limits: [{name: a, allow: 0/min}]")
	var d weir.Decision
	for i := range 1024 {
		for _, door := range append(observe.DoorNames[1:], "a name of their own") {
			if err := l.Decide(t.Context(), &weir.Request{Door: door}, &d); err != nil {
				t.Fatal(err)
			}
		}
		if i == 0 && len(first) != observe.Doors {
			t.Errorf("the first ones are those of %v", first)
		}
	}
	for door, n := range first {
		if n != 4 {
			t.Errorf("%d of 1,024 decisions of door %q were first", n, door)
		}
	}
	for door, n := range tally.Of(d.Rules, d.Generation)[0].Read() {
		if n != [observe.Outcomes]uint64{observe.Refused: 1024} {
			t.Errorf("%v at door %q", n, observe.DoorNames[door])
		}
	}
}

// A limit counts on under other rules that have one of its name, and none is lost that is decided
// while the rules change.
func TestCountsGoOn(t *testing.T) {
	tally := observe.NewTally()
	sets := []string{
		"limits: [{name: a, when: {path: /a}, allow: 5/min}, {name: b, when: {path: /b}, allow: 5/min}]",
		"limits: [{name: b, when: {path: /b}, allow: 9/min}]",
		"limits: [{name: c, allow: 1/min}, {name: a, when: {path: /a}, allow: 5/min}]",
	}
	var unclear, all [2]int
	var mu sync.Mutex
	l := limiter(t, tally.Join(&seen{facts: func(r *weir.Request, _ *weir.Decision, f observe.Facts) {
		mu.Lock()
		defer mu.Unlock()
		all[r.Hits-1]++
		if f.Outcome == observe.Unclear {
			unclear[r.Hits-1]++
		}
	}}), sets[0])
	first := decide(t, l, weir.Request{Attributes: rule.Map{"path": "/b"}, Hits: 1})
	var workers sync.WaitGroup
	for i := range 4 {
		workers.Go(func() {
			var d weir.Decision
			r := weir.Request{Attributes: rule.Map{"path": "/b"}, Hits: int64(i%2 + 1)}
			for range 2000 {
				if err := l.Decide(context.Background(), &r, &d); err != nil {
					t.Error(err)
				}
			}
		})
	}
	l.SetRules(doortest.Load(t, sets[1]))
	workers.Wait()
	second := decide(t, l, weir.Request{Attributes: rule.Map{"path": "/b"}, Hits: 1})
	sum := func(c *observe.Count) (n int) {
		for _, byOutcome := range c.Read() {
			for _, v := range byOutcome {
				n += int(v)
			}
		}
		return n
	}
	was, is := tally.Of(first.Rules, 1), tally.Of(second.Rules, 2)
	if was[1] != is[0] || is[0].Since != 1 {
		t.Errorf("the count of b begins anew, with rule set %d", is[0].Since)
	}
	if got, want := sum(is[0]), all[0]+all[1]-unclear[0]-unclear[1]; got != want || want == 0 {
		t.Errorf("%d are counted, and the watcher was told so of %d", got, want)
	}
	l.SetRules(doortest.Load(t, sets[2]))
	third := decide(t, l, weir.Request{Attributes: rule.Map{"path": "/x"}, Hits: 1})
	for _, k := range third.Rules.Counters()[:2] {
		if c := tally.Of(third.Rules, 3)[k.Index]; c.Since != 3 || c == was[0] {
			t.Errorf("the count of %s is of rule set %d", k.Rule, c.Since)
		}
	}
	// A set that is out of force long ago has counts all the same, in which nothing counts.
	if old := tally.Of(first.Rules, 1); old[1] == is[0] || sum(old[1]) != 0 {
		t.Errorf("something was counted for an old set: %d", sum(old[1]))
	}
}

// Nodes with the same seed have the same hashes.
func TestSeed(t *testing.T) {
	a, b := observe.NewTally(), observe.NewTally()
	key := bytes.Repeat([]byte("k"), 20)
	if a.Hash(key) == b.Hash(key) {
		t.Error("two seeds are the same")
	}
	b.SetSeed(a.Seed())
	if a.Hash(key) != b.Hash(key) || a.Seed() != b.Seed() {
		t.Error("with the same seed the hashes differ")
	}
}
