package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir/internal/observe/insight"
)

// InsightOptions say what NewInsight reads. A nil field means that there is no such metric.
type InsightOptions struct {
	// Rules returns a reading of each rule in force. It must be cheap, such as the results of the
	// last judgement.
	Rules func() []RuleReading
	// Candidates returns the counts of rules in shadow, and of those that are enforced on a share
	// of their keys.
	Candidates func() []insight.Candidate
	// Thinned returns how many events of decisions were left out, because there were too many.
	// Bytes returns the memory that insight takes.
	Thinned func() uint64
	Bytes   func() int64
}

// RuleReading is what is known of one rule.
type RuleReading struct {
	Domain, Rule string
	Verdicts     []string // all that hold
	// GoodRefused is the share of well-behaved clients that the rule refuses, and MaxFill the
	// largest share of its limit that one key used; below 0 if not known.
	GoodRefused, MaxFill float64
	// LooseUntil has the verdicts on a rush that the rule did not hold, with the end of that rush
	// in Unix seconds.
	LooseUntil map[string]int64
	// How often clients in the sample of refused keys came back when they were told to, came back
	// earlier, and did not come back, since this node has known the rule. They never fall.
	Obeyed, Early, GaveUp uint64
}

// NewInsight returns a collector of verdicts on the rules, for Metrics.Registry.
func NewInsight(o InsightOptions) prometheus.Collector {
	rules := source[[]RuleReading]{rows: verdictRows}
	if o.Rules != nil {
		rules.read = func() []RuleReading { return firstOfEach(o.Rules()) }
	}
	return group{
		rules,
		source[[]insight.Candidate]{o.Candidates, candidateRows},
		counted("weir_insight_thinned_total",
			"Events of decisions that were left out of the samples, since there were too many.", o.Thinned),
		source[int64]{o.Bytes, insightRows},
	}
}

// firstOfEach leaves out rules with a name that came before: rules of the Lyft form may share one.
func firstOfEach(rules []RuleReading) (list []RuleReading) {
	type name struct{ domain, rule string }
	known := map[name]bool{}
	for _, r := range rules {
		r.Domain, r.Rule = label(r.Domain), label(r.Rule)
		if !known[name{r.Domain, r.Rule}] {
			list = append(list, r)
		}
		known[name{r.Domain, r.Rule}] = true
	}
	return list
}

var verdictRows = []row[[]RuleReading]{
	gauges("weir_rule_verdict", "domain rule verdict", "1 for each verdict that holds of a rule.",
		func(rules []RuleReading, v value) {
			for _, r := range rules {
				held := map[string]bool{}
				for _, verdict := range r.Verdicts {
					if !held[verdict] {
						v(1, r.Domain, r.Rule, verdict)
					}
					held[verdict] = true
				}
			}
		}),
	gauges("weir_rule_rush_end_timestamp_seconds", "domain rule verdict",
		"When the latest rush ended that the rule did not hold, by its verdict, in Unix time: about now while it goes on.",
		func(rules []RuleReading, v value) {
			for _, r := range rules {
				for verdict, until := range r.LooseUntil {
					v(float64(until), r.Domain, r.Rule, verdict)
				}
			}
		}),
	gauges("weir_rule_good_refused_ratio", "domain rule",
		"Share of the clients that behave well which the rule refuses.",
		func(rules []RuleReading, v value) {
			for _, r := range rules {
				if r.GoodRefused >= 0 {
					v(r.GoodRefused, r.Domain, r.Rule)
				}
			}
		}),
	gauges("weir_rule_max_fill_ratio", "domain rule",
		"How much of the rule the fullest key used: 1 is the whole limit.",
		func(rules []RuleReading, v value) {
			for _, r := range rules {
				if r.MaxFill >= 0 {
					v(r.MaxFill, r.Domain, r.Rule)
				}
			}
		}),
	counters("weir_retry_episodes_total", "domain rule end",
		"What refused clients did next, by rule: obeyed (came back when they were told to), early, gave_up. Of a sample of the refused keys, as this node saw them: compare the ends with each other, not with refusals.",
		func(rules []RuleReading, n count) {
			for _, r := range rules {
				n(r.Obeyed, r.Domain, r.Rule, "obeyed")
				n(r.Early, r.Domain, r.Rule, "early")
				n(r.GaveUp, r.Domain, r.Rule, "gave_up")
			}
		}),
}

var candidateRows = []row[[]insight.Candidate]{
	counters("weir_candidate_decisions_total", "domain rule limit candidate live",
		"Requests that met a rule in shadow (on those of its keys on which it is not enforced), by what that rule would have done and by what was done.",
		func(candidates []insight.Candidate, n count) {
			known := map[[2]string]bool{} // rules of the Lyft form may share a name
			for _, k := range candidates {
				name := [2]string{label(k.Domain), label(k.Limit)}
				if known[name] {
					continue
				}
				known[name] = true
				for _, v := range [...]struct {
					requests  uint64
					own, live outcome
				}{
					{k.BothAdmit, allowed, allowed}, {k.WouldAdmit, allowed, denied},
					{k.WouldRefuse, denied, allowed}, {k.BothRefuse, denied, denied},
				} {
					n(v.requests, label(k.Domain), label(k.Limit), label(k.Limit), outcomeNames[v.own],
						outcomeNames[v.live])
				}
			}
		}),
}

var insightRows = []row[int64]{
	gauge("weir_insight_bytes", "Memory that figures of rules and keys take.", func(n int64) int64 { return n }),
}
