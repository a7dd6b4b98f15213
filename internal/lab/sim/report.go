package sim

import (
	"time"

	"github.com/weir-rl/weir/internal/lab/accesslog"
	"github.com/weir-rl/weir/internal/observe/insight"
)

// Report is the result of a replay. `weir replay --json` prints it.
type Report struct {
	Requests int64 `json:"requests"` // lines that parsed
	Skipped  int64 `json:"skipped"`  // lines that did not
	// SkippedLines are the first of them; SkippedShare is their share of all lines, in percent.
	SkippedLines []accesslog.Fault `json:"skipped_lines,omitempty"`
	SkippedShare float64           `json:"skipped_share"`
	// MissingFields are the entries of --fields whose column or key no line has.
	MissingFields []string `json:"missing_fields,omitempty"`
	// lines further out of order than allowed, replayed at the newest time seen
	Late    int64     `json:"late"`
	From    time.Time `json:"from"` // of the first request; zero if there was none
	To      time.Time `json:"to"`
	Clients int64     `json:"clients"` // distinct ones

	Outcome             // of the rules
	Compare *Comparison `json:"compare,omitempty"`

	Timeline    Timeline     `json:"timeline"`
	Paths       []Counted    `json:"paths"` // busiest first
	Suggestions *Suggestions `json:"suggestions,omitempty"`
	// Estimated says that the numbers of clients, keys or paths are estimates, because there were
	// so many different ones.
	Estimated bool     `json:"estimated"`
	Notes     []string `json:"notes,omitempty"` // caveats for a reader
}

// Outcome is the result of one rule set on the log.
type Outcome struct {
	Rules         string `json:"rules"`
	Domain        string `json:"domain"`
	Allowed       int64  `json:"allowed"`
	Denied        int64  `json:"denied"`
	Exempt        int64  `json:"exempt"`         // admitted by an exempt entry
	Unlimited     int64  `json:"unlimited"`      // met no limit
	ClientsDenied int64  `json:"clients_denied"` // clients that were refused at least once
	// admitted, to wait for a turn of a leaky bucket
	Delayed   int64     `json:"delayed"`
	MaxDelay  float64   `json:"max_delay"` // the longest such wait, in seconds
	Limits    []Limit   `json:"limits"`
	TopDenied []Counted `json:"top_denied"` // clients that were refused most
	// ByRule has a report of each rule, in order, with its verdicts. By has "status": the refused
	// requests by the status that the log has.
	ByRule   []insight.RuleReport `json:"by_rule"`
	Failures []Failure            `json:"failures,omitempty"` // expressions that failed, in rule order
	// Lacking are the attributes that the rules read, if no request had any of them and none met a
	// limit.
	Lacking []string `json:"lacking,omitempty"`
}

// Limit is the outcome of the requests that met one limit.
type Limit struct {
	Name       string `json:"name"`
	Allowed    int64  `json:"allowed"` // the limit's own verdict
	Denied     int64  `json:"denied"`
	Keys       int64  `json:"keys"`
	KeysDenied int64  `json:"keys_denied"`
	// Banned are the requests that met the limit and were refused by a ban of its rule. They are
	// neither in Allowed nor in Denied.
	Banned int64 `json:"banned,omitempty"`

	Algorithm string  `json:"algorithm,omitempty"`
	Limit     int64   `json:"limit"`            // capacity of a key
	Window    float64 `json:"window"`           // seconds
	Rate      int64   `json:"rate"`             // the units allowed to a key in a period
	Period    string  `json:"period,omitempty"` // in words: "15 minutes"; "" for concurrency
	Shadow    bool    `json:"shadow,omitempty"`
	// Series are the denials in the buckets of the timeline; nil if there were none.
	Series []int64 `json:"series,omitempty"`
}

// Failure is an expression of a rule that failed.
type Failure struct {
	Rule  string `json:"rule"`
	Key   string `json:"key"`   // "if" or "cost"
	Count int64  `json:"count"` // evaluations that failed
	First string `json:"first"` // the first error
}

// Counted is a client or a path with its requests.
type Counted struct {
	Value    string `json:"value"`
	Requests int64  `json:"requests"`
	Denied   int64  `json:"denied"`
	// DeniedOther is the number refused by the second rule set of a comparison.
	DeniedOther int64 `json:"denied_other,omitempty"`
}

// Comparison compares the first rule set with a second one.
type Comparison struct {
	Outcome
	Both       int64 `json:"denied_by_both"`
	OnlyFirst  int64 `json:"denied_by_first_only"`
	OnlySecond int64 `json:"denied_by_second_only"`
}

// Timeline counts requests in buckets of equal width.
type Timeline struct {
	Start       time.Time `json:"start"`
	Seconds     int64     `json:"seconds"` // width of a bucket
	Requests    []int64   `json:"requests"`
	Denied      []int64   `json:"denied"`
	DeniedOther []int64   `json:"denied_other,omitempty"` // by the second rule set of a comparison
}

// Suggestions are limits derived from the traffic itself.
type Suggestions struct {
	Peaks  []Peak           `json:"peaks"`
	Limits []SuggestedLimit `json:"limits"`
	YAML   string           `json:"yaml"` // a rule file; "" if the log holds too few keys
}

// SuggestedLimit is one proposal, and what it alone would do to the log.
type SuggestedLimit struct {
	Name        string          `json:"name"`
	When        string          `json:"when,omitempty"` // as in a rule file
	Per         string          `json:"per,omitempty"`  // "" for a limit that all share
	Allow       []string        `json:"allow"`
	Requests    int64           `json:"requests"` // that meet it
	Refused     int64           `json:"refused"`
	Status      []insight.Count `json:"status"` // of the refused ones, as the log has it
	Keys        int64           `json:"keys"`
	KeysRefused int64           `json:"keys_refused"`
	Outliers    int64           `json:"outliers"`        // keys that are not ordinary
	Crowd       int64           `json:"crowd,omitempty"` // clients of the crowd on the route
}

// Peak describes the number of requests that keys made within a window at their busiest, as a
// sliding window of one bucket counts them. A key is ordinary if it asks for no more than three
// times the 99th percentile, at least half of its answers are good, and it belongs to no crowd on
// one form.
type Peak struct {
	Scope       string `json:"scope"`  // name of the suggested limit
	Per         string `json:"per"`    // attribute
	Window      string `json:"window"` // minute, hour, day
	Keys        int64  `json:"keys"`
	P50         int64  `json:"p50"`
	P90         int64  `json:"p90"`
	P99         int64  `json:"p99"`
	P999        int64  `json:"p99_9"`
	Max         int64  `json:"max"`
	Ordinary    int64  `json:"ordinary"`
	OrdinaryMax int64  `json:"ordinary_max"`
}
