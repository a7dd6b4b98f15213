package admin

import (
	"context"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/observe/find"
	"github.com/weir-rl/weir/internal/observe/insight"
	"github.com/weir-rl/weir/internal/observe/recent"
	"github.com/weir-rl/weir/rule"
)

// Nodes are this node and all others that share its store. A node that is alone is the only one.
// Safe for concurrent use. All methods answer within a second, from the nodes that have answered by
// then. This node is always among them.
type Nodes interface {
	// Self returns the name of this node.
	Self() string
	// List returns the state of all nodes, sorted by name.
	List(ctx context.Context) ([]insight.NodeState, insight.Nodes)
	// Decision asks all nodes for a decision; e is nil if none of them keeps it. Then why says, in
	// a sentence for people, what is known about that, such as how many refusals there were and how
	// many of them were kept; it may be empty. Entry.Node names the node that made the decision.
	Decision(ctx context.Context, id weir.DecisionID) (e *recent.Entry, why string, n insight.Nodes)
	// Decisions asks all nodes for recent decisions: newest first, at most q.N of them. With the
	// name of a node it asks only that node, and reports whether it answered.
	Decisions(ctx context.Context, node string, q recent.Query) ([]recent.Entry, insight.Nodes)
	// CountDecisions is Decisions with counts, which include decisions that q.N leaves out. q.After
	// bounds the number of seconds that are counted.
	CountDecisions(ctx context.Context, node string, q recent.Query) (recent.Found, insight.Nodes)
	// Find searches what all nodes have seen. Each of them answers with the same hits.
	Find(ctx context.Context, q find.Query) (find.Found, insight.Nodes, error)
	// BanCounts returns how many requests each ban has refused, added up over all nodes.
	BanCounts(ctx context.Context) (insight.BanCounts, insight.Nodes)
	// Regions returns the exchange between this node's region and the others, added up over all
	// nodes of the region. It is zero if there is only one region.
	Regions(ctx context.Context) (*insight.RegionsReading, insight.Nodes)
	// Outages returns the times in which nodes went without their store, another region, or the
	// database of the rules, the newest first. What nodes met together is one. The caller must not
	// change what the list points to.
	Outages(ctx context.Context) ([]insight.Outage, insight.Nodes)
}

// Regions says which regions there are.
type Regions struct {
	Own   string   // the region of this node
	Table []Region // all of them, in order of name
	// Ceiling returns how much of a limit this region may use in any case: the same limit with
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
	// ctx does, with its error. Files that are not valid rules are a result with Problems, not an
	// error. If there are no requests to try them on, the error is insight.ErrNotRecorded.
	Run(ctx context.Context, q insight.PreviewQuery) (*insight.PreviewResult, error)
}
