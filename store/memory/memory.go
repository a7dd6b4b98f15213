// Package memory keeps counters in this process: sharded, bounded, with an optional snapshot file.
//
// Begin with Store.Take (memory.go), which decides on a single charge itself and leaves calls of
// several to simple.go and take.go. A shard (shard.go) is the hash table with a part of the keys;
// bound.go forgets keys when the store is full, and limits.go numbers the limits that records refer
// to. snapshot.go writes the file, with definition.go; loading.go and reading.go read it.
// board.go, reserve.go, settle.go, lease.go, regional.go and inspect.go implement the optional
// interfaces of package store.
package memory

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Options configure New. The zero value is right for most.
type Options struct {
	MaxKeys  int   // bound on keys; 0 means 10,000,000
	MaxBytes int64 // bound on bytes; 0 means 1 GiB
	// Clock returns µs since the Unix epoch; nil means the wall clock. It is called once for a
	// Take, before any lock is taken, and seldom again; and once more with the locks held if a Take
	// with a later reading came first. It must be safe for concurrent use if the store is used so.
	Clock func() int64
	// Snapshot is the path of the snapshot file; "" means none. Its folder must exist.
	Snapshot string
	// SnapshotEvery is the interval between snapshots; 0 means 10 s.
	SnapshotEvery time.Duration
	// MaxReservations bounds the reservations that are held at a time (store.Reserver); 0 means
	// 100,000.
	MaxReservations int
	// Logger gets warnings for an operator (a damaged snapshot set aside, a failed write); nil
	// means that nothing is logged.
	Logger *slog.Logger
}

// The defaults of Options.
const (
	DefaultMaxKeys       = 10_000_000
	DefaultMaxBytes      = 1 << 30
	DefaultSnapshotEvery = 10 * time.Second
)

// maxShards bounds the number of shards; small stores have fewer.
const maxShards = 256

// Store implements store.Store. Make one with New.
//
// All limits of one key live in one shard, under one lock; a Take locks the shards of its keys in
// ascending order, so that it is one step. The instants that Take returns never go back in the
// order in which decisions on one key were made, unless the clock itself was set back: a Take that
// was overtaken between reading the clock and getting the lock reads the clock again.
//
// A state that equals a fresh one is forgotten for free, a few at each insertion. At the bound
// other keys are forgotten: expired ones, then those furthest from their limit, never one that is
// refused now, nor one with units lent. A key that finds no room is charged on one of about a
// thousand cells that the keys of its counter share, and that lie outside the bound.
type Store struct {
	seed     hashSeed
	shift    uint // of a hash, to get the shard
	shards   []shardCell
	clock    func() int64 // nil: wall
	maxKeys  int64
	maxBytes int64
	wall     wallClock
	limits   limitTable
	scratch  sync.Pool // *scratch
	log      *slog.Logger

	_         [64]byte
	keys      atomic.Int64
	bytes     atomic.Int64
	evictions atomic.Uint64
	overflows atomic.Uint64
	victim    atomic.Uint32

	board    board
	regional regional

	reservations reservations

	snapshot snapshots
	life     struct {
		mu     sync.Mutex
		closed bool
		wg     sync.WaitGroup
	}
}

// shardCell fills whole cache lines, so that two shards share none, and the fields that a decision
// reads and writes lie in the first of them.
type shardCell struct {
	shard
	_ [16]byte
}

var (
	_ store.Store  = (*Store)(nil)
	_ store.Prompt = (*Store)(nil)
)

// New returns a store, with the counters of the snapshot file if there is one. A damaged snapshot
// is set aside (see Options.Logger) and the store begins empty. Errors are of options that make no
// sense, and of a snapshot file that can be neither read nor set aside.
func New(o Options) (*Store, error) {
	if o.MaxKeys < 0 || o.MaxBytes < 0 || o.SnapshotEvery < 0 || o.MaxReservations < 0 {
		return nil, fmt.Errorf(
			"memory store: MaxKeys (%d), MaxBytes (%d), SnapshotEvery (%v) and MaxReservations (%d) must not be negative; 0 means the default",
			o.MaxKeys, o.MaxBytes, o.SnapshotEvery, o.MaxReservations)
	}
	s := &Store{seed: newHashSeed(), clock: o.Clock, log: o.Logger}
	s.maxKeys = int64(o.MaxKeys)
	if s.maxKeys == 0 {
		s.maxKeys = DefaultMaxKeys
	}
	s.maxBytes = o.MaxBytes
	if s.maxBytes == 0 {
		s.maxBytes = DefaultMaxBytes
	}
	s.reservations.most = o.MaxReservations
	if s.reservations.most == 0 {
		s.reservations.most = DefaultMaxReservations
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	n := maxShards
	for n > 1 && (s.maxKeys < int64(n)*128 || s.maxBytes < int64(n)*(32<<10)) {
		n /= 2
	}
	s.shards = make([]shardCell, n)
	s.shift = uint(64 - bits.TrailingZeros(uint(n)))
	s.wall.init()
	s.limits.init()
	s.scratch.New = func() any { return new(scratch) }
	if o.Snapshot != "" {
		if err := s.startSnapshots(o.Snapshot, o.SnapshotEvery); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Store) now() int64 {
	if s.clock == nil {
		return s.wall.now()
	}
	return s.clock()
}

// overtaken returns the instant of a decision in a shard where another one was made with a later
// reading of the clock, at last.
func (s *Store) overtaken(last int64) int64 {
	now := s.now()
	if s.clock == nil && now < last && last-now < 1000 {
		return last // the wall clock was adjusted by less than a millisecond
	}
	return now
}

// hash returns the hash of a key. Its upper bits choose the shard.
func (s *Store) hash(key []byte) uint64 { return s.seed.sum(key) }

// newSlot returns an id for the slots of a Concurrency limit, never 0 and not to be guessed.
func newSlot() uint64 {
	for {
		if slot := rand.Uint64(); slot != 0 {
			return slot
		}
	}
}

var errLengths = errors.New("memory store: there must be one result for each charge")

func errIncomplete(i int) error {
	return fmt.Errorf("memory store: charge %d needs a Counter and a Limit", i)
}

// Take implements store.Store. It takes microseconds and never waits for anything but other
// decisions on the same keys, so it does not look at ctx.
func (s *Store) Take(_ context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	if len(charges) != len(results) {
		return 0, errLengths
	}
	if len(charges) != 1 {
		if now, ok := s.takeSimple(charges, results); ok {
			return now, nil
		}
		return s.takeAll(charges, nil, results)
	}
	c := &charges[0]
	if c.Counter == nil || c.Limit == nil {
		return 0, errIncomplete(0)
	}
	if twofold(c) {
		return s.takeAll(charges, nil, results)
	}
	return s.takeOne(c, &results[0]), nil
}

// TakeNow implements store.Prompt. It fails where Take fails.
func (s *Store) TakeNow(charges []store.Charge, results []algo.Result) (now int64, ok bool) {
	now, err := s.Take(context.Background(), charges, results)
	return now, err == nil
}

// twofold reports whether a charge's limit keeps a second state under the same key: the state of a
// soft margin that closes, or the record of the units lent.
func twofold(c *store.Charge) bool {
	return c.Counter.Margin != nil && c.Limit.Margin() != nil || c.Counter.Lease != nil && c.Limit.Lease() != nil
}

// besideOf returns the identity of the record beside the states of c, and the definition under
// which a key with the numbers of l keeps it; nil if there is none.
func besideOf(c *rule.Counter, l *algo.Limit) (*rule.Counter, *algo.Limit) {
	if m := l.Margin(); m != nil && c.Margin != nil {
		if all := c.Margin.Limit; all != nil && all.Algorithm() == algo.Margin {
			m = all // one for all numbers that the limit may have
		}
		return c.Margin, m
	}
	if n := l.Lease(); n != nil && c.Lease != nil {
		if all := c.Lease.Limit; all != nil && all.Algorithm() == algo.Lease && !carries(n, all) &&
			all.Config().Window >= n.Config().Window {
			n = all
		}
		return c.Lease, n
	}
	return nil, nil
}

// takeOne is Take for one charge: one clock reading, one lock, one search.
func (s *Store) takeOne(c *store.Charge, out *algo.Result) int64 {
	// before the clock, which waits for all memory accesses under way: the key may be one
	h := s.hash(c.Key)
	tag := tagOf(h, c.Counter.ID)
	sh := &s.shards[h>>s.shift].shard
	var now int64
	if s.clock == nil {
		now = s.wall.now()
	} else {
		now = s.clock()
	}
	sh.lock()
	defer sh.mu.Unlock()
	if now < sh.last {
		now = s.overtaken(sh.last)
	}
	sh.last = now
	sh.dirty = true
	limits := s.limits.load()
	p := sh.find(limits, tag, c.Counter.ID, c.Key)
	if p < 0 {
		if p = s.previous(sh, c.Counter, c.Limit, c.Key, h, now); p < 0 {
			ask := askOf(c)
			*out = s.takeAbsent(sh, c, ask, h, now)
			c.Ask.Slot = slotOf(ask, out)
			return now
		}
	} else if e := &limits[sh.slots[p].limit()]; e.limit != c.Limit || e.counter != c.Counter {
		s.relimit(sh, p, e.limit, c.Counter, c.Limit, now)
	}
	sl := &sh.slots[p]
	st := algo.State{A: sl.a, B: sl.b, C: sl.c}
	if !sl.long() && !c.Limit.HasSlots() {
		c.Limit.TakeInto(out, &st, now, &c.Ask)
		sl.a, sl.b, sl.c = st.A, st.B, st.C
		sl.meta |= slotChanged
		if cap(st.Ext) != 0 {
			s.grown(sh, sh.storeExt(sl, st.Ext), now)
		}
		return now
	}
	sh.load(p, &st)
	ask := askOf(c)
	*out = c.Limit.Take(&st, now, ask)
	s.grown(sh, sh.store(p, &st), now)
	c.Ask.Slot = slotOf(ask, out)
	return now
}

// askOf returns a charge's Ask, with a new slot id for a Concurrency limit.
func askOf(c *store.Charge) algo.Ask {
	ask := c.Ask
	ask.Slot = 0
	if c.Limit.HasSlots() {
		ask.Slot = newSlot()
	}
	return ask
}

// grown accounts for the growth of a variable part.
func (s *Store) grown(sh *shard, bytes int, now int64) {
	if bytes != 0 && s.bytes.Add(int64(bytes)) > s.maxBytes {
		s.relieve(sh, now)
	}
}

// slotOf returns the id to give to the caller: 0 unless slots were taken.
func slotOf(ask algo.Ask, r *algo.Result) uint64 {
	if !r.Allowed || r.Off || ask.Cost <= 0 {
		return 0
	}
	return ask.Slot
}

// relimit moves a record to another definition of the same counter. old is the one it was last
// charged under.
func (s *Store) relimit(sh *shard, p int, old *algo.Limit, c *rule.Counter, l *algo.Limit, now int64) {
	if old != l {
		if carries(old, l) {
			var st algo.State
			sh.load(p, &st)
			s.rollBeside(sh, c, old, sh.keyOf(p), s.hash(sh.keyOf(p)), &st, now)
			l.Carry(old, &st, now)
			if grown := sh.store(p, &st); grown != 0 {
				s.bytes.Add(int64(grown))
			}
		} else if stands(l) {
			l = old
		}
	}
	sh.slots[p].setLimit(s.intern(c, l))
	sh.slots[p].meta |= slotChanged
	sh.dirty = true
}

// stands reports whether nothing drains under a limit. An elastic limit can be so for a time, and a
// state kept under it would never become fresh again.
func stands(l *algo.Limit) bool {
	c := l.Config()
	return c.N == 0 && !l.Scheduled() && c.Algorithm.HasBurst()
}

// previous looks for a key under the older identities of its counter, and moves a state that it
// finds to the new identity. It returns the new place, below 0 if there was no state or nothing is
// left of it.
func (s *Store) previous(sh *shard, c *rule.Counter, l *algo.Limit, key []byte, h uint64, now int64) int {
	for _, older := range c.Previous {
		limits := s.limits.load()
		var st algo.State
		old := older.Limit
		switch p := sh.find(limits, tagOf(h, older.ID), older.ID, key); {
		case p >= 0:
			old = limits[sh.load(p, &st)].limit
			s.remove(sh, p)
		case old == nil || s.lent(sh, older, key, h) < 0:
			continue
		}
		if old.Algorithm() != l.Algorithm() {
			continue
		}
		s.rollBeside(sh, older, old, key, h, &st, now)
		l.Carry(old, &st, now)
		if st.B == 0 || c.Lease == nil && l.Fresh(&st, now) { // else see owes
			continue
		}
		s.keys.Add(1)
		p, grown := sh.insert(tagOf(h, c.ID), key, s.intern(c, l), &st)
		s.bytes.Add(int64(grown))
		sh.dirty = true
		return p
	}
	return -1
}

// takeAbsent charges a key that has no record, and makes one if anything is left to remember.
func (s *Store) takeAbsent(sh *shard, c *store.Charge, ask algo.Ask, h uint64, now int64) algo.Result {
	var st algo.State
	cell := s.cell(sh, c.Counter, c.Limit, h, now)
	if cell != nil {
		if c.Limit.HasSlots() {
			return s.takeCell(sh, cell, c, ask, h, now)
		}
		st = clone(&cell.st) // else the key would get a second share
	}
	r := c.Limit.Take(&st, now, ask)
	if ask.Cost == 0 || c.Limit.Fresh(&st, now) {
		return r
	}
	if !s.reserve(sh, len(c.Key), now) {
		return s.takeCell(sh, s.makeCell(sh, c.Counter, c.Limit, h, now), c, ask, h, now)
	}
	s.insert(sh, tagOf(h, c.Counter.ID), c.Key, s.intern(c.Counter, c.Limit), &st, now)
	return r
}

func (s *Store) takeCell(sh *shard, cell *overflowCell, c *store.Charge, ask algo.Ask, h uint64,
	now int64) algo.Result {
	s.overflows.Add(1)
	return c.Limit.Take(&cell.st, now, ask)
}

func clone(st *algo.State) algo.State {
	c := *st
	c.Ext = append([]byte(nil), st.Ext...)
	return c
}

// Release implements store.Store. It returns no error.
func (s *Store) Release(_ context.Context, c *rule.Counter, key []byte, slot uint64) (bool, error) {
	if c == nil {
		return false, errors.New("memory store: Release needs a Counter")
	}
	now := s.now()
	h := s.hash(key)
	sh := &s.shards[h>>s.shift].shard
	sh.lock()
	defer sh.mu.Unlock()
	limits := s.limits.load()
	if p := sh.find(limits, tagOf(h, c.ID), c.ID, key); p >= 0 {
		var st algo.State
		l := limits[sh.load(p, &st)].limit
		if !l.HasSlots() {
			return false, nil
		}
		ok := l.Release(&st, now, slot)
		s.bytes.Add(int64(sh.store(p, &st)))
		if l.Fresh(&st, now) {
			s.remove(sh, p)
		}
		if ok {
			return true, nil
		}
	}
	if cell := sh.overflow[s.overflowKey(c.ID, h)]; cell != nil && cell.limit.HasSlots() {
		return cell.limit.Release(&cell.st, now, slot), nil
	}
	return false, nil
}

// background runs f in a goroutine that Close waits for. After Close it does nothing.
func (s *Store) background(f func()) {
	s.life.mu.Lock()
	defer s.life.mu.Unlock()
	if !s.life.closed {
		s.life.wg.Go(f)
	}
}

// Close stops the background goroutines and writes a last snapshot, whose error it returns. The
// store goes on deciding, but writes nothing more. A second Close does nothing.
func (s *Store) Close() error {
	s.life.mu.Lock()
	closed := s.life.closed
	s.life.closed = true
	s.life.mu.Unlock()
	if closed {
		return nil
	}
	if s.snapshot.stop != nil {
		close(s.snapshot.stop)
	}
	s.life.wg.Wait()
	if s.snapshot.path == "" {
		return nil
	}
	return s.writeSnapshot()
}

// Stats is a reading of the store's size and doings.
type Stats struct {
	// records held, including fresh ones that are not forgotten yet, and without the records of a
	// snapshot that are not loaded yet
	Keys      int64
	Bytes     int64  // memory of the records: index, arena with its spare room, and variable parts
	Evictions uint64 // keys forgotten though they were not fresh, since the bound was reached
	Overflows uint64 // decisions made on a shared overflow cell

	Reservations int64 // notes held
}

// Stats returns a reading.
func (s *Store) Stats() Stats {
	s.reservations.mu.Lock()
	held := len(s.reservations.byID)
	s.reservations.mu.Unlock()
	return Stats{
		Keys:      s.keys.Load(),
		Bytes:     s.bytes.Load(),
		Evictions: s.evictions.Load(),
		Overflows: s.overflows.Load(),

		Reservations: int64(held),
	}
}
