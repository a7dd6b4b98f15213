package fallback_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/fallback"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/redis"
)

// Tests about faults run nodes as processes of their own: this test binary, started again, which
// opens a store as the server does and makes decisions as the test tells it over standard input.

// nodeVariable in the environment makes the test binary a node.
const nodeVariable = "WEIR_TEST_FALLBACK_NODE"

func TestMain(m *testing.M) {
	if os.Getenv(nodeVariable) != "" {
		if err := serve(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Most tests wait for processes, not for a processor. -parallel and -rapid.checks go first.
	_ = flag.Set("test.parallel", "4")
	if !effort.All() {
		_ = flag.Set("rapid.checks", "20")
	}
	os.Exit(m.Run())
}

// kind is what a client may ask for: one unit of one key of a limit of its own.
type kind struct {
	Name   string
	ID     uint64
	Config algo.Config
	Key    string
	Policy rule.StoreErrorPolicy
}

func (k *kind) counter() (*rule.Counter, error) {
	limit, err := algo.New(k.Config)
	if err != nil {
		return nil, err
	}
	return &rule.Counter{ID: k.ID, Domain: "test", Limit: limit}, nil
}

// setup is how a node opens its store.
type setup struct {
	URL                         string
	RememberRefusals, Heartbeat time.Duration
	Deadline, MaxDeadline       time.Duration
	Timeout                     time.Duration // of a call to Redis; 0 means redis.DefaultTimeout
	Nodes                       int
}

// load is the work of a node's clients until they get the order to stop: each asks for one of the
// kinds, drawn at random, rests and asks again.
type load struct {
	Kinds   []kind
	Clients int
	Pause   time.Duration // the longest rest; how long is drawn at random
	Seed    uint64
}

// mostCalls bounds what a client asks in one load, should nobody stop it.
const mostCalls = 2_000_000

// phase divides the latencies of a load.
type phase uint8

const (
	before phase = iota
	during       // from the fault's beginning to its end
	after
	phases
)

// order is an order to a node; fields that are zero or nil ask for nothing.
type order struct {
	Open    *setup
	Load    *load
	Phase   phase // has begun
	Measure bool  // after a garbage collection
	Stop    bool  // ends the load; the report tells what came of it
	Close   bool  // closes the store
}

// report is a node's answer.
type report struct {
	Error string // what must not be

	State       fallback.State
	Away        int // parts of Redis
	Stats       fallback.Stats
	Redis       redis.Stats
	Nodes       int // among which the limits are shared
	FewestNodes int // that it was since all nodes were known
	// units by counter that the primary was asked for and may have charged, as it has not answered
	Unknown map[uint64]int64
	// by clock: when the breaker first opened in phase during; 0: not yet
	Opened time.Duration
	// by clock: when the primary first admitted something in phase after; 0: not yet
	Returned  time.Duration
	Decisions [phases]int64 // of the load so far

	Goroutines int
	Heap       uint64 // bytes in use

	Outcomes  []outcome                 // with Stop: by kind
	Latencies [phases]([]time.Duration) // with Stop
}

// outcome is what came of a kind.
type outcome struct{ Admitted, Denied, Unavailable int64 }

// node is a node process from within.
type node struct {
	redis   *redis.Store
	store   *fallback.Store
	primary *watched
	all     int // nodes, once all are known
	fewest  atomic.Int64
	phase   atomic.Uint32
	counts  [phases]atomic.Int64
	stop    atomic.Bool
	running sync.WaitGroup
	clients []*client
	state   fallback.State // as the last transition told; touched by transitions only

	mu     sync.Mutex
	wrong  string // what must not be
	opened time.Duration
}

// serve is the life of a node.
func serve(in io.Reader, out io.Writer) error {
	n := &node{}
	orders, reports := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return n.close()
		} else if err != nil {
			return err
		}
		var r report
		if err := n.do(&o, &r); err != nil {
			n.complain(err.Error())
		}
		n.tell(&r)
		if err := reports.Encode(&r); err != nil {
			return err
		}
	}
}

func (n *node) do(o *order, r *report) error {
	if o.Open != nil {
		if err := n.open(o.Open); err != nil {
			return err
		}
	}
	if o.Load != nil {
		if err := n.start(o.Load); err != nil {
			return err
		}
	}
	if o.Phase != before {
		n.phase.Store(uint32(o.Phase))
	}
	if o.Stop {
		n.end(r)
	}
	if o.Close {
		if err := n.close(); err != nil {
			return err
		}
	}
	if o.Measure {
		for range 2 { // what a pool held goes with the second
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		r.Goroutines, r.Heap = runtime.NumGoroutine(), m.HeapAlloc
	}
	return nil
}

func (n *node) open(o *setup) error {
	var err error
	if n.redis, err = redis.Open(redis.Options{
		URL: o.URL, RememberRefusals: o.RememberRefusals, Heartbeat: o.Heartbeat, Timeout: o.Timeout,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}); err != nil {
		return err
	}
	local, err := memory.New(memory.Options{})
	if err != nil {
		return err
	}
	n.primary = &watched{Store: n.redis, node: n, unknown: map[uint64]int64{}}
	n.store, err = fallback.New(n.primary, fallback.Options{
		Local: local, Deadline: o.Deadline, MaxDeadline: o.MaxDeadline, Nodes: n.redis.Nodes, FixedNodes: o.Nodes, Transition: n.went,
	})
	n.all = o.Nodes
	return err
}

func (n *node) close() error {
	n.end(&report{})
	if n.store == nil {
		return nil
	}
	err := n.store.Close()
	n.store = nil
	return err
}

func (n *node) complain(text string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.wrong == "" {
		n.wrong = text
	}
}

// went checks that each transition is reported once, in order.
func (n *node) went(from, to fallback.State, cause error) {
	fmt.Fprintf(os.Stderr, "%v: %v to %v: %v\n", redistest.Clock(), from, to, cause)
	if was := n.state; from != was || from == to || (cause == nil) != (to == fallback.Closed) {
		n.complain(fmt.Sprintf("a transition from %v to %v (%v), after one to %v", from, to, cause, was))
	}
	n.state = to
	n.mu.Lock()
	defer n.mu.Unlock()
	if to == fallback.Open && n.opened == 0 && phase(n.phase.Load()) == during {
		n.opened = redistest.Clock()
	}
}

// tell fills in how the node is.
func (n *node) tell(r *report) {
	n.mu.Lock()
	r.Error, r.Opened = n.wrong, n.opened
	n.mu.Unlock()
	if n.store == nil {
		return
	}
	r.State, _, _ = n.store.State()
	r.Away, _ = n.store.Away()
	r.Stats, r.Redis, r.Nodes, r.FewestNodes = n.store.Stats(), n.redis.Stats(), n.store.Share(), int(n.fewest.Load())
	r.Unknown, r.Returned = n.primary.reading()
	for i := range n.counts {
		r.Decisions[i] = n.counts[i].Load()
	}
}

// watched is the primary, and what it leaves open.
type watched struct {
	*redis.Store
	node *node

	mu       sync.Mutex
	unknown  map[uint64]int64 // units by counter
	returned time.Duration
}

func (w *watched) TakeWithin(
	ctx context.Context, least, most time.Duration, charges []store.Charge, results []algo.Result,
) (int64, bool, error) {
	now, remembered, err := w.Store.TakeWithin(ctx, least, most, charges, results)
	if err != nil {
		if !errors.Is(err, store.ErrNotCharged) {
			w.mu.Lock()
			for i := range charges {
				cost := charges[i].Ask.Cost // below 0: what is given back
				w.unknown[charges[i].Counter.ID] += max(cost, -cost)
			}
			w.mu.Unlock()
		}
		return now, false, err
	}
	// A refusal may be remembered, and what is in shadow is a debt: neither tells that Redis
	// decides again.
	if phase(w.node.phase.Load()) == after && results[0].Allowed && charges[0].Mode == rule.Enforce {
		w.mu.Lock()
		if w.returned == 0 {
			w.returned = redistest.Clock()
		}
		w.mu.Unlock()
	}
	return now, remembered, nil
}

func (w *watched) reading() (unknown map[uint64]int64, returned time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.unknown), w.returned
}

func (n *node) start(l *load) error {
	counters := make([]*rule.Counter, len(l.Kinds))
	for i := range l.Kinds {
		var err error
		if counters[i], err = l.Kinds[i].counter(); err != nil {
			return err
		}
	}
	n.stop.Store(false)
	n.phase.Store(uint32(before))
	for i := range n.counts {
		n.counts[i].Store(0)
	}
	n.primary.mu.Lock()
	n.primary.returned = 0
	n.primary.mu.Unlock()
	n.clients = nil
	for i := range l.Clients {
		c := &client{node: n, load: l, counters: counters, rnd: rand.New(rand.NewPCG(l.Seed, uint64(i))),
			outcomes: make([]outcome, len(l.Kinds))}
		n.clients = append(n.clients, c)
		n.running.Go(c.run)
	}
	return nil
}

// end ends the load.
func (n *node) end(r *report) {
	n.stop.Store(true)
	n.running.Wait()
	for _, c := range n.clients {
		if r.Outcomes == nil {
			r.Outcomes = make([]outcome, len(c.outcomes))
		}
		for i, o := range c.outcomes {
			r.Outcomes[i].add(o)
		}
		for i := range c.latencies {
			r.Latencies[i] = append(r.Latencies[i], c.latencies[i]...)
		}
	}
	n.clients = nil
}

func (o *outcome) add(p outcome) {
	o.Admitted += p.Admitted
	o.Denied += p.Denied
	o.Unavailable += p.Unavailable
}

type client struct {
	node      *node
	load      *load
	counters  []*rule.Counter
	rnd       *rand.Rand
	outcomes  []outcome
	latencies [phases][]time.Duration
}

func (c *client) run() {
	n := c.node
	charges, results := make([]store.Charge, 1), make([]algo.Result, 1)
	for calls := 0; calls < mostCalls && !n.stop.Load(); calls++ {
		if c.load.Pause > 0 {
			time.Sleep(time.Duration(c.rnd.Int64N(int64(c.load.Pause))))
		}
		i := c.rnd.IntN(len(c.counters))
		k, out, at := &c.load.Kinds[i], &c.outcomes[i], phase(n.phase.Load())
		charges[0] = store.Charge{Counter: c.counters[i], Limit: c.counters[i].Limit, Key: []byte(k.Key),
			Ask: algo.Ask{Cost: 1, MaxDelay: -1}, OnStoreError: k.Policy}
		began := time.Now()
		_, err := n.store.Take(context.Background(), charges, results)
		c.latencies[at] = append(c.latencies[at], time.Since(began))
		n.counts[at].Add(1)
		switch {
		case err != nil && k.Policy == rule.DenyAll && errors.Is(err, fallback.ErrUnavailable):
			out.Unavailable++
		case err != nil:
			n.complain(fmt.Sprintf("%s: %v", k.Name, err))
		case results[0].Allowed:
			out.Admitted++
		default:
			out.Denied++
		}
		n.watchShare()
	}
}

// watchShare notes the fewest nodes among which limits were shared since all were known.
func (n *node) watchShare() {
	now := int64(n.store.Share())
	for {
		was := n.fewest.Load()
		if was == 0 && now < int64(n.all) || was != 0 && now >= was || n.fewest.CompareAndSwap(was, now) {
			return
		}
	}
}
