package insight

import "time"

// NodeState describes a node, as the node itself reports it.
type NodeState struct {
	Node    string    `json:"node"`           // its name, which no other node has
	Self    bool      `json:"self,omitempty"` // the node that was asked
	Version string    `json:"version"`        // of the program
	Started time.Time `json:"started"`

	Rules      int    `json:"rules"`      // in force
	Generation uint64 `json:"generation"` // counts the rule sets of this node since its start
	Digest     string `json:"digest"`     // of the files in force: the same for the same files
	// RulesVersion is the source's version of the rules in force; "" for a folder.
	RulesVersion string    `json:"rules_version,omitempty"`
	RulesSince   time.Time `json:"rules_since"`
	RulesBroken  bool      `json:"rules_broken"` // the rules now in the source are not in force

	PerSecond    float64 `json:"per_second"`    // requests, over the last 10 s
	RefusedShare float64 `json:"refused_share"` // of these
	P99          float64 `json:"p99"`           // s, of decisions; 0 if not known
	Store        string  `json:"store"`         // memory, redis, postgres or cassandra
	Breaker      string  `json:"breaker"`       // closed, open or half_open; "" where there is none
	// StoreFault says what is wrong with the store that will not pass by itself, and what to do
	// about it; "" if nothing is wrong.
	StoreFault  string `json:"store_fault,omitempty"`
	StoreErrors uint64 `json:"store_errors"` // since the start
	// StoreRemark says which decisions are or were lately made without the store, as /readyz does;
	// "" if none.
	StoreRemark string `json:"store_remark,omitempty"`

	Taken   uint64 `json:"taken"`   // events that insight looked at, since the start
	Thinned uint64 `json:"thinned"` // events that it left out, since there were too many
	Memory  int64  `json:"memory"`  // bytes that insight takes
}
