// Package census smooths the number of nodes that a shared database reports.
package census

// Missed is after how many intervals without a heartbeat a node counts as gone.
const Missed = 5

// Census smooths the number of nodes that are reported. A database that was away has missed
// heartbeats, and at first counts only the nodes that were quickest to send one. A smaller number
// than before is therefore believed only after it has been reported for as long as a node may be
// silent. The zero value is ready; it is for one goroutine.
type Census struct {
	fewer   int   // answers in a row with fewer nodes
	largest int64 // the largest of them
}

// Believe returns the number to believe after before was, and another one is reported.
func (c *Census) Believe(before, reported int64) int64 {
	if reported < before {
		c.fewer, c.largest = c.fewer+1, max(c.largest, reported)
		if c.fewer <= Missed {
			return before
		}
		reported = c.largest
	}
	*c = Census{}
	return reported
}
