package metrics

import (
	"testing"

	"github.com/weir-rl/weir/internal/observe/insight"
)

// TestInsight: all verdicts that hold of a rule are told, and what is not known is left out.
func TestInsight(t *testing.T) {
	m := New(Options{})
	m.Registry().MustRegister(NewInsight(InsightOptions{
		Rules: func() []RuleReading {
			return []RuleReading{
				{Domain: "shop", Rule: "search", Verdicts: []string{"strict", "ignored", "strict"}, LooseUntil: map[string]int64{"loose_few": 1795000000}, GoodRefused: 0.003, MaxFill: 3.4, Obeyed: 5, Early: 6, GaveUp: 7},
				{Domain: "shop", Rule: "a\xff", GoodRefused: -1, MaxFill: -1},
				{Domain: "shop", Rule: "search", Verdicts: []string{"works"}}, // of the same name
			}
		},
		Candidates: func() []insight.Candidate {
			return []insight.Candidate{
				{Domain: "shop", Limit: "tighter", WouldRefuse: 2, BothRefuse: 2, BothAdmit: 2}, {Domain: "shop", Limit: "looser", BothRefuse: 1, BothAdmit: 2, WouldAdmit: 1},
			}
		},
		Thinned: func() uint64 { return 8 },
		Bytes:   func() int64 { return 9 },
	}))
	same(t, counts(t, m, "weir_rule_"),
		`verdict{domain="shop",rule="search",verdict="ignored"} 1`, `verdict{domain="shop",rule="search",verdict="strict"} 1`,
		`rush_end_timestamp_seconds{domain="shop",rule="search",verdict="loose_few"} 1.795e+09`,
		`good_refused_ratio{domain="shop",rule="search"} 0.003`, `max_fill_ratio{domain="shop",rule="search"} 3.4`)
	same(t, counts(t, m, "weir_retry"),
		`_episodes_total{domain="shop",end="early",rule="search"} 6`, `_episodes_total{domain="shop",end="gave_up",rule="search"} 7`,
		`_episodes_total{domain="shop",end="obeyed",rule="search"} 5`)
	if n := scrape(t, m)["weir_retry_episodes_total{domain=\"shop\",end=\"early\",rule=\"a\uFFFD\"}"]; n != "0" {
		t.Errorf("the counters of a rule without episodes: %q", n)
	}
	same(t, counts(t, m, "weir_insight"), "_bytes 9", "_thinned_total 8")
	same(t, counts(t, m, "weir_candidate_decisions_total"),
		`{candidate="allowed",domain="shop",limit="looser",live="allowed",rule="looser"} 2`, `{candidate="allowed",domain="shop",limit="looser",live="denied",rule="looser"} 1`,
		`{candidate="denied",domain="shop",limit="looser",live="denied",rule="looser"} 1`, `{candidate="allowed",domain="shop",limit="tighter",live="allowed",rule="tighter"} 2`,
		`{candidate="denied",domain="shop",limit="tighter",live="allowed",rule="tighter"} 2`, `{candidate="denied",domain="shop",limit="tighter",live="denied",rule="tighter"} 2`)
}
