package capacity

import "time"

// Costs are the processor times of a fleet.
type Costs struct {
	// Here is the time of a node for a decision that it makes by itself. Asked is the time for one
	// that waits for a store, without its share of the calls. Both include the door.
	Here, Asked time.Duration
	Node        Serve // of a node, for its calls to stores
	Store       Serve // of a store
}

// Measured are the costs on a machine with processors of 2.5 GHz, doors that speak Envoy's RLS, and
// Redis as the store. docs/operating/capacity.md says which benchmarks made them.
var Measured = Costs{
	Here:  3100 * time.Nanosecond,
	Asked: 7600 * time.Nanosecond,
	Node:  Serve{Call: 9 * time.Microsecond, Operation: 1700 * time.Nanosecond, Decision: 0},
	Store: Serve{Call: 13 * time.Microsecond, Operation: 3400 * time.Nanosecond, Decision: 300 * time.Nanosecond},
}

// NodeTime returns the mean time that nodes take for a decision.
func (c *Costs) NodeTime(t *Tally) time.Duration {
	local := t.Local()
	return time.Duration(local*float64(c.Here)+(1-local)*float64(c.Asked)) + c.Node.Of(t.PerDecision(t.Calls),
		t.PerDecision(t.Operations), 1-local)
}

// StoreTime returns the mean time that stores take for a decision.
func (c *Costs) StoreTime(t *Tally) time.Duration {
	return c.Store.Of(t.PerDecision(t.Calls), t.PerDecision(t.Operations), 1-t.Local())
}
