package admin

import (
	"context"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/rule"
)

// Nodes are this node and all others that share its store. A node that is alone is its own only
// one. Safe for concurrent use. All methods answer within a second, from the nodes that answered
// until then, this one always among them.
type Nodes interface {
	// Self is the name of this node.
	Self() string
	// List returns the state of all nodes, sorted by name.
	List(ctx context.Context) ([]insight.NodeState, insight.Nodes)
	// Decision asks all nodes for a decision; e is nil if none of them keeps it. Then why says what
	// is known of that, in a sentence for people, such as how many refusals there were and how many
	// of them were kept; it may be empty. Entry.Node names the node that made it.
	Decision(ctx context.Context, id weir.DecisionID) (e *recent.Entry, why string, n insight.Nodes)
	// Decisions asks all nodes for recent decisions: newest first, at most q.N of them. With the
	// name of a node it asks that one, and says of it alone whether it answered.
	Decisions(ctx context.Context, node string, q recent.Query) ([]recent.Entry, insight.Nodes)
	// CountDecisions is Decisions, and counts them, also those that q.N leaves out. q.After bounds
	// the seconds that are counted.
	CountDecisions(ctx context.Context, node string, q recent.Query) (recent.Found, insight.Nodes)
	// Regions tells what goes on between this node's region and the others: what all nodes of the
	// region count, added up. It is zero where there is one region alone.
	Regions(ctx context.Context) (*insight.RegionsReading, insight.Nodes)
}

// Regions says which regions there are.
type Regions struct {
	Own   string   // the region of this node
	Table []Region // all of them, in order of name
	// Ceiling returns what this region may use of a limit whatever happens: the same limit with
	// smaller numbers. c has Regions. Safe for concurrent use.
	Ceiling func(c *rule.Counter, l *algo.Limit) *algo.Limit
}

// Region is a region and its share of the ceilings: its weight divided by the sum of all weights.
type Region struct {
	Name   string
	Weight int
}

// Preview tries rules on the requests that were recorded. Safe for concurrent use; the admin API
// runs one at a time.
type Preview interface {
	// Run returns what the rules of q would have done. It yields to decisions, and ends soon after
	// ctx does, with its error. Files that are no rules are a result with Problems, not an error;
	// no requests to try them on is insight.ErrNotRecorded.
	Run(ctx context.Context, q insight.PreviewQuery) (*insight.PreviewResult, error)
}
