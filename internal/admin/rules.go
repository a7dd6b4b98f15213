package admin

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// windowInfo is one limit of a rule in GET /api/v1/rules.
type windowInfo struct {
	Name      string  `json:"name"`
	Algorithm string  `json:"algorithm,omitempty"`
	Limit     int64   `json:"limit"`
	Burst     int64   `json:"burst,omitempty"`
	Window    float64 `json:"window"` // s
	Soft      int     `json:"soft_percent,omitempty"`
	Unlimited bool    `json:"unlimited,omitempty"`
}

type ruleInfo struct {
	Domain    string              `json:"domain"`
	Name      string              `json:"name"`
	Form      string              `json:"form"` // native or lyft
	File      string              `json:"file"`
	Line      int                 `json:"line"`
	When      map[string][]string `json:"when,omitempty"`
	If        string              `json:"if,omitempty"`
	Per       []string            `json:"per,omitempty"`
	Paths     string              `json:"paths,omitempty"` // exact; left out where they are folded
	Windows   []windowInfo        `json:"limits"`
	Unlimited bool                `json:"unlimited,omitempty"`
	Shadow    bool                `json:"shadow,omitempty"`
	Enforce   int                 `json:"enforce_percent,omitempty"` // left out at 100
	Replaces  []string            `json:"replaces,omitempty"`
	Overrides int                 `json:"overrides,omitempty"`
	ruleKinds
}

func (a *Handler) rules(w http.ResponseWriter, r *http.Request) {
	answer := struct {
		Generation uint64       `json:"generation"`
		Source     *RulesSource `json:"source,omitempty"`
		Domains    []string     `json:"domains"`
		Rules      []ruleInfo   `json:"rules"`
	}{Domains: []string{}, Rules: []ruleInfo{}}
	set, generation := a.limiter.Rules()
	answer.Generation = generation
	if a.o.Source != nil {
		s := a.o.Source()
		if s.Errors == nil {
			s.Errors = []string{}
		}
		if s.Files == nil {
			s.Files = []string{}
		}
		answer.Source = &s
	}
	if set != nil {
		answer.Domains = append(answer.Domains, set.Domains()...)
		m := a.maskFor(sender(r).Role)
		for _, r := range set.Rules() {
			info := describe(r)
			m.rule(&info)
			answer.Rules = append(answer.Rules, info)
		}
	}
	writeJSON(w, answer)
}

func describe(r *rule.Rule) ruleInfo {
	info := ruleInfo{
		Domain: r.Domain, Name: r.Name, Form: "native", File: r.Pos.File, Line: r.Pos.Line, If: r.If,
		Windows: []windowInfo{}, Unlimited: r.Unlimited, Shadow: r.Shadow, Replaces: r.Replaces,
		Overrides: len(r.Overrides),
		ruleKinds: kindsOf(r),
	}
	if r.Lyft != nil {
		info.Form = "lyft"
	}
	if r.ExactPaths && r.Lyft == nil {
		info.Paths = "exact"
	}
	if r.EnforcePercent != 100 {
		info.Enforce = r.EnforcePercent
	}
	for _, c := range r.When {
		if info.When == nil {
			info.When = map[string][]string{}
		}
		for _, p := range c.Patterns {
			info.When[c.Attribute] = append(info.When[c.Attribute], p.Source)
		}
	}
	for _, k := range r.Per {
		info.Per = append(info.Per, strings.Join(k, "|"))
	}
	for _, win := range r.Windows {
		info.Windows = append(info.Windows, describeWindow(win))
	}
	return info
}

func describeWindow(win *rule.Window) windowInfo {
	i := windowInfo{Name: win.Name, Unlimited: win.Limit == nil}
	if win.Limit != nil {
		c := win.Limit.Config()
		i.Algorithm, i.Limit, i.Window, i.Soft, i.Burst = c.Algorithm.String(), c.N, c.Window.Seconds(), c.Soft,
			burstOf(c)
	}
	return i
}

// burstOf returns the burst of a bucket, beside its rate; 0 for other algorithms.
func burstOf(c algo.Config) int64 {
	if c.Algorithm.HasBurst() {
		return max(c.Burst, 0)
	}
	return 0
}

// ruleKinds are the properties of a rule beyond its numbers, in GET /api/v1/rules.
type ruleKinds struct {
	Schedule  []string     `json:"schedule,omitempty"` // such as "mon-fri 08:00-20:00: 100/min"
	Elastic   *elasticInfo `json:"elastic,omitempty"`
	SoftFor   float64      `json:"soft_for,omitempty"`  // s
	Lease     int          `json:"lease,omitempty"`     // percent of the limit
	LeaseFor  float64      `json:"lease_for,omitempty"` // s; left out if it follows the window
	Regions   *regionsInfo `json:"regions,omitempty"`   // nil: each region counts for itself
	Wait      float64      `json:"wait,omitempty"`      // s
	WaitQueue int          `json:"wait_queue,omitempty"`
	Defer     string       `json:"defer,omitempty"`
	Priority  string       `json:"priority,omitempty"` // left out for the default
	Ban       *banInfo     `json:"ban,omitempty"`
	CostAfter string       `json:"cost_after,omitempty"`
}

// regionsInfo is how the limits of a rule hold over several regions.
type regionsInfo struct {
	Over int  `json:"over_percent"`   // that all together may admit beyond the limit
	Sync bool `json:"sync,omitempty"` // each may admit the limit by itself
	Tell int  `json:"tell_percent"`   // of the limit, after which a region reports
}

type elasticInfo struct {
	Signal string         `json:"signal"`
	Curve  map[string]int `json:"curve"` // percent of the limit by percent of the signal
}

type banInfo struct {
	After    int64   `json:"after"`
	Within   float64 `json:"within"` // s
	For      float64 `json:"for"`    // s
	Domain   bool    `json:"domain,omitempty"`
	NFTables bool    `json:"nftables,omitempty"`
}

func kindsOf(r *rule.Rule) ruleKinds {
	k := ruleKinds{Wait: r.Wait.Seconds(), WaitQueue: r.WaitQueue, Defer: r.Defer, CostAfter: r.CostAfter}
	for _, p := range r.Schedule {
		k.Schedule = append(k.Schedule, p.String())
	}
	if e := r.Elastic; e != nil {
		k.Elastic = &elasticInfo{Signal: e.Signal, Curve: map[string]int{}}
		for _, p := range e.Curve {
			k.Elastic.Curve[strconv.Itoa(p.At)] = p.Share
		}
	}
	for _, w := range r.Windows {
		if w.Counter != nil && w.Counter.Margin != nil {
			k.SoftFor = w.Counter.Margin.Limit.Config().SoftFor.Seconds()
		}
		// The rule does not ask for the leases by which regions lend each other units.
		if lent := r.Lent && r.Regions != nil; w.Limit != nil && w.Limit.Lease() != nil && !lent {
			c := w.Limit.Config()
			k.Lease, k.LeaseFor = c.Lease, c.LeaseFor.Seconds()
		}
	}
	if x := r.Regions; x != nil {
		k.Regions = &regionsInfo{Over: x.Over, Sync: x.Sync, Tell: x.Tell}
	}
	switch r.Priority {
	case rule.Critical:
		k.Priority = "critical"
	case rule.Sheddable:
		k.Priority = "sheddable"
	}
	if b := r.Ban; b != nil {
		k.Ban = &banInfo{After: b.After, Within: b.Within.Seconds(), For: b.For.Seconds(), Domain: b.Domain,
			NFTables: b.NFTables}
	}
	return k
}
