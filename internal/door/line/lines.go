// Package line keeps requests that must wait in lines, for the doors that can hold them. A request
// that got a turn in a leaky bucket leaves its line when the turn has come. One that a limit with
// on_limit: {wait: …} refuses asks again from its line.
//
// Each key of each limit has a line of its own, first come, first served. Only the first request of
// a line asks the store, so that a line costs no more than one request that polls. Nothing
// overtakes: a request that arrives while there is a line joins its end without asking.
//
// Begin with Visit.Decide, and read ask and hold: they are a held request from beginning to end.
package line

import (
	"encoding/binary"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/rule"
)

// DefaultMax is how many requests one Lines holds.
const DefaultMax = 10_000

// Lines holds requests. Safe for concurrent use. Make one with New.
//
// It holds at most max requests. A line may grow while it is shorter than the rest of max, and no
// longer than the rule's queue; so one key can never take more than half of max, k keys together
// leave max / (k + 1), and a key without a line finds a place until there are max lines.
type Lines struct {
	max  int
	seed maphash.Seed
	held atomic.Int64 // requests in lines
	shut atomic.Bool  // no request is held any more
	// freed counts the units given back, by a hash of counter and key. It is for requests that have
	// asked and are not in a line yet.
	freed [256]atomic.Uint32

	total, expired, hungUp, turnedAway atomic.Uint64

	mu    sync.Mutex
	lines map[string]*line // by counter and key; none is empty
	seq   int64            // of the request that came last
	left  int64            // how many have left
}

// New returns Lines that hold at most max requests; 0 means DefaultMax, below 0 that no request is
// held.
func New(max int) *Lines {
	l := &Lines{max: max, seed: maphash.MakeSeed(), lines: map[string]*line{}}
	if max == 0 {
		l.max = DefaultMax
	}
	l.shut.Store(max < 0)
	return l
}

// line is the queue of one key of one limit, in the order of turns or of arrival.
type line struct {
	name       string
	head, tail *ticket
	n          int
	// The limit's last answer to a request of this line, a refusal. Unused in a line for a leaky
	// bucket.
	last  weir.LimitResult
	told  time.Time
	clock int64 // the store's at that time
	// until this instant the limit admits no request; zero where that is not known, since a slot
	// may be released at any time
	until time.Time
}

// ticket is the place of one request.
type ticket struct {
	line       *line // nil if it is in no line
	prev, next *ticket
	order      int64 // its turn in µs of the store's clock, or the order of its arrival
	// gets a message when the ticket has become the first, and when something was given back; holds
	// one message
	wake chan struct{}
}

func (t *ticket) signal() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// appendName appends the name of the line for a limit's key.
func appendName(dst []byte, counter uint64, key []byte) []byte {
	return append(binary.BigEndian.AppendUint64(dst, counter), key...)
}

// room reports whether one more request may join line; nil is a new one. l.mu is held.
func (l *Lines) room(line *line, queue int) bool {
	free := l.max - int(l.held.Load())
	if line == nil {
		return free > 0
	}
	return line.n < min(free, queue)
}

// queue is how many may wait for a limit of r to ask again.
func queue(r *rule.Rule) int {
	if r.WaitQueue > 0 {
		return r.WaitQueue
	}
	return rule.DefaultWaitQueue
}

// put makes t join the line of that name, which may be a new one, behind all tickets with a lower
// or equal order. l.mu is held.
func (l *Lines) put(t *ticket, name []byte) *line {
	at := l.lines[string(name)]
	if at == nil {
		at = &line{name: string(name)}
		l.lines[at.name] = at
	}
	before := at.tail
	for before != nil && before.order > t.order { // decisions may arrive here a little out of order
		before = before.prev
	}
	t.line, t.prev = at, before
	if before == nil {
		t.next, at.head = at.head, t
	} else {
		t.next, before.next = before.next, t
	}
	if t.next == nil {
		at.tail = t
	} else {
		t.next.prev = t
	}
	at.n++
	l.held.Add(1)
	return at
}

// take removes t from its line, if it is in one, and signals the ticket that is first after that.
// l.mu is held.
func (l *Lines) take(t *ticket) {
	at := t.line
	if at == nil {
		return
	}
	if t.prev == nil {
		at.head = t.next
	} else {
		t.prev.next = t.next
	}
	if t.next == nil {
		at.tail = t.prev
	} else {
		t.next.prev = t.prev
	}
	if at.n--; at.n == 0 {
		delete(l.lines, at.name)
	} else if t.prev == nil {
		at.head.signal()
	}
	t.line, t.prev, t.next = nil, nil, nil
	l.held.Add(-1)
}

// leave removes t from its line for good. It returns how many tickets have left lines of l so far,
// t included; 0 if t was in no line.
func (l *Lines) leave(t *ticket) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t.line == nil {
		return 0
	}
	l.take(t)
	l.left++
	return l.left
}

// first reports whether t is the first of its line.
func (l *Lines) first(t *ticket) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return t.prev == nil
}

// Freed reports that units of a key's limit were given back on this node (a slot released, hits
// refunded), so that the first request of its line asks at once.
func (l *Lines) Freed(counter uint64, key []byte) {
	l.freed[l.shard(counter, key)].Add(1)
	if l.held.Load() == 0 {
		return
	}
	var buf [128]byte
	l.mu.Lock()
	if at := l.lines[string(appendName(buf[:0], counter, key))]; at != nil {
		at.head.signal()
	}
	l.mu.Unlock()
}

func (l *Lines) shard(counter uint64, key []byte) uint8 {
	return uint8(maphash.Bytes(l.seed, key) ^ counter)
}

// Shut ends the holding, for a program that is about to end. Requests waiting to ask again are
// refused at once, and so are later ones that would have to wait. Requests that have a turn in a
// leaky bucket, and were charged for it, keep it.
func (l *Lines) Shut() {
	l.shut.Store(true)
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, at := range l.lines {
		for t := at.head; t != nil; t = t.next {
			t.signal()
		}
	}
}

// Stats describes the requests that wait, or have waited.
type Stats struct {
	Held    int // now
	Lines   int // now
	Longest int // requests in the longest line now

	Total uint64 // were held at all
	// of these, were refused since their wait was over, or would have been too short
	Expired    uint64
	HungUp     uint64 // of these, were given up by their clients
	TurnedAway uint64 // were refused since there was no room to wait
}

// Stats returns a reading of this moment.
func (l *Lines) Stats() Stats {
	s := Stats{Total: l.total.Load(), Expired: l.expired.Load(), HungUp: l.hungUp.Load(),
		TurnedAway: l.turnedAway.Load()}
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Held, s.Lines = int(l.held.Load()), len(l.lines)
	for _, at := range l.lines {
		s.Longest = max(s.Longest, at.n)
	}
	return s
}
