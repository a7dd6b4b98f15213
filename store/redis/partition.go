package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"unsafe"

	"github.com/redis/rueidis"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
)

// partition is a part of the keys that one call to Redis can reach: all of them, or in a Cluster those of one hash tag.
//
// It commits in groups: while one call is in flight, the decisions that arrive wait together, and leave as the next one.
// Those that ask the same of the same keys go as one, with their number, which the script grants one by one in the order
// in which they came.
type partition struct {
	store  *Store
	prefix string // of its keys, with the hash tag

	mu      sync.Mutex
	waiting []*call
	busy    bool // the flusher is at work, or about to be
	closed  bool
	wake    chan struct{}
	odd     []*oddCall    // that wait to be settled
	settles bool          // somebody is at it
	swaps   chan struct{} // holds a value while a compare-and-swap runs: one at a time

	flusher // touched by the flusher's goroutine only
}

// maxBatch bounds the decisions that leave as one call, and maxKeys their keys (but of a single decision), so that Redis is
// not held up for long.
const (
	maxBatch = 256
	maxKeys  = 2000
)

// callState is where a call is; guarded by partition.mu.
type callState uint8

const (
	queued    callState = iota
	sent                // it may have been charged
	delivered           // results and err are valid
	abandoned           // the caller gave up after it was sent
)

// call is one decision on its way. What it holds is its own, since the caller may give up at any time.
type call struct {
	charges []weir.Charge
	results []algo.Result
	parts   []part
	keys    []string       // in Redis; views of buf
	owners  []int          // of keys: 1 + index of the part; 0 for the key of an older identity
	names   map[string]int // owners by key, where there are many keys
	buf     []byte
	slots   []uint64 // ids for Concurrency charges; 0 for others

	shape     uint64 // hash of what is asked, without the keys
	hash      uint64 // of both
	mergeable bool   // equal calls may go as one
	apart     bool   // no two charges name one state, nor states of one value without being joined: else Lua would read what is not there any more
	tight     bool   // it has a charge whose soft margin is for the node

	state callState
	done  chan struct{} // one value when delivered
	now   int64         // instant of the decision
	asked int64         // when the question was sent, by this node's monotonic clock, in ns
	odd   bool          // not decided: see weir.lua
	taint bool          // Redis' client may still hold views of buf
	err   error

	next  *call // equal call that came later; of the head of a group
	last  *call // of the group
	group int   // size of the group; of the head
	peer  *call // head of the next group of the run
}

func (p *partition) enqueue(c *call) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return errClosed
	}
	c.state = queued
	p.waiting = append(p.waiting, c)
	if !p.busy {
		p.busy = true
		p.wake <- struct{}{} // there is room: nobody else is to wake it
	}
	return nil
}

// giveUp takes a call back that its caller no longer waits for. It reports whether the call came through after all; if
// not, charged tells whether it may have been charged. Unless it was never sent, it must not be used again.
func (p *partition) giveUp(c *call) (done, charged bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch c.state {
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
	c.state = abandoned
	return false, true
}

// run sends what waits, until the partition is closed.
func (p *partition) run() {
	for range p.wake {
		for p.flushOnce() {
		}
	}
}

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
		c.state = sent
	}
	p.mu.Unlock()

	ctx, cancel := context.WithTimeout(p.store.ctx, p.store.o.Timeout)
	p.decide(ctx, p.batch)
	cancel()
	p.deliver(p.batch)
	clear(p.batch)
	return true
}

// gather lets those who are about to ask do so, that they may go along. It does not wait: where nobody is ready to run,
// it takes no time.
func (p *partition) gather() {
	for n, before := 0, -1; n != before && n < maxBatch; {
		before = n
		runtime.Gosched()
		p.mu.Lock()
		n = len(p.waiting)
		p.mu.Unlock()
	}
}

func (p *partition) deliver(batch []*call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range batch {
		if c.state == sent {
			c.state = delivered
			c.done <- struct{}{}
		}
	}
}

func (p *partition) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.closed = true
	for _, c := range p.waiting {
		c.err = errClosed
		c.state = delivered
		c.done <- struct{}{}
	}
	p.waiting = nil
	close(p.wake)
}

// flusher is the working memory of a partition's goroutine.
type flusher struct {
	batch  []*call
	groups []*call // heads
	table  []int32 // finds groups by hash, and runs by shape: their number + 1
	runs   []run
	args   []string
	buf    []byte   // shapes and lists
	spans  [][2]int // of args in buf
	held   []held
	number []byte
}

// run is decisions of one shape.
type run struct {
	first, last *call // heads of groups
	n           int   // groups
	merged      bool
}

// decide decides a batch: it fills in results, or odd, or err, of each call.
func (p *partition) decide(ctx context.Context, batch []*call) {
	p.merge(batch)
	asked := p.store.monotonic()
	for _, c := range batch {
		c.asked = asked
	}
	reply, err := p.send(ctx)
	if isTryAgain(err) && len(batch) > 1 {
		// Keys of the batch lie on two servers for now. Those of one decision may be all on one.
		for i := range batch {
			p.decide(ctx, batch[i:i+1])
		}
		return
	}
	if err == nil {
		err = p.read(reply)
	}
	if err != nil {
		p.fail(batch, err)
		return
	}
	m := &p.store.metrics
	m.calls.Add(1)
	m.decisions.Add(uint64(len(batch)))
	m.merged.Add(uint64(len(batch) - len(p.groups)))
	m.batch(len(batch))
}

// fail gives all calls of a batch an error. Redis' client may still be about to write their keys.
func (p *partition) fail(batch []*call, err error) {
	p.store.metrics.failures.Add(1)
	if didNothing(err) {
		err = notCharged{err}
	}
	if !errors.Is(err, errAway) {
		err = fmt.Errorf("redis store: %w", err)
	}
	for _, c := range batch {
		c.err, c.taint = err, true
	}
	p.buf, p.args, p.number = nil, nil, nil
}

// merge puts the calls of a batch into groups of equal ones, and those into runs of one shape, all in the order in which
// they came.
func (p *partition) merge(batch []*call) {
	size := 16
	for size < 2*len(batch) {
		size *= 2
	}
	if len(p.table) != 2*size {
		p.table = make([]int32, 2*size)
	}
	clear(p.table)
	byHash, byShape, mask := p.table[:size], p.table[size:], uint64(size-1)
	p.groups, p.runs = p.groups[:0], p.runs[:0]
	for _, c := range batch {
		c.next, c.last, c.peer, c.group = nil, c, nil, 1
		if c.mergeable {
			at := c.hash & mask
			for byHash[at] != 0 && !p.groups[byHash[at]-1].equals(c) {
				at = (at + 1) & mask
			}
			if i := byHash[at]; i != 0 {
				head := p.groups[i-1]
				head.last.next, head.last = c, c
				head.group++
				continue
			}
			byHash[at] = int32(len(p.groups) + 1)
		}
		p.groups = append(p.groups, c)
	}
	for _, c := range p.groups {
		at := c.shape & mask
		for byShape[at] != 0 && !p.runs[byShape[at]-1].first.sameShape(c) {
			at = (at + 1) & mask
		}
		if i := byShape[at]; i != 0 {
			r := &p.runs[i-1]
			r.last.peer, r.last = c, c
			r.n++
			r.merged = r.merged || c.group > 1
			continue
		}
		p.runs = append(p.runs, run{first: c, last: c, n: 1, merged: c.group > 1})
		byShape[at] = int32(len(p.runs))
	}
}

func (c *call) sameShape(o *call) bool {
	if c.shape != o.shape || len(c.charges) != len(o.charges) || len(c.parts) != len(o.parts) {
		return false
	}
	for i := range c.charges {
		a, b := &c.charges[i], &o.charges[i]
		if a.Counter.ID != b.Counter.ID || a.Limit != b.Limit || a.Mode != b.Mode || a.Ask.Cost != b.Ask.Cost || a.Ask.MaxDelay != b.Ask.MaxDelay || a.Ask.LastEnds != b.Ask.LastEnds {
			return false
		}
	}
	for i := range c.parts {
		a, b := &c.parts[i], &o.parts[i]
		if a.joined != b.joined || a.older != b.older || a.margin != b.margin || a.tight != b.tight || a.reign != b.reign {
			return false
		}
	}
	return true
}

func (c *call) equals(o *call) bool {
	if c.hash != o.hash || !c.sameShape(o) {
		return false
	}
	for i := range c.keys {
		if c.keys[i] != o.keys[i] {
			return false
		}
	}
	return true
}

// The flags of a list, see take in weir.lua.
const (
	flagMerged  = 1
	flagRepeats = 2
)

// send asks Redis for all runs at once.
func (p *partition) send(ctx context.Context) ([]byte, error) {
	clients, err := p.store.connected()
	if err != nil {
		return nil, err
	}
	about := p.store.about()
	p.buf, p.spans, p.args = p.buf[:0], p.spans[:0], append(p.args[:0], functionTake, "")
	span := func(from int) { p.spans = append(p.spans, [2]int{from, len(p.buf)}) }
	for i := range p.runs {
		r := &p.runs[i]
		from := len(p.buf)
		for j := range r.first.parts {
			pt := &r.first.parts[j]
			p.buf = pt.append(p.buf, &r.first.charges[pt.charge], about)
		}
		span(from)
		from = len(p.buf)
		p.buf = binary.LittleEndian.AppendUint32(p.buf, uint32(r.n))
		flags := byte(0)
		if r.merged {
			flags |= flagMerged
		}
		if r.n > 1 && (len(r.first.parts) > 1 || !r.first.mergeable) {
			flags |= flagRepeats
		}
		p.buf = append(p.buf, flags)
		for c := r.first; c != nil; c = c.peer {
			p.args = append(p.args, c.keys...)
			if r.merged {
				p.buf = binary.LittleEndian.AppendUint32(p.buf, uint32(c.group))
			}
		}
		for c := r.first; c != nil; c = c.peer {
			for j := range c.parts {
				if pt := &c.parts[j]; pt.twin.kind == kindSlots {
					p.buf = binary.LittleEndian.AppendUint64(p.buf, c.slots[pt.charge])
				}
			}
		}
		span(from)
	}
	keys := len(p.args) - 2
	p.number = strconv.AppendInt(p.number[:0], int64(keys), 10)
	p.args[1] = view(p.number)
	p.args = append(p.args, p.store.virtualNow())
	for _, s := range p.spans {
		p.args = append(p.args, view(p.buf[s[0]:s[1]]))
	}
	return p.store.do(ctx, clients.decide, false, func(b rueidis.Builder) rueidis.Completed {
		return b.Arbitrary("FCALL").Args(p.args[:2]...).Keys(p.args[2]).Args(p.args[3:]...).Build()
	}).AsBytes()
}

// view returns b as a string without copying; it is valid until b is written to.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
