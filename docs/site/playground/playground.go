// Package playground decides the requests of a text by the rules of another one, in virtual time,
// by the server's own limiter, rules and store in memory. The documentation's playground runs it in
// the browser (folder wasm).
package playground

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/httplimit"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store/memory"
)

// start is when the requests begin: a Thursday at midnight, UTC.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Result is what became of rules and requests: faults, or a decision for each request.
type Result struct {
	Faults    []string   `json:"faults"`    // as weir lint writes them; there are no decisions then
	Warnings  []string   `json:"warnings"`  // of rules that load
	Decisions []Decision `json:"decisions"` // in the order of time
}

// Decision is the answer to one request.
type Decision struct {
	AtMs       int64    `json:"at_ms"`   // since the first instant
	Line       int      `json:"line"`    // of the requests
	Request    string   `json:"request"` // its attributes
	Allowed    bool     `json:"allowed"`
	DelayMs    int64    `json:"delay_ms"` // until its turn in a leaky bucket
	RetryAfter string   `json:"retry_after"`
	Banned     string   `json:"banned"` // the rule whose ban refused it
	Limits     []Limit  `json:"limits"`
	Headers    []string `json:"headers"`
}

// Limit is the answer of one limit that a request met.
type Limit struct {
	Name      string `json:"name"`
	Limit     int64  `json:"limit"`
	Remaining int64  `json:"remaining"`
	Refuses   bool   `json:"refuses"`
	Shadow    bool   `json:"shadow"`
}

// Run decides requests by rules. The same texts give the same result.
func Run(rules, requests string) Result {
	result := Result{Faults: []string{}, Warnings: []string{}, Decisions: []Decision{}}
	set, warnings, err := file.Load([]file.Source{{Name: "rules.yaml", Data: []byte(rules)}}, file.Options{})
	if err != nil {
		result.Faults = append(result.Faults, err.Error())
		return result
	}
	for _, w := range slices.Concat(warnings, file.Lint(set, file.LintOptions{})) {
		result.Warnings = append(result.Warnings, w.Error())
	}
	list, faults := parse(requests)
	if len(faults) > 0 {
		result.Faults = faults
		return result
	}
	if result.Decisions, err = decide(set, list); err != nil {
		result.Faults = append(result.Faults, err.Error())
	}
	return result
}

func decide(set *rule.Set, list []request) ([]Decision, error) {
	now := start.UnixMicro()
	clock := func() int64 { return now }
	store, err := memory.New(memory.Options{Clock: clock, MaxKeys: 10_000})
	if err != nil {
		return nil, err
	}
	defer store.Close()
	limiter, err := weir.New(store, weir.WithRules(set), weir.WithClock(clock))
	if err != nil {
		return nil, err
	}
	decisions := make([]Decision, 0, len(list))
	for i := range list {
		now = start.Add(list[i].at).UnixMicro()
		var d weir.Decision
		err := limiter.Decide(context.Background(), &weir.Request{
			Domain: list[i].domain, Attributes: list[i].attributes, Hits: list[i].hits, MaxDelay: weir.AnyDelay,
		}, &d)
		if err != nil {
			return nil, err
		}
		decisions = append(decisions, said(&list[i], &d))
	}
	return decisions, nil
}

// said is what the page shows of a decision.
func said(r *request, d *weir.Decision) Decision {
	out := Decision{AtMs: r.at.Milliseconds(), Line: r.line, Request: r.text, Allowed: d.Allowed,
		DelayMs: d.Wait().Milliseconds(), Limits: []Limit{}, Headers: []string{}}
	if !d.Allowed {
		out.RetryAfter = "never"
		if after, ok := d.Retry(); ok {
			out.RetryAfter = after.String()
		}
	}
	if d.Banned.Rule != nil {
		out.Banned = d.Banned.Rule.Name
	}
	for i := range d.Limits {
		l := &d.Limits[i]
		out.Limits = append(out.Limits, Limit{Name: l.Window.Rule.Name, Limit: l.Limit, Remaining: l.Remaining,
			Refuses: d.Refuses(l), Shadow: l.Mode == rule.Shadow})
	}
	headers := http.Header{}
	httplimit.Headers(0).Write(headers, d)
	for name, values := range headers {
		// The id of a refusal is drawn, and tells nobody anything here.
		if name != "X-Ratelimit-Decision" {
			out.Headers = append(out.Headers, name+": "+strings.Join(values, ", "))
		}
	}
	slices.Sort(out.Headers)
	return out
}
