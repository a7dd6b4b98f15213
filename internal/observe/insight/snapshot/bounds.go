package snapshot

import (
	"math/bits"
	"time"
)

// These bounds are the most that a node can gather itself. A snapshot of another node that exceeds
// them is rejected. Lists without a bound here are bounded where they are made.
const (
	MostRules    = 200_001         // of rule files, of domains whose requests bring limits, and commands
	MostDomains  = 100_001         // of rule files, and the domain of commands
	mostWindows  = 1 << 16         // limits of a rule, which events number in so many bits
	mostPer      = 1 << 12         // attributes of a rule's key
	MostWith     = 64              // other rules that refused the same requests
	mostEvidence = 64              // numbers of a verdict
	MostEvents   = 200             // of the timeline, which has the latest
	MostDetailed = 20              // of these, latest changes of rules that say what changed
	MostDoors    = 101             // so that their numbers are small
	MostExamples = 8               // refusals of a rule, and of a verdict, that are named
	MostKeys     = 512             // of the sample of all keys
	MostRefused  = 256             // of the sample of refused keys
	MostTop      = 64              // counters of a list of top keys
	LastEvents   = 32              // events of a refused key
	MostStrange  = 100             // domains of other nodes for which this one has no rules
	MostSkew     = 2 * time.Minute // between the clocks of two nodes whose snapshots merge
)

// UnitShift returns by how many bits the units of a limit are shifted to the right, so that its
// capacity fits into 32 bits.
func UnitShift(capacity int64) uint8 { return uint8(max(0, bits.Len64(uint64(max(capacity, 0)))-32)) }
