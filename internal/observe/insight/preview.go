package insight

import (
	"errors"
	"time"
)

// ErrNotRecorded says that there are no recorded requests to try rules on.
var ErrNotRecorded = errors.New("no requests were recorded yet")

// PreviewQuery asks what other rules would have done to the requests that were recorded.
type PreviewQuery struct {
	Files map[string]string // the rules, and tests of rules, by file name
	Over  time.Duration     // how far back; 0 is all recorded requests
	// Progress is called with the progress of the preview, at most ten times a second; nil is
	// nobody.
	Progress func(PreviewProgress)
}

// PreviewProgress is how far a preview is.
type PreviewProgress struct {
	Done  uint64 `json:"done"` // requests
	Of    uint64 `json:"of"`
	Phase string `json:"phase"` // load, tests, then
}

// PreviewResult compares what the rules in force did to the requests that all nodes recorded with
// what other rules would have done. Counts are the recorded requests times Sampled. If there are
// Problems, there is nothing else.
type PreviewResult struct {
	From     time.Time `json:"from"` // counted from here on; before, the windows warmed up
	To       time.Time `json:"to"`
	Requests uint64    `json:"requests"`
	Sampled  int       `json:"sampled"` // one client in so many was recorded; 1 is all
	Nodes    Nodes     `json:"nodes"`   // whose requests these are

	Now      PreviewSide    `json:"now"`
	Then     PreviewSide    `json:"then"`
	OnlyNow  uint64         `json:"only_now"`  // refused by the rules in force only
	OnlyThen uint64         `json:"only_then"` // the other way round
	Clients  PreviewClients `json:"clients"`
	Rules    []PreviewRule  `json:"rules"`
	Series   *PreviewSeries `json:"series,omitempty"`

	Tests    PreviewTests     `json:"tests"`
	Problems []PreviewProblem `json:"problems"` // why the files are no rules
	Warnings []string         `json:"warnings"`
}

// PreviewSide is what one set of rules does.
type PreviewSide struct {
	Refused        uint64  `json:"refused"`
	Share          float64 `json:"share"`      // of the requests
	PlusMinus      float64 `json:"plus_minus"` // of Share, at 95 %; 0 is exact
	ClientsRefused uint64  `json:"clients_refused"`
}

// PreviewClients compares who is refused.
type PreviewClients struct {
	More     uint64       `json:"more"`      // refused by the new rules only
	Fewer    uint64       `json:"fewer"`     // refused by the rules in force only
	GoodMore uint64       `json:"good_more"` // of More, clients that behave well
	Examples []PreviewKey `json:"examples"`  // the first of More and Fewer, most refusals first
}

// PreviewKey is a client that the change affects.
type PreviewKey struct {
	Key  string `json:"key"` // for people: user=ada
	Now  uint64 `json:"now"` // refusals
	Then uint64 `json:"then"`
	Good bool   `json:"good"`
}

// PreviewRule is what one rule does in both sets. A rule that is in one of them only has 0 for the
// other.
type PreviewRule struct {
	Domain   string `json:"domain"`
	Rule     string `json:"rule"`
	Now      uint64 `json:"now"` // refusals
	Then     uint64 `json:"then"`
	MetNow   uint64 `json:"met_now"`
	MetThen  uint64 `json:"met_then"`
	Change   string `json:"change"`   // same, changed, added or removed
	Estimate bool   `json:"estimate"` // the key cuts across clients, and some were not recorded
}

// PreviewSeries are refusals by step of time. All slices are as long as T.
type PreviewSeries struct {
	T    []int64  `json:"t"` // Unix seconds at which the steps begin
	Step int      `json:"step"`
	All  []uint64 `json:"all"` // requests
	Now  []uint64 `json:"now"`
	Then []uint64 `json:"then"`
}

// PreviewTests are the tests of rules among the files, run against the new rules.
type PreviewTests struct {
	Passed   int      `json:"passed"`
	Failed   int      `json:"failed"`
	Failures []string `json:"failures"`
}

// PreviewProblem is an error in a file.
type PreviewProblem struct {
	File    string `json:"file"`
	Line    int    `json:"line"` // from 1; 0 is the file as a whole
	Column  int    `json:"column"`
	Message string `json:"message"`
}
