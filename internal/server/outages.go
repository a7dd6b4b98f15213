package server

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/weir-rl/weir/internal/admin/outages"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/rule"
)

// openOutages makes the list of the outages that this node meets.
func (p *program) openOutages(context.Context) error {
	o := outages.Options{Node: p.node.String(), Policies: p.storePolicies}
	if s := p.storage; s.fallback != nil {
		o.Store, o.Fallback, o.Counters = kindOf(p.c.store).name, s.fallback, s.shared
	}
	if p.storage.regions != nil {
		for _, name := range slices.Sorted(maps.Keys(p.c.regionWeights)) {
			if name != p.c.region {
				o.Others = append(o.Others, outages.Other{Store: insight.OutageRegion, Region: name,
					Does: "limits by earlier reports, and by the ceilings", Away: p.storage.unheard(name)})
			}
		}
	}
	if p.c.Database != nil || p.c.xds != nil {
		o.Others = append(o.Others, outages.Other{Store: insight.OutageRules,
			Does: "goes on by the rules in force", Away: p.rulesAway})
	}
	if o.Fallback != nil || len(o.Others) > 0 {
		p.outages = outages.New(o)
	}
	return nil
}

// followOutages follows what can be away until ctx ends.
func (p *program) followOutages(ctx context.Context) {
	if p.outages != nil {
		p.outages.Run(ctx)
	}
}

// lookForOutages is called when the state of the store has changed, from the first part on.
func (p *program) lookForOutages() {
	if p.built.Load() && p.outages != nil {
		p.outages.Look()
	}
}

// firstOutages is how many outages come with the page.
const firstOutages = 10

// lastOutages sends the newest outages of all nodes, when they are known.
func (p *program) lastOutages(ctx context.Context) <-chan []insight.Outage {
	known := make(chan []insight.Outage, 1)
	go func() {
		list, _ := p.fleet.Outages(ctx)
		known <- list[:min(len(list), firstOutages)]
	}()
	return known
}

// storePolicies counts the rules in force by their on_store_error.
func (p *program) storePolicies() (n insight.StorePolicies) {
	set, _ := p.limiter.Rules()
	if set == nil {
		return n
	}
	for _, r := range set.Rules() {
		if !slices.ContainsFunc(r.Windows, func(w *rule.Window) bool { return w.Limit != nil }) {
			continue
		}
		switch {
		case r.OnStoreError == rule.AllowAll:
			n.Allow++
		case r.OnStoreError == rule.DenyAll && !r.Shadow:
			n.Deny++
		default:
			n.Local++
		}
	}
	return n
}

// unheard returns a function that says since when a region was not heard. Only the node that hears
// it for all nodes knows.
func (s *storage) unheard(name string) func() (time.Time, string, bool) {
	return func() (since time.Time, cause string, known bool) {
		leading, stale := s.regions.Heard(name)
		if leading < insight.SilentRegion {
			return since, "", false
		}
		if stale < 0 {
			stale = leading
		}
		if stale > insight.SilentRegion {
			since = time.Now().Add(-stale)
		}
		return since, "", true
	}
}

// rulesAway says since when the database or the control plane of the rules cannot be reached.
func (p *program) rulesAway() (since time.Time, cause string, known bool) {
	s := p.rules.Status()
	if s.AwayErr != nil {
		cause = oneLine(s.AwayErr)
	}
	return s.Away, cause, true
}
