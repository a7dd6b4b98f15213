package regions

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/lease"
	"github.com/weir-rl/weir/store/redis"
)

// world is regions on this machine, each with a Redis of its own, or in virtual time with a store
// in memory. The way from each region to each other leads through a faulty network.
type world struct {
	t        testing.TB
	plan     plan
	prefix   string
	names    []string
	weights  []int
	virtual  bool                // there is no Redis; the test runs in virtual time
	servers  []restarter         // by region; nil where there is a sentinel
	redis    []*redistest.Server // nil where there is a sentinel; empty in virtual time
	memory   []*server           // in virtual time
	sentinel *redistest.Sentinel // of the first region; nil if nothing fails over
	urls     []string
	links    [][]fault // from the region of the first index to the server of the second; nil: none
	nodes    [][]*node // by region
	counter  *rule.Counter
	log      *slog.Logger
	timeout  time.Duration    // of calls; 0: a second
	mistake  func(o *Options) // nil for none
	alone    bool             // regions neither tell nor hear nor borrow
	diary    []string         // of faults
	faults   map[string]int
	cut      moment // of a failover
	lent     lent
}

// restarter is a server that can be killed, and started again with its data.
type restarter interface {
	Kill()
	Restart()
}

// node is a node of a region.
type node struct {
	w      *world
	region int
	own    Neighbour
	peers  []Neighbour
	s      *Store
	of     *rule.Counter // as it was when the node began
	closed bool
	also   func() // ends that it hears beside another one; nil if it does not

	mu       sync.Mutex
	admitted []admitted
	refused  int
}

// admitted is an admission, between two instants by the clock of this machine.
type admitted struct {
	lo, hi int64 // µs
	at     int64 // of the decision, by the clock of the region's store
	cost   int64
	key    int
	slot   uint64
	freed  int64 // when a slot was about to be given back; 0: it was not
}

func keyName(key int) string { return fmt.Sprint("key ", key) }

// open adds a node to a region.
func (w *world) open(region int) *node {
	w.t.Helper()
	n := &node{w: w, region: region, of: w.counter}
	n.own = w.connect(region, region)
	o := Options{
		Region: w.names[region], Own: n.own, Logger: w.log, Peers: map[string]Neighbour{},
		Nodes: func() int { return 2 },
		Rules: rulesOf(w.counter),
	}
	for i, name := range w.names[len(w.servers):] { // regions that have no servers, and no peers
		o.Table = append(o.Table, Region{Name: name, Weight: w.weights[len(w.servers)+i]})
	}
	for i, name := range w.names[:len(w.servers)] {
		o.Table = append(o.Table, Region{Name: name, Weight: w.weights[i]})
		if i != region {
			p := w.connect(region, i)
			n.peers = append(n.peers, p)
			if o.Peers[name] = p; i == 0 {
				o.Peers[name] = &recorder{p, &w.lent}
			}
		}
	}
	if w.mistake != nil {
		w.mistake(&o)
	}
	if w.alone {
		o.Own, o.Peers = nil, nil
	}
	inner := store.Store(n.own)
	if w.plan.leases {
		l, err := lease.New(n.own, lease.Options{MaxKeys: 1000})
		if err != nil {
			w.t.Fatal(err)
		}
		inner = l
	}
	// Without store/fallback, which on a busy machine decides by itself: that has a bound of its
	// own.
	s, err := New(inner, o)
	if err != nil {
		w.t.Fatal(err)
	}
	n.s = s
	w.nodes[region] = append(w.nodes[region], n)
	return n
}

// connect connects a node of a region with the server of one.
func (w *world) connect(from, to int) Neighbour {
	w.t.Helper()
	if w.virtual {
		if from == to {
			return w.memory[to]
		}
		return w.links[from][to].(*link)
	}
	url := w.urls[to]
	if l, ok := w.links[from][to].(*redistest.FaultProxy); ok {
		url = "redis://" + l.Addr()
	}
	s, err := redis.Open(redis.Options{URL: url, Prefix: w.prefix, Timeout: w.within(), Logger: w.log})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// within is how long a call may take.
func (w *world) within() time.Duration { return cmp.Or(w.timeout, time.Second) }

// until waits until ok, in the time of the world.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	if w.virtual {
		until(w.t, what, ok)
	} else {
		patience.Until(w.t, what, ok)
	}
}

// close ends a node in order.
func (n *node) close() {
	if n.closed {
		return
	}
	n.closed = true
	if n.also != nil {
		n.also()
	}
	n.s.Close()
	for _, p := range n.peers {
		p.Close()
	}
}

// take asks for one decision, and records what is admitted.
func (n *node) take(ctx context.Context, key int, cost int64) bool {
	charges := [1]store.Charge{{Counter: n.of, Limit: n.of.Limit, Key: []byte(keyName(key)), Ask: algo.Ask{Cost: cost},
		OnStoreError: rule.DenyAll}}
	var results [1]algo.Result
	lo := time.Now().UnixMicro()
	at, err := n.s.Take(ctx, charges[:], results[:])
	hi := time.Now().UnixMicro()
	n.mu.Lock()
	defer n.mu.Unlock()
	if err != nil || !results[0].Allowed {
		n.refused++
		return false
	}
	n.admitted = append(n.admitted, admitted{lo: lo, hi: hi, at: at, cost: cost, key: key, slot: charges[0].Ask.Slot})
	return true
}

// free gives back the slots of some admission that still holds them.
func (n *node) free(ctx context.Context, rnd *rand.Rand) {
	n.mu.Lock()
	var held []int
	for i := range n.admitted {
		if n.admitted[i].freed == 0 {
			held = append(held, i)
		}
	}
	if len(held) == 0 {
		n.mu.Unlock()
		return
	}
	a := &n.admitted[held[rnd.IntN(len(held))]]
	a.freed = time.Now().UnixMicro()
	key, slot := a.key, a.slot
	n.mu.Unlock()
	_, _ = n.s.Release(ctx, n.of, []byte(keyName(key)), slot)
}

// load has a node ask so many times a second, until ctx ends.
func (n *node) load(ctx context.Context, running *sync.WaitGroup, perSecond int, keys int, most int64, seed uint64) {
	const clients = 2
	slots := n.w.plan.config.Algorithm == algo.Concurrency
	for i := range clients {
		running.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(n.region*10+i)))
			pause := time.Duration(clients) * time.Second / time.Duration(perSecond)
			next := time.Now()
			for ctx.Err() == nil {
				if n.take(ctx, rnd.IntN(keys), 1+rnd.Int64N(most)); slots && rnd.IntN(2) == 0 {
					n.free(ctx, rnd)
				}
				next = next.Add(time.Duration(rnd.Int64N(2*int64(pause) + 1)))
				if rest := time.Until(next); rest > 0 {
					select {
					case <-ctx.Done():
					case <-time.After(rest):
					}
				} else if rest < -time.Second {
					next = time.Now()
				}
			}
		})
	}
}
