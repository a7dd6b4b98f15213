package insight

import (
	"math/bits"
	"time"
)

// These bounds are the most that a node can gather itself. A snapshot of another node that exceeds
// them is rejected. Lists without a bound here are bounded where they are made.
const (
	mostRules    = 200_001         // of rule files, of domains whose requests bring limits, and commands
	mostDomains  = 100_001         // of rule files, and the domain of commands
	mostWindows  = 1 << 16         // limits of a rule, which events number in so many bits
	mostPer      = 1 << 12         // attributes of a rule's key
	mostWith     = 64              // other rules that refused the same requests
	mostEvidence = 64              // numbers of a verdict
	mostEvents   = 200             // of the timeline, which has the latest
	mostDoors    = 101             // so that their numbers are small
	mostExamples = 8               // refusals of a rule, and of a verdict, that are named
	mostKeys     = 512             // of the sample of all keys
	mostRefused  = 256             // of the sample of refused keys
	mostTop      = 64              // counters of a list of top keys
	lastEvents   = 32              // events of a refused key
	mostStrange  = 100             // domains of other nodes for which this one has no rules
	MostSkew     = 2 * time.Minute // between the clocks of two nodes whose snapshots merge
)

// unitShift returns by how many bits the units of a limit are shifted to the right, so that its
// capacity fits into 32 bits.
func unitShift(capacity int64) uint8 { return uint8(max(0, bits.Len64(uint64(max(capacity, 0)))-32)) }
