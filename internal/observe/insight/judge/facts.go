package judge

import (
	"strconv"
	"strings"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/util/human"
	"github.com/weir-rl/weir/rule"
)

// Facts are everything that Judge needs to know of one rule over one time. A server and a replay
// fill them in alike, so the same code judges both. They hold no secret: keys appear as hashes. The
// zero value is a rule of which nothing is known.
//
// A request counts once, even if it meets several windows of the rule. Peeks and refunds do not
// count.
type Facts struct {
	Domain, Rule string
	Mode         string   // enforce, shadow or quota, as in RuleReport
	Per          []string // attributes of the key; none for a rule without per
	// File is the name of the rule's file and Line the line on which the rule begins there; "" and
	// 0 if not known. Text is what the file says, for a patch; "" if not known.
	File    string
	Line    int
	Text    string
	Windows []WindowFacts // with a limit; none if the rule is unlimited

	Since    time.Time // when the rule, as it is, came into force; zero if not known
	From, To time.Time // the counts are of this time
	// Replay says that a log was replayed. Its clients never learned of a refusal, and From and To
	// span the whole log.
	Replay bool

	Met         uint64 // m: requests that met the rule
	Refused     uint64 // d: refused by it on enforced keys, without refusals by its ban
	Alone       uint64 // d₁: of Refused, requests that nothing else refused
	Soft        uint64 // s: passed in the soft margin
	Near        uint64 // n: passed near the limit (warn)
	Banned      uint64 // b: refused by its ban
	WouldRefuse uint64 // w: would be refused, of a rule in shadow
	Errors      uint64 // failures of if and cost
	Error       string // the first of them, with its place
	// With are the other rules that refused the same requests, with how many of Refused each did;
	// the largest come first.
	With []insight.Count

	Keys        float64 // K̂: distinct keys, estimated
	KeysRefused float64 // K̂_d: distinct keys that were refused (or would be, in shadow)
	// KeysError and RefusedError are the relative standard errors of both; 0 is exact.
	KeysError, RefusedError float64
	// Sample is a uniform sample of all keys, and RefusedSample one of the refused keys. Each holds
	// all of them if the number above is exact. The two may know different things of one key.
	Sample, RefusedSample []KeyFacts
	// TopRefused is the largest part of Refused (or of WouldRefuse, in shadow) that one key has. It
	// may be too large.
	TopRefused uint64
	TopKey     string  // that key, as people read it; "" if not known
	TopBanned  bool    // it is banned now
	MaxFill    float64 // the most of its limit that any key asked for in one window; 1 is the whole

	// Identity names the attributes that make a client known (insight.known), for sentences.
	Identity []string
	Known    uint64           // of Met, requests with one of them
	Episodes insight.Episodes // what refused clients did next
	OKShare  float64          // of the admitted requests, answered well; below 0: not known

	DomainMet uint64   // requests of the domain in the time, without refusals by bans
	Minutes   []Minute // of the time, oldest first; minutes without requests may be left out
	// Unmet says what keeps requests from a rule that none of them met; zero if that is not known.
	Unmet    Unmet
	Proven   Proof
	Examples []string // ids of decisions, refusals first
}

// Proof is what the text of the rules alone proves of a rule. The zero value is nothing.
type Proof struct {
	Verdict string // NeverMet or AddsNothing
	Why     string // "no request can meet it: …"
}

// WindowFacts is one limit of a rule.
type WindowFacts struct {
	Name   string
	Rate   string        // as in a rule file: "20/min"
	Allows string        // in words: "20 per minute"
	Limit  int64         // the most that one key gets at once, without an override or a grant
	Window time.Duration // 0 for a limit on requests in flight, which has no demand
	// Bucket says that Limit is a burst of its own, so that Rate is not the number that refuses.
	Bucket  bool
	Refused uint64
	MaxFill float64
}

// WindowOf returns the facts that follow from a rule's window. It must have a Limit.
func WindowOf(w *rule.Window) WindowFacts {
	c := w.Limit.Config()
	f := WindowFacts{Name: w.Name, Limit: c.N, Window: c.Window, Rate: RateText(c),
		Allows: human.Number(c.N) + " per " + c.Period()}
	switch {
	case c.Algorithm.HasBurst():
		f.Limit = max(c.Capacity(), 1)
	case c.Algorithm.HasSlots():
		f.Window, f.Allows = 0, human.Number(c.N)+" in flight"
	}
	if f.Bucket = f.Limit != c.N; f.Bucket {
		f.Allows += ", " + human.Number(f.Limit) + " at once"
	}
	return f
}

// RateText writes the numbers of a limit as a rule file does.
func RateText(c algo.Config) string {
	if c.Algorithm.HasSlots() {
		return strconv.FormatInt(c.N, 10)
	}
	unit := c.Window.String()
	for _, u := range []struct {
		name string
		size time.Duration
	}{{"s", time.Second}, {"min", time.Minute}, {"hour", time.Hour}, {"day", 24 * time.Hour},
		{"week", 7 * 24 * time.Hour},
		{"month", 30 * 24 * time.Hour}, {"year", 365 * 24 * time.Hour}} {
		if u.size == c.Window {
			unit = u.name
		}
	}
	if strings.HasSuffix(unit, "m0s") {
		unit = strings.TrimSuffix(unit, "0s")
	}
	if strings.HasSuffix(unit, "h0m") {
		unit = strings.TrimSuffix(unit, "0m")
	}
	return strconv.FormatInt(c.N, 10) + "/" + unit
}

// KeyFacts is what is known of one key of a sample.
type KeyFacts struct {
	Hash    uint64
	Asked   uint64  // units
	Refused uint64  // requests
	Demand  []int64 // demand_k: the most units asked for in one of Facts.Windows; see Demand
	Fill    float64 // F_k: the largest of Demand ÷ the limit then in force for the key; 1 is all
	// Own says that an override or a grant gives the key numbers of its own: changing the rule's
	// limit would not affect it.
	Own      bool
	Known    bool             // an attribute of insight.known was there
	OK       float64          // share of its admitted requests that were answered well; below 0: not known
	Episodes insight.Episodes // none ended: whether it obeys is not known
}

// Minute is one minute of a rule.
type Minute struct {
	T         int64 // Unix seconds at which it begins
	Saturated bool
	Signal    string // which signal says so: cpu, memory, …; shed, answers, in_flight
	Met       uint64
	Refused   uint64  // d, as in Facts; w of a rule in shadow
	Admitted  uint64  // passed the rule; would pass it, in shadow
	Keys      float64 // distinct keys, estimated
	// TopShare is the share of Admitted that the top 1 % of the keys took, at least one key; below
	// 0: not known. TopKeys is how many keys these were.
	TopShare float64
	TopKeys  float64
}

// Thresholds are the bounds of verdicts. The zero value of a field is its default.
type Thresholds struct {
	// GoodRefused is the share of good keys above which a rule is too strict; 0.001 by default, at
	// which one of a thousand clients that behave well is refused.
	GoodRefused float64
}
