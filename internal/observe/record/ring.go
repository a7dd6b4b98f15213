package record

import (
	"fmt"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// ring holds the record, in strata by client. Each stratum has its own chunks, so that some clients
// can be forgotten without reading anything. If there is no more room, the oldest chunk goes: of
// the first stratum that has any, until the rest reaches back as far as wanted, and of all strata
// after that. So the record has the last minutes of many clients, and the last hours of fewer. The
// lock of Recorder guards it.
type ring struct {
	strata [Strata]stratum
	limit  int64  // bytes of all
	bytes  int64  // of closed chunks
	open   int64  // of open ones
	target int64  // how far back it should reach, in µs
	size   int    // of a chunk before compression
	first  int64  // when it began, in µs; 0 if entries from then were forgotten by clear
	latest int64  // entry; 0 for none
	empty  bool   // no entry came since it began
	turn   uint64 // of the last entry
	out    *zstd.Encoder
}

type stratum struct {
	chunks []Chunk
	open   writer
	// since when all requests of the stratum's clients are there, in µs; 0: it is not recorded
	since int64
}

func (s *stratum) count() (n uint64) {
	for i := range s.chunks {
		n += uint64(s.chunks[i].Requests)
	}
	return n + uint64(s.open.requests)
}

// encoderBytes is about the memory of the encoder.
const encoderBytes = 512 << 10

// newRing returns a ring that records all strata from an instant on.
func newRing(bytes, target, now int64) (*ring, error) {
	// Chunks of this size compress well. The open chunks of all strata, with their tables, leave
	// most of the room to closed ones.
	g := &ring{first: now, empty: true, target: target, limit: bytes, size: int(min(64<<10, max(bytes/512, 2<<10)))}
	var err error
	if g.out, err = zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true),
		zstd.WithWindowSize(64<<10), zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false)); err != nil {
		return nil, fmt.Errorf("the record of requests: %w", err)
	}
	for i := range g.strata {
		g.strata[i].since = now
	}
	return g, nil
}

// add appends an entry.
func (g *ring) add(e *entry) {
	g.latest = max(g.latest, e.time)
	if g.empty { // it began by a clock that may be ahead of the one that dates entries
		g.empty = false
		g.first = min(g.first, e.time)
		for i := range g.strata {
			g.strata[i].since = min(g.strata[i].since, e.time)
		}
	}
	n := stratumOf(e.client)
	s := &g.strata[n]
	if s.since == 0 {
		return // it is not recorded any more
	}
	g.turn++
	before := s.open.held()
	s.open.add(e, g.turn)
	g.open += s.open.held() - before
	if len(s.open.buf) >= g.size {
		g.seal(n)
	}
	for g.total() > g.limit && g.drop() {
	}
}

// seal closes the open chunk of a stratum.
func (g *ring) seal(n int) {
	s := &g.strata[n]
	before := s.open.held()
	c := s.open.close(g.out)
	c.Stratum = n
	g.open += s.open.held() - before
	g.bytes += int64(len(c.Data)) + chunkOverhead
	s.chunks = append(s.chunks, c)
}

// drop forgets a chunk; false if there is none.
func (g *ring) drop() bool {
	first, oldest := -1, -1
	for i := range g.strata {
		if len(g.strata[i].chunks) == 0 {
			continue
		}
		if first < 0 {
			first = i
		}
		if oldest < 0 || g.strata[i].chunks[0].To < g.strata[oldest].chunks[0].To {
			oldest = i
		}
	}
	if first < 0 {
		return false
	}
	at := first
	// By its end: a chunk of a stratum with few clients may be long.
	if to := g.strata[oldest].chunks[0].To; g.latest-to > g.target {
		at = oldest
	}
	s := &g.strata[at]
	g.bytes -= int64(len(s.chunks[0].Data)) + chunkOverhead
	s.since = max(s.since, s.chunks[0].To+1)
	s.chunks = slices.Delete(s.chunks, 0, 1)
	return true
}

// begin starts recording a stratum.
func (g *ring) begin(n int, now int64) {
	s := &g.strata[n]
	g.forget(s)
	s.since = now
}

// end stops recording a stratum. Its chunks are of no use: they end before now.
func (g *ring) end(n int, _ int64) {
	s := &g.strata[n]
	g.forget(s)
	s.since = 0
}

func (g *ring) forget(s *stratum) {
	for i := range s.chunks {
		g.bytes -= int64(len(s.chunks[i].Data)) + chunkOverhead
	}
	g.open -= s.open.held()
	s.chunks, s.open = nil, writer{}
}

// clear forgets all.
func (g *ring) clear(now int64) {
	g.empty = true
	if g.first = now; g.latest != 0 {
		g.first = 0
	}
	for i := range g.strata {
		s := &g.strata[i]
		g.forget(s)
		if s.since != 0 {
			s.since = now
		}
	}
}

// reach returns since when the strata from n on are complete; 0 if they are not.
func (g *ring) reach(n int) (since int64) {
	for i := n; i < Strata; i++ {
		if g.strata[i].since == 0 {
			return 0
		}
		since = max(since, g.strata[i].since)
	}
	return since
}

// total returns about how much memory the ring takes.
func (g *ring) total() int64 { return g.bytes + g.open + min(encoderBytes, g.limit/4) }

// take returns the chunks of the strata from n on that reach beyond an instant: of each stratum the
// closed ones, which never change, and a copy of the open one.
func (g *ring) take(n int, from int64) (list []Chunk) {
	for i := n; i < Strata; i++ {
		s := &g.strata[i]
		for k := range s.chunks {
			if s.chunks[k].To >= from {
				list = append(list, s.chunks[k])
			}
		}
		if len(s.open.buf) > 0 && s.open.to >= from {
			list = append(list, Chunk{Stratum: i, Data: slices.Clone(s.open.buf), From: s.open.from, To: s.open.to,
				Requests: s.open.requests, Size: -1})
		}
	}
	return list
}
