package insight

import (
	"cmp"
	"slices"
	"time"
)

// SilentRegion is after how long without hearing a region it counts as silent.
const SilentRegion = 3 * time.Second

// RegionsReading describes the exchange between a region and the others: of one node since its
// start, or of several added up.
type RegionsReading struct {
	// Leader is the node that hears the other regions on behalf of its own; "" if none of the nodes
	// read does.
	Leader string          `json:"leader,omitempty"`
	Untold uint64          `json:"untold"` // uses that the others may not hear of, since the store failed
	Orders uint64          `json:"orders"` // bans and grants of other regions that were taken over, or ended
	Keys   int             `json:"keys"`   // keys with uses that are not told yet
	Peers  []RegionPeer    `json:"peers"`  // in order of name
	Limits []RegionalUnits `json:"limits"` // in order of domain, rule and window
}

// RegionPeer is what a region knows of another one.
type RegionPeer struct {
	Region string `json:"region"`
	// Staleness is the age of the newest use that was certainly heard, in s; nil if nothing was
	// heard yet, or no node leads. Only the leader knows it, and whether Weights and Rules differ.
	Staleness *float64 `json:"staleness"`
	Weights   bool     `json:"weights_differ"` // its table of weights is another one
	Rules     bool     `json:"rules_differ"`   // its rule files are other ones
	Uses      uint64   `json:"uses"`           // entries of its log that were heard
	Unknown   uint64   `json:"unknown"`        // of Uses, entries whose rule is not known here
	Gaps      uint64   `json:"gaps"`           // times that a part of its log was gone before it was read
	Errors    uint64   `json:"errors"`         // calls of its store that failed
	Asked     uint64   `json:"asked"`          // times that it was asked for units
	Borrowed  uint64   `json:"borrowed"`       // units that it lent and that were put to use
	Lost      uint64   `json:"lost"`           // units that it lent and that came too late
}

// RegionalUnits count the units of a limit that holds over several regions, or of all limits of a
// rule if Window is "".
type RegionalUnits struct {
	Domain string   `json:"domain"`
	Rule   string   `json:"rule"`
	Window string   `json:"window,omitempty"` // as it is named in rules
	Used   NetUnits `json:"used"`             // admitted in this region
	Told   NetUnits `json:"told"`             // of these, told to the others
	Heard  NetUnits `json:"heard"`            // used in other regions, and charged here
	Late   NetUnits `json:"late"`             // heard when they did not count any more
	Unsure NetUnits `json:"unsure"`           // heard while the store failed: perhaps not charged
	// OverUnits is how many of the heard units found the limit full: what all regions admitted
	// beyond it.
	OverUnits uint64 `json:"over_units"`
	Borrowed  uint64 `json:"borrowed"` // units that other regions lent
	// CeilingRefusals counts the requests that the ceiling of this region refused though the limit
	// had room, as far as was heard.
	CeilingRefusals uint64 `json:"ceiling_refusals"`
}

// NetUnits are units that were used, and how many of them were given back.
type NetUnits struct {
	Units uint64 `json:"units"`
	Back  uint64 `json:"back"`
}

func (n *NetUnits) add(other NetUnits) { n.Units, n.Back = n.Units+other.Units, n.Back+other.Back }

// Add adds the reading of another node of the same region. What only the leader knows is taken from
// the first leader; for a moment two nodes may believe that they lead.
func (r *RegionsReading) Add(other *RegionsReading) {
	leads := r.Leader == "" && other.Leader != ""
	if leads {
		r.Leader = other.Leader
	}
	r.Untold, r.Orders, r.Keys = r.Untold+other.Untold, r.Orders+other.Orders, r.Keys+other.Keys
	for i := range other.Peers {
		from := &other.Peers[i]
		at, there := slices.BinarySearchFunc(r.Peers, from.Region,
			func(p RegionPeer, name string) int { return cmp.Compare(p.Region, name) })
		if !there {
			r.Peers = slices.Insert(r.Peers, at, RegionPeer{Region: from.Region})
		}
		p := &r.Peers[at]
		if leads {
			p.Staleness, p.Weights, p.Rules = from.Staleness, from.Weights, from.Rules
		}
		p.Uses, p.Unknown, p.Gaps, p.Errors = p.Uses+from.Uses, p.Unknown+from.Unknown, p.Gaps+from.Gaps,
			p.Errors+from.Errors
		p.Asked, p.Borrowed, p.Lost = p.Asked+from.Asked, p.Borrowed+from.Borrowed, p.Lost+from.Lost
	}
	for i := range other.Limits {
		from := &other.Limits[i]
		at, there := slices.BinarySearchFunc(r.Limits, *from, CompareRegional)
		if !there {
			r.Limits = slices.Insert(r.Limits, at,
				RegionalUnits{Domain: from.Domain, Rule: from.Rule, Window: from.Window})
		}
		r.Limits[at].add(from)
	}
}

func (l *RegionalUnits) add(from *RegionalUnits) {
	l.Used.add(from.Used)
	l.Told.add(from.Told)
	l.Heard.add(from.Heard)
	l.Late.add(from.Late)
	l.Unsure.add(from.Unsure)
	l.OverUnits, l.Borrowed, l.CeilingRefusals = l.OverUnits+from.OverUnits, l.Borrowed+from.Borrowed,
		l.CeilingRefusals+from.CeilingRefusals
}

// Of returns the units of a rule, of all its windows together; zero if there are none.
func (r *RegionsReading) Of(domain, rule string) RegionalUnits {
	of := RegionalUnits{Domain: domain, Rule: rule}
	at, _ := slices.BinarySearchFunc(r.Limits, of, CompareRegional)
	for ; at < len(r.Limits) && r.Limits[at].Domain == domain && r.Limits[at].Rule == rule; at++ {
		of.add(&r.Limits[at])
	}
	return of
}

// OfWindow returns the units of one window of a rule; zero if there are none.
func (r *RegionsReading) OfWindow(domain, rule, window string) RegionalUnits {
	of := RegionalUnits{Domain: domain, Rule: rule, Window: window}
	if at, there := slices.BinarySearchFunc(r.Limits, of, CompareRegional); there {
		return r.Limits[at]
	}
	return of
}

// CompareRegional orders units by domain, rule and window, as RegionsReading.Limits are.
func CompareRegional(a, b RegionalUnits) int {
	return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Window, b.Window))
}
