// Package insight has the answers to "does each rule do its job?": what a reader asks, and the
// reports, verdicts and keys that it gets, as the admin API writes them.
//
// The answers are made in three packages below. Package gather takes in decisions on the deciding
// path, in bounded memory. Package snapshot is what one node knows at an instant, or all nodes
// merged. Package judge says whether a rule is too strict, too loose, useless, or good: on a server
// and in a replay.
package insight

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/weir-rl/weir/internal/util/human"
)

// The types in this file are the answers of the admin API, in JSON. They are values: nobody keeps
// what they point to.

// Overview is the state of a domain, or of all ("").
type Overview struct {
	From   time.Time `json:"from"` // as far back as asked for, or as there are figures
	To     time.Time `json:"to"`
	Step   int       `json:"step"` // of Series, in s
	Nodes  Nodes     `json:"nodes"`
	Domain string    `json:"domain,omitempty"`

	Requests uint64 `json:"requests"` // decided; peeks and refunds are none
	Refused  uint64 `json:"refused"`
	Banned   uint64 `json:"banned"` // of the refused ones
	// SampledFrom is the time since which clients are counted, whatever From is: samples of keys
	// cover the last 24 to 36 hours, or the time since the program began. GoodRefused and its
	// counts cover the same time.
	SampledFrom    time.Time   `json:"sampled_from"`
	Clients        uint64      `json:"clients"`
	ClientsRefused uint64      `json:"clients_refused"` // without rules in shadow, as GoodRefused
	GoodRefused    GoodRefused `json:"good_refused"`
	// Near is how many clients are near their limit now. Like Clients, it is the number at the rule
	// that has most.
	Near        uint64  `json:"near"`
	PerSecond   float64 `json:"per_second"`   // requests, over the last 10 s
	P99         float64 `json:"p99"`          // s, of decisions; 0 if not known
	StoreErrors uint64  `json:"store_errors"` // over the same time
	// UnknownDomain is absent if no request was for a domain that no rule file declares.
	UnknownDomain *UnknownDomain `json:"unknown_domain,omitempty"`
	Before        *Before        `json:"before"` // a day earlier; null if not known
	Series        Series         `json:"series"`
	Events        []Happening    `json:"events"`
	NeedsALook    []Verdict      `json:"needs_a_look"`
	Sentences     []string       `json:"sentences"`
	Mentions      []Mention      `json:"mentions,omitempty"` // what sentences name
	// Named is the key that a sentence names, as it appears there. Not everybody may see it.
	Named string `json:"-"`
}

// Mention is a text in a sentence that names something: a rule, a key of a domain, or the bans.
type Mention struct {
	Text   string `json:"text"`
	Kind   string `json:"kind"` // rule, key or bans
	Domain string `json:"domain,omitempty"`
	Name   string `json:"name,omitempty"`
}

// The kinds of mentions.
const (
	MentionsRule = "rule"
	MentionsKey  = "key"
	MentionsBans = "bans"
)

// UnknownDomain counts requests for domains that no rule file declares. They met no limit.
type UnknownDomain struct {
	Requests uint64 `json:"requests"` // in the time of the counts; they are not among Overview.Requests
	Name     string `json:"name"`     // one of the domains, perhaps cut
}

// Sentence says it in words.
func (u *UnknownDomain) Sentence() string {
	return fmt.Sprintf("%s came for a domain that no rule file declares, such as %s: no limit was asked.",
		human.Upper(human.Count(u.Requests, "request")), human.Visible(u.Name))
}

// GoodRefused counts refusals of clients that behave well, since Overview.SampledFrom. They are
// counted by rule: a request that two rules refuse counts twice.
type GoodRefused struct {
	Requests  uint64 `json:"requests"`   // refusals of clients that behave well
	PlusMinus uint64 `json:"plus_minus"` // of Requests, at 95 %; 0 is exact
	Of        uint64 `json:"of"`         // refusals
	Clients   uint64 `json:"clients"`
	// Confidence is high or low; "" if nothing shows who behaves well.
	Confidence string `json:"confidence,omitempty"`
}

// Add adds how another rule treated clients that behave well.
func (g *GoodRefused) Add(x *Good) {
	g.Requests, g.PlusMinus, g.Of = g.Requests+x.Refused, g.PlusMinus+x.RefusedPlusMinus, g.Of+x.Of
	g.Clients = max(g.Clients, x.Keys)
	if g.Confidence == "" || x.Confidence == Low && x.Keys > 0 {
		g.Confidence = x.Confidence
	}
}

// Before has the same figures for the time one day earlier.
type Before struct {
	Requests uint64 `json:"requests"`
	Refused  uint64 `json:"refused"`
}

// Series are counts by step of time. All slices are as long as T, or absent.
type Series struct {
	T        []int64  `json:"t"` // Unix seconds at which the steps begin
	Admitted []uint32 `json:"admitted"`
	Near     []uint32 `json:"near"` // of Admitted: near a limit, or in a soft margin
	Refused  []uint32 `json:"refused"`
	Shadow   []uint32 `json:"shadow,omitempty"` // would be refused
	Banned   []uint32 `json:"banned,omitempty"` // of Refused
}

// Happening is an event on the timeline.
type Happening struct {
	T       int64  `json:"t"` // Unix seconds
	Until   int64  `json:"until,omitempty"`
	Kind    string `json:"kind"` // rules, rules_broken, saturated, start
	Version string `json:"version,omitempty"`
	Signal  string `json:"signal,omitempty"`
	// RuleChanges says what other rules changed; only the latest events have it. Nodes are the
	// nodes where that happened; empty if only one was asked.
	RuleChanges
	Nodes []string `json:"nodes,omitempty"`
}

// RuleReport is what is known of one rule.
type RuleReport struct {
	Domain string    `json:"domain"`
	Name   string    `json:"name"`
	File   string    `json:"file"`
	Line   int       `json:"line"`
	Since  time.Time `json:"since"`         // when the rule, as it is, came into force
	Mode   string    `json:"mode"`          // enforce, shadow or quota
	Limits []string  `json:"limits"`        // in words: "20 per minute"
	Per    []string  `json:"per,omitempty"` // attributes of its key

	From         time.Time `json:"from"` // the counts are of the time from here to now
	Met          uint64    `json:"met"`
	Refused      uint64    `json:"refused"`
	RefusedAlone uint64    `json:"refused_alone"` // nothing but this rule refused
	Soft         uint64    `json:"soft"`
	Near         uint64    `json:"near"`
	Banned       uint64    `json:"banned"`
	WouldRefuse  uint64    `json:"would_refuse"` // in shadow
	Errors       uint64    `json:"errors"`       // of if and cost

	// SampledFrom is the time since which keys are counted, whatever From is, as in Overview.
	SampledFrom time.Time `json:"sampled_from"`
	Keys        uint64    `json:"keys"`         // estimated
	KeysRefused uint64    `json:"keys_refused"` // in shadow: that would be
	KeysError   float64   `json:"keys_error"`   // relative standard error of Keys; 0 is exact
	// Fill is the number of keys by the largest share of a limit that they used: 0-10 … 90-100,
	// above 100 %.
	Fill       [11]uint64 `json:"fill"`
	MaxFill    float64    `json:"max_fill"` // the most that a client asked for; 1 is the whole limit
	Episodes   Episodes   `json:"episodes"`
	KnownShare float64    `json:"known_share"` // of the requests that had an identity
	OKShare    float64    `json:"ok_share"`    // of the admitted ones answered well; below 0: not known
	Good       Good       `json:"good"`
	Trend      []uint32   `json:"trend"` // refused in each of the last 12 twelfths of the time
	PerSecond  float64    `json:"per_second"`
	Verdicts   []Verdict  `json:"verdicts"` // the first is the one to show
	// Command says that this is no rule, but stands for all commands that brought their own limit.
	// It has no verdicts, limits or file, and Reader.Rule does not know it.
	Command bool `json:"command,omitempty"`
	// Trial is what a rule in shadow, or one that is enforced on a share of its keys, would do;
	// without Top. nil for other rules.
	Trial *Candidate `json:"trial,omitempty"`
	// The following fields are only in the report of a single rule. The admin port adds Nodes.
	Nodes *Nodes       `json:"nodes,omitempty"`
	Curve []CurvePoint `json:"curve,omitempty"`
	// CurveOf is the name of the limit that Curve is about: the one of Windows that refuses most.
	CurveOf string         `json:"curve_of,omitempty"`
	Series  *Series        `json:"series,omitempty"`
	Windows []WindowReport `json:"windows,omitempty"`
	// By has the doors of recent refusals; the admin port adds path, a replay status.
	By      map[string][]Count `json:"by,omitempty"`
	Top     []KeyCount         `json:"top,omitempty"`
	NearNow []KeyCount         `json:"near_now,omitempty"`
}

// The modes of a rule.
const (
	ModeEnforce = "enforce"
	ModeShadow  = "shadow"
	ModeQuota   = "quota"
)

// Episodes count what clients did after a refusal.
type Episodes struct {
	Obeyed uint64 `json:"obeyed"`
	Early  uint64 `json:"early"`
	GaveUp uint64 `json:"gave_up"`
	// LeftOut began before all nodes noted the events of the key.
	LeftOut uint64 `json:"left_out,omitempty"`
}

// Add adds the episodes of another key, or of another time.
func (e *Episodes) Add(x *Episodes) {
	e.Obeyed, e.Early, e.GaveUp, e.LeftOut = e.Obeyed+x.Obeyed, e.Early+x.Early, e.GaveUp+x.GaveUp, e.LeftOut+x.LeftOut
}

// AddSince adds the episodes that ended between two readings.
func (e *Episodes) AddSince(before, now *Episodes) {
	e.Obeyed += now.Obeyed - before.Obeyed
	e.Early += now.Early - before.Early
	e.GaveUp += now.GaveUp - before.GaveUp
}

// Ended returns how many have ended.
func (e *Episodes) Ended() uint64 { return e.Obeyed + e.Early + e.GaveUp }

// Good is how a rule treated clients that behave well or, in shadow, would have treated them. It is
// zero if nothing shows who behaves well.
type Good struct {
	Refused          uint64  `json:"refused"`            // refusals of good keys
	RefusedPlusMinus uint64  `json:"refused_plus_minus"` // at 95 %; 0 is exact
	Of               uint64  `json:"of"`                 // refusals, in the same time
	Keys             uint64  `json:"keys"`               // of the refused keys
	All              uint64  `json:"all"`                // good keys
	Share            float64 `json:"share"`              // refused good keys ÷ good keys
	Low              float64 `json:"low"`                // bounds of Share at 95 %
	High             float64 `json:"high"`
	PlusMinus        float64 `json:"plus_minus"`
	// Confidence is high if an identity shows the good clients, low if their answers do, and "" if
	// nothing does.
	Confidence string `json:"confidence,omitempty"`
}

// CurvePoint says how many keys a limit of that size would affect.
type CurvePoint struct {
	Limit     int64   `json:"limit"`
	Keys      float64 `json:"keys"`
	PlusMinus float64 `json:"plus_minus"`
	// GoodKeys is how many of Keys behave well, counted as in Good; nil if that is not known.
	GoodKeys *float64 `json:"good_keys,omitempty"`
}

// WindowReport is one limit of a rule.
type WindowReport struct {
	Name    string  `json:"name"`
	Allows  string  `json:"allows"`
	Limit   int64   `json:"limit"`
	Window  float64 `json:"window"` // s
	Refused uint64  `json:"refused"`
	MaxFill float64 `json:"max_fill"` // as in RuleReport
}

// Count is a value and how often it came.
type Count struct {
	Value string `json:"value"`
	Count uint64 `json:"count"`
}

// CompareCounts puts the most frequent value first.
func CompareCounts(a, b Count) int {
	return cmp.Or(cmp.Compare(b.Count, a.Count), strings.Compare(a.Value, b.Value))
}

// Verdict is a verdict on a rule.
type Verdict struct {
	Verdict    string             `json:"verdict"`    // one of Verdicts
	Confidence string             `json:"confidence"` // high or low
	Domain     string             `json:"domain"`
	Rule       string             `json:"rule"`
	Since      time.Time          `json:"since"`
	Sentence   string             `json:"sentence"`
	Proposal   *Proposal          `json:"proposal,omitempty"`
	Evidence   map[string]float64 `json:"evidence"`
	Examples   []string           `json:"examples"` // ids of decisions
}

// Proposal is a way to improve a rule.
type Proposal struct {
	Sentence string `json:"sentence"`
	Patch    string `json:"patch,omitempty"` // a unified diff of the rule's file
}

// KeyBan names the ban that refuses a key: its own, of a network, or of another rule in the whole
// domain.
type KeyBan struct {
	Limit string   `json:"limit"`
	Key   []string `json:"key"`
	Wide  bool     `json:"wide,omitempty"`
}

// KeyCount is a key that often asks, is refused, or comes near its limit.
type KeyCount struct {
	Domain       string  `json:"domain"`
	Rule         string  `json:"rule"`
	Limit        string  `json:"limit"` // the window
	Key          string  `json:"key"`   // for people: user=ada
	Count        uint64  `json:"count"` // at most
	Over         uint64  `json:"over"`  // by how much Count may be too large
	RefusedShare float64 `json:"refused_share"`
	// Fill is the largest share of Limit that the key used at once, in the time of the list. 1 is
	// the whole limit, and a larger value includes refused units.
	Fill         float64    `json:"fill"`
	BannedUntil  *time.Time `json:"banned_until,omitempty"`
	BannedBy     *KeyBan    `json:"banned_by,omitempty"` // with BannedUntil
	GrantedUntil *time.Time `json:"granted_until,omitempty"`
	Known        bool       `json:"known"`
	Obey         float64    `json:"obey"` // below 0: not known
	// Shadow says that the rule is in shadow: refusals are requests that it would refuse.
	Shadow bool `json:"shadow,omitempty"`
	// Estimated says that only some of the decisions were looked at, so that Count may be too
	// small, too.
	Estimated bool `json:"estimated,omitempty"`
}
