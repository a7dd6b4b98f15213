// Package snapshot describes what a node has gathered about its rules at an instant. Snapshots of
// several nodes are encoded (codec.go), checked (fit.go) and merged (merge.go), and View (view.go)
// answers questions from one. summary.go turns a snapshot into the facts that package judge judges.
package snapshot

import (
	"time"

	"github.com/weir-rl/weir/internal/observe/insight"
)

// Want says what a Snapshot should hold.
type Want struct {
	Domain string        // "" for all
	Rule   string        // "" for all
	Over   time.Duration // how far back the counts go; 0 is 24 hours
	// Series asks for the counts of rules over time, Top for the lists of top keys, and Samples for
	// the samples of keys, which take most of the bytes. The counts of domains over time are always
	// there.
	Series, Top, Samples bool
	// Clients asks for as much of the samples as fits into an answer, so that figures of clients
	// can be merged. With few keys that is as much as Samples gives.
	Clients bool
	// OnlyTop leaves out everything about rules except their limits and the lists of top keys.
	OnlyTop bool
	// Key asks for everything about one key (user=ada), if Samples does not ask for all keys.
	Key string
}

// Snapshot is what one node has gathered or, merged, what all nodes have. Collector.Snapshot makes
// one, Merge joins several, and NewView answers questions from it. It shares nothing that the
// Collector goes on to change.
type Snapshot struct {
	Node          string // its name; it is not sent to other nodes
	Nodes         int    // merged into it
	Seed          uint64
	Started, Time int64 // Unix seconds; of the node that began first, and of the snapshot
	// StoreTime is Time by the store's clock, in µs, like TopKey.At. It is not sent to other
	// nodes; 0 is Time.
	StoreTime   int64
	Over        int64 // the time that was asked for, in s
	From, Step  int64 // of counts, from here to Time (up to a step less than Over), and series
	P99         float64
	StoreErrors uint64
	Taken       uint64
	Thinned     uint64
	Bytes       int64
	Broken      string
	// Unknown counts requests for domains that no rule file declares, such as UnknownDomain.
	Unknown       uint64
	UnknownDomain string
	Events        []insight.Happening
	Domains       []Domain
	Rules         []Rule
}

// Domain is what is known of a domain.
type Domain struct {
	Name      string
	Count     Counts
	Recent    Counts // of the last 10 s
	Before    Counts // of the same time a day before
	HasBefore bool
	Since     int64 // Unix seconds: there are no figures of the time before
	Series    Strip
}

// Rule is what is known of a rule.
type Rule struct {
	Domain, Name string
	Definition   uint64
	File         string
	Line         int
	Mode         string
	Per          []string
	Brought      bool // its limits come with the requests
	Since        int64
	Windows      []Window

	Count Counts
	// Sampled are the counts over the time of the samples: that is JudgedOver, but not longer than
	// this program runs. DomainMet is how many requests came to the domain in that time. It comes
	// with the samples, and is right only if the snapshot is over JudgedOver.
	Sampled   Counts
	DomainMet uint64
	Recent    Counts // of the last 10 s
	Trend     [12]uint32
	Series    Strip

	Summary Summary
	All     Sample
	Refused RefusedSample
	Minutes []Minute
	Errors  uint64 // of if and cost, within the last 36 h
	Error   string // the first of them; "" if there is none

	Drawn, DrawnKnown uint64
	Answers, Well     uint64
	ByDoor            []insight.Count
	With              []insight.Count // rules that refused the same requests, the mostWith of most
	Examples          []uint64
	Live, Long        [TopKinds][]TopKey
	TopMost           int // counters of each list

	Trial    Trial
	WouldTop []TopKey // keys that a rule which is enforced on a share of its keys would refuse

	Verdicts []insight.Verdict
}

// Window is one limit of a rule.
type Window struct {
	Name    string
	Allows  string
	Rate    string
	Limit   int64
	Window  time.Duration
	Bucket  bool
	Refused uint64
	MaxFill float32
}

// Minute is a minute of a rule.
type Minute struct {
	T        int64
	Keys     float32
	TopShare uint8 // in percent; unknownShare: not known
	Signal   uint8
	Met      uint32
	Refused  uint32
	Would    uint32 // would be refused, in shadow
}

// UnknownShare is a TopShare that is not known.
const UnknownShare = 0xff

// Saturations are the signals of a saturated minute.
var Saturations = []string{"cpu", "memory", "pressure", "in_flight", "upstream_latency", "shed", "answers"}

// TopPercent returns how many keys are the top 1 % of so many.
func TopPercent(keys float32) int { return int(min(max(1, keys/100), 64)) }

// IsCommand reports whether the snapshot is about commands that brought their own limit, not about
// a rule.
func (r *Rule) IsCommand() bool { return insight.IsCommandRule(r.Domain, r.Name) }
