// Package rule holds the rules that are in force: a Set, which is immutable, compiled for matching
// and safe for concurrent use.
//
// Begin reading at Set.Match, which returns the limits that a request meets, and the keys under
// which they count it. Set.Explain gives the reasons in words, Set.Inherit carries counters over a
// reload. Nothing here counts: that is algo and a store.
//
// A Set is made by package rule/file from rule files, by Of from a few words, or by Compile from
// rules that a program builds itself.
package rule

import (
	"fmt"
	"iter"
	"time"

	"github.com/weir-rl/weir/algo"
)

// Position is a place in a rule file. Line and Column count from 1; 0 means unknown.
type Position struct {
	File   string
	Line   int
	Column int
}

// String names the line, as messages do.
func (p Position) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// Rule is one checked entry of a rule file: a native limit, or a Lyft descriptor that has a
// rate_limit (or is allow-listed). It is immutable once its Set is built.
type Rule struct {
	// unique in the domain; a Lyft rule's is its descriptor path
	// ("message_type_marketing.to_number")
	Name   string
	Domain string
	Pos    Position
	Index  int   // place in the Set, over all domains, by file name and then by place in the file
	Lyft   *Lyft // nil for a native limit

	When      []Condition
	If        string // CEL source; "" for none
	Per       []Key
	Windows   []*Window // one for each entry of allow; empty if Unlimited
	Unlimited bool
	Lent      bool // it leases only to holders that ask the store by themselves
	// Regions says how its limits hold over several regions; nil if each of them counts for itself.
	// Compile gives each Counter its own copy, with All filled in.
	Regions     *Regions
	Cost        int64  // units for each hit; 1 by default
	CostExpr    string // CEL source; "" if Cost is a number
	CostMin     int64  // the least that CostExpr counts as; at least 0
	Replaces    []string
	Overrides   []Override
	WarnPercent int           // near_limit from this share of N; 80 by default
	Wait        time.Duration // on_limit: {wait: …}: the longest hold; 0 if none was given
	// how many requests of one key may be held at a time, where the algorithm itself does not bound
	// it; DefaultWaitQueue by default
	WaitQueue int
	// on_limit: {defer: NAME}: the queue that takes refused requests; "" for none
	Defer    string
	Elastic  *Elastic // throttle: {elastic: …}; nil for none
	Schedule []SchedulePhase
	Priority Priority
	Ban      *Ban // nil for none
	// CostAfter is the CEL source of the cost of a request, computed from its response; "" for
	// none. Cost is then the estimate that is reserved until then.
	CostAfter string
	// CostTimeout is the longest that a reservation waits for its commit; DefaultCostTimeout by
	// default, 0 in a rule that a request brought.
	CostTimeout time.Duration
	Shadow      bool
	// ExactPaths says that a path is this limit's only in the case in which it is written, and with
	// or without a final slash as it is written. A rule of the Lyft form is so in any case.
	ExactPaths     bool
	OnStoreError   StoreErrorPolicy
	EnforcePercent int       // 100 by default
	Response       *Response // nil for the default refusal

	// Exprs is what If, CostExpr and CostAfter compile to; nil if there are none.
	Exprs *Exprs
	// File is the file that the rule comes from; Compile fills it in.
	File *File

	compiled *matchRule
}

// DefaultWaitQueue is how many requests of one key may be held at a time unless the rule says
// otherwise.
const DefaultWaitQueue = 1000

// New returns a rule with the defaults of a native limit, without any windows.
func New(name, domain string) *Rule {
	return &Rule{
		Name: name, Domain: domain, Cost: 1, CostTimeout: DefaultCostTimeout, WarnPercent: 80, EnforcePercent: 100,
	}
}

// predicate returns the rule's compiled `if`; nil if it has none.
func (r *Rule) predicate() Predicate {
	if r.Exprs == nil {
		return nil
	}
	return r.Exprs.If
}

// amount returns the rule's compiled `cost`; nil if it is a number.
func (r *Rule) amount() Amount {
	if r.Exprs == nil {
		return nil
	}
	return r.Exprs.Cost
}

// Window is one entry of a rule's allow: one limit with a counter for each key.
type Window struct {
	Rule *Rule
	// Name is the rule's name, or rule:seconds where the rule has several windows.
	Name string
	// Seconds is the nominal W in seconds (a calendar month 2592000, a year 31536000); fractions
	// rounded up; 0 for concurrency.
	Seconds int64
	Limit   *algo.Limit // nil if this entry is unlimited
	Counter *Counter

	scaled *scaledLimits // of an elastic rule
}

// Counter is the identity of a limit's state: (domain, rule name, algorithm, W). Overrides of a
// rule share their window's Counter.
type Counter struct {
	// ID is a 64-bit hash of the identity, unique in the Set (Compile refuses a collision), stable
	// across restarts.
	ID uint64
	// Group is a 64-bit hash of (domain, rule name): the same for all windows of a rule, so that a
	// store may keep their states for one key together. The low 32 bits of their IDs differ. 0
	// where nobody set it.
	Group uint64
	// Keys is a 64-bit hash of (domain, rule name, attributes of per): the meaning of the rule's
	// keys. The same for all its windows.
	Keys   uint64
	Domain string
	Rule   string
	Window string // the window's Name
	Limit  *algo.Limit
	// Index counts the Counters of one Set from 0, for tables of metrics. The Counters of limits
	// that requests bring (DescriptorLimit) stand last. It is -1 in the Counters of margins, leases
	// and bans, which are no members.
	Index int
	// Previous are older identities whose state this one carries on after a reload that changed W
	// or K, newest first; a store that does not find a key under this Counter looks there, and
	// carries it with algo.Limit.Carry. Filled in by Set.Inherit before the Set goes into force.
	Previous []*Counter
	// Margin is the identity of the state that remembers since when a key uses its soft margin; nil
	// unless the margin closes (algo.Limit.Margin). It is no member of Set.Counters.
	Margin *Counter
	// Lease is the identity of the record of units lent under a key (algo.Limit.Lease); nil unless
	// the limit lends. A store keeps the record under the same key as the state, and reads and
	// writes the two together. Lease.Limit is the limit's Lease that lets a record live longest,
	// among all numbers that the limit may have; the length of a generation is the same in all. The
	// ID depends on neither. A Counter with a Margin has none. It is no member of Set.Counters.
	Lease *Counter
	// Regions says how the limit holds over several regions; nil if each of them counts for itself.
	Regions *Regions
	// Lent says that the limit leases only to holders that ask the store by themselves, such as the
	// Envoys of RLQS and other regions: decisions are exact.
	Lent bool
	// Override marks the Counter of the limits of one unit that requests bring; Rule is then
	// "request_override".
	Override bool

	identity string // the rule within the domain, without ambiguity
}

// Regions says how a limit holds over several regions, each of which decides by itself on a store
// of its own. Each has a ceiling of N × (1 + Over) × its weight, and the ceilings are never
// exceeded, whatever breaks between the regions. Beside that they report their use to each other.
type Regions struct {
	Over int  // percent of N that all regions together may admit beyond N; 0 with Sync
	Sync bool // each region may admit N by itself: the ceiling is N
	Tell int  // a region reports a key when it has used so many percent of N since its last report
	// All is the identity of the state that counts the use of all regions, as far as they have
	// reported it: beside the Counter's own, which counts this region's use. It has the whole
	// limit. nil if Over is 0: the others' use then has no say; and with Sync, where one state
	// counts both. It is no member of Set.Counters. Its Lease and Margin are as the Counter's.
	All *Counter
}

// Heard returns the identity of the state to which the use of other regions is charged; nil if it
// is charged nowhere.
func (c *Counter) Heard() *Counter {
	switch {
	case c.Regions == nil:
		return nil
	case c.Regions.Sync:
		return c
	}
	return c.Regions.All
}

// Condition is one entry of when: the attribute must match one of the positive patterns (if there
// are any) and none of the negated ones.
type Condition struct {
	Attribute string
	Patterns  []Pattern
	Pos       Position

	// What Compile fills in.
	slot     int32    // of the attribute
	positive bool     // not all patterns are negated
	single   bool     // there is one, and it is not negated
	folds    spelling // which values have other spellings that c is about too
	loosens  bool     // c belongs to exempt: its negated patterns are folded, not the others
	// where there are many patterns; nil for few, which are looked at one by one
	many *conditionTables
}

// Key is one entry of per: the first of these attributes that is present is the part of the key.
type Key []string

// Override gives other numbers to one named key of a rule.
type Override struct {
	Values    []string  // one for each entry of Per
	Windows   []*Window // the same names and Counters as the Rule's where W agrees
	Unlimited bool
	Pos       Position
}

// StoreErrorPolicy says how to decide while the store cannot be reached.
type StoreErrorPolicy uint8

// The policies. Local is the default.
const (
	Local StoreErrorPolicy = iota
	AllowAll
	DenyAll
)

// Priority says who goes first when the service is overloaded (adaptive concurrency). The zero
// value is the default.
type Priority int8

// The priorities, least important first.
const (
	Sheddable       Priority = -1
	DefaultPriority Priority = 0
	Critical        Priority = 1
)

// SchedulePhase is one entry of schedule, as it was written: other numbers at a part of the week.
// What decides is the windows' algo.Limit, which knows the whole schedule.
type SchedulePhase struct {
	Days        algo.Days
	From, Until time.Duration // local time of day; Until not after From ends on the next day
	Allow       string        // as it was written
	Pos         Position
}

// Ban says when and for how long a key that is denied again and again is banned.
type Ban struct {
	After    int64         // so many denials
	Within   time.Duration // within this time
	For      time.Duration // bring this much time in which the key is refused outright
	Domain   bool          // everywhere in the domain, rather than where the rule applies
	NFTables bool          // at: nftables: by the kernel, too
	// Counter counts the denials of each key, with a sliding log of After per Within. It is no
	// member of Set.Counters.
	Counter *Counter
}

// Lyft holds what only the Lyft form has.
type Lyft struct {
	Shadow, Quota  bool
	DetailedMetric bool
	LimitName      string // rate_limit.name; "" if none
	// as in the file, for current_limit; at most the largest that has room there. Where the
	// algorithm counts no more than algo.MaxN, MaxN are admitted.
	RequestsPerUnit uint32
	Unit            string         // "SECOND" … "YEAR", as in the file, upper case; "" if unlimited
	Metadata        map[string]any // immutable; nil if none
	// domain.level.level…, as the reference names it, without runtime values
	StatsKey string
	Path     []Entry // key and configured value of each level, from the outermost in
}

// Pair is a name with a value.
type Pair struct{ Name, Value string }

// Attributes gives access to a door's knowledge of a request. Implementations need not be safe for
// concurrent use.
type Attributes interface {
	// Attribute returns the value of name, such as "user", "path" or "header.x-plan"; ok is false
	// if there is none.
	Attribute(name string) (value string, ok bool)
	// All iterates over all attributes.
	All() iter.Seq2[string, string]
}

// Map is Attributes in a map.
type Map map[string]string

// Attribute implements Attributes.
func (m Map) Attribute(name string) (string, bool) { v, ok := m[name]; return v, ok }

// All implements Attributes.
func (m Map) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for k, v := range m {
			if !yield(k, v) {
				return
			}
		}
	}
}

// Pairs is Attributes in a slice; the first pair of a name holds. The quickest for a handful of
// attributes.
type Pairs []Pair

// Attribute implements Attributes.
func (p Pairs) Attribute(name string) (string, bool) {
	for i := range p {
		if p[i].Name == name {
			return p[i].Value, true
		}
	}
	return "", false
}

// All implements Attributes.
func (p Pairs) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, e := range p {
			if !yield(e.Name, e.Value) {
				return
			}
		}
	}
}
