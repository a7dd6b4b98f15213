package insight

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/util/human"
)

// What an Outage is of, beside a store of counters: redis, postgres or cassandra.
const (
	OutageRegion = "region" // another region
	OutageRules  = "rules"  // the database of the rules
)

// The kinds of an Outage, the gravest first.
const (
	StoreAway       = "away"       // it could not be reached, or failed calls in a row
	StoreEmpty      = "empty"      // it came back without its counters, and was not missed
	StoreUnanswered = "unanswered" // it counted as there, and left single calls without an answer
)

// Outage is a time in which nodes went without a store, another region, or the database of the
// rules.
type Outage struct {
	Store  string     `json:"store"`            // redis, postgres, cassandra, region or rules
	Region string     `json:"region,omitempty"` // the name, of a region
	Kind   string     `json:"kind"`             // away, empty or unanswered
	From   time.Time  `json:"from"`
	To     *time.Time `json:"to"`              // null while it lasts
	Times  int        `json:"times"`           // how often it went away from From to To
	Cause  string     `json:"cause,omitempty"` // the first error
	// PartsAway is how many parts of the store were away, of Parts, such as the partitions of a
	// Redis Cluster; 0 where the store has no parts.
	PartsAway int `json:"parts_away,omitempty"`
	Parts     int `json:"parts,omitempty"`
	OutageCounts
	// CountersLost says that the store came back without the counters of before.
	CountersLost bool `json:"counters_lost,omitempty"`
	// Title and Summary say it in words without times: "Redis away", and "867 decided alone, 2
	// over, counters lost".
	Title   string       `json:"title"`
	Summary string       `json:"summary"`
	Nodes   []OutageNode `json:"nodes"` // that met it, in order of name
}

// OutageCounts count what nodes decided without their store. Each decision of Alone is one of the
// four after it.
type OutageCounts struct {
	Alone         uint64 `json:"alone"`
	ShareAdmitted uint64 `json:"share_admitted"` // on the node's share of the limits
	ShareRefused  uint64 `json:"share_refused"`
	Admitted      uint64 `json:"admitted"` // uncounted, since the rules say on_store_error: allow
	Refused       uint64 `json:"refused"`  // since a rule says on_store_error: deny
	// Units that shares admitted: Over went beyond limits, Unsettled are to be charged yet, and of
	// Unsure it will never be known. All three leave out what lay within the limits.
	Over      uint64 `json:"over"`
	Unsettled uint64 `json:"unsettled"`
	Unsure    uint64 `json:"unsure"`
}

// Add adds the counts of another node, or of another time.
func (c *OutageCounts) Add(x *OutageCounts) {
	c.Alone, c.Admitted, c.Refused = c.Alone+x.Alone, c.Admitted+x.Admitted, c.Refused+x.Refused
	c.ShareAdmitted, c.ShareRefused = c.ShareAdmitted+x.ShareAdmitted, c.ShareRefused+x.ShareRefused
	c.Over, c.Unsettled, c.Unsure = c.Over+x.Over, c.Unsettled+x.Unsettled, c.Unsure+x.Unsure
}

// OutageNode is a node that met an outage.
type OutageNode struct {
	Node  string `json:"node"`
	Alone uint64 `json:"alone"`
	Does  string `json:"does"` // how it decides meanwhile, or decided last
}

// Lasts reports whether the outage goes on.
func (o *Outage) Lasts() bool { return o.To == nil }

var storeTitles = map[string]string{
	"redis": "Redis", "postgres": "PostgreSQL", "cassandra": "Cassandra", OutageRules: "Database of the rules",
}

// Describe fills in Title and Summary.
func (o *Outage) Describe() {
	name := cmp.Or(storeTitles[o.Store], o.Store)
	if o.Store == OutageRegion {
		name = "Region " + o.Region
	}
	if o.Parts > 1 && o.PartsAway > 0 {
		name = fmt.Sprintf("%d of %d parts of %s", o.PartsAway, o.Parts, name)
	}
	switch o.Kind {
	case StoreAway:
		o.Title = name + " away"
	case StoreEmpty:
		o.Title = name + " came back empty"
	default:
		o.Title = name + " did not answer in time"
	}
	o.Summary = o.summary()
}

func (o *Outage) summary() string {
	switch o.Store {
	case OutageRegion:
		return "what it admitted was not heard, and ceilings held instead"
	case OutageRules:
		return "the rules in force stayed, and no change of them arrived"
	}
	var parts []string
	if o.Alone > 0 {
		parts = append(parts, human.Number(o.Alone)+" decided alone")
	} else if o.Kind != StoreEmpty {
		parts = append(parts, "no request came meanwhile")
	}
	switch over := human.Number(o.Over) + " over"; {
	case o.CountersLost && o.Over > 0:
		parts = append(parts, "at least "+over)
	case o.Over > 0:
		parts = append(parts, over)
	}
	if o.Unsettled > 0 && !o.Lasts() {
		parts = append(parts, human.Number(o.Unsettled)+" to be settled")
	}
	if o.Unsure > 0 {
		parts = append(parts, human.Number(o.Unsure)+" perhaps over")
	}
	if o.CountersLost {
		parts = append(parts, "counters lost")
	}
	if o.Times > 1 {
		parts = append(parts, fmt.Sprintf("%d times", o.Times))
	}
	return strings.Join(parts, ", ")
}

// StorePolicies count the limited rules by their on_store_error.
type StorePolicies struct{ Local, Allow, Deny int }

// Does says how a node decides that shares limits among so many nodes.
func (p StorePolicies) Does(share int) string {
	var parts []string
	of := func(n int) string {
		if n == p.Local+p.Allow+p.Deny {
			return ""
		}
		return " under " + human.Count(n, "rule")
	}
	switch {
	case p.Local == 0:
	case share > 1:
		parts = append(parts, fmt.Sprintf("admits 1/%d of each limit%s", share, of(p.Local)))
	default:
		parts = append(parts, "counts alone, up to the whole limit"+of(p.Local))
	}
	if p.Allow > 0 {
		parts = append(parts, "fails open (admits all)"+of(p.Allow))
	}
	if p.Deny > 0 {
		parts = append(parts, "fails closed (refuses all)"+of(p.Deny))
	}
	return cmp.Or(strings.Join(parts, ", "), "has no limits")
}

// joinOutages is how far apart two outages of a store may lie that are told as one.
const joinOutages = 30 * time.Second

// Joins reports whether x goes on, or begins anew, so soon after o that both are told as one.
func (o *Outage) Joins(x *Outage) bool {
	return o.Store == x.Store && o.Region == x.Region && !x.after(o) && !o.after(x)
}

// after reports whether o began well after x ended.
func (o *Outage) after(x *Outage) bool { return x.To != nil && o.From.After(x.To.Add(joinOutages)) }

var outageKinds = []string{StoreAway, StoreEmpty, StoreUnanswered}

// MergeOutages joins what several nodes met: outages of one store at one time become one, with the
// nodes' names. The newest is first. It changes none of the lists.
func MergeOutages(lists ...[]Outage) []Outage {
	all := slices.Concat(lists...)
	slices.SortStableFunc(all, func(a, b Outage) int { return a.From.Compare(b.From) })
	out := []Outage{}
next:
	for _, x := range all {
		for i := range slices.Backward(out) {
			if out[i].Joins(&x) {
				out[i].merge(&x)
				continue next
			}
		}
		x.Nodes = slices.Clone(x.Nodes)
		out = append(out, x)
	}
	slices.Reverse(out)
	for i := range out {
		o := &out[i]
		slices.SortStableFunc(o.Nodes, func(a, b OutageNode) int { return strings.Compare(a.Node, b.Node) })
		o.Describe()
	}
	return out
}

func (o *Outage) merge(x *Outage) {
	if slices.Index(outageKinds, x.Kind) < slices.Index(outageKinds, o.Kind) {
		o.Kind, o.Cause = x.Kind, cmp.Or(x.Cause, o.Cause)
	}
	if o.To != nil && (x.To == nil || x.To.After(*o.To)) {
		o.To = x.To
	}
	o.Times, o.Cause = max(o.Times, x.Times), cmp.Or(o.Cause, x.Cause)
	o.PartsAway, o.Parts = max(o.PartsAway, x.PartsAway), max(o.Parts, x.Parts)
	o.OutageCounts.Add(&x.OutageCounts)
	o.CountersLost = o.CountersLost || x.CountersLost
	for _, n := range x.Nodes {
		at := slices.IndexFunc(o.Nodes, func(have OutageNode) bool { return have.Node == n.Node })
		if at < 0 {
			o.Nodes = append(o.Nodes, n)
			continue
		}
		o.Nodes[at].Alone, o.Nodes[at].Does = o.Nodes[at].Alone+n.Alone, n.Does
	}
}
