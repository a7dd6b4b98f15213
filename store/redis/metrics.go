package redis

import (
	"math/bits"
	"sync/atomic"
)

// metrics counts the store's actions.
type metrics struct {
	calls, decisions, merged, swaps, loads, failures, givenBack, disagreements, again, redials atomic.Uint64
	batches                                                                                    [batchSizes]atomic.Uint64
}

// batchSizes is how many classes of batch sizes there are: 1, 2, up to 4, up to 8, … up to
// maxBatch.
const batchSizes = 9

func (m *metrics) batch(n int) { m.batches[bits.Len(uint(n-1))].Add(1) }

// Stats counts the doings of the store since it was opened.
type Stats struct {
	Calls     uint64 // round trips to Redis that charge or read keys
	Decisions uint64 // made by Redis
	Merged    uint64 // of them, those that went as one with an equal one before them
	Swaps     uint64 // attempts to settle a decision by compare-and-swap
	Loads     uint64 // times that the functions were loaded again, since they were gone
	Failures  uint64 // calls whose outcome is not known, or that Redis refused
	Again     uint64 // calls that were sent again, since an answer was lost
	Redials   uint64 // times that all connections were dialled anew, since a replica had answered
	GivenBack uint64 // charges that were given back, since another partition denied
	// Disagreements counts batches in which Lua and algo did not admit the same. It is 0, or there
	// is a defect.
	Disagreements uint64
	Remembered    uint64 // refusals answered by this node itself
	// Batches counts calls by how many decisions they carried: Batches[i] calls with up to 2^i and
	// more than 2^(i-1).
	Batches [batchSizes]uint64
	Nodes   int // see Store.Nodes
}

// Answers implements store.Parted.
func (s *Store) Answers(part int) uint64 { return s.partitions[part].answers.Load() }

// Stats returns a reading.
func (s *Store) Stats() Stats {
	m := &s.metrics
	out := Stats{
		Calls: m.calls.Load(), Decisions: m.decisions.Load(), Merged: m.merged.Load(), Swaps: m.swaps.Load(), Loads: m.loads.Load(),
		Failures: m.failures.Load(), GivenBack: m.givenBack.Load(), Disagreements: m.disagreements.Load(),
		Again: m.again.Load(), Redials: m.redials.Load(), Nodes: s.Nodes(),
	}
	if s.refusals != nil {
		out.Remembered = s.refusals.Answered()
	}
	for i := range out.Batches {
		out.Batches[i] = m.batches[i].Load()
	}
	return out
}
