package weir_test

import (
	"fmt"
	"testing"

	"github.com/weir-rl/weir"
)

// Where limits count different things, answers name the one that is nearest to refusing, not the
// one with the fewest units left.
func TestNearestOfDifferentUnits(t *testing.T) {
	for _, test := range []struct {
		name, rules string
		want        []string
	}{
		{"the smaller share", `
limits:
  - {name: requests, allow: 60/min, algorithm: fixed_window}
  - {name: tokens, allow: 60000/min, algorithm: fixed_window, cost: 2940}
`, []string{"tokens 57060 of 60000"}},
		{"the larger share has more units", `
limits:
  - {name: tokens, allow: 60000/min, algorithm: fixed_window, cost: 10}
  - {name: requests, allow: 4/min, algorithm: fixed_window}
`, []string{"requests 3 of 4", "requests 2 of 4"}},
		{"the one that refuses next", `
limits:
  - {name: tokens, allow: 100/min, algorithm: fixed_window, cost: 24}
  - {name: requests, allow: 20/min, algorithm: fixed_window, cost: 5}
`, []string{"requests 15 of 20", "requests 10 of 20", "requests 5 of 20", "requests 0 of 20"}},
		{"numbers beyond 32 bits", `
limits:
  - {name: bytes, allow: 1000000000/min, algorithm: fixed_window, cost: 500000001}
  - {name: more, allow: 999999999/min, algorithm: fixed_window, cost: 500000000}
`, []string{"bytes 499999999 of 1000000000"}},
		{"a limit of nothing", `
limits:
  - {name: some, allow: 10/min, algorithm: fixed_window}
  - {name: none, allow: 0/min, algorithm: fixed_window, cost: 0}
`, []string{"none 0 of 0"}},
		{"a tie goes by the reset, then by order", `
limits:
  - {name: first, allow: 10/min, algorithm: fixed_window}
  - {name: longer, allow: 20/hour, algorithm: fixed_window, cost: 2}
  - {name: last, allow: 10/hour, algorithm: fixed_window}
`, []string{"longer 18 of 20"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			l := newLimiter(t, newClock(), weir.WithRules(load(t, test.rules)))
			for i, want := range test.want {
				d := allow(t, l, weir.Request{})
				n := d.Nearest()
				if got := fmt.Sprintf("%s %d of %d", n.Window.Name, n.Remaining, n.Limit); !d.Allowed || got != want {
					t.Errorf("request %d: allowed %v, %s, want %s", i+1, d.Allowed, got, want)
				}
			}
		})
	}
}

// A limit with too little left for the same request once more comes first, even if others have a
// smaller share left.
func TestNearestIsWhatRefusesTheSameOnceMore(t *testing.T) {
	l := newLimiter(t, newClock(), weir.WithRules(load(t, `
limits:
  - {name: requests, allow: 100/min, algorithm: fixed_window}
  - {name: tokens, when: {path: /chat}, allow: 100/min, algorithm: fixed_window, cost: 45}
`)))
	allow(t, l, weir.Request{Hits: 93})
	chat := weir.Request{Attributes: weir.Map{"path": "/chat"}}
	for i, want := range []string{"requests 6", "tokens 10"} {
		d := allow(t, l, chat)
		if got := fmt.Sprintf("%s %d", d.Nearest().Window.Name, d.Nearest().Remaining); got != want {
			t.Errorf("after %d: %s, want %s", i+1, got, want)
		}
	}
	if d := allow(t, l, weir.Request{Attributes: weir.Map{"path": "/"}}); d.Nearest().Remaining != 4 {
		t.Errorf("%+v", d.Nearest())
	}
	if d := allow(t, l, chat); d.Allowed || d.Nearest().Window.Name != "tokens" {
		t.Errorf("%+v", d.Nearest())
	}
}

// What is told after a request that passed says whether the same request passes again: the limit
// that it names has enough left for it only where every limit has.
func TestNearestForetellsTheRefusal(t *testing.T) {
	for tokens := int64(1); tokens < 40; tokens++ {
		for requests := int64(1); requests < 12; requests++ {
			l := newLimiter(t, newClock(), weir.WithRules(load(t, fmt.Sprintf(`
limits:
  - {name: tokens, allow: 100/min, algorithm: fixed_window, cost: %d}
  - {name: requests, allow: 37/min, algorithm: sliding_log, cost: %d}
`, tokens, requests))))
			costs := map[string]int64{"tokens": tokens, "requests": requests}
			for {
				d := allow(t, l, weir.Request{})
				if !d.Allowed {
					break
				}
				near := d.Nearest()
				again := allow(t, l, weir.Request{Peek: true})
				passes := true
				for i := range again.Limits {
					passes = passes && again.Limits[i].Remaining >= costs[again.Limits[i].Window.Name]
				}
				if passes != (near.Remaining >= costs[near.Window.Name]) {
					t.Fatalf("costs %v: %s has %d left, and the same request once more passes: %v", costs,
						near.Window.Name, near.Remaining, passes)
				}
			}
		}
	}
}
