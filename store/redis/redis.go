// Package redis keeps counters in Redis 7 or Valkey, so that any number of nodes enforce one limit
// as one node would: standalone, Sentinel, or Cluster. docs/operating/redis.md says what it
// promises in each failure.
//
// A decision takes this way; each step names its file:
//
//   - Take checks whether a refusal of one of the keys is remembered, and answers from memory if so
//     (take.go, refusals.go). It finds the partition of the keys; a call over several partitions
//     asks all of them, and gives back what must not stay charged (across.go).
//   - The charges become a call: its operands are the states that it reads and writes, with their
//     keys (call.go, operand.go; the stored forms and the description of a limit are in codec.go,
//     and the description of a schedule in schedule.go).
//   - The call joins the queue of its partition (partition.go), and its caller waits for as long as
//     the server shows signs of life (store/internal/waiting).
//   - The queue is sent as one batch, in which equal calls are merged (batch.go), with a client
//     that repeats nothing by itself (client.go, connections.go). If the answer is lost, the batch
//     is sent again, and Redis makes it once (again.go).
//   - Redis decides the batch with a function of weir.lua, which library.go loads. The reply holds
//     the states before the call.
//   - The node makes the same decisions on those states, to compute complete results, and checks
//     that both admit the same number (replay.go). deliver hands the results to the callers
//     (partition.go).
//   - What Lua leaves undecided, this node decides by compare-and-swap (swap.go), one at a time in
//     each partition (swapqueue.go).
//   - A caller that gives up gets an error from which the outcome can be learned later
//     (outcome.go).
//
// Beside that: reservations (reserve.go), facts that all nodes share (board.go), key inspection
// (inspect.go), and the number of nodes alive (nodes.go).
package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Options configure Open. URL is required; the zero value of every other field suits most.
type Options struct {
	// URL is the address of Redis, with the user to log in as:
	//
	//	redis://user:password@host:6379/0                      a server
	//	redis+sentinel://user:password@host:26379,host2/master/0   the master that these Sentinels know by that name
	//	redis+cluster://user:password@host:6379,host2:6379     a Cluster
	//
	// rediss in place of redis means TLS. Query parameters are listed in docs/operating/redis.md.
	URL string
	// Prefix begins every key; "" means "weir:". Stores of one prefix on one Redis share their
	// counters.
	Prefix string
	// Partitions is the number of parts into which a Cluster's keys fall; all nodes must agree. 0
	// means DefaultPartitions.
	Partitions int
	// Connections is the number of TCP connections to each server, a power of 2; 0 means 1. More
	// are needed only where one connection cannot carry the traffic.
	Connections int
	// Timeout is how long one call to Redis may take, with all attempts to get its answer, before
	// its outcome counts as unknown; 0 means 1 s. Time in which this process did not run is not
	// counted. It is not the deadline of a decision, which the caller's context (or package
	// fallback) sets: it bounds how long a hanging call keeps the next one of its partition
	// waiting.
	Timeout time.Duration
	// RememberRefusals is how long at most this node repeats a refusal without asking Redis; 0
	// means never. A second is good. Of limits that lend to other regions it is 100 ms at most.
	RememberRefusals time.Duration
	// Heartbeat is the interval of this node's heartbeats, by which all nodes know how many there
	// are; 0 means none. A node without one for five intervals counts as gone.
	Heartbeat time.Duration
	// Logger gets warnings for operators (a connection that cannot be made, keys that could be
	// evicted); nil means that nothing is logged.
	Logger *slog.Logger
	// Clock is for tests: it returns the instant of each call, in µs since the Unix epoch, in
	// place of Redis' TIME. Keys then never expire.
	Clock func() int64
}

// The defaults of Options.
const (
	DefaultPrefix     = "weir:"
	DefaultPartitions = 32
	DefaultTimeout    = time.Second
)

// Store implements store.Store. Make one with Open. Safe for concurrent use.
//
// A call whose answer was lost is sent again, and made once (again.go). If its outcome cannot be
// found out, it counts as charged.
type Store struct {
	o          Options
	target     *target
	partitions []*partition
	codecs     codecs
	refusals   *refusals // nil: none are remembered
	calls      sync.Pool // *call
	metrics    metrics
	name       string // of this node
	// Redis' clock minus this node's monotonic one, in µs, by the last reply
	offset    atomic.Int64
	live      atomic.Int64  // nodes
	sweeps    atomic.Uint64 // calls of Expired
	claims    claims        // that failed
	disagreed atomic.Bool

	open    connections
	clients atomic.Pointer[clients]
	failure atomic.Pointer[error] // why there are none
	loading sync.Mutex
	scripts atomic.Bool // a server is too old for functions
	// no master was found when the functions were last loaded
	masterless atomic.Bool
	stop       context.CancelFunc
	ctx        context.Context
	life       struct {
		mu     sync.Mutex
		closed bool
		work   sync.WaitGroup
	}
}

var _ store.Store = (*Store)(nil)

var (
	errClosed  = errors.New("redis store: it is closed")
	errLengths = errors.New("redis store: there must be one result for each charge")
)

// Open returns a store. Redis need not be reachable: until it is, every call fails at once. An
// error means that the options make no sense.
func Open(o Options) (*Store, error) {
	t, err := parseURL(o.URL)
	if err != nil {
		return nil, err
	}
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.Partitions == 0 {
		o.Partitions = DefaultPartitions
	}
	if o.Connections == 0 {
		o.Connections = 1
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case strings.ContainsAny(o.Prefix, "{}"):
		return nil, fmt.Errorf("redis store: the prefix %q must not contain { or }, which choose a slot of a Cluster",
			o.Prefix)
	case o.Partitions < 1 || o.Partitions > slots:
		return nil, fmt.Errorf("redis store: the number of partitions is %d; it must be from 1 to %d", o.Partitions,
			slots)
	case o.Connections < 1 || o.Connections > 64 || o.Connections&(o.Connections-1) != 0:
		return nil, fmt.Errorf("redis store: the number of connections is %d; it must be a power of 2, up to 64",
			o.Connections)
	case o.Timeout < 0 || o.RememberRefusals < 0 || o.Heartbeat < 0:
		return nil, fmt.Errorf(
			"redis store: Timeout (%v), RememberRefusals (%v) and Heartbeat (%v) must not be negative", o.Timeout, o.RememberRefusals, o.Heartbeat)
	}
	s := &Store{o: o, target: t, name: strconv.FormatUint(newSlot(), 36)}
	s.calls.New = func() any { return &call{done: make(chan struct{}, 1)} }
	s.noteClock(time.Now().UnixMicro())
	if o.RememberRefusals > 0 {
		s.refusals = newRefusals(s, o.RememberRefusals)
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	tags := []string{""}
	if t.cluster {
		tags = hashTags(o.Partitions)
	}
	for i, tag := range tags {
		p := &partition{store: s, number: i, prefix: o.Prefix + formatVersion + tag, wake: make(chan struct{}, 1),
			swapLock: make(chan struct{}, 1), swapLane: newLane()}
		p.scriptKeys = p.prefix + ":script:"
		p.lane = newLane()
		p.detector.Begin(s.monotonic())
		s.partitions = append(s.partitions, p)
		s.background(p.run)
	}
	s.connect()
	return s, nil
}

// formatVersion is part of every key, so that states of another form have other keys.
const formatVersion = "1"

// appendKey appends the key of a value in Redis: the partition's prefix, the identity of the
// counter or group, and the key.
func (p *partition) appendKey(dst []byte, id uint64, key []byte) []byte {
	dst = append(dst, p.prefix...)
	dst = append(dst, byte(id>>56), byte(id>>48), byte(id>>40), byte(id>>32), byte(id>>24), byte(id>>16), byte(id>>8),
		byte(id))
	return append(dst, key...)
}

// partitionOf returns the partition of all limits of a subject.
func (s *Store) partitionOf(c *rule.Counter, key []byte) *partition {
	if len(s.partitions) == 1 {
		return s.partitions[0]
	}
	h := xxhash.Sum64(key)
	if len(key) == 0 { // a global limit
		h = xxhash.Sum64String(c.Domain)
	}
	return s.partitions[h%uint64(len(s.partitions))]
}

// Parts implements store.Parted: it returns the number of partitions, which is 1 except in a
// Cluster.
func (s *Store) Parts() int { return len(s.partitions) }

// PartOf implements store.Parted.
func (s *Store) PartOf(c *rule.Counter, key []byte) int { return s.partitionOf(c, key).number }

// PartOfID implements store.Parted.
func (s *Store) PartOfID(id string) int {
	p, _ := s.reservationKeys(id)
	return p.number
}

// monotonic is this node's clock, in ns.
func (s *Store) monotonic() int64 { return store.Monotonic() }

// noteClock notes an instant that Redis' clock has just shown.
func (s *Store) noteClock(now int64) { s.offset.Store(now - s.monotonic()/1000) }

// estimatedNow returns roughly the instant at which Redis will run a call that is sent now.
func (s *Store) estimatedNow() int64 {
	if s.o.Clock != nil {
		return s.o.Clock()
	}
	return s.offset.Load() + s.monotonic()/1000
}

// virtualNow returns the instant of Options.Clock for ARGV; "" without one.
func (s *Store) virtualNow() string {
	if s.o.Clock == nil {
		return ""
	}
	return fmt.Sprint(s.o.Clock())
}

// codecs caches the codecs of limits.
type codecs struct {
	m sync.Map // *algo.Limit → *twin
	n atomic.Int64
}

// maxCodecs bounds the cache. A reload makes new limits, an elastic rule has up to a hundred for
// each window, and requests can bring some. A codec that is forgotten is made again when it is
// needed.
const maxCodecs = 16384

func (s *Store) codecOf(l *algo.Limit) *codec {
	if t, ok := s.codecs.m.Load(l); ok {
		return t.(*codec)
	}
	if s.codecs.n.Add(1) > maxCodecs {
		s.codecs.m.Clear()
		s.codecs.n.Store(1)
	}
	t := newCodec(l)
	s.codecs.m.Store(l, t)
	return t
}

// newSlot returns an id for the slots of a Concurrency limit: never 0, and impossible to guess.
func newSlot() uint64 {
	for {
		if slot := rand.Uint64(); slot != 0 {
			return slot
		}
	}
}

// disagree notes that Lua and algo did not admit the same number of decisions. That is a defect.
func (s *Store) disagree(here, there int) {
	s.disagreeOn(fmt.Sprintf("of a batch of decisions Redis admitted %d and this node %d", there, here))
}

// disagreeOn notes a disagreement of Lua and algo.
func (s *Store) disagreeOn(what string) {
	s.metrics.disagreements.Add(1)
	if !s.disagreed.Swap(true) {
		s.o.Logger.Warn(fmt.Sprintf("redis store: %s; this is a defect in weir, please report it", what))
	}
}

// background runs f in a goroutine that Close waits for. After Close it does nothing and reports
// false.
func (s *Store) background(f func()) bool {
	s.life.mu.Lock()
	defer s.life.mu.Unlock()
	if s.life.closed {
		return false
	}
	s.life.work.Go(f)
	return true
}

// Close stops the store's goroutines, and announces to the other nodes that this one leaves. Calls
// under way fail. It returns nil; a second Close does nothing.
func (s *Store) Close() error {
	s.life.mu.Lock()
	closed := s.life.closed
	s.life.closed = true
	s.life.mu.Unlock()
	if closed {
		return nil
	}
	s.leave()
	s.stop()
	for _, p := range s.partitions {
		p.close()
	}
	s.life.work.Wait()
	if c := s.clients.Load(); c != nil {
		c.close()
	}
	return nil
}
