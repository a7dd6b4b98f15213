package weir_test

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

func TestDecisionIDText(t *testing.T) {
	for id, text := range map[weir.DecisionID]string{0: "", 1: "0000000000001", 31: "000000000000z",
		1<<64 - 1: "fzzzzzzzzzzzz"} {
		if got := id.String(); got != text {
			t.Errorf("%d is written %q, want %q", uint64(id), got, text)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		id := weir.DecisionID(rapid.Uint64Min(1).Draw(t, "id"))
		text := id.String()
		if len(text) != 13 || strings.ToLower(text) != text {
			t.Fatalf("%d is written %q", uint64(id), text)
		}
		for _, form := range []string{text, strings.ToUpper(text), text[:4] + "-" + text[4:],
			strings.NewReplacer("0", "O", "1", "l").Replace(text)} {
			if back, err := weir.ParseDecisionID(form); err != nil || back != id {
				t.Fatalf("%q became %d, %v", form, uint64(back), err)
			}
		}
	})
	for _, bad := range []string{"", "0", "0000000000000", "gzzzzzzzzzzzz", "000000000000u", "00000000000001",
		"000000000000", "0000000 00001", strings.Repeat("é", 100)} {
		if id, err := weir.ParseDecisionID(bad); err == nil {
			t.Errorf("%q became %d", bad, uint64(id))
		}
	}
}

// What is no ID is told why, and what looks like one is not called none.
func TestDecisionIDErrors(t *testing.T) {
	for text, want := range map[string]string{
		"4vq8r2mxw0c7":                 `"4vq8r2mxw0c7" is no id of a decision: that has 13 letters and digits, and this has 12;`,
		"":                             "and this has 0;",
		"4vq8r2mxwuc7e":                `no id has a 'u';`,
		"4vq8 r2mxw0c7":                `no id has a ' ';`,
		"4vq8r2éxw0c7e":                `no id has a 'é';`,
		"zzzzzzzzzzzzz":                `no decision has the id "zzzzzzzzzzzzz": ids begin with 0 to 9 or a to f`,
		"0000000000000":                `no decision has the id "0000000000000"`,
		strings.Repeat("é", 100) + "1": "…\" is no id",
	} {
		if _, err := weir.ParseDecisionID(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// FuzzParseDecisionID: what is taken for an id is written as one that is taken for the same.
func FuzzParseDecisionID(f *testing.F) {
	for _, s := range []string{"", "4vq8r2mxw0c7e", "fzzzzzzzzzzzz", "-4VQ8-R2MXW-0C7E", "\xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := weir.ParseDecisionID(s)
		if err != nil {
			return
		}
		if back, err := weir.ParseDecisionID(id.String()); err != nil || back != id || id == 0 {
			t.Fatalf("%q became %q, and that %q (%v)", s, id, back, err)
		}
	})
}

// A refusal has an id that no other decision has; a pass has one only when it is asked for.
func TestDecisionIdentity(t *testing.T) {
	var seen sync.Map
	heard := func(r *weir.Request, d *weir.Decision) {
		if d.Allowed != (d.ID == 0) {
			t.Errorf("allowed: %v, id %q", d.Allowed, d.ID)
		}
	}
	l := newLimiter(t, newClock(), weir.WithRules(load(t, `limits: [{name: a, allow: 3/min}]`)),
		weir.WithHooks(weir.Hooks{Decided: heard}))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			var d weir.Decision
			for range 500 {
				r := weir.Request{Hits: 1}
				if err := l.Decide(t.Context(), &r, &d); err != nil {
					t.Error(err)
				}
				id := d.ID
				first := d.Identity()
				if again := d.Identity(); again != first || id != 0 && first != id {
					t.Errorf("the id changes: %s, %s, %s", id, first, again)
				}
				if _, twice := seen.LoadOrStore(d.Identity(), true); twice {
					t.Errorf("%s came twice", d.Identity())
				}
			}
		})
	}
	all.Wait()
}

// JoinHooks joins every hook that there is.
func TestJoinHooks(t *testing.T) {
	var calls []string
	full := func(name string) (h weir.Hooks) {
		v := reflect.ValueOf(&h).Elem()
		for i := range v.NumField() {
			field := v.Type().Field(i)
			v.Field(i).Set(reflect.MakeFunc(field.Type, func([]reflect.Value) []reflect.Value {
				calls = append(calls, name+field.Name)
				return nil
			}))
		}
		return h
	}
	for _, c := range []struct {
		name  string
		hooks weir.Hooks
		order string
	}{
		{"both", weir.JoinHooks(full("a"), full("b")), "ab"},
		{"the first alone", weir.JoinHooks(full("a"), weir.Hooks{}), "a"},
		{"the second alone", weir.JoinHooks(weir.Hooks{}, full("b")), "b"},
		{"none", weir.JoinHooks(weir.Hooks{}, weir.Hooks{}), ""},
	} {
		v := reflect.ValueOf(c.hooks)
		for i := range v.NumField() {
			calls = nil
			f, name := v.Field(i), v.Type().Field(i).Name
			if c.order == "" {
				if !f.IsNil() {
					t.Errorf("%s: %s is there", c.name, name)
				}
				continue
			}
			if f.IsNil() {
				t.Errorf("%s: %s is missing", c.name, name)
				continue
			}
			args := make([]reflect.Value, f.Type().NumIn())
			for k := range args {
				args[k] = reflect.Zero(f.Type().In(k))
			}
			f.Call(args)
			var want []string
			for _, who := range c.order {
				want = append(want, string(who)+name)
			}
			if !reflect.DeepEqual(calls, want) {
				t.Errorf("%s: %s calls %v, want %v", c.name, name, calls, want)
			}
		}
	}
}

func TestMarksOfADecision(t *testing.T) {
	l := newLimiter(t, newClock(), weir.WithRules(load(t, `
limits:
  - {name: soft, when: {kind: soft}, allow: 2/min, throttle: {soft: 50%}, algorithm: sliding_log}
  - {name: trial, when: {kind: trial}, allow: 2/min, throttle: {soft: 50%}, algorithm: sliding_log, on_limit: shadow}
`)))
	for _, c := range []struct {
		kind       string
		near, soft []bool
	}{
		// the fourth is refused
		{"soft", []bool{false, true, true, false}, []bool{false, false, true, false}},
		{"trial", []bool{false, false, false, false}, []bool{false, false, false, false}},
	} {
		for i := range c.near {
			d, err := l.Allow(t.Context(), weir.Request{Attributes: weir.Map{"kind": c.kind}})
			if err != nil {
				t.Fatal(err)
			}
			if d.NearLimit() != c.near[i] || d.SoftExceeded() != c.soft[i] {
				t.Errorf("%s, request %d: near %v, soft %v", c.kind, i+1, d.NearLimit(), d.SoftExceeded())
			}
			if l := &d.Limits[0]; d.Refuses(l) == d.Allowed {
				t.Errorf("%s, request %d: allowed %v, refuses %v", c.kind, i+1, d.Allowed, d.Refuses(l))
			}
		}
	}
}

// half is a signal that always stands at half.
type half struct{}

func (half) Signal(string) (int, bool) { return 50, true }

// InForce tells the numbers after the signal and the schedule have had their say.
func TestInForce(t *testing.T) {
	l := newLimiter(t, newClock(), weir.WithSignals(half{}), weir.WithRules(load(t, `
limits:
  - name: elastic
    allow: { rate: 100/min, burst: 40 }
    throttle: { elastic: { signal: cpu, curve: { 0%: 100%, 100%: 0% } } }
  - name: scheduled
    allow: 100/min
    schedule: [{ days: [mon, tue, wed, thu, fri, sat, sun], allow: 30/min }]
  - name: plain
    allow: 7/min
`)))
	made, err := l.Allow(t.Context(), weir.Request{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range [][2]int64{{50, 20}, {30, 30}, {7, 7}} {
		if c := made.InForce(i).Config(); c.N != want[0] || made.Limits[i].Limit != want[1] {
			t.Errorf("%s: N is %d and the capacity %d, want %v", made.Limits[i].Window.Name, c.N, made.Limits[i].Limit,
				want)
		}
	}

	set := load(t, `limits: [{name: a, allow: 10/min, algorithm: fixed_window}]`)
	var d weir.Decision
	d.Limits = []weir.LimitResult{{Window: set.Rules()[0].Windows[0]}}
	if got := d.InForce(0).Config().N; got != 10 {
		t.Errorf("of a decision that a test made: %d", got)
	}
	d.Limits[0].Window = &rule.Window{}
	if got := d.InForce(0); got != nil {
		t.Errorf("of no limit: %v", got)
	}
}

// JoinHooks calls all of any number of hooks, in their order.
func TestJoinManyHooks(t *testing.T) {
	for n := range 9 {
		var got, want []int
		var hooks []weir.Hooks
		for i := range n {
			hooks = append(hooks, weir.Hooks{}, weir.Hooks{
				Decided:  func(*weir.Request, *weir.Decision) { got = append(got, i) },
				Answered: func(*weir.Request, *weir.Decision, weir.Answer) { got = append(got, i) },
			})
			want = append(want, i)
		}
		all := weir.JoinHooks(hooks...)
		if n == 0 {
			if all.Decided != nil || all.Answered != nil {
				t.Error("no hooks are some")
			}
			continue
		}
		if all.Decided(nil, nil); !slices.Equal(got, want) {
			t.Errorf("Decided called %v", got)
		}
		got = nil
		if all.Answered(nil, nil, weir.Answer{}); !slices.Equal(got, want) {
			t.Errorf("Answered called %v", got)
		}
	}
}
