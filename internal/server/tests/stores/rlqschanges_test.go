//go:build linux

package stores

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weir-rl/weir/internal/testkit/servertest"
)

// TestQuotaChanges: a limit that another rule file or a signal changes is in force at a real Envoy
// before its next report, up and down.
func TestQuotaChanges(t *testing.T) {
	t.Parallel()
	b := newQuotaBed(t, 1, limitsOfTests)
	e := b.startEnvoy(b.ports[0])
	const old, more, none = "allow: 100000/30d", "allow: 1000000/30d", "allow: 0/30d"
	const limit = "algorithm: token_bucket, consistency: { lease: 90%, for: 11s }"
	write := func(allow string) {
		b.writeRules(fmt.Sprintf(`domain: edge
limits:
  - { name: changed, per: [tenant], when: { plan: changed }, %s, %s }
  - { name: elastic, per: [tenant], when: { plan: elastic }, %s, %s, throttle: { elastic: { signal: pushed, curve: { 10%%: 1000%%, 90%%: 0%% } } } }
`, allow, limit, old, limit))
	}
	write(old)
	c := new(http.Client)
	ask := func(plan string) bool {
		ok, err := e.ask(c, plan, "tenant")
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	rls := b.rls(0)
	for _, plan := range []string{"changed", "elastic"} {
		servertest.Eventually(t, "the limit is used up at another door", func() bool {
			ok, err := rls(t.Context(), plan, "tenant", 100_000)
			if err != nil {
				t.Fatal(err)
			}
			return !ok
		})
		if ask(plan) {
			t.Errorf("%s: more was let through than there is", plan)
		}
	}
	signal := func(percent float64) func() {
		return func() {
			send(t, http.MethodPut, "http://"+b.weirs[0].Addr("admin")+"/api/v1/signals/pushed",
				fmt.Sprintf(`{"value": %v, "ttl": 300}`, percent))
			servertest.Eventually(t, "the filtered signal is there",
				func() bool { return b.metric("weir_signal_percent", `"pushed"`) == percent })
		}
	}
	nothing := func() {}
	type change struct {
		what, plan   string
		before, make func()
		let          bool
		pushed
	}
	// Both of a pair are made again and again, until each has come by itself.
	for _, pair := range [][2]*change{{
		{"a higher limit", "changed", nothing, func() { write(more) }, true, pushed{}},
		{"a lower limit", "changed", nothing, func() { write(none) }, false, pushed{}},
	}, {
		// A signal is in force when it has been filtered, which takes some seconds.
		{"a signal that falls", "elastic", signal(5), nothing, true, pushed{}},
		{"a signal that rises", "elastic", signal(95), nothing, false, pushed{}},
	}} {
		for !pair[0].seen || !pair[1].seen {
			for _, c := range pair {
				if !c.let { // the refusal must not come from an assignment
					free := 0
					servertest.Eventually(t, "there are units in plenty", func() bool {
						if free++; !ask(c.plan) {
							free = 0
						}
						return free >= 150
					})
				}
				c.before()
				c.change(b, c.what, c.make, func() bool { return ask(c.plan) == c.let })
			}
		}
	}
}

// WriteRules replaces the rule file.
func (b *quotaBed) writeRules(text string) {
	b.t.Helper()
	servertest.WriteRules(b.t, filepath.Join(b.dir, "rules", "edge.yaml"), strings.TrimSpace(text)+"\n")
}
