package admin

import (
	"strconv"

	"github.com/weir-rl/weir/rule"
)

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
