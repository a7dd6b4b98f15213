package admin

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"github.com/weir-rl/weir/internal/door/answer"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/rule"
)

// RegionsReport is the answer of GET /api/v1/regions. It sums the counts of all nodes of this
// region that answered, each since its start.
type RegionsReport struct {
	Nodes   insight.Nodes   `json:"nodes"`
	Region  string          `json:"region"` // the region of this node
	Leader  string          `json:"leader,omitempty"`
	Untold  uint64          `json:"untold"`
	Orders  uint64          `json:"orders"`
	Keys    int             `json:"keys"`
	Regions []RegionState   `json:"regions"` // all, in order of name
	Limits  []RegionalLimit `json:"limits"`  // limits that hold over all regions, in rule order
	// Each are the limited rules that each region counts for itself, behind their domains.
	Each []string `json:"each_by_itself"`
}

// RegionState is what this region knows of a region. For itself that is only the weight.
type RegionState struct {
	insight.RegionPeer
	Own    bool    `json:"own,omitempty"`
	Weight int     `json:"weight"`
	Share  float64 `json:"share"` // of the ceilings; 1 is all
	State  string  `json:"state"` // one of the constants below
}

// The states of a region, as this one sees it.
const (
	regionOwn     = "own"
	regionHeard   = "heard"   // within insight.SilentRegion
	regionSilent  = "silent"  // for longer
	regionNever   = "never"   // not heard since a node of this region leads
	regionUnknown = "unknown" // no node that answered leads
)

// RegionalLimit is a rule whose limits hold over all regions.
type RegionalLimit struct {
	insight.RegionalUnits
	Over      int              `json:"over_percent"`   // that all regions together may admit beyond the limit
	Sync      bool             `json:"sync,omitempty"` // each region may admit the limit by itself
	Tell      int              `json:"tell_percent"`   // of the limit, after which a region reports
	Shadow    bool             `json:"shadow,omitempty"`
	Windows   []RegionalWindow `json:"limits"`
	Overrides int              `json:"overrides,omitempty"`
}

// RegionalWindow is one limit of a rule, with the ceiling that this region has in it.
type RegionalWindow struct {
	windowInfo
	Ceiling      int64 `json:"ceiling"`
	CeilingBurst int64 `json:"ceiling_burst,omitempty"`
	// Counted are the units of this limit alone; nil if the rule has no other limit.
	Counted *insight.RegionalUnits `json:"counted,omitempty"`
}

// regions answers GET /api/v1/regions.
func (a *Handler) regions(w http.ResponseWriter, r *http.Request) {
	if a.o.Regions == nil {
		answer.Problem(w, http.StatusNotFound,
			"no regions are configured on this server: region, regions.weights and regions.stores say which there are", "")
		return
	}
	domain := r.URL.Query().Get("domain")
	if !a.known(w, domain, "") {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), insightPatience)
	defer cancel()
	read, n := a.o.Nodes.Regions(ctx)
	report := RegionsReport{
		Nodes: n, Region: a.o.Regions.Own, Leader: read.Leader, Untold: read.Untold, Orders: read.Orders,
		Keys:    read.Keys,
		Regions: a.regionStates(read), Limits: []RegionalLimit{}, Each: []string{},
	}
	set, _ := a.limiter.Rules()
	if set == nil {
		writeJSON(w, report)
		return
	}
	for _, r := range set.Rules() {
		name := r.Domain + "/" + r.Name
		switch {
		case domain != "" && r.Domain != domain, !limits(r):
		case r.Regions == nil:
			if !slices.Contains(report.Each, name) {
				report.Each = append(report.Each, name)
			}
		default:
			report.add(r, read, a.o.Regions)
		}
	}
	writeJSON(w, report)
}

// limits reports whether a rule has a limit, of its own or in an override.
func limits(r *rule.Rule) bool {
	limited := func(w *rule.Window) bool { return w.Limit != nil }
	return slices.ContainsFunc(r.Windows, limited) ||
		slices.ContainsFunc(r.Overrides, func(o rule.Override) bool { return slices.ContainsFunc(o.Windows, limited) })
}

// regionStates returns the state of each region, from a reading.
func (a *Handler) regionStates(read *insight.RegionsReading) []RegionState {
	sum := 0
	for _, r := range a.o.Regions.Table {
		sum += r.Weight
	}
	list := make([]RegionState, 0, len(a.o.Regions.Table))
	for _, r := range a.o.Regions.Table {
		s := RegionState{Own: r.Name == a.o.Regions.Own, Weight: r.Weight,
			Share: float64(r.Weight) / float64(max(sum, 1))}
		at, there := slices.BinarySearchFunc(read.Peers, r.Name,
			func(p insight.RegionPeer, name string) int { return cmp.Compare(p.Region, name) })
		if there {
			s.RegionPeer = read.Peers[at]
		}
		s.Region = r.Name
		switch {
		case s.Own:
			s.State = regionOwn
		case read.Leader == "":
			s.State = regionUnknown
		case s.Staleness == nil:
			s.State = regionNever
		case *s.Staleness > insight.SilentRegion.Seconds():
			s.State = regionSilent
		default:
			s.State = regionHeard
		}
		list = append(list, s)
	}
	return list
}

// add adds a rule that holds over all regions. Rules with one name are counted together, and become
// one here.
func (t *RegionsReport) add(r *rule.Rule, read *insight.RegionsReading, of *Regions) {
	at := slices.IndexFunc(t.Limits, func(l RegionalLimit) bool { return l.Domain == r.Domain && l.Rule == r.Name })
	if at < 0 {
		at = len(t.Limits)
		t.Limits = append(t.Limits, RegionalLimit{
			RegionalUnits: read.Of(r.Domain, r.Name), Over: r.Regions.Over, Sync: r.Regions.Sync, Tell: r.Regions.Tell,
			Shadow: r.Shadow, Windows: []RegionalWindow{},
		})
	}
	l := &t.Limits[at]
	l.Overrides += len(r.Overrides)
	for _, win := range r.Windows {
		w := RegionalWindow{windowInfo: describeWindow(win)}
		if win.Limit != nil && win.Counter != nil && win.Counter.Regions != nil {
			c := of.Ceiling(win.Counter, win.Limit).Config()
			w.Ceiling, w.CeilingBurst = c.N, burstOf(c)
		}
		if len(r.Windows) > 1 {
			counted := read.OfWindow(r.Domain, r.Name, win.Name)
			w.Counted = &counted
		}
		l.Windows = append(l.Windows, w)
	}
}
