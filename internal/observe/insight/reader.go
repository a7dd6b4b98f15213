package insight

import (
	"context"
	"errors"
	"time"
)

// Reader answers questions about the data of this node (Collector) or of all nodes. A time of 0 is
// the default, 24 hours; it is cut to the longest that is kept. Implementations are safe for
// concurrent use.
type Reader interface {
	// Overview reports on a domain. "" means all domains, with the commands that brought their
	// limit; CommandDomain means these commands alone.
	Overview(ctx context.Context, domain string, over time.Duration) (*Overview, error)
	// Rules returns a report of each rule in the domain; "" means all domains, with commands last
	// if there were any.
	Rules(ctx context.Context, domain string, over time.Duration) ([]RuleReport, Nodes, error)
	// Rule returns the whole report of one rule, or ErrUnknown.
	Rule(ctx context.Context, domain, rule string, over time.Duration) (*RuleReport, Nodes, error)
	Keys(ctx context.Context, q KeysQuery) ([]KeyCount, Nodes, error)
	// Candidates returns what the rules in a domain that are in shadow, or enforced on a share of
	// their keys, would have done, in rule order; "" means all domains.
	Candidates(ctx context.Context, domain string) ([]Candidate, Nodes, error)
	// Key returns what is known of one key (user=ada) over all rules. A key that was never seen has
	// an empty report.
	Key(ctx context.Context, domain, key string) (*KeyReport, Nodes, error)
}

// ErrUnknown says that the domain or rule in question is not in force.
var ErrUnknown = errors.New("no such rule is in force")

// The orders of KeysQuery.By.
const (
	ByRefused = "refused"
	ByAsked   = "asked"
	ByNear    = "near"
)

// KeysQuery asks for the keys that come first in an order. Empty fields do not matter.
type KeysQuery struct {
	Domain string
	Limit  string // a rule, or one of its windows; CommandRule is commands that brought their limit
	// By is ByRefused, ByAsked or ByNear; "" is ByRefused. ByRefused leaves out rules in shadow,
	// which refuse nobody, unless Limit names one.
	By   string
	Over time.Duration // up to a minute: the live list; above: the list of 12 hours
	N    int           // at most so many; 0 is 50
}

// KeyReport is what is known of one key. The admin port fills in Nodes.
type KeyReport struct {
	Nodes    Nodes      `json:"nodes"`
	Domain   string     `json:"domain"`
	Key      string     `json:"key"`
	Limits   []KeyLimit `json:"limits"`
	Known    bool       `json:"known"`
	Obey     float64    `json:"obey"` // below 0: not known
	Episodes Episodes   `json:"episodes"`
	// Sampled says whether the key is in the sample of a rule: if not, Episodes, Known and Obey are
	// not known.
	Sampled bool `json:"sampled"`
}

// KeyLimit is a key at one rule.
type KeyLimit struct {
	Rule    string  `json:"rule"`
	Limit   string  `json:"limit"` // the window
	Asked   uint64  `json:"asked"` // at most
	Refused uint64  `json:"refused"`
	Near    uint64  `json:"near"`
	Fill    float64 `json:"fill"` // as in KeyCount
	// WouldRefuse takes the place of Refused for a rule in shadow.
	WouldRefuse uint64 `json:"would_refuse,omitempty"`
}
