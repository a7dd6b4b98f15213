package cas

import (
	"bytes"
	"math/rand/v2"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/internal/deciding"
)

// stage is how far a call has come; guarded by Store.mu.
type stage uint8

const (
	queued    stage = iota
	sent            // it may have been charged
	delivered       // results and err are valid
	withdrawn       // the caller gave up while it was queued
	abandoned       // the caller gave up after it was sent
	finished        // abandoned, and its outcome is known, or never will be
)

// call is a decision, or another change of states, on its way. It holds copies of everything, since
// its caller may give up at any time.
type call struct {
	charges []store.Charge
	results []algo.Result
	slots   []uint64
	// change changes the states that charges name, in place of a decision; nil for a decision. It
	// is called again after a conflict.
	change func(p *plan, c *call)
	// settles says that it is made though its caller gives up, who takes it to be made
	settles bool
	// older says that states under older identities are wanted though there is one under the
	// counter itself
	older bool

	refs    []ref
	places  []uint64 // of the values that refs name
	names   [][]byte // of these; views of buf
	entries []*entry // of these, once it is queued
	buf     []byte
	index   map[string]int32 // of names, where there are many

	stage    stage
	attempts int           // how often others were quicker
	broken   int           // how often a connection broke before it was decided
	since    int64         // when that was first, by the monotonic clock, in ns
	done     chan struct{} // one value when delivered
	now      int64         // instant of the decision
	asked    int64         // when it was made, by the monotonic clock, in ns
	err      error
	// of an abandoned call: gets its outcomes; guarded by Store.mu
	onOutcome func([]store.Outcome)

	// working memory of the plan
	states, besides []*deciding.State
}

// ref is a state that a call names: for each charge its own, then its soft margin's, and then the
// states under older identities of both.
type ref struct {
	counter *rule.Counter
	limit   *algo.Limit
	value   int32 // index in names
	kind    refKind
}

type refKind uint8

const (
	ownState refKind = iota
	marginState
	olderState
	olderMargin
)

// manyNames is the number of values from which on they are looked up in a map.
const manyNames = 24

// newCall makes a call of copies of the charges.
func (s *Store) newCall(charges []store.Charge) *call {
	c := s.calls.Get().(*call)
	n := len(charges)
	if cap(c.charges) < n {
		c.charges, c.results, c.slots = make([]store.Charge, n), make([]algo.Result, n), make([]uint64, n)
	}
	c.charges, c.results, c.slots = c.charges[:n], c.results[:n], c.slots[:n]
	copy(c.charges, charges)
	clear(c.results)
	c.refs, c.places, c.names, c.entries = c.refs[:0], c.places[:0], c.names[:0], c.entries[:0]
	clear(c.index)
	c.change, c.settles, c.older, c.attempts, c.broken = nil, false, false, 0, 0
	c.now, c.asked, c.err, c.onOutcome = 0, 0, nil, nil
	size := 0
	for i := range charges {
		size += s.sizeOf(&charges[i])
	}
	if cap(c.buf) < size {
		c.buf = make([]byte, 0, size)
	}
	c.buf = c.buf[:0]
	for i := range c.charges {
		o := &c.charges[i]
		from := len(c.buf)
		c.buf = append(c.buf, o.Key...)
		o.Key = c.buf[from:len(c.buf):len(c.buf)]
		if c.slots[i] = 0; o.Limit.HasSlots() {
			c.slots[i] = newSlot()
		}
		c.addRefs(o)
	}
	return c
}

// sizeOf returns how many bytes of buf a charge takes at most, so that buf never moves.
func (s *Store) sizeOf(c *store.Charge) int {
	names := 1 + len(c.Counter.Previous)
	if c.Counter.Margin != nil {
		names += 1 + len(c.Counter.Margin.Previous)
	}
	return len(c.Key) + names*min(8+len(c.Key), MaxName)
}

func (c *call) addRefs(o *store.Charge) {
	c.addRef(o, o.Counter, o.Limit, ownState)
	margin, limit := deciding.MarginOf(o.Counter, o.Limit)
	if margin != nil {
		c.addRef(o, margin, limit, marginState)
	}
	for _, previous := range o.Counter.Previous {
		c.addRef(o, previous, previous.Limit, olderState)
	}
	if margin != nil {
		for _, previous := range margin.Previous {
			c.addRef(o, previous, previous.Limit, olderMargin)
		}
	}
}

func (c *call) addRef(o *store.Charge, counter *rule.Counter, l *algo.Limit, kind refKind) {
	if l == nil {
		return
	}
	r := ref{counter: counter, limit: l, kind: kind}
	from := len(c.buf)
	c.buf = appendName(c.buf, valueID(counter, l), o.Key)
	name := c.buf[from:len(c.buf):len(c.buf)]
	at, known := c.nameIndex(name)
	if known {
		c.buf = c.buf[:from]
	} else {
		at = int32(len(c.names))
		c.names = append(c.names, name)
		c.places = append(c.places, placeOf(o.Counter, o.Key))
		if len(c.names) >= manyNames {
			c.addIndex()
		}
	}
	r.value = at
	c.refs = append(c.refs, r)
}

func (c *call) nameIndex(name []byte) (at int32, ok bool) {
	if len(c.names) >= manyNames {
		at, ok = c.index[string(name)]
		return at, ok
	}
	for i := range c.names {
		if bytes.Equal(c.names[i], name) {
			return int32(i), true
		}
	}
	return 0, false
}

func (c *call) addIndex() {
	if c.index == nil {
		c.index = map[string]int32{}
	}
	if len(c.names) > manyNames {
		c.index[string(c.names[len(c.names)-1])] = int32(len(c.names) - 1)
		return
	}
	for i, name := range c.names {
		c.index[string(name)] = int32(i)
	}
}

// keepCall is the number of charges above which a call is not kept for reuse.
const keepCall = 256

// putCall keeps a call, which nobody else knows any more, for reuse.
func (s *Store) putCall(c *call) {
	if len(c.charges) > keepCall || cap(c.buf) > 64<<10 {
		return
	}
	clear(c.entries)
	clear(c.states)
	clear(c.besides)
	clear(c.charges)
	clear(c.refs)
	c.change = nil
	s.calls.Put(c)
}

// newSlot returns an id for the slots of a Concurrency limit: never 0, and impossible to guess.
func newSlot() uint64 {
	for {
		if n := rand.Uint64(); n != 0 {
			return n
		}
	}
}
