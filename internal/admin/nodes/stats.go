package nodes

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"
)

// Cause is why the answer of a node is missing.
type Cause uint8

// The causes.
const (
	// Silent: nothing came in time. The node is slow, does not hear questions, does not know this
	// kind, or has died.
	Silent     Cause = iota
	Redis            // Redis is away, or forbids the question or the answer
	Busy             // not asked, because the nodes ask too much
	TooLong          // not asked, because the question is too long
	Unreadable       // it cannot be read
	Cancelled        // the caller did not wait
	Causes           // how many there are
)

// String returns the cause as a label.
func (c Cause) String() string {
	return [Causes]string{"silent", "redis", "busy", "too_long", "unreadable", "cancelled"}[c]
}

// causeOf returns the cause of an error of publish or collect.
func causeOf(err error) Cause {
	switch {
	case errors.Is(err, errBusy):
		return Busy
	case errors.Is(err, errTooLong):
		return TooLong
	case errors.Is(err, context.Canceled):
		return Cancelled
	}
	return Redis
}

// Stats are counts since New.
type Stats struct {
	Asked   uint64         // questions of this node
	Kinds   []KindStats    // of them, by kind, sorted
	Busy    uint64         // waits for room in the rate of questions
	Answers uint64         // of others, to this node
	Missing [Causes]uint64 // answers that others owed to this node
	Times   Times          // of questions that others were asked

	Heard      uint64 // questions of others
	Answered   uint64 // of them, answered in time
	Late       uint64 // of them, and of those that found no room, heard too late to answer
	Unknown    uint64 // of them, of a kind that this node does not know
	Failed     uint64 // of them, without an answer, with one that did not fit, or that Redis did not take
	Unreadable uint64 // messages that are no question
}

// KindStats count this node's questions of one kind, by their result.
type KindStats struct {
	Kind       string
	Complete   uint64 // all answered, or there is no other node
	Incomplete uint64 // some did not
	Alone      uint64 // the others were not asked, though there are some, or it is not known yet
}

// Bounds are the upper bounds of the times in Times.
var Bounds = [...]time.Duration{
	time.Millisecond, 2500 * time.Microsecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond,
	50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, DefaultWait, time.Second,
}

// Times is a histogram of how long questions took, until all nodes had answered or the wait was
// over.
type Times struct {
	Counts [len(Bounds) + 1]uint64 // up to each of Bounds, and beyond
	Sum    time.Duration
}

type counters struct {
	asked, busy, answers, heard, answered, late, unknown, failed, unreadable atomic.Uint64

	missing [Causes]atomic.Uint64
	times   [len(Bounds) + 1]atomic.Uint64
	sum     atomic.Int64
}

// missed counts a question of a kind that other nodes were not asked.
func (n *Nodes) missed(k *kind, others int, why Cause) {
	k.alone.Add(1)
	n.stats.missing[why].Add(uint64(others))
}

// heard counts a question of a kind that other nodes were asked.
func (n *Nodes) heard(k *kind, missing [Causes]int, took time.Duration) {
	all := 0
	for why, count := range missing {
		n.stats.missing[why].Add(uint64(count))
		all += count
	}
	if all == 0 {
		k.complete.Add(1)
	} else {
		k.incomplete.Add(1)
	}
	at, _ := slices.BinarySearch(Bounds[:], took)
	n.stats.times[at].Add(1)
	n.stats.sum.Add(int64(took))
}

// Stats returns the counts.
func (n *Nodes) Stats() Stats {
	s := &n.stats
	out := Stats{
		Asked: s.asked.Load(), Busy: s.busy.Load(), Answers: s.answers.Load(), Heard: s.heard.Load(),
		Answered: s.answered.Load(),
		Late:     s.late.Load(), Unknown: s.unknown.Load(), Failed: s.failed.Load(), Unreadable: s.unreadable.Load(),
	}
	for _, name := range slices.Sorted(maps.Keys(n.handlers)) {
		k := n.handlers[name]
		out.Kinds = append(out.Kinds, KindStats{name, k.complete.Load(), k.incomplete.Load(), k.alone.Load()})
	}
	for i := range s.missing {
		out.Missing[i] = s.missing[i].Load()
	}
	for i := range s.times {
		out.Times.Counts[i] = s.times[i].Load()
	}
	out.Times.Sum = time.Duration(s.sum.Load())
	return out
}
