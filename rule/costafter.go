package rule

import (
	"time"

	"github.com/weir-rl/weir/algo"
)

// DefaultCostTimeout is how long a reservation waits for its real cost unless its rule says
// otherwise (Rule.CostTimeout).
const DefaultCostTimeout = 5 * time.Minute

// ResponseInfo is what cost_after may look at.
type ResponseInfo struct {
	Status int
	// Header returns the value of a header or a trailer by its name in lower case, "" if there is
	// none; nil if there are no headers.
	Header   func(name string) string
	Bytes    int64         // of the body, as it was sent
	Duration time.Duration // from when the request was passed on until the response was complete
	Estimate int64         // units that were reserved
}

// CostOf returns the real cost of a request by the rule's cost_after, at most algo.MaxCost; less
// than 0 counts as 0. It is not ok if the rule has no cost_after, or if the expression fails on
// this response: then the estimate stands. Safe for concurrent use.
func (r *Rule) CostOf(resp ResponseInfo) (cost int64, ok bool) {
	if r.Exprs == nil || r.Exprs.CostAfter == nil {
		return 0, false
	}
	n, err := r.Exprs.CostAfter.Settle(resp)
	if err != nil {
		return 0, false
	}
	return min(max(n, 0), algo.MaxCost), true
}
