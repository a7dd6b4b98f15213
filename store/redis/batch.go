package redis

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"unsafe"

	"github.com/redis/rueidis"
)

// A batch is the decisions that are sent as one call to Redis. Equal decisions, which ask the same
// of the same keys, are merged into one group: Lua gets their number, and grants them one by one in
// the order in which they came. Groups of one shape, which differ in their keys only, form a run.

// batcher is the working memory of a partition's goroutine.
type batcher struct {
	batch  []*call
	groups []*call // first calls
	table  []int32 // finds groups by hash, and runs by shape: their number + 1
	runs   []run
	args   []string // keys, and then arguments
	buf    []byte   // shapes and lists
	spans  [][2]int // of args in buf
	states []replayState
	head   []byte // the first argument
	lane   *lane
}

// run is decisions of one shape.
type run struct {
	first, last *call // first calls of groups
	n           int   // groups
	merged      bool
	lending     bool // it has reports or wishes of leases
}

// decide sends a batch, and fills in results, undecided or err of each call.
func (p *partition) decide(ctx context.Context, batch []*call) {
	p.merge(batch)
	asked := p.store.monotonic()
	for _, c := range batch {
		c.sentAt = asked
	}
	p.detector.Sent(asked)
	reply, a, err := p.send(ctx)
	switch _, answered := rueidis.IsRedisErr(err); {
	case err == nil || answered && !isReadOnly(err):
		now := p.store.monotonic()
		p.detector.Answered(now, now-a.sent)
	case !errors.Is(err, context.DeadlineExceeded):
		p.detector.Lost() // the call is no longer in flight
	}
	if isTryAgain(err) && len(batch) > 1 {
		// The batch's keys are on two servers while a slot is migrating. The keys of one decision
		// may be on one.
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
	if a.n > 0 {
		p.leak(batch)
	}
	m := &p.store.metrics
	m.calls.Add(1)
	m.decisions.Add(uint64(len(batch)))
	p.answers.Add(uint64(len(batch)))
	m.merged.Add(uint64(len(batch) - len(p.groups)))
	m.batch(len(batch))
}

// leak has the buffers of a batch not used again: after a failed attempt rueidis may still hold
// views of them, and of the calls' keys.
func (p *partition) leak(batch []*call) {
	for _, c := range batch {
		c.leaked = true
	}
	p.buf, p.args, p.head = nil, nil, nil
}

// fail gives all calls of a batch an error.
func (p *partition) fail(batch []*call, err error) {
	p.store.metrics.failures.Add(1)
	if didNothing(err) {
		err = notChargedError{err}
	}
	if !errors.Is(err, errAway) {
		err = fmt.Errorf("redis store: %w", err)
	}
	for _, c := range batch {
		c.err = err
	}
	p.leak(batch)
}

// merge puts the calls of a batch into groups, and those into runs, all in the order in which they
// came.
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
		c.next, c.last, c.nextGroup, c.group = nil, c, nil, 1
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
			r.last.nextGroup, r.last = c, c
			r.n++
			r.merged, r.lending = r.merged || c.group > 1, r.lending || c.lending
			continue
		}
		p.runs = append(p.runs, run{first: c, last: c, n: 1, merged: c.group > 1, lending: c.lending})
		byShape[at] = int32(len(p.runs))
	}
}

// sameShape reports whether two calls ask the same, of the same keys or others.
func (c *call) sameShape(o *call) bool {
	if c.shape != o.shape || len(c.charges) != len(o.charges) || len(c.operands) != len(o.operands) {
		return false
	}
	for i := range c.charges {
		a, b := &c.charges[i], &o.charges[i]
		if a.Counter.ID != b.Counter.ID || a.Limit != b.Limit || a.Mode != b.Mode ||
			a.Ask.Cost != b.Ask.Cost || a.Ask.MaxDelay != b.Ask.MaxDelay || a.Ask.LastEnds != b.Ask.LastEnds ||
			a.Ask.Room != b.Ask.Room {
			return false
		}
	}
	for i := range c.operands {
		a, b := &c.operands[i], &o.operands[i]
		if a.joinedTo != b.joinedTo || a.older != b.older || a.margin != b.margin ||
			a.marginCloses != b.marginCloses || a.phase != b.phase || a.record != b.record {
			return false
		}
	}
	return true
}

// equals reports whether two calls ask the same of the same keys.
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

// The format of the list of a run (see take in weir.lua) and its flags.
const (
	listFormat = "<I4B"

	flagMerged  = 1 // each decision stands for several equal requests: their numbers follow
	flagRepeats = 2 // a key may come more than once
	flagLending = 4 // with the reports and wishes of leases
)

// send sends all runs as one call of take, and returns the reply, and how it came about.
func (p *partition) send(ctx context.Context) ([]byte, attempts, error) {
	clients, err := p.store.connected()
	if err != nil {
		return nil, attempts{}, err
	}
	about := p.store.estimatedNow()
	p.buf, p.spans, p.args = p.buf[:0], p.spans[:0], p.args[:0]
	span := func(from int) { p.spans = append(p.spans, [2]int{from, len(p.buf)}) }
	for i := range p.runs {
		r := &p.runs[i]
		from := len(p.buf)
		for j := range r.first.operands {
			op := &r.first.operands[j]
			p.buf = op.append(p.buf, &r.first.charges[op.charge], about)
		}
		span(from)
		from = len(p.buf)
		p.buf = binary.LittleEndian.AppendUint32(p.buf, uint32(r.n))
		flags := byte(0)
		if r.merged {
			flags |= flagMerged
		}
		// Decisions that can be merged, and have the same keys, are one.
		if r.n > 1 && (len(r.first.keys) > 1 || !r.first.mergeable || r.lending) {
			flags |= flagRepeats
		}
		if r.lending {
			flags |= flagLending
		}
		p.buf = append(p.buf, flags)
		for c := r.first; c != nil; c = c.nextGroup {
			p.args = append(p.args, c.keys...)
			if r.merged {
				p.buf = binary.LittleEndian.AppendUint32(p.buf, uint32(c.group))
			}
		}
		for c := r.first; c != nil; c = c.nextGroup {
			for j := range c.operands {
				if op := &c.operands[j]; op.codec.hasSlots() {
					p.buf = binary.LittleEndian.AppendUint64(p.buf, c.slots[op.charge])
				} else if r.lending && op.record != nil {
					p.buf = appendAhead(p.buf, c.aheadOf(op))
				}
			}
		}
		span(from)
	}
	keys := len(p.args)
	p.args = append(p.args, "")
	for _, s := range p.spans {
		p.args = append(p.args, view(p.buf[s[0]:s[1]]))
	}
	p.lane.next(p.memory.Load())
	a := attempts{p: p, client: clients.decide, batch: true}
	a.begin(ctx)
	defer a.end()
	for {
		p.head = append(p.lane.appendIdentity(p.head[:0], a.memory, a.unknown), p.store.virtualNow()...)
		p.args[keys] = view(p.head)
		reply, err := p.store.do(a.ctx, clients.decide, false, func(b rueidis.Builder) rueidis.Completed {
			return p.store.invoke(b, lua().library, p.scriptKeys, lua().take, p.args[:keys], p.args[keys:])
		}).AsBytes()
		if !a.again(err) {
			p.lane.ended(err)
			return reply, a, a.result(err)
		}
		p.head = nil // rueidis may still hold it
	}
}

// view returns b as a string without copying; it is valid until b is written to.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
