// Package redis keeps counters in Redis 7 or Valkey, so that any number of nodes enforce one limit as one node would:
// standalone, Sentinel, or Cluster. How it works and what is promised in each failure is docs/distributed.md.
package redis

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	weir "github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// Options configure Open. URL is required; the zero value of all else is right for most.
type Options struct {
	// URL says where Redis is, and as whom to ask it:
	//
	//	redis://user:password@host:6379/0                      a server
	//	redis+sentinel://user:password@host:26379,host2/master/0   the master that these Sentinels know by that name
	//	redis+cluster://user:password@host:6379,host2:6379     a Cluster
	//
	// With rediss in place of redis, by TLS. Query parameters are told in docs/distributed.md.
	URL string
	// Prefix begins every key; "" means "weir:". Stores of one prefix on one Redis share their counters.
	Prefix string
	// Partitions is the number of parts into which a Cluster's keys fall; all nodes must agree. 0 means DefaultPartitions.
	Partitions int
	// Connections is the number of TCP connections to each server, a power of 2; 0 means 1. More are needed only where one
	// connection cannot carry the traffic.
	Connections int
	// Timeout is how long one call to Redis may take before its outcome counts as unknown; 0 means 1 s. It is not the
	// deadline of a decision, which is the caller's context's (or package fallback's): it bounds how long a Redis that hangs
	// is waited for before it is asked again.
	Timeout time.Duration
	// RememberRefusals is how long at most a refusal is answered by this node itself, without asking Redis; 0 means never.
	// A second is good.
	RememberRefusals time.Duration
	// Heartbeat is the interval at which this node tells that it lives, so that all know how many there are; 0 means
	// never. A node that was not heard of for five intervals counts as gone.
	Heartbeat time.Duration
	// Logf is told of what an operator should know (a connection that cannot be made, keys that could be evicted); nil
	// means nobody.
	Logf func(format string, args ...any)
	// Clock is for tests: it gives the instant of each call instead of Redis' TIME, in µs since the Unix epoch; keys then
	// never expire.
	Clock func() int64
}

// The defaults of Options.
const (
	DefaultPrefix     = "weir:"
	DefaultPartitions = 32
	DefaultTimeout    = time.Second
)

// Store implements weir.Store. Make one with Open. Safe for concurrent use.
//
// A decision whose answer was lost is treated as charged; nothing is ever asked twice, unless Redis said that it did not
// do it.
type Store struct {
	o          Options
	target     *target
	partitions []*partition
	twins      twins
	refusals   *refusals // nil: none are remembered
	calls      sync.Pool // *call
	metrics    metrics
	begun      time.Time
	name       string        // of this node
	offset     atomic.Int64  // Redis' clock less this node's monotonic one, in µs, as last heard
	live       atomic.Int64  // nodes
	sweeps     atomic.Uint64 // calls of Expired
	disagreed  atomic.Bool

	clients atomic.Pointer[clients]
	failure atomic.Pointer[error] // why there are none
	loading sync.Mutex
	stop    context.CancelFunc
	ctx     context.Context
	life    struct {
		mu     sync.Mutex
		closed bool
		work   sync.WaitGroup
	}
}

var _ weir.Store = (*Store)(nil)

var (
	errClosed  = errors.New("redis store: it is closed")
	errLengths = errors.New("redis store: there must be one result for each charge")
)

// Open returns a store. Redis need not be there: until it is, every call fails at once. The error is of options that make
// no sense.
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
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	switch {
	case strings.ContainsAny(o.Prefix, "{}"):
		return nil, fmt.Errorf("redis store: the prefix %q must not contain { or }, which choose a slot of a Cluster", o.Prefix)
	case o.Partitions < 1 || o.Partitions > slots:
		return nil, fmt.Errorf("redis store: the number of partitions is %d; it must be from 1 to %d", o.Partitions, slots)
	case o.Connections < 1 || o.Connections > 64 || o.Connections&(o.Connections-1) != 0:
		return nil, fmt.Errorf("redis store: the number of connections is %d; it must be a power of 2, up to 64", o.Connections)
	case o.Timeout < 0 || o.RememberRefusals < 0 || o.Heartbeat < 0:
		return nil, fmt.Errorf("redis store: Timeout (%v), RememberRefusals (%v) and Heartbeat (%v) must not be negative", o.Timeout, o.RememberRefusals, o.Heartbeat)
	}
	s := &Store{o: o, target: t, begun: time.Now(), name: strconv.FormatUint(newSlot(), 36)}
	s.calls.New = func() any { return &call{done: make(chan struct{}, 1)} }
	s.offset.Store(s.begun.UnixMicro())
	if o.RememberRefusals > 0 {
		s.refusals = newRefusals(s, o.RememberRefusals)
	}
	s.ctx, s.stop = context.WithCancel(context.Background())
	tags := []string{""}
	if t.cluster {
		tags = hashTags(o.Partitions)
	}
	for _, tag := range tags {
		p := &partition{store: s, prefix: o.Prefix + formatVersion + tag, wake: make(chan struct{}, 1), swaps: make(chan struct{}, 1)}
		s.partitions = append(s.partitions, p)
		s.background(p.run)
	}
	s.connect()
	return s, nil
}

// formatVersion is part of every key: states of another form are other keys.
const formatVersion = "1"

// appendKey appends the name of a state: its counter's identity, and its key.
func (p *partition) appendKey(dst []byte, id uint64, key []byte) []byte {
	dst = append(dst, p.prefix...)
	dst = append(dst, byte(id>>56), byte(id>>48), byte(id>>40), byte(id>>32), byte(id>>24), byte(id>>16), byte(id>>8), byte(id))
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

// monotonic is this node's clock, in ns since the store began.
func (s *Store) monotonic() int64 { return int64(time.Since(s.begun)) }

// heard notes what Redis' clock said just now.
func (s *Store) heard(now int64) { s.offset.Store(now - s.monotonic()/1000) }

// about is roughly the instant of a call that is about to be made.
func (s *Store) about() int64 {
	if s.o.Clock != nil {
		return s.o.Clock()
	}
	return s.offset.Load() + s.monotonic()/1000
}

// virtualNow is the instant that a test gives, for ARGV.
func (s *Store) virtualNow() string {
	if s.o.Clock == nil {
		return ""
	}
	return fmt.Sprint(s.o.Clock())
}

// twins finds what Lua needs to know of a limit.
type twins struct {
	m sync.Map // *algo.Limit → *twin
	n atomic.Int64
}

// maxTwins bounds the limits that are known at once. A reload makes new ones, an elastic rule has up to a hundred for each
// window, of which one is in force at a time, and requests can bring some: what is forgotten is made again when it is met.
const maxTwins = 16384

func (s *Store) twinOf(l *algo.Limit) *twin {
	if t, ok := s.twins.m.Load(l); ok {
		return t.(*twin)
	}
	if s.twins.n.Add(1) > maxTwins {
		s.twins.m.Clear()
		s.twins.n.Store(1)
	}
	t := newTwin(l)
	s.twins.m.Store(l, t)
	return t
}

// newSlot returns an id for the slots of a Concurrency limit, never 0 and not to be guessed.
func newSlot() uint64 {
	for {
		if slot := rand.Uint64(); slot != 0 {
			return slot
		}
	}
}

// disagree notes that Lua and algo did not admit the same: a defect, which the tests exist to keep out.
func (s *Store) disagree(here, there int) {
	s.metrics.disagreements.Add(1)
	if !s.disagreed.Swap(true) {
		s.o.Logf("redis store: of a batch of decisions Redis admitted %d and this node %d; this is a defect in weir, please report it", there, here)
	}
}

// background runs f beside the store until Close, which waits for it; after Close it reports false, and does nothing.
func (s *Store) background(f func()) bool {
	s.life.mu.Lock()
	defer s.life.mu.Unlock()
	if s.life.closed {
		return false
	}
	s.life.work.Go(f)
	return true
}

// Close stops what the store runs in the background, and tells the other nodes that this one goes. Calls under way fail.
// It returns nil; a second Close does nothing.
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
