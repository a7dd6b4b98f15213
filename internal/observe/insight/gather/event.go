package gather

import (
	"sync/atomic"
)

// event is a message from the deciding path to the goroutine that gathers. It has no pointers.
type event struct {
	hash     uint64 // of the key
	decision uint64 // id; 0 of an admitted one
	at       int64  // µs, by the store's clock; 0 if that was not asked
	retry    int64  // when the key was told to come back by the rule, µs; 0 if it was not told
	rule     uint32 // number of the ruleState
	with     uint32 // 1 + the number of another rule that refused it; 0: there is none
	window   uint16 // of the rule, by its place
	flags    uint16
	asked    uint32 // units
	limit    uint32 // in force for the key
	used     uint32 // of it, after the decision
	status   uint16 // of an answer
	weights  weights
	door     uint8
	length   uint8 // of the key
	key      [keyRoom]byte
}

// keyRoom is how many bytes of a key an event holds.
const keyRoom = 112

// noWeight is a weight that does not count.
const noWeight = 0xff

// The flags of an event.
const (
	flagRefused uint16 = 1 << iota // by this window; would be, in shadow
	flagPassed                     // the rule let it through, or would have
	flagShadow                     // the window is not enforced for the key
	flagBanned                     // by a ban: nothing was asked of the limit
	flagKnown                      // an attribute of Options.Known was there
	flagFirst                      // the first window of the rule: only it counts requests
	flagAnswer                     // no decision, but the answer to an admitted request
	flagOwn                        // the key has numbers of its own
	flagCut                        // values of the key are cut
	flagStopped                    // the rule let it through, and another one refused it
	// Of all windows of the rule together, in each event of the request:
	flagRuleRefused // one of them refuses
	flagRuleWould   // one of them, which is not enforced for the key, would
	flagRuleNear    // one of them is at warn or above
)

// eventRing is a queue of events with many writers and one reader (D. Vyukov's bounded queue). A
// writer that finds it full goes on without waiting. The zero value is not ready; see init.
type eventRing struct {
	head    atomic.Uint64
	_       [56]byte
	tail    atomic.Uint64 // where the reader is
	_       [56]byte
	dropped atomic.Uint64
	slots   []ringSlot
}

type ringSlot struct {
	turn atomic.Uint64 // the number of the event to write here, plus 1 once it is written
	e    event
}

// ringSlots is how many events wait at most in one ring.
const ringSlots = 256

func (r *eventRing) init() {
	r.slots = make([]ringSlot, ringSlots)
	for i := range r.slots {
		r.slots[i].turn.Store(uint64(i))
	}
}

// claim returns a slot to fill, and then to publish; nil if the ring is full.
func (r *eventRing) claim() (s *ringSlot, n uint64) {
	for {
		n = r.head.Load()
		s = &r.slots[n%ringSlots]
		switch turn := s.turn.Load(); {
		case turn == n:
			if r.head.CompareAndSwap(n, n+1) {
				return s, n
			}
		case turn < n: // not read yet
			r.dropped.Add(1)
			return nil, 0
		}
	}
}

// publish hands a claimed slot to the reader. It reports whether the ring is half full.
func (r *eventRing) publish(s *ringSlot, n uint64) (half bool) {
	s.turn.Store(n + 1)
	return n-r.tail.Load() == ringSlots/2
}

// drain calls f for each published event, in order. Only one goroutine may call it at a time.
func (r *eventRing) drain(f func(*event)) (events int) {
	n := r.tail.Load()
	for {
		s := &r.slots[n%ringSlots]
		if s.turn.Load() != n+1 {
			return events
		}
		f(&s.e)
		s.turn.Store(n + ringSlots)
		n++
		events++
		r.tail.Store(n)
	}
}
