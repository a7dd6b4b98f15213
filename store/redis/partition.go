package redis

import (
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/weir-rl/weir/store/internal/waiting"
)

// partition is a part of the keys that one call to Redis can reach: all of them, or in a Cluster
// the keys with one hash tag.
//
// It commits in groups: while one call to Redis is in flight, the decisions that arrive are queued,
// and are sent together as the next one (batch.go). No timer is involved, so that a decision that
// finds the partition idle is sent at once.
type partition struct {
	store      *Store
	number     int
	prefix     string // of its keys, with the hash tag
	scriptKeys string // the beginning of the keys of a script's memory (kept.lua)
	detector   waiting.Detector
	answers    atomic.Uint64 // decisions that Redis has made
	memory     atomic.Uint32 // the name of the functions' memory, as heard last (again.go); 0: not yet

	mu        sync.Mutex
	waiting   []*call
	busy      bool // the goroutine of run has been woken, and has not found the queue empty yet
	closed    bool
	wake      chan struct{}
	swapQueue []*swapCall   // see swapqueue.go
	swapping  bool          // runSwaps is at work
	swapLock  chan struct{} // holds a value while a compare-and-swap runs: one at a time
	swapLane  *lane         // used by the holder of swapLock
	master    master
	lanes     lanes
	expiring  atomic.Pointer[unsure] // a call of Expired that failed

	batcher // used by the goroutine of run only
}

// maxBatch bounds the decisions that are sent as one call, and maxKeys their keys, unless a single
// decision has more: Redis serves nobody else meanwhile.
const (
	maxBatch = 256
	maxKeys  = 2000
)

// enqueue queues a call. Its done receives a value once it is delivered.
func (p *partition) enqueue(c *call) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errClosed
	}
	c.stage = queued
	p.waiting = append(p.waiting, c)
	if !p.busy {
		p.busy = true
		p.wake <- struct{}{} // never blocks: only the one that sets busy sends
	}
	return nil
}

// giveUp withdraws a call whose caller stops waiting. done reports that it was delivered meanwhile.
// If not, charged reports whether it was sent, and so may be charged; then the call must not be
// reused.
func (p *partition) giveUp(c *call) (done, charged bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch c.stage {
	case delivered:
		return true, true
	case queued:
		for i, w := range p.waiting {
			if w == c {
				p.waiting = append(p.waiting[:i], p.waiting[i+1:]...)
				break
			}
		}
		return false, false
	}
	c.stage = abandoned
	return false, true
}

// run sends the queue, until the partition is closed.
func (p *partition) run() {
	for range p.wake {
		for p.flushOnce() {
		}
	}
}

// flushOnce sends one batch, and reports whether there was one.
func (p *partition) flushOnce() bool {
	p.gather()
	p.mu.Lock()
	n, keys := 0, 0
	for n < min(len(p.waiting), maxBatch) && (n == 0 || keys+len(p.waiting[n].keys) <= maxKeys) {
		keys += len(p.waiting[n].keys)
		n++
	}
	if n == 0 {
		p.busy = false
		p.mu.Unlock()
		return false
	}
	p.batch = append(p.batch[:0], p.waiting[:n]...)
	rest := copy(p.waiting, p.waiting[n:])
	clear(p.waiting[rest:])
	p.waiting = p.waiting[:rest]
	for _, c := range p.batch {
		c.stage = sent
	}
	p.mu.Unlock()

	p.decide(p.store.ctx, p.batch)
	p.deliver(p.batch)
	clear(p.batch)
	return true
}

// gather lets goroutines that are about to call enqueue do so, so that their calls join the batch.
// It does not wait: where no goroutine is ready to run, it takes no time.
func (p *partition) gather() {
	for n, before := 0, -1; n != before && n < maxBatch; {
		before = n
		runtime.Gosched()
		p.mu.Lock()
		n = len(p.waiting)
		p.mu.Unlock()
	}
}

// deliver hands the results of a batch to the callers that still wait, and the outcomes to those
// that gave up.
func (p *partition) deliver(batch []*call) {
	var late []*call
	p.mu.Lock()
	for _, c := range batch {
		switch c.stage {
		case sent:
			c.stage = delivered
			c.done <- struct{}{}
		case abandoned:
			c.stage = finished
			if c.onOutcome != nil {
				late = append(late, c)
			}
		}
	}
	p.mu.Unlock()
	for _, c := range late {
		c.onOutcome(c.outcome())
	}
}

// close fails the queued calls, and ends run.
func (p *partition) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.closed = true
	for _, c := range p.waiting {
		c.err = errClosed
		c.stage = delivered
		c.done <- struct{}{}
	}
	p.waiting = nil
	close(p.wake)
}
