package record

import (
	"slices"
)

// Record is what one node recorded of the clients in the strata from Level on. All nodes with one
// Seed take the same clients, so the records of all nodes together hold each client whole.
type Record struct {
	Node    string
	Seed    uint64
	Level   int
	Since   [Strata]int64 // as in stratum
	First   int64         // as in ring
	Fresh   bool          // the counters began empty with First
	To      int64
	Gaps    []Gap
	Changes []int64 // when other rules came into force
	Chunks  []Chunk
}

// record returns what r recorded from an instant on. If that is more than most bytes, it leaves out
// the clients of further strata, and at last the older chunks. most 0 is no bound.
func (r *Recorder) record(from, most int64) *Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drainLocked()
	r.drainLocked() // what waits to be sorted
	g := r.mu.ring
	c := &Record{Seed: r.seed.Load(), Level: int(r.level.Load()), First: g.first, Fresh: r.o.Fresh, To: g.latest,
		Gaps: slices.Clone(r.mu.gaps), Changes: slices.Clone(r.mu.changes[min(1, len(r.mu.changes)):])}
	for i := c.Level; i < Strata; i++ {
		c.Since[i] = g.strata[i].since
	}
	c.Chunks = g.take(c.Level, from)
	for most > 0 && c.Level < Strata-1 && c.bytes() > most {
		c.Leave(c.Level + 1)
	}
	for most > 0 && c.bytes() > most {
		c.Since[c.Level] = c.Chunks[0].To + 1
		c.Chunks = c.Chunks[1:]
	}
	return c
}

// Leave leaves out the clients below a stratum, which the record has.
func (c *Record) Leave(level int) {
	clear(c.Since[c.Level:level])
	c.Level = level
	c.Chunks = slices.DeleteFunc(c.Chunks, func(k Chunk) bool { return k.Stratum < level })
}

func (c *Record) bytes() (sum int64) {
	for i := range c.Chunks {
		sum += int64(len(c.Chunks[i].Data)) + chunkOverhead
	}
	return sum
}

// Streams returns the chunks from a level and an instant on, by stratum.
func (c *Record) Streams(level int, from int64) (list [][]Chunk) {
	for stratum := level; stratum < Strata; stratum++ {
		var one []Chunk
		for _, k := range c.Chunks {
			if k.Stratum == stratum && k.To >= from {
				one = append(one, k)
			}
		}
		if len(one) > 0 {
			list = append(list, one)
		}
	}
	return list
}
