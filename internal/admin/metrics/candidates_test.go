package metrics

import (
	"fmt"
	"strings"
	"testing"

	"github.com/weir-rl/weir"
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

// A candidate never changes what is decided: with it and without it every decision is the same.
func TestCandidateDoesNotInfluence(t *testing.T) {
	with, without := limiter(t, New(Options{}), candidateRules), limiter(t, New(Options{}), strings.Join([]string{
		"domain: shop", "limits:", "  - { name: live, when: { kind: both }, per: [user], allow: 2/min, algorithm: sliding_log }", "  - { name: plain, allow: 1000/min }"}, "\n"))
	for i := range 200 {
		r := weir.Request{Domain: "shop", Attributes: rule.Map{"user": fmt.Sprint(i % 7),
			"kind": []string{"both", "x"}[i%3/2]}}
		a, err1 := with.Allow(t.Context(), r)
		b, err2 := without.Allow(t.Context(), r)
		if err1 != nil || err2 != nil || a.Allowed != b.Allowed || a.RetryAfter != b.RetryAfter ||
			*a.Nearest() != *replaceWindow(b.Nearest(), a.Nearest()) {
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
