package server

import (
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"sync"
	"sync/atomic"
)

// headroom is by how much the heap may grow before the garbage collector runs, at least.
const headroom = 28 << 20

// smallLimit is the GOMEMLIMIT below which headroom is a large part of it.
const smallLimit = 512 << 20

// pacer decides when the garbage collector runs, in place of GOGC, which lets the heap double. The
// cost of a run grows with the memory that holds pointers, and most of a server's memory holds
// none: the tables of the embedded store. Doubling would run the collector dozens of times a second
// in a server that holds a few MB, and would let one with five million keys gather 350 MB of
// garbage to save nothing. So the heap grows by as much as a run has to look through, at least by
// headroom.
//
// A ballast that is never touched does the first but not the second.
type pacer struct {
	mu       sync.Mutex
	samples  []metrics.Sample
	percent  int  // in force
	previous int  // before the pacer
	ended    bool // by stop
}

// round is an object that is let go at once, so that its cleanup runs after each run of the
// collector. It holds a pointer, since small objects without one share their fate with others.
type round struct{ _ *round }

// pacing says that a pacer is at work. There is one collector in a process, so there is one pacer:
// of two, the one that is stopped last would put the other's percentage back in force for good.
var pacing atomic.Bool

// pace paces the collector until stop is called. It does nothing if GOGC configures the collector,
// if headroom would be a large part of limit, the collector's memory limit (GOMEMLIMIT), or if a
// pacer is at work.
func pace(lookup func(string) (string, bool), limit int64) (stop func()) {
	if _, set := lookup("GOGC"); set || limit < smallLimit || !pacing.CompareAndSwap(false, true) {
		return func() {}
	}
	p := &pacer{samples: []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}, {Name: "/gc/scan/globals:bytes"}, {Name: "/gc/scan/heap:bytes"},
	}}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.previous = p.set(percentFor(0, 0))
	p.arm()
	return p.stop
}

// arm has adjust called after the next run of the collector.
func (p *pacer) arm() { runtime.AddCleanup(new(round), (*pacer).adjust, p) }

func (p *pacer) adjust() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended {
		return
	}
	metrics.Read(p.samples)
	live, stacks, globals, scanned := p.samples[0].Value.Uint64(), p.samples[1].Value.Uint64(),
		p.samples[2].Value.Uint64(), p.samples[3].Value.Uint64()
	// setting it stops the world for a moment, which a small change is not worth
	if want := percentFor(live+stacks+globals, scanned); want < p.percent*15/16 || want > p.percent*17/16 {
		p.set(want)
	}
	p.arm()
}

// set puts a percentage in force, and returns the one before.
func (p *pacer) set(percent int) int {
	p.percent = percent
	return debug.SetGCPercent(percent)
}

// stop restores the values that were in force before.
func (p *pacer) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	debug.SetGCPercent(p.previous)
	pacing.Store(false)
}

// smallestHeap is the heap at which Go runs its collector first, where GOGC is 100. It grows with
// GOGC.
const smallestHeap = 4 << 20

// percentFor returns GOGC for a heap with so many live bytes, roots included, and so many bytes
// that hold pointers.
func percentFor(live, scanned uint64) int {
	room := float64(max(headroom, scanned))
	return int(math.Ceil(room * 100 / float64(max(live, smallestHeap))))
}
