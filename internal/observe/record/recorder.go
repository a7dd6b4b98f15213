// Package record keeps the requests of a sample of clients, so that other rules can be tried on
// them (package preview).
//
// Begin with Recorder (recorder.go), which listens behind weir.Hooks. It selects by client before
// it copies anything, and writes the selected requests into staging buffers (entry.go). One
// goroutine moves them from there into a ring of compressed chunks (ring.go, chunk.go). Gather
// brings the records of all nodes together (record.go, nodes.go), and a Reader reads them in order
// (reader.go, request.go).
package record

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/internal/observe"
	"github.com/weir-rl/weir/rule"
)

// Options configure NewRecorder. The zero value is right for most.
type Options struct {
	// Bytes bounds the memory of the record with everything that belongs to it; 0 means 16 MiB, and
	// less than MinBytes is an error.
	Bytes int64
	// PerSecond bounds the requests that are taken in a second; 0 means 1,000.
	PerSecond int
	// Reach is how far back the record should reach. Clients are left out only to get there; 0
	// means 2 hours.
	Reach time.Duration
	// Known names attributes that say who a client is; none means user.
	Known []string
	// Hide names attributes whose values are not kept. Attributes whose names suggest a secret are
	// hidden anyway.
	Hide []string
	// Fresh says that the counters began empty together with the recorder. Then no part of the
	// record is needed to warm up.
	Fresh bool
	// Clock returns the time of requests that asked no store, in µs since the Unix epoch; nil is
	// the wall clock.
	Clock func() int64
}

// Bounds and defaults of Options.
const (
	MinBytes         = 1 << 20
	defaultBytes     = 16 << 20
	defaultPerSecond = 1000
	defaultReach     = 2 * time.Hour
)

// Strata is how many strata of clients there are, from 0. The number of leading zeros of a client's
// hash is its stratum: half of all clients are in stratum
// 0, a quarter in 1, and so on; the last stratum takes the rest. The strata from j on are a sample
// of 1 in 2^j.
const Strata = 17

const (
	tick       = 250 * time.Millisecond
	buffers    = 8      // of staging
	lowerAge   = 60 * 4 // ticks without a gap after which one more stratum may be taken
	countTicks = 16     // ticks over which requests are counted, to see if one more stratum fits
	keepGaps   = 64     // the last ones
)

// Recorder records requests. Safe for concurrent use. Make one with NewRecorder, give its Hooks to
// the limiter, and start Run.
type Recorder struct {
	o    Options
	seed atomic.Uint64 // of the hashes of clients, and of secrets

	// On the deciding path:
	closed atomic.Bool   // no more is taken in this tick
	level  atomic.Uint32 // the first stratum that is taken
	left   atomic.Int64  // requests that may be taken until the next tick
	beside atomic.Int64  // requests of the stratum below level, estimated
	names  atomic.Pointer[names]
	turn   atomic.Uint32
	stage  [buffers]staging
	lost   atomic.Uint64 // requests for which no buffer was free
	wake   chan struct{}

	mu struct {
		sync.Mutex
		ring    *ring
		pending []entry // of the last tick, sorted
		arena   []byte  // the staging bytes that pending points into
		spare   []byte
		gaps    []Gap
		changes []int64 // when other rules came into force
		ticks   int     // since the last gap
		taken   int64   // since beside was reset
		all     uint64  // requests taken
		closed  int64   // ticks in which not all was taken
		since   int64   // ticks since taken was reset
		lostAt  uint64
	}
	shown struct {
		sync.Mutex
		list []shown // the last one last
	}
}

// Gap is a time in which requests of the sample were left out.
type Gap struct{ From, To int64 }

// staging is a buffer for the requests that were just recorded. A caller that finds it locked takes
// another one.
type staging struct {
	mu  sync.Mutex
	buf []byte
	sum []byte // for hidden values
	// For the request that is being written: the names of its attributes, and where in buf its
	// values must end so that the rest has room.
	shape []string
	room  int
	_     [64]byte
}

const stagingBytes = 32 << 10

// NewRecorder returns a recorder that has recorded nothing.
func NewRecorder(o Options) (*Recorder, error) {
	if o.Bytes == 0 {
		o.Bytes = defaultBytes
	}
	if o.PerSecond == 0 {
		o.PerSecond = defaultPerSecond
	}
	if o.Reach == 0 {
		o.Reach = defaultReach
	}
	if len(o.Known) == 0 {
		o.Known = []string{"user"}
	}
	if o.Clock == nil {
		o.Clock = func() int64 { return time.Now().UnixMicro() }
	}
	switch {
	case o.Bytes < MinBytes:
		return nil, fmt.Errorf("the record of requests has %d bytes; give it at least %d, or 0 for none", o.Bytes,
			MinBytes)
	case o.PerSecond < 0 || o.Reach < 0:
		return nil, fmt.Errorf("the record of requests: PerSecond (%d) and Reach (%v) must not be negative",
			o.PerSecond, o.Reach)
	}
	r := &Recorder{o: o, wake: make(chan struct{}, 1)}
	r.seed.Store(rand.Uint64())
	for i := range r.stage {
		r.stage[i].buf, r.stage[i].shape = make([]byte, 0, r.stageBytes()), make([]string, 0, maxAttributes)
	}
	// Staged bytes may exist two more times: until they are sorted, and after they were read last.
	ring, err := newRing(o.Bytes-3*int64(buffers*r.stageBytes()), o.Reach.Microseconds(), o.Clock())
	if err != nil {
		return nil, err
	}
	r.mu.ring = ring
	r.left.Store(int64(o.PerSecond))
	return r, nil
}

// Options returns the options that r works with, defaults filled in.
func (r *Recorder) Options() Options { return r.o }

// stageBytes returns the size of a staging buffer, which is smaller if there is little memory.
func (r *Recorder) stageBytes() int { return int(min(stagingBytes, r.o.Bytes/128)) }

// SetSeed makes all nodes with the same seed record the same clients. If the seed changes, the
// record is cleared.
func (r *Recorder) SetSeed(seed uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.seed.Swap(seed) != seed {
		r.mu.ring.clear(r.o.Clock())
		r.mu.pending, r.mu.arena = nil, nil
		for i := range r.stage {
			s := &r.stage[i]
			s.mu.Lock()
			s.buf = s.buf[:0]
			s.mu.Unlock()
		}
	}
}

// Hooks returns the hooks for the limiter, if there is no other watcher.
func (r *Recorder) Hooks() weir.Hooks { return observe.NewTally().Join(r) }

// Others implements observe.Watcher.
func (r *Recorder) Others() weir.Hooks {
	return weir.Hooks{Answered: r.answered, RulesChanged: r.rulesChanged}
}

func (r *Recorder) rulesChanged(s *rule.Set, _ uint64) {
	r.names.Store(r.namesOf(s))
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.mu.changes) == keepGaps {
		r.mu.changes = slices.Delete(r.mu.changes, 0, 1)
	}
	r.mu.changes = append(r.mu.changes, r.o.Clock())
}

// The ways to identify the client of a request.
const (
	byUser = iota
	byAddress
	byDescriptors
	byNobody // drawn by chance, request by request
)

// client returns the hash of the client of a request. It is random if there is no client.
func (r *Recorder) client(q *weir.Request, random uint64) (hash uint64, kind byte) {
	if q.Attributes != nil {
		if user, ok := q.Attributes.Attribute("user"); ok && user != "" {
			return observe.HashKey(r.seed.Load(), []byte(user)), byUser
		}
	}
	return r.other(q, random)
}

// other is client for a request without a user.
func (r *Recorder) other(q *weir.Request, random uint64) (hash uint64, kind byte) {
	seed := r.seed.Load()
	if q.Attributes != nil {
		if ip, ok := q.Attributes.Attribute("ip"); ok && ip != "" {
			return observe.HashKey(seed+1, []byte(ip)), byAddress
		}
	}
	if len(q.Descriptors) > 0 {
		return descriptorsHash(seed+2, q.Descriptors), byDescriptors
	}
	return random, byNobody
}

// descriptorsHash returns the hash of a value that names a client or, if there is none, of all
// values.
func descriptorsHash(seed uint64, list []rule.Descriptor) uint64 {
	for _, name := range [...]string{"user", "user_id", "remote_address", "ip"} {
		for i := range list {
			for _, e := range list[i].Entries {
				if e.Key == name && e.Value != "" {
					return observe.HashKey(seed, []byte(e.Value))
				}
			}
		}
	}
	for i := range list {
		for _, e := range list[i].Entries {
			seed = observe.HashKey(observe.HashKey(seed, []byte(e.Key)), []byte(e.Value))
		}
	}
	return seed
}

// latest returns when the last recorded request came, in µs; 0 for none.
func (r *Recorder) latest() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drainLocked()
	return r.mu.ring.latest
}

func stratumOf(hash uint64) int { return min(bits.LeadingZeros64(hash), Strata-1) }

// Decided implements observe.Watcher.
func (r *Recorder) Decided(q *weir.Request, d *weir.Decision, f observe.Facts) {
	if r.closed.Load() || !d.Known || q.Peek || d.WithoutStore != nil {
		return
	}
	hash, kind := r.client(q, f.Random)
	level := int(r.level.Load())
	if s := stratumOf(hash); s < level {
		if s == level-1 && f.Random&15 == 0 {
			r.beside.Add(16)
		}
		return
	}
	n := r.left.Add(-1)
	if n < 0 {
		r.close()
		return
	}
	now := d.Time
	if now == 0 {
		now = r.o.Clock()
	}
	// These belong to another set than d.Rules only while one set replaces the other.
	names := r.names.Load()
	if names == nil {
		return
	}
	s := r.free()
	if s == nil {
		r.lost.Add(1)
		return
	}
	half := r.write(s, names, q, d, now, uint32(n), hash, kind)
	s.mu.Unlock()
	if half {
		r.hurry()
	}
}

// answered records the answer to an admitted request.
func (r *Recorder) answered(q *weir.Request, d *weir.Decision, a weir.Answer) {
	if r.closed.Load() || !d.Known || a.Status == 0 {
		return
	}
	hash, kind := r.client(q, 0)
	if kind == byNobody || stratumOf(hash) < int(r.level.Load()) {
		return
	}
	now := d.Time
	if now == 0 {
		now = r.o.Clock()
	}
	s := r.free()
	if s == nil {
		return
	}
	half := r.writeAnswer(s, now, hash, a.Status)
	s.mu.Unlock()
	if half {
		r.hurry()
	}
}

// free locks a staging buffer that nobody uses; nil if there is none with room.
func (r *Recorder) free() *staging {
	first := r.turn.Add(1)
	for i := range uint32(buffers) {
		s := &r.stage[(first+i)%buffers]
		if !s.mu.TryLock() {
			continue
		}
		if cap(s.buf)-len(s.buf) >= maxEntry {
			return s
		}
		s.mu.Unlock()
	}
	return nil
}

// close stops recording until the next tick.
func (r *Recorder) close() {
	if !r.closed.Swap(true) {
		r.hurry()
	}
}

// hurry wakes Run.
func (r *Recorder) hurry() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run moves requests into the record until ctx ends.
func (r *Recorder) Run(ctx context.Context) {
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
			r.drain()
		case <-t.C:
			r.drain()
			r.settle()
		}
	}
}

// drain moves the contents of the staging buffers into pending, and the earlier contents of pending
// into the ring. Decisions that were made at the same time reach the buffers in no order. So a
// request is sorted among the requests of two rounds.
func (r *Recorder) drain() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.drainLocked()
}

func (r *Recorder) drainLocked() {
	before := len(r.mu.pending)
	newest := int64(0)
	if before > 0 {
		newest = r.mu.pending[before-1].time
	}
	arena := r.mu.spare[:0]
	for i := range r.stage {
		s := &r.stage[i]
		s.mu.Lock()
		arena = append(arena, s.buf...)
		s.buf = s.buf[:0]
		s.mu.Unlock()
	}
	fresh := readStaged(arena)
	all := append(slices.Clip(r.mu.pending), fresh...)
	slices.SortStableFunc(all, compareEntries)
	n := 0
	for n < len(all) && all[n].time <= newest && before > 0 {
		r.mu.ring.add(&all[n])
		n++
	}
	r.mu.taken += int64(len(fresh))
	for i := range fresh {
		if fresh[i].flags&flagAnswer == 0 {
			r.mu.all++
		}
	}
	// Entries that stay point into both arenas.
	stay := slices.Clone(all[n:])
	var keep []byte
	for i := range stay {
		stay[i] = stay[i].into(&keep)
	}
	r.mu.pending, r.mu.spare, r.mu.arena = stay, arena, keep
}

// settle ends a tick: it adapts the sample to the rate of requests.
func (r *Recorder) settle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.o.Clock()
	g := r.mu.ring
	r.mu.ticks++
	r.mu.since++
	lost, perTick := r.lost.Load(), max(int64(r.o.PerSecond)*int64(tick)/int64(time.Second), 1)
	if closed := r.closed.Load(); closed || lost != r.mu.lostAt {
		// All of this tick was too much, even if only its end was left out.
		r.gap(now-tick.Microseconds(), now)
		r.mu.lostAt, r.mu.ticks = lost, 0
		r.mu.closed++
		if closed {
			r.raise(g, now)
		}
	} else if r.mu.since >= countTicks {
		if n := r.level.Load(); n > 0 && r.mu.ticks >= lowerAge && (r.mu.taken+r.beside.Load())/r.mu.since < perTick/2 {
			g.begin(int(n-1), now)
			r.level.Store(n - 1)
			r.mu.ticks = 0
		}
		r.mu.taken, r.mu.since = 0, 0
		r.beside.Store(0)
	}
	// A token bucket: bursts are recorded.
	r.left.Store(min(max(r.left.Load(), 0)+perTick, int64(r.o.PerSecond)))
	r.closed.Store(false)
}

// raise drops one more stratum.
func (r *Recorder) raise(g *ring, now int64) {
	if n := r.level.Load(); n < Strata-1 {
		r.level.Store(n + 1)
		g.end(int(n), now)
	}
	r.mu.taken, r.mu.since = 0, 0
	r.beside.Store(0)
}

func (r *Recorder) gap(from, to int64) {
	if n := len(r.mu.gaps); n > 0 && r.mu.gaps[n-1].To >= from {
		r.mu.gaps[n-1].To = to
		return
	} else if n == keepGaps {
		// The two oldest gaps become one: the time between them counts as missing, too.
		r.mu.gaps[1].From = r.mu.gaps[0].From
		r.mu.gaps = slices.Delete(r.mu.gaps, 0, 1)
	}
	r.mu.gaps = append(r.mu.gaps, Gap{from, to})
}

// Stats describes the content of a recorder.
type Stats struct {
	Requests uint64    // recorded, and not forgotten yet
	Bytes    int64     // of memory, estimated
	Limit    int64     // of Bytes
	Taken    uint64    // requests recorded since the start
	Sampled  int       // one client in so many is taken now
	Since    time.Time // since when their requests are there; zero: there are none
	Lost     uint64    // requests dropped for lack of a free buffer, since the start
	// How long, since the start, some requests of these clients were left out, because there were
	// too many.
	Gaps time.Duration
}

// Stats returns the stats of r.
func (r *Recorder) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	g := r.mu.ring
	level := int(r.level.Load())
	s := Stats{Bytes: g.total() + int64(buffers*r.stageBytes()+len(r.mu.arena)+cap(r.mu.spare)), Limit: r.o.Bytes,
		Taken: r.mu.all, Sampled: 1 << level,
		Lost: r.lost.Load(), Gaps: time.Duration(r.mu.closed) * tick}
	for i := range g.strata {
		s.Requests += g.strata[i].count()
	}
	if at := g.reach(level); at != 0 && s.Requests > 0 {
		s.Since = time.UnixMicro(at).UTC()
	}
	return s
}
