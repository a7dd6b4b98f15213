package insight

import (
	"fmt"
	"time"
)

// NodeState describes a node, as the node itself reports it.
type NodeState struct {
	// Node is its name; of nodes that have one name, with the address that tells them apart.
	Node    string    `json:"node"`
	Address string    `json:"address,omitempty"` // of its admin port, as far as its settings say it
	Self    bool      `json:"self,omitempty"`    // the node that was asked
	Version string    `json:"version"`           // of the program
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
	Breaker      string  `json:"breaker"`       // where the store is: there, away or returning; "" without a breaker
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

// Nodes says how many nodes were asked for an answer, and how many answered in time.
type Nodes struct {
	Asked    int `json:"asked"`
	Answered int `json:"answered"` // of one rule: that have the same rule
	// Remark says why fewer nodes were asked than there are, or why one that answered is left out;
	// "" if all were heard.
	Remark string `json:"remark,omitempty"`
	// Apart says how nodes differ from the one that was asked; nil if they do not, or if the answer
	// does not depend on it.
	Apart *Apart `json:"apart,omitempty"`
}

// Apart says where the figures of nodes do not belong together. Each list has at most MostApart
// entries, in order of node.
type Apart struct {
	// Broken are nodes whose source holds rules that are not in force, since they have errors.
	Broken []BrokenRules `json:"broken,omitempty"`
	// Differ are rules that a node defines otherwise than the one that was asked: the figures of
	// that node are left out of the rule.
	Differ []RuleDiffers `json:"differ,omitempty"`
	// Later are nodes whose figures, of all rules or of one, begin later than the others'.
	Later []CountedSince `json:"later,omitempty"`
}

// BrokenRules returns the nodes whose source holds rules that are not in force.
func (n *Nodes) BrokenRules() []BrokenRules {
	if n.Apart == nil {
		return nil
	}
	return n.Apart.Broken
}

// MostApart bounds the lists of Apart.
const MostApart = 20

// BrokenRules says why the rules in a node's source are not in force.
type BrokenRules struct {
	Node  string `json:"node"`
	Error string `json:"error"` // with file and line
}

// RuleDiffers is a rule of which two nodes have different definitions.
type RuleDiffers struct {
	Node   string `json:"node"`
	Domain string `json:"domain"`
	Rule   string `json:"rule"`
	// Here and There are the limits in words on the node that was asked, and on Node; "" where
	// there is no such rule. Equal ones differ in something else, such as a condition.
	Here  string `json:"here"`
	There string `json:"there"`
}

// CountedSince is when the figures of a node begin.
type CountedSince struct {
	Node   string    `json:"node"`
	Domain string    `json:"domain,omitempty"`
	Rule   string    `json:"rule,omitempty"` // that came into force then; "": the node began then
	Since  time.Time `json:"since"`
}

// String says it in a sentence without a full stop.
func (d *RuleDiffers) String() string {
	switch {
	case d.There == "":
		return fmt.Sprintf("%s has no rule %s/%s", d.Node, d.Domain, d.Rule)
	case d.Here == "":
		return fmt.Sprintf("%s has a rule %s/%s, which is none here", d.Node, d.Domain, d.Rule)
	case d.Here == d.There:
		return fmt.Sprintf("%s has another rule %s/%s", d.Node, d.Domain, d.Rule)
	}
	return fmt.Sprintf("%s has another rule %s/%s: %s there, %s here", d.Node, d.Domain, d.Rule,
		d.There, d.Here)
}
