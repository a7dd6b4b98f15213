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
	// Candidates returns the counts of rules in shadow, and of those that are enforced on a share of
	// their keys.
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
func NewInsight(o InsightOptions) prometheus.Collector { return insightCollector{o} }

type insightCollector struct{ o InsightOptions }

var (
	descVerdict = prometheus.NewDesc("weir_rule_verdict", "1 for each verdict that holds of a rule.",
		[]string{"domain", "rule", "verdict"}, nil)
	descRushEnd     = prometheus.NewDesc("weir_rule_rush_end_timestamp_seconds", "When the latest rush ended that the rule did not hold, by its verdict, in Unix time: about now while it goes on.", []string{"domain", "rule", "verdict"}, nil)
	descGoodRefused = prometheus.NewDesc("weir_rule_good_refused_ratio",
		"Share of the clients that behave well which the rule refuses.", []string{"domain", "rule"}, nil)
	descMaxFill = prometheus.NewDesc("weir_rule_max_fill_ratio",
		"How much of the rule the fullest key used: 1 is the whole limit.", []string{"domain", "rule"}, nil)
	descEpisodes   = prometheus.NewDesc("weir_retry_episodes_total", "What refused clients did next, by rule: obeyed (came back when they were told to), early, gave_up. Of a sample of the refused keys, as this node saw them: compare the ends with each other, not with refusals.", []string{"domain", "rule", "end"}, nil)
	descCandidates = prometheus.NewDesc("weir_candidate_decisions_total",
		"Requests that met a rule in shadow (on those of its keys on which it is not enforced), by what that rule would have done and by what was done.",
		[]string{"domain", "rule", "limit", "candidate", "live"}, nil)
	descThinned = prometheus.NewDesc("weir_insight_thinned_total",
		"Events of decisions that were left out of the samples, since there were too many.", nil, nil)
	descInsightSize = prometheus.NewDesc("weir_insight_bytes", "Memory of what is known of rules and keys.", nil, nil)
)

var descsInsight = []*prometheus.Desc{descVerdict, descRushEnd, descGoodRefused, descMaxFill, descEpisodes, descThinned,
	descInsightSize, descCandidates}

// Describe implements prometheus.Collector.
func (c insightCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descsInsight {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c insightCollector) Collect(ch chan<- prometheus.Metric) {
	counter, gauge := counterTo(ch), gaugeTo(ch)
	if c.o.Rules != nil {
		type name struct{ domain, rule string }
		told := map[name]bool{}
		for _, r := range c.o.Rules() {
			domain, rule := label(r.Domain), label(r.Rule)
			if told[name{domain, rule}] { // the rules of the Lyft form may share a name
				continue
			}
			told[name{domain, rule}] = true
			held := map[string]bool{}
			for _, v := range r.Verdicts {
				if !held[v] {
					gauge(descVerdict, 1, domain, rule, v)
				}
				held[v] = true
			}
			for verdict, until := range r.LooseUntil {
				gauge(descRushEnd, float64(until), domain, rule, verdict)
			}
			if r.GoodRefused >= 0 {
				gauge(descGoodRefused, r.GoodRefused, domain, rule)
			}
			if r.MaxFill >= 0 {
				gauge(descMaxFill, r.MaxFill, domain, rule)
			}
			counter(descEpisodes, r.Obeyed, domain, rule, "obeyed")
			counter(descEpisodes, r.Early, domain, rule, "early")
			counter(descEpisodes, r.GaveUp, domain, rule, "gave_up")
		}
	}
	if c.o.Candidates != nil {
		for _, k := range c.o.Candidates() {
			domain, rule := label(k.Domain), label(k.Limit)
			for _, v := range [...]struct {
				requests  uint64
				own, live outcome
			}{
				{k.BothAdmit, allowed, allowed}, {k.WouldAdmit, allowed, denied},
				{k.WouldRefuse, denied, allowed}, {k.BothRefuse, denied, denied},
			} {
				counter(descCandidates, v.requests, domain, rule, rule, outcomeNames[v.own], outcomeNames[v.live])
			}
		}
	}
	if c.o.Thinned != nil {
		counter(descThinned, c.o.Thinned())
	}
	if c.o.Bytes != nil {
		gauge(descInsightSize, float64(c.o.Bytes()))
	}
}
