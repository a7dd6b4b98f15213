// Package recent remembers the decisions that an operator may be asked about: refusals, decisions
// close to one, and a sample of the rest. It is a buffer and not a log: bounded in number and in
// bytes, and the newest entry replaces the oldest. In a flood it does not record everything: eight
// decisions a second on each key, 2,000 refusals a second in all, and past that a random share.
//
// Decisions are recorded on the deciding path, behind weir.Hooks. Once the buffer is full, this
// allocates nothing and locks only the slot that it writes to.
//
// Begin with Buffer (recent.go), which holds the slots. gate (gate.go) decides what is recorded,
// before anything is read of a decision. encoder (encode.go) writes an entry, and decode (entry.go)
// reads it. names.go knows which attributes a rule reads, and since.go finds what is new.
package recent

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/rule"
)

// Options tune New. The zero value is right for most.
type Options struct {
	// Entries is how many decisions are kept; 0 means 10,000. Three quarters of them are refusals.
	Entries int
	// Bytes bounds their memory, at least 1,024 bytes for each; 0 means 16 MiB. An entry that does
	// not fit is cut.
	Bytes int64
	// Sample keeps one in so many ordinary admitted decisions; 0 means 1,000, below 0 none.
	Sample int
	// Hide names attributes whose values are not kept. Attributes whose names suggest a secret are
	// hidden anyway.
	Hide []string
	// Tally may be shared with other watchers; nil makes one.
	Tally *observe.Tally
}

// Bounds and defaults of Options.
const (
	// how many decisions are kept in a second before they are thinned; see gate
	refusalsPerSecond = 2000
	markedPerSecond   = 500

	defaultEntries = 10_000
	defaultBytes   = 16 << 20
	defaultSample  = 1000
	// of an entry: the most that one limit takes, with everything that is not a limit or an
	// attribute
	leastBytes = 1024
	mostBytes  = 2048 // of an entry
)

// Buffer holds recent decisions. Safe for concurrent use. Make one with New.
type Buffer struct {
	sample  uint64 // 2^32 for none
	entry   int    // most bytes of an entry
	hide    []string
	refused []ring // refusals
	others  []ring
	// refusals takes refusals, and marked takes admissions that are worth keeping.
	refusals, marked gate
	tally            *observe.Tally // hashes keys, and secrets
	rules            atomic.Pointer[ruleNames]
	seq              atomic.Uint64 // of the last entry, to tell their order
	pool             sync.Pool     // of *encoder
}

// ring is one part of the buffer. All decisions on one key of one limit fall into the same ring, so
// a client that is refused for days does not displace the decisions on all others.
type ring struct {
	next  atomic.Uint64
	slots []slot
	_     [32]byte // rings next to each other are written to by different processors
}

type slot struct {
	id atomic.Uint64 // of the decision that it holds, to look for without the lock
	// seq is the number of the entry, or writing while the number is not known yet. It is written
	// under the lock. A reader without the lock sees all entries up to Buffer.seq, or sees that one
	// is being written.
	seq  atomic.Uint64
	mu   sync.Mutex
	data []byte
}

// writing is the number of an entry that has none yet.
const writing = 1<<64 - 1

// A part of the buffer is split into 16 rings, or into fewer if a ring would have fewer than 32
// slots.
const (
	rings     = 16
	leastRing = 32
)

// New returns an empty Buffer.
func New(o Options) (*Buffer, error) {
	if o.Entries == 0 {
		o.Entries = defaultEntries
	}
	if o.Bytes == 0 {
		o.Bytes = defaultBytes
	}
	sample := uint64(max(o.Sample, 0))
	switch {
	case o.Sample == 0:
		sample = defaultSample
	case o.Sample < 0:
		sample = 1 << 32
	}
	if o.Entries < 4 || o.Entries > 10_000_000 {
		return nil, fmt.Errorf("recent decisions: %d entries; expected 4 to 10,000,000", o.Entries)
	}
	if o.Bytes/int64(o.Entries) < leastBytes {
		return nil, fmt.Errorf("recent decisions: %d bytes are too few for %d entries; give at least %d", o.Bytes,
			o.Entries, int64(o.Entries)*leastBytes)
	}
	if o.Tally == nil {
		o.Tally = observe.NewTally()
	}
	b := &Buffer{
		tally: o.Tally, sample: sample, hide: slices.Clone(o.Hide),
		entry: int(min(o.Bytes/int64(o.Entries), mostBytes)),
	}
	others := o.Entries / 4
	b.refused, b.others = newRings(o.Entries-others), newRings(others)
	b.refusals.budget, b.marked.budget = refusalsPerSecond, markedPerSecond
	b.pool.New = func() any { return &encoder{buf: make([]byte, 0, b.entry+mostText)} }
	return b, nil
}

func newRings(slots int) []ring {
	r := make([]ring, max(1, min(rings, slots/leastRing)))
	for i := range r {
		r[i].slots = make([]slot, slots/len(r))
	}
	return r
}

// Hooks returns the hooks for the limiter, if there is no other watcher.
func (b *Buffer) Hooks() weir.Hooks { return b.tally.Join(b) }

// Others implements observe.Watcher.
func (b *Buffer) Others() weir.Hooks {
	return weir.Hooks{RulesChanged: func(s *rule.Set, _ uint64) { b.rules.Store(b.namesOf(s)) }}
}

// Decided implements observe.Watcher.
func (b *Buffer) Decided(r *weir.Request, d *weir.Decision, f observe.Facts) {
	g := &b.refusals
	if d.Allowed {
		if f.Outcome == observe.Passed || f.Outcome == observe.Unclear && marksOf(d) == 0 {
			if f.Random>>32*b.sample>>32 == 0 && ordinary(r, d) {
				b.keep(r, d, b.hash(d, f))
			}
			return
		}
		g = &b.marked
	}
	at := d.Time
	if at == 0 {
		at = instant(d)
	}
	power, ok := g.draw(at, f.Random)
	if !ok {
		return
	}
	key := f.Key
	if f.Outcome == observe.Unclear || len(d.Matches.Hits[0].Key) == 0 {
		key = b.hash(d, f)
	}
	if key != 0 && !g.share(key) {
		return
	}
	g.take(power, at)
	b.keep(r, d, key)
}

// ordinary reports whether the request of an admitted decision asked for something.
func ordinary(r *weir.Request, d *weir.Decision) bool {
	return !d.Exempt && d.Known && (r.Cost() > 0 || len(r.Descriptors) > 0)
}

// Thinned returns the seconds of the last five minutes before now, by the store's clock, in which
// not all refusals were kept, newest first.
func (b *Buffer) Thinned(now time.Time) []Second { return b.refusals.thinned(now.Unix()) }

// keep writes d into a slot. hash is the hash of its key.
func (b *Buffer) keep(r *weir.Request, d *weir.Decision, hash uint64) {
	marks := marksOf(d)
	part := b.others
	if marks&markDenied != 0 {
		part = b.refused
	}
	to := &part[hash>>32%uint64(len(part))]
	e := b.pool.Get().(*encoder)
	e.encode(b, r, d, marks)
	s := &to.slots[(to.next.Add(1)-1)%uint64(len(to.slots))]
	s.mu.Lock()
	s.seq.Store(writing) // before the number is taken: see slot.seq
	s.id.Store(uint64(d.ID))
	if cap(s.data) < len(e.buf) {
		s.data = make([]byte, 0, min((len(e.buf)+63)&^63, b.entry))
	}
	s.data = append(s.data[:0], e.buf...)
	s.seq.Store(b.seq.Add(1))
	s.mu.Unlock()
	b.pool.Put(e)
}

// entry reads what s holds. The lock must be held.
func (s *slot) entry() (e Entry, ok bool) {
	e, ok = decode(s.data)
	e.seq = s.seq.Load()
	return e, ok
}

// hash hashes the key that a decision is about: the key of the first limit that refuses. If no
// limit refuses, or if that limit has a single counter for everybody, it hashes the keys of all
// limits. It returns 0 if there is none.
func (b *Buffer) hash(d *weir.Decision, f observe.Facts) (hash uint64) {
	hits := d.Matches.Hits
	if f.Outcome != observe.Unclear {
		if len(hits[0].Key) == 0 {
			return 0
		}
		return f.Key
	}
	for i := range d.Limits {
		if i < len(hits) && len(hits[i].Key) > 0 && d.Refuses(&d.Limits[i]) {
			return b.tally.Hash(hits[i].Key)
		}
	}
	for i := range hits {
		if key := hits[i].Key; len(key) > 0 {
			hash = hash*31 + b.tally.Hash(key)
		}
	}
	return hash
}

// Find returns the decision of that id; ok is false if it is not, or no longer, kept.
func (b *Buffer) Find(id weir.DecisionID) (e Entry, ok bool) {
	if id == 0 {
		return e, false
	}
	b.each(func(s *slot) bool {
		if s.id.Load() != uint64(id) {
			return true
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.id.Load() == uint64(id) { // it may have been written over
			e, ok = s.entry()
		}
		return !ok
	})
	return e, ok
}

// Query selects decisions. Empty fields select all.
type Query struct {
	Domain  string
	Limit   string // a limit that was met, by the name of the limit or of its rule
	Outcome string // see Outcomes
	Door    string
	// Key is a part of a key as people read it, such as user=ada: of a limit that was met, or of an
	// attribute that its rule looked at.
	Key string
	// After and Before bound the time. Decisions at After itself fit, except the one with the id
	// AfterID. Decisions at Before do not.
	After, Before time.Time
	AfterID       weir.DecisionID
	N             int // at most so many; 0 means all
}

// List returns the decisions that match q, newest first.
func (b *Buffer) List(q Query) []Entry {
	var found []Entry
	b.each(func(s *slot) bool {
		if s.id.Load() == 0 {
			return true
		}
		s.mu.Lock()
		e, ok := Entry{}, false
		if q.After.IsZero() || !madeAt(s.data).Before(q.After) {
			e, ok = s.entry()
		}
		s.mu.Unlock()
		if ok && q.fits(&e) {
			found = append(found, e)
		}
		return true
	})
	slices.SortFunc(found, func(x, y Entry) int {
		if c := y.Time.Compare(x.Time); c != 0 {
			return c
		}
		return cmp.Compare(y.seq, x.seq)
	})
	if q.N > 0 && len(found) > q.N {
		found = slices.Clone(found[:q.N])
	}
	return found
}

// Found are decisions, and how many there were.
type Found struct {
	Decisions []Entry `json:"decisions"` // newest first, at most Query.N
	// Seconds counts all decisions that match, even those that Query.N left out, by the second in
	// which they were made (Unix).
	Seconds map[int64]int `json:"seconds,omitempty"`
}

// Count is List with counts. q.After bounds the number of seconds.
func (b *Buffer) Count(q Query) Found {
	most := q.N
	q.N = 0
	list, seconds := b.List(q), map[int64]int{}
	for i := range list {
		seconds[list[i].Time.Unix()]++
	}
	if most > 0 && len(list) > most {
		list = slices.Clone(list[:most])
	}
	return Found{list, seconds}
}

// each calls f for all slots until it returns false.
func (b *Buffer) each(f func(*slot) bool) {
	for _, part := range [...][]ring{b.refused, b.others} {
		for i := range part {
			for k := range part[i].slots {
				if !f(&part[i].slots[k]) {
					return
				}
			}
		}
	}
}

// instant returns when d was made, in µs: by the store's clock or, if the store was not asked, by
// this process's.
func instant(d *weir.Decision) int64 {
	if d.Time != 0 {
		return d.Time
	}
	return time.Now().UnixMicro()
}
