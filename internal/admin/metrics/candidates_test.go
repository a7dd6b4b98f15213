package metrics

import (
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe/candidate"
	"github.com/weir-rl/weir/rule"
)

const candidateRules = `
domain: shop
limits:
  - name: live
    when: { kind: both }
    per: [user]
    allow: 2/min
    algorithm: sliding_log
  - name: tighter
    per: [user]
    allow: [1/min, 100/hour]
    algorithm: sliding_log
    on_limit: shadow
  - name: looser
    when: { kind: both }
    per: [user]
    allow: 3/min
    algorithm: sliding_log
    on_limit: shadow
  - name: plain
    allow: 1000/min
`

func candidatesByName(m *Metrics) map[string]candidate.Reading {
	out := map[string]candidate.Reading{}
	for _, c := range m.Candidates("") {
		out[c.Limit] = c
	}
	return out
}

func TestCandidates(t *testing.T) {
	m := New(Options{})
	l := limiter(t, m, candidateRules)
	for range 4 {
		// live: 2 pass, 2 refused; tighter passes 1, looser 3
		decide(t, l, "shop", 1, rule.Map{"user": "ada", "kind": "both"})
	}
	decide(t, l, "shop", 1, rule.Map{"user": "bob"})
	decide(t, l, "shop", 1, rule.Map{"user": "bob"})
	decide(t, l, "shop", 0, rule.Map{"user": "bob"}) // peeks and refunds do not count
	decide(t, l, "shop", -1, rule.Map{"user": "eve"})
	got := candidatesByName(m)
	if len(got) != 2 {
		t.Fatalf("got %+v", got)
	}
	tight, loose := got["tighter"], got["looser"]
	// The candidate's windows are one verdict.
	if tight.WouldRefuse != 2 || tight.BothRefuse != 2 || tight.BothAdmit != 2 || tight.WouldAdmit != 0 || tight.KeysRefused != 2 ||
		math.Abs(tight.Share-2.0/6) > 1e-9 || tight.Enforce != 0 || tight.Domain != "shop" || tight.Since.IsZero() {
		t.Errorf("tighter: %+v", tight)
	}
	if loose.WouldRefuse != 0 || loose.BothRefuse != 1 || loose.BothAdmit != 2 || loose.WouldAdmit != 1 || loose.KeysRefused != 1 || loose.Share != 0 {
		t.Errorf("looser: %+v", loose)
	}
	if top := fmt.Sprint(tight.Top); top != "[{user=ada 3 0} {user=bob 1 0}]" {
		t.Errorf("top: %s", top)
	}
	same(t, counts(t, m, "weir_candidate_decisions_total"),
		`{candidate="allowed",domain="shop",limit="looser",live="allowed",rule="looser"} 2`, `{candidate="allowed",domain="shop",limit="looser",live="denied",rule="looser"} 1`,
		`{candidate="denied",domain="shop",limit="looser",live="denied",rule="looser"} 1`, `{candidate="allowed",domain="shop",limit="tighter",live="allowed",rule="tighter"} 2`,
		`{candidate="denied",domain="shop",limit="tighter",live="allowed",rule="tighter"} 2`, `{candidate="denied",domain="shop",limit="tighter",live="denied",rule="tighter"} 2`)
	if len(m.Candidates("other")) != 0 || len(m.Candidates("shop")) != 2 {
		t.Error("the domain does not choose")
	}
}

// A candidate never changes what is decided: with it and without it every decision is the same.
func TestCandidateDoesNotInfluence(t *testing.T) {
	with, without := limiter(t, New(Options{}), candidateRules), limiter(t, New(Options{}), strings.Join([]string{
		"domain: shop", "limits:", "  - { name: live, when: { kind: both }, per: [user], allow: 2/min, algorithm: sliding_log }", "  - { name: plain, allow: 1000/min }"}, "\n"))
	for i := range 200 {
		r := weir.Request{Domain: "shop", Attributes: rule.Map{"user": fmt.Sprint(i % 7), "kind": []string{"both", "x"}[i%3/2]}}
		a, err1 := with.Allow(t.Context(), r)
		b, err2 := without.Allow(t.Context(), r)
		if err1 != nil || err2 != nil || a.Allowed != b.Allowed || a.RetryAfter != b.RetryAfter || *a.Nearest() != *replaceWindow(b.Nearest(), a.Nearest()) {
			t.Fatalf("request %d: %+v and %+v", i, a.Limits, b.Limits)
		}
	}
}

// replaceWindow gives r the window of the other set's rule.
func replaceWindow(r, other *weir.LimitResult) *weir.LimitResult {
	c := *r
	if c.Window.Name == other.Window.Name {
		c.Window = other.Window
	}
	return &c
}

func TestCandidatesConcurrent(t *testing.T) {
	m := New(Options{})
	l := limiter(t, m, "domain: shop\nlimits: [{name: a, per: [user], allow: 0/min, on_limit: shadow}]")
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for k := range 500 {
				decide(t, l, "shop", 1, rule.Map{"user": fmt.Sprint(i, k)})
				if k%100 == 0 {
					m.Candidates("")
				}
			}
		})
	}
	all.Wait()
	if c := m.Candidates("")[0]; c.WouldRefuse != 2000 || math.Abs(float64(c.KeysRefused)/2000-1) > 0.2 {
		t.Errorf("got %+v", c)
	}
}
