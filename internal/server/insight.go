package server

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/admin"
	"github.com/weir-rl/weir/internal/admin/metrics"
	"github.com/weir-rl/weir/internal/host/load"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/insight/gather"
	"github.com/weir-rl/weir/internal/observe/insight/judge"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/internal/observe/record"
	"github.com/weir-rl/weir/internal/server/settings"
	"github.com/weir-rl/weir/overload"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
)

// insightSettings are about insight into rules and clients.
var insightSettings = []setting{
	{Path: "insight.memory", Value: "64MiB",
		Help: "bound on the memory for figures of rules and keys, 4MiB at least; 0 gathers none",
		Set: settings.Text(func(c *Config, s string) (err error) {
			if c.insight.Memory = 0; s == "0" {
				return nil
			}
			if c.insight.Memory, err = settings.ParseBytes(s); err == nil && c.insight.Memory < gather.LeastMemory {
				err = fmt.Errorf("%q is below 4MiB", s)
			}
			return err
		})},
	{Path: "insight.path",
		Help: "file that keeps what was counted over time over a restart; none if empty",
		Set:  settings.String(func(c *Config) *string { return &c.insightPath })},
	{Path: "insight.record", Value: "16MiB",
		Help: "bound on the memory of recorded requests, on which other rules can be tried, 1MiB at least; 0 records nothing",
		Set: settings.Text(func(c *Config, s string) (err error) {
			if c.record.Bytes = 0; s == "0" {
				return nil
			}
			if c.record.Bytes, err = settings.ParseBytes(s); err == nil && c.record.Bytes < record.MinBytes {
				err = fmt.Errorf("%q is below 1MiB", s)
			}
			return err
		})},
	{Path: "insight.known", Kind: settings.List,
		Help: "attributes of which one makes a client known, for telling good clients; the ones of identity if empty, else user",
		Set:  func(c *Config, items []string) error { c.insight.Known = items; return nil }},
}

// insightConfig is the configuration of insight.
type insightConfig struct {
	insight     gather.Options
	record      record.Options
	insightPath string // of the history file; "" for none
}

// recentEntries is how many recent decisions are kept, for weir explain --id. At a hundred refusals
// a second they reach back a minute, and take 16 MB. The decision log keeps more.
const recentEntries = 10_000

// openRecent makes the memory of recent decisions.
func (p *program) openRecent(context.Context) (err error) {
	o := recent.Options{Entries: recentEntries, Bytes: recentEntries * 1678}
	o.Hide = secretIdentities(p.c.identity)
	o.Tally = p.tally
	p.recent, err = recent.New(o)
	return err
}

// openInsight makes the collector, unless insight.memory is 0. With --check it reads no history.
func (p *program) openInsight(context.Context) error {
	o := p.c.insight
	if o.Memory == 0 {
		return nil
	}
	o.Tally = p.tally
	o.Known = p.known()
	o.Hide = secretIdentities(p.c.identity)
	o.Saturated = (&saturation{signals: p.signals, overload: p.overload, capacity: p.capacity}).now
	o.Broken = p.rulesBroken
	o.StoreNow = p.storeNow
	o.P99 = func() float64 { return p.metrics.P99() } // which are made later
	o.Text = p.ruleText
	o.Proven = provenUseless
	o.Recorded = p.recorded
	o.Banned = admin.Banned(func() *weir.Limiter { return p.limiter })
	o.Changed = p.changed.between
	o.Logger = p.log
	p.insight = gather.New(o)
	if p.check || p.c.insightPath == "" {
		return nil
	}
	if err := p.insight.Open(p.c.insightPath); err != nil {
		return fmt.Errorf("insight.path: %w", err)
	}
	return nil
}

// gather gathers until ctx ends.
func (p *program) gather(ctx context.Context) {
	if p.insight != nil {
		p.insight.Run(ctx)
	}
}

func (p *program) closeInsight() error {
	if p.insight == nil {
		return nil
	}
	return p.insight.Close()
}

// known returns the attributes any of which makes a client known.
func (p *program) known() []string {
	known := slices.Clone(p.c.insight.Known)
	if len(known) == 0 {
		for attribute := range p.c.identity {
			known = append(known, attribute)
		}
		slices.Sort(known)
	}
	if len(known) == 0 {
		known = []string{"user"}
	}
	return known
}

// storeNow is the time by the store's clock, which with Redis may differ from this machine's.
func (p *program) storeNow() time.Time {
	if p.nodes == nil { // made later, and without Redis never
		return time.Now()
	}
	return p.nodes.Now()
}

// recorded returns up to n of the latest requests; none with insight.record: 0.
func (p *program) recorded(n int) []rule.Query {
	if p.recorder == nil {
		return nil
	}
	return p.recorder.Spread(n)
}

// ruleText returns the text of a rule file in force; "" if there is none of that name.
func (p *program) ruleText(name string) string {
	if p.rules == nil {
		return ""
	}
	for _, s := range p.rules.Sources() {
		if s.Name == name {
			return string(s.Data)
		}
	}
	return ""
}

// provenUseless returns the rules that are proven to be without use, by domain and name.
func provenUseless(s *rule.Set) map[[2]string]judge.Proof {
	proofs := map[[2]string]judge.Proof{}
	for _, p := range file.Useless(s) {
		proof := judge.Proof{Verdict: insight.AddsNothing, Why: p.Why}
		if p.Unmet {
			proof.Verdict = insight.NeverMet
		}
		proofs[[2]string{p.Rule.Domain, p.Rule.Name}] = proof
	}
	return proofs
}

// A service counts as saturated from these percentages of a load signal, and of its capacity for
// requests in flight.
const (
	saturatedFrom = 90
	fullFrom      = 95
)

// saturation reports whether the service is at its end.
type saturation struct {
	signals  *load.Registry
	overload *overload.Limiter // nil without
	capacity func() int        // requests in flight; 0 if it is not known
	shed     uint64            // requests, when that was read last
}

// now returns the signal which says that the service is at its end, or has shed requests since the
// last call. Not safe for concurrent use.
func (s *saturation) now() (signal string, saturated bool) {
	inFlight := s.signals.InFlight()
	if s.overload != nil {
		stats, before := s.overload.Stats(), s.shed
		inFlight, s.shed = stats.InFlight, 0
		for _, n := range stats.Refused {
			s.shed += n
		}
		if s.shed > before {
			return "shed", true
		}
	}
	for _, i := range s.signals.List() {
		if i.Kind == load.Measured && i.Name != load.InFlight && i.Seen && !i.Stale && i.Value >= saturatedFrom {
			return i.Name, true
		}
	}
	if capacity := s.capacity(); capacity > 0 && inFlight*100 >= capacity*fullFrom {
		return load.InFlight, true
	}
	return "", false
}

// rulesBroken says why the rules that lie in the source are not in force; "" if they are.
func (p *program) rulesBroken() string {
	if errors := p.rulesSource().Errors; len(errors) > 0 {
		return errors[0]
	}
	return ""
}

// insightMetrics are the metrics of how the rules do.
func (p *program) insightMetrics() []prometheus.Collector {
	if p.insight == nil {
		return nil
	}
	return []prometheus.Collector{metrics.NewInsight(metrics.InsightOptions{
		Rules: func() (list []metrics.RuleReading) {
			for _, j := range p.insight.Judged() {
				list = append(list, metrics.RuleReading{
					Domain: j.Domain, Rule: j.Rule, Verdicts: j.Verdicts, LooseUntil: j.LooseUntil, GoodRefused: j.GoodRefused, MaxFill: j.MaxFill,
					Obeyed: j.Episodes.Obeyed, Early: j.Episodes.Early, GaveUp: j.Episodes.GaveUp,
				})
			}
			return list
		},
		Candidates: p.insight.Trials,
		Thinned:    p.insight.Thinned,
		Bytes:      p.insight.Bytes,
	})}
}
