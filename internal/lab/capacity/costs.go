package capacity

import "time"

// Costs are what a fleet takes of processors.
type Costs struct {
	// Here and Asked are what a node takes for a decision that it makes by itself, and for one that
	// waits for a store, with its door; the latter without its share of the calls.
	Here, Asked time.Duration
	Node        Serve // what a node takes for its calls to stores
	Store       Serve // what a store takes
}

// Measured are the costs on a machine with processors of 2.5 GHz, doors that speak Envoy's RLS, and
// Redis as the store. docs/capacity.md says which benchmarks made them.
var Measured = Costs{
	Here:  3100 * time.Nanosecond,
	Asked: 7600 * time.Nanosecond,
	Node:  Serve{Call: 9 * time.Microsecond, Operation: 1700 * time.Nanosecond, Decision: 0},
	Store: Serve{Call: 13 * time.Microsecond, Operation: 3400 * time.Nanosecond, Decision: 300 * time.Nanosecond},
}

// NodeTime is what nodes take for a decision, in the mean.
func (c *Costs) NodeTime(t *Tally) time.Duration {
	local := t.Local()
	return time.Duration(local*float64(c.Here)+(1-local)*float64(c.Asked)) + c.Node.Of(t.PerDecision(t.Calls), t.PerDecision(t.Operations), 1-local)
}

// StoreTime is what stores take for a decision, in the mean.
func (c *Costs) StoreTime(t *Tally) time.Duration {
	return c.Store.Of(t.PerDecision(t.Calls), t.PerDecision(t.Operations), 1-t.Local())
}
