package redis_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/effort"
	"github.com/weir-rl/weir/internal/testkit/patience"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/internal/testkit/testproc"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/redis"
)

// Tests about several nodes run them as processes of their own: this test binary, started again,
// which opens a store and makes decisions as the test tells it over standard input, and tells over
// standard output what came of them.

// nodeVariable in the environment makes the test binary a node.
const nodeVariable = "WEIR_TEST_REDIS_NODE"

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

var eventually = patience.Until

// clock is one for all processes of this machine, in ns.
func clock() int64 { return redistest.Clock().Nanoseconds() }

// limitSpec is a counter as it is described to a node.
type limitSpec struct {
	ID       uint64
	Group    uint64
	Config   []byte // JSON
	Previous []limitSpec
}

func (l limitSpec) counter() (*rule.Counter, error) {
	var c algo.Config
	if err := json.Unmarshal(l.Config, &c); err != nil {
		return nil, err
	}
	limit, err := algo.New(c)
	if err != nil {
		return nil, err
	}
	counter := &rule.Counter{ID: l.ID, Group: l.Group, Domain: "test", Limit: limit}
	withMargin(counter)
	for _, p := range l.Previous {
		older, err := p.counter()
		if err != nil {
			return nil, err
		}
		counter.Previous = append(counter.Previous, older)
	}
	return counter, nil
}

// withMargin gives a counter its soft margin's counter, if the margin closes.
func withMargin(c *rule.Counter) {
	if m := c.Limit.Margin(); m != nil {
		c.Margin = &rule.Counter{ID: c.ID ^ 0x5555555555555555, Group: c.Group, Domain: c.Domain, Limit: m}
	}
}

// spec names a counter of its own.
func spec(t testing.TB, c algo.Config, previous ...limitSpec) limitSpec {
	t.Helper()
	text, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return limitSpec{ID: rand.Uint64(), Config: text, Previous: previous}
}

// grouped makes counters windows of one rule, whose states lie together.
func grouped(limits ...limitSpec) []limitSpec {
	group := rand.Uint64()
	for i := range limits {
		limits[i].Group = group
		for j := range limits[i].Previous {
			limits[i].Previous[j].Group = group
		}
	}
	return limits
}

// chargeSpec is a charge as it is described to a node.
type chargeSpec struct {
	Limit int // index of workload.Limits
	Key   string
	Cost  int64
	Mode  rule.Mode
}

// workload is what the clients of a node do.
type workload struct {
	Limits  []limitSpec
	Calls   [][]chargeSpec // a client asks one of them at a time, drawn at random
	Clients int
	Each    int // how many calls a client makes; 0: until it is told to stop
	// how long a client waits for a decision on several keys; 0: until it comes
	Wait time.Duration
	// the longest time for which a client rests between two calls; how long is drawn at random
	Pause time.Duration
	// each client asks for one unit more than the one before, so that no two ask the same
	Apart   bool
	Release bool // now and then a client gives back slots that it holds
	// clients make the first call only, of one charge, and count decisions instead of listing them
	Tally bool
	Seed  uint64
	Begin int64 // by clock, so that all nodes begin together
}

// op is one operation of a client as it came out.
type op struct {
	Client       int
	Call, Return int64
	What         int // index of workload.Calls; of a Release, the call that took the slot
	// Of a decision:
	Now     int64
	Results []algo.Result
	Slots   []uint64
	// Of a Release:
	Release  uint64 // the slot; 0 for decisions
	At       int    // which charge took it
	Released bool

	Err        string // why there is no outcome
	NotCharged bool   // though it failed, it is known that nothing was charged
}

// tally is a number of decisions that came out the same.
type tally struct {
	Now    int64
	Result algo.Result
	N      int
}

// nodeOptions are the redis.Options that another process can be given.
type nodeOptions struct {
	URL, Prefix                          string
	Partitions, Connections              int
	Timeout, RememberRefusals, Heartbeat time.Duration
}

func (o *nodeOptions) options() redis.Options {
	return redis.Options{
		URL: o.URL, Prefix: o.Prefix, Partitions: o.Partitions, Connections: o.Connections,
		Timeout: o.Timeout, RememberRefusals: o.RememberRefusals, Heartbeat: o.Heartbeat,
	}
}

// request is what a node is told. What is nil or false is not asked for.
type request struct {
	ID   int
	Open *nodeOptions // opens a store, and closes the one before
	Run  *workload
	Stop bool // ends the workload after the calls under way
}

// reply comes when a request has been done.
type reply struct {
	ID           int
	Error        string
	Ops          []op
	Tallies      []tally
	Done, Failed int64 // calls so far of the workload under way, or of the last one
	Stats        redis.Stats
}

// serve is the life of a node.
func serve(in io.Reader, out io.Writer) error {
	n := &nodeProcess{}
	requests, replies := gob.NewDecoder(in), gob.NewEncoder(out)
	var mu sync.Mutex
	for {
		var q request
		if err := requests.Decode(&q); errors.Is(err, io.EOF) {
			n.stop.Store(true)
			if n.store != nil {
				return n.store.Close()
			}
			return nil
		} else if err != nil {
			return err
		}
		if q.Open != nil {
			r := n.open(q.Open.options())
			r.ID = q.ID
			mu.Lock()
			err := replies.Encode(r)
			mu.Unlock()
			if err != nil {
				return err
			}
			continue
		}
		if q.Run != nil {
			n.stop.Store(false)
			n.done.Store(0)
			n.failed.Store(0)
		}
		go func() {
			r := n.do(q)
			r.ID, r.Done, r.Failed = q.ID, n.done.Load(), n.failed.Load()
			if n.store != nil {
				r.Stats = n.store.Stats()
			}
			mu.Lock()
			defer mu.Unlock()
			if err := replies.Encode(r); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}()
	}
}

type nodeProcess struct {
	store        *redis.Store
	stop         atomic.Bool
	done, failed atomic.Int64
}

// open is not called while a workload is under way.
func (n *nodeProcess) open(o redis.Options) (r reply) {
	if n.store != nil {
		_ = n.store.Close()
	}
	o.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	var err error
	if n.store, err = redis.Open(o); err != nil {
		r.Error = err.Error()
		return r
	}
	for end := time.Now().Add(callTimeout); !settled(n.store) && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	return r
}

func (n *nodeProcess) do(q request) (r reply) {
	if q.Stop {
		n.stop.Store(true)
	}
	if q.Run == nil {
		return r
	}
	counters := make([]*rule.Counter, len(q.Run.Limits))
	for i, l := range q.Run.Limits {
		var err error
		if counters[i], err = l.counter(); err != nil {
			r.Error = err.Error()
			return r
		}
	}
	clients := make([]*client, q.Run.Clients)
	time.Sleep(time.Duration(q.Run.Begin - clock()))
	var wg sync.WaitGroup
	for i := range clients {
		c := &client{node: n, w: q.Run, number: i, counters: counters,
			rnd: rand.New(rand.NewPCG(q.Run.Seed, uint64(i)))}
		clients[i] = c
		wg.Go(c.run)
	}
	wg.Wait()
	same := map[tally]int{}
	for _, c := range clients {
		r.Ops = append(r.Ops, c.ops...)
		for _, t := range c.same {
			n := t.N
			t.N = 0
			same[t] += n
		}
	}
	for t, n := range same {
		t.N = n
		r.Tallies = append(r.Tallies, t)
	}
	return r
}

type client struct {
	node     *nodeProcess
	w        *workload
	number   int
	counters []*rule.Counter
	rnd      *rand.Rand
	ops      []op
	last     tally // how the last decisions came out, and how many
	same     []tally
	held     []op // admitted, with slots
}

// callTimeout is how long a client waits for a decision. A machine that is slow must not make one
// fail.
const callTimeout = 5 * time.Minute

func (c *client) run() {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	if c.w.Tally {
		c.count(ctx)
		return
	}
	for i := 0; (c.w.Each == 0 || i < c.w.Each) && !c.node.stop.Load(); i++ {
		if c.w.Pause > 0 {
			time.Sleep(time.Duration(c.rnd.Int64N(int64(c.w.Pause))))
		}
		failed := false
		if c.w.Release && len(c.held) > 0 && c.rnd.IntN(3) == 0 {
			failed = c.release(ctx)
		} else {
			failed = c.call(ctx)
		}
		if !failed {
			c.node.done.Add(1)
			continue
		}
		c.node.failed.Add(1)
		// One failure is enough to know that the store is away.
		for c.node.store.Ping(ctx) != nil && !c.node.stop.Load() && ctx.Err() == nil {
			time.Sleep(5 * time.Millisecond)
		}
	}
}

func (c *client) call(ctx context.Context) (failed bool) {
	o := op{Client: c.number, What: c.rnd.IntN(len(c.w.Calls))}
	charges := charges(c.w, c.counters, &o)
	results := make([]algo.Result, len(charges))
	if c.w.Wait > 0 && len(charges) > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.w.Wait)
		defer cancel()
	}
	o.Call = clock()
	now, err := c.node.store.Take(ctx, charges, results)
	o.Return = clock()
	if err != nil {
		o.Err, o.NotCharged = err.Error(), errors.Is(err, store.ErrNotCharged)
	} else {
		o.Now, o.Results, o.Slots = now, results, make([]uint64, len(charges))
		for i := range charges {
			o.Slots[i] = charges[i].Ask.Slot
		}
		if slices.ContainsFunc(o.Slots, func(slot uint64) bool { return slot != 0 }) {
			c.held = append(c.held, o)
		}
	}
	c.ops = append(c.ops, o)
	return err != nil
}

// count makes all calls as quickly as can be.
func (c *client) count(ctx context.Context) {
	one := op{Client: c.number}
	charges := charges(c.w, c.counters, &one)
	results := make([]algo.Result, len(charges))
	for range c.w.Each {
		now, err := c.node.store.Take(ctx, charges, results)
		if err != nil {
			one.Err = err.Error()
			c.ops = append(c.ops, one)
			return
		}
		if same := (tally{now, results[0], c.last.N}); same != c.last {
			if c.last.N > 0 {
				c.same = append(c.same, c.last)
			}
			c.last = tally{now, results[0], 0}
		}
		c.last.N++
	}
	c.same = append(c.same, c.last)
}

func (c *client) release(ctx context.Context) (failed bool) {
	i := c.rnd.IntN(len(c.held))
	taken := &c.held[i]
	at := slices.IndexFunc(taken.Slots, func(slot uint64) bool { return slot != 0 })
	o := op{Client: c.number, What: taken.What, Release: taken.Slots[at], At: at}
	ch := c.w.Calls[o.What][at]
	o.Call = clock()
	ok, err := c.node.store.Release(ctx, c.counters[ch.Limit], []byte(ch.Key), o.Release)
	o.Return = clock()
	o.Released = ok
	if err != nil {
		o.Err = err.Error()
	}
	c.ops = append(c.ops, o)
	taken.Slots = slices.Clone(taken.Slots)
	if taken.Slots[at] = 0; !slices.ContainsFunc(taken.Slots, func(slot uint64) bool { return slot != 0 }) {
		c.held = slices.Delete(c.held, i, i+1)
	}
	return err != nil
}

// charges are the charges of an operation.
func charges(w *workload, counters []*rule.Counter, o *op) []store.Charge {
	calls := w.Calls[o.What]
	list := make([]store.Charge, len(calls))
	for i, ch := range calls {
		cost := ch.Cost
		if w.Apart {
			cost += int64(o.Client % w.Clients)
		}
		counter := counters[ch.Limit]
		list[i] = store.Charge{Counter: counter, Limit: counter.Limit, Key: []byte(ch.Key), Mode: ch.Mode,
			Ask: algo.Ask{Cost: cost, MaxDelay: -1}}
	}
	return list
}

// fleet is some nodes.
type fleet struct {
	t     testing.TB
	nodes []*node
}

// node is a node process.
type node struct {
	t        testing.TB
	cmd      *exec.Cmd
	in       io.WriteCloser
	log      bytes.Buffer // what it said; to be read when it has ended
	mu       sync.Mutex
	requests *gob.Encoder
	last     int
	waiting  map[int]chan reply
	ended    error // why no reply comes any more
	killed   bool
}

// kill ends the node at once (SIGKILL).
func (n *node) kill() {
	n.t.Helper()
	n.killed = true
	if err := n.cmd.Process.Kill(); err != nil {
		n.t.Fatal(err)
	}
}

// startFleet starts so many nodes, which end with the test.
func startFleet(t testing.TB, n int) *fleet {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{t: t}
	for range n {
		n := &node{t: t, cmd: exec.Command(self), waiting: map[int]chan reply{}}
		// The race detector would let each of them sleep for a second at its end.
		n.cmd.Env = append(testproc.Environ(), nodeVariable+"=1", "GORACE="+os.Getenv("GORACE")+" atexit_sleep_ms=0")
		n.cmd.Stderr = &n.log
		if n.in, err = n.cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		out, err := n.cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := n.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		n.requests = gob.NewEncoder(n.in)
		read := make(chan struct{})
		go func() {
			n.read(out)
			close(read)
		}()
		t.Cleanup(func() { n.end(read) })
		f.nodes = append(f.nodes, n)
	}
	return f
}

// in is the fleet in the hands of a subtest.
func (f *fleet) in(t testing.TB) *fleet { return &fleet{t: t, nodes: f.nodes} }

// read hands out the replies as they come.
func (n *node) read(out io.Reader) {
	d := gob.NewDecoder(out)
	for {
		var r reply
		err := d.Decode(&r)
		n.mu.Lock()
		if err != nil {
			n.ended = err
			for _, c := range n.waiting {
				close(c)
			}
			clear(n.waiting)
			n.mu.Unlock()
			return
		}
		c := n.waiting[r.ID]
		delete(n.waiting, r.ID)
		n.mu.Unlock()
		c <- r
	}
}

// end lets a node end, as it does when its standard input does.
func (n *node) end(read <-chan struct{}) {
	_ = n.in.Close()
	select {
	case <-read:
	case <-time.After(patience.Left(n.t)):
		n.t.Error("a node does not end")
		_ = n.cmd.Process.Kill()
		<-read
	}
	if err := n.cmd.Wait(); err != nil && !n.killed {
		n.t.Errorf("a node ended with %v", err)
	}
	if n.t.Failed() && n.log.Len() > 0 {
		text := n.log.Bytes()
		n.t.Logf("a node logged\n%s", text[max(0, len(text)-8<<10):])
	}
}

// ask sends a request. The reply comes on the channel; none, if the node ends before.
func (n *node) ask(q request) <-chan reply {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := make(chan reply, 1)
	if n.ended != nil {
		close(c)
		return c
	}
	n.last++
	q.ID = n.last
	n.waiting[q.ID] = c
	if err := n.requests.Encode(q); err != nil {
		delete(n.waiting, q.ID)
		close(c)
	}
	return c
}

// all sends a request to all nodes, and returns how to wait for the replies.
func (f *fleet) all(make func(i int) request) (wait func() []reply) {
	var channels []<-chan reply
	for i, n := range f.nodes {
		channels = append(channels, n.ask(make(i)))
	}
	return func() []reply {
		f.t.Helper()
		var replies []reply
		for i, c := range channels {
			r, ok := <-c
			if !ok {
				f.t.Fatalf("node %d has ended", i)
			}
			if r.Error != "" {
				f.t.Fatalf("node %d: %s", i, r.Error)
			}
			replies = append(replies, r)
		}
		return replies
	}
}

// open opens a store on each node. A machine that is slow must not make a decision fail; and as a
// refusal that is remembered is no decision of Redis, none is.
func (f *fleet) open(o redis.Options) {
	f.t.Helper()
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	n := nodeOptions{o.URL, o.Prefix, o.Partitions, o.Connections, o.Timeout, o.RememberRefusals, o.Heartbeat}
	f.all(func(int) request { return request{Open: &n} })()
}

// history is what came of a workload.
type history struct {
	workload
	// operations of one node's clients follow each other; clients are numbered over all nodes
	ops     []op
	tallies []tally
	stats   redis.Stats // what the nodes' stores did meanwhile, summed up
}

// join appends a later history of the same nodes and limits, whose calls may be others. Costs are
// as in the calls.
func (h *history) join(later history) {
	for i := range later.ops {
		later.ops[i].What += len(h.Calls)
	}
	h.ops, h.Calls = append(h.ops, later.ops...), append(h.Calls, later.Calls...)
	h.Limits, h.Clients = later.Limits, max(h.Clients, later.Clients)
	add(&h.stats, later.stats, 1)
}

// start has all nodes run a workload, and returns how to wait for its end.
func (f *fleet) start(w workload) (wait func() history) {
	f.t.Helper()
	if w.Seed == 0 {
		w.Seed = redis.Seed(f.t)
	}
	before := f.stats()
	w.Begin = clock() + int64(10*time.Millisecond)
	replies := f.all(func(i int) request {
		own := w
		own.Seed += uint64(i) << 32
		return request{Run: &own}
	})
	return func() history {
		f.t.Helper()
		h := history{workload: w}
		for i, r := range replies() {
			for j := range r.Ops {
				r.Ops[j].Client += i * w.Clients
			}
			h.ops = append(h.ops, r.Ops...)
			h.tallies = append(h.tallies, r.Tallies...)
		}
		h.stats = f.stats()
		add(&h.stats, before, -1)
		if h.stats.Disagreements > 0 {
			f.t.Errorf("Lua and Go disagreed %d times", h.stats.Disagreements)
		}
		return h
	}
}

// run has all nodes run a workload.
func (f *fleet) run(w workload) history {
	f.t.Helper()
	return f.start(w)()
}

// stop ends the workload under way.
func (f *fleet) stop() {
	f.t.Helper()
	f.all(func(int) request { return request{Stop: true} })()
}

// progress returns how many calls of the workload have come out on each node, and how many have
// failed on all.
func (f *fleet) progress() (done []int64, failed int64) {
	f.t.Helper()
	for _, r := range f.all(func(int) request { return request{} })() {
		done = append(done, r.Done)
		failed += r.Failed
	}
	return done, failed
}

// goOn waits until each node has made n more calls.
func (f *fleet) goOn(n int64) {
	f.t.Helper()
	was, _ := f.progress()
	eventually(f.t, fmt.Sprintf("each node makes %d more calls", n), func() bool {
		done, _ := f.progress()
		for i := range done {
			if done[i] < was[i]+n {
				return false
			}
		}
		return true
	})
}

// stats returns what the nodes' stores have done since they were opened, summed up.
func (f *fleet) stats() (sum redis.Stats) {
	f.t.Helper()
	for _, r := range f.all(func(int) request { return request{} })() {
		add(&sum, r.Stats, 1)
	}
	return sum
}

// add adds readings, or takes them off (sign -1).
func add(to *redis.Stats, s redis.Stats, sign int) {
	for _, n := range []struct {
		to *uint64
		by uint64
	}{
		{&to.Calls, s.Calls}, {&to.Decisions, s.Decisions}, {&to.Merged, s.Merged}, {&to.Swaps, s.Swaps}, {&to.Loads, s.Loads},
		{&to.Failures, s.Failures}, {&to.GivenBack, s.GivenBack}, {&to.Disagreements, s.Disagreements}, {&to.Remembered, s.Remembered},
	} {
		*n.to += uint64(sign) * n.by
	}
}
