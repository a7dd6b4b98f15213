//go:build unix

package leasecheck_test

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/redistest"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/fallback"
	"github.com/weir-rl/weir/store/lease"
	"github.com/weir-rl/weir/store/memory"
	"github.com/weir-rl/weir/store/redis"
)

// A worker is a node as a process of its own: this test binary, started again. It makes decisions
// until it is told to stop, and records what it admits.

// workerVariable in the environment makes the test binary a worker.
const workerVariable = "WEIR_TEST_LEASECHECK_WORKER"

func TestMain(m *testing.M) {
	if os.Getenv(workerVariable) != "" {
		if err := serve(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Most tests wait for processes, not for a processor. -parallel goes first.
	_ = flag.Set("test.parallel", "4")
	os.Exit(m.Run())
}

// mode says which stores a worker puts over each other: names with plus signs, the outermost first.
type mode string

const (
	overRedis    mode = "redis"
	overFallback mode = "fallback+redis"
	overLease    mode = "lease+redis"
	overBoth     mode = "fallback+lease+redis"
	// Stores that admit too much, which must be found out.
	broken mode = "twice+redis" // one in twenty admissions is another's as well
	hasty  mode = "early+redis" // units are charged when they are lent, not when they are used
	greedy mode = "keep+redis"  // units are used after they were returned
	// The simplest holder of units that there can be.
	simple mode = "simple+redis"
)

func (m mode) has(name string) bool { return slices.Contains(strings.Split(string(m), "+"), name) }

// lends reports whether nodes hold units.
func (m mode) lends() bool { return m.has("lease") || m.has("simple") || m.has("keep") }

// limitSpec is a counter as it is described to a worker.
type limitSpec struct {
	ID, Group uint64
	Config    algo.Config
	Zone      int             // of a calendar: seconds east of Greenwich
	Phases    []time.Duration // times of day from which on three fifths are allowed for half a second
}

// config is Config with the fields that no JSON can hold.
func (l *limitSpec) config() algo.Config {
	c := l.Config
	if c.Calendar != algo.NoCalendar {
		c.Location = time.FixedZone(fmt.Sprint(l.Zone), l.Zone)
	}
	return c
}

// counter makes it, with so many percent of N, and of the lease's share, by which the length of
// generations may change too. A bucket keeps its size: a smaller one forgives what it cannot hold,
// which is no matter of leases.
func (l *limitSpec) counter(percent int64) (*rule.Counter, error) {
	c := l.config()
	if c.Algorithm == algo.TokenBucket && c.Burst == 0 {
		c.Burst = c.N
	}
	c.N = max(1, c.N*percent/100)
	if c.Lease > 0 {
		c.Lease = max(1, c.Lease*int(percent)/100)
	}
	limit, err := algo.New(c)
	if err == nil && len(l.Phases) > 0 {
		limit, err = l.scheduled(limit)
	}
	if err != nil {
		return nil, err
	}
	counter := &rule.Counter{ID: l.ID, Group: l.Group, Domain: "test", Limit: limit}
	if lent := limit.Lease(); lent != nil {
		counter.Lease = &rule.Counter{ID: l.ID ^ 0x5555555555555555, Group: l.Group, Domain: "test", Limit: lent}
	}
	return counter, nil
}

// scheduled makes a limit one that allows less in the phases.
func (l *limitSpec) scheduled(limit *algo.Limit) (*algo.Limit, error) {
	c := limit.Config()
	c.N = max(1, c.N*3/5)
	less, err := algo.New(c)
	if err != nil {
		return nil, err
	}
	var phases []algo.Phase
	for _, at := range l.Phases {
		phases = append(phases, algo.Phase{From: at, Until: (at + time.Second/2) % (24 * time.Hour), Limit: less})
	}
	return algo.Scheduled(limit, phases, nil)
}

// callSpec is what a client may ask for: a unit or more of one key of some limits.
type callSpec struct {
	Limits []int
	Key    int
	Cost   int64
}

// setup is what a worker does.
type setup struct {
	URL     string
	Mode    mode
	Limits  []limitSpec
	Calls   []callSpec // a client asks for one of them at a time, drawn at random
	Clients int
	Each    int           // how many calls a client makes; 0: until it is told to stop
	Pause   time.Duration // the longest rest between two calls; how long is drawn at random
	Moods   bool          // now and then a client rests for longer
	// what clients do after an admission now and then
	Refunds, CostsAfter bool
	Seed                uint64
	Record              string // file
	Nodes               int
	Timeout             time.Duration // of calls to Redis; 0: store/redis's default
	Drain               time.Duration // how long that may take
}

// order is an order to a worker, after the setup. Fields that are zero ask for nothing.
type order struct {
	Percent int64 // all limits are so much of their numbers from now on, as after a reload
	Wait    bool  // until each client has made its calls
	Stop    bool  // the worker returns what it holds, and ends
}

// answer follows each order and the setup, when that is done.
type answer struct {
	Error             string
	Admitted, Refused int64 // so far
	Failed            int64
}

type worker struct {
	setup    *setup
	record   *record
	redis    *redis.Store
	store    store.Store
	counters atomic.Pointer[[]*rule.Counter]
	stop     atomic.Bool
	running  sync.WaitGroup

	admitted, refused, failed atomic.Int64
}

// serve is the life of a worker.
func serve(in io.Reader, out io.Writer) error {
	orders, answers := json.NewDecoder(in), json.NewEncoder(out)
	w := &worker{setup: &setup{}}
	if err := orders.Decode(w.setup); err != nil {
		return err
	}
	err := w.open()
	for {
		a := answer{Admitted: w.admitted.Load(), Refused: w.refused.Load(), Failed: w.failed.Load()}
		if err != nil {
			a.Error = err.Error()
		}
		if err := answers.Encode(&a); err != nil {
			return err
		}
		var o order
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		err = w.do(&o)
	}
}

func (w *worker) open() (err error) {
	w.record = &record{}
	if w.record.file, err = os.Create(w.setup.Record); err != nil {
		return err
	}
	if w.redis, err = redis.Open(redis.Options{
		URL: w.setup.URL, Timeout: w.setup.Timeout, RememberRefusals: time.Second, Heartbeat: 200 * time.Millisecond,
	}); err != nil {
		return err
	}
	if err := w.build(); err != nil {
		return err
	}
	if err := w.load(100); err != nil {
		return err
	}
	w.begin(w.setup.Each)
	return nil
}

// build puts the stores over each other, the innermost first.
func (w *worker) build() error {
	names := strings.Split(string(w.setup.Mode), "+")
	slices.Reverse(names)
	for _, name := range names {
		switch name {
		case "redis":
			p := &probed{Store: w.redis, record: w.record, places: map[uint64]uint8{}}
			for i, l := range w.setup.Limits {
				p.places[l.ID] = uint8(i)
			}
			w.store = p
		case "twice":
			w.store = &twice{Store: w.store}
		case "early":
			w.store = &early{Store: w.store, held: map[string]int64{}}
		case "simple":
			w.store = &holder{Store: w.store, lender: w.store.(store.Lender)}
		case "keep":
			w.store = &holder{Store: w.store, lender: w.store.(store.Lender), keeps: true}
		case "lease":
			l, err := lease.New(w.store.(store.Lender), lease.Options{})
			if err != nil {
				return err
			}
			w.store = &watched{Store: l}
		case "fallback":
			local, err := memory.New(memory.Options{})
			if err != nil {
				return err
			}
			if w.store, err = fallback.New(w.store, fallback.Options{
				Local: local, MaxDeadline: 100 * time.Millisecond, Nodes: w.redis.Nodes, FixedNodes: w.setup.Nodes,
			}); err != nil {
				return err
			}
		default:
			return fmt.Errorf("there is no store %q", name)
		}
	}
	return nil
}

func (w *worker) load(percent int64) error {
	counters := make([]*rule.Counter, len(w.setup.Limits))
	for i := range w.setup.Limits {
		var err error
		if counters[i], err = w.setup.Limits[i].counter(percent); err != nil {
			return err
		}
	}
	w.counters.Store(&counters)
	return nil
}

func (w *worker) begin(each int) {
	for i := range w.setup.Clients {
		c := &client{worker: w, rnd: rand.New(rand.NewPCG(w.setup.Seed, uint64(i)))}
		w.running.Go(func() { c.run(each) })
	}
}

func (w *worker) do(o *order) error {
	if o.Percent > 0 {
		if err := w.load(o.Percent); err != nil {
			return err
		}
	}
	if o.Wait || o.Stop {
		w.stop.Store(w.setup.Each == 0)
		w.running.Wait()
	}
	if o.Stop {
		if d, ok := store.As[drainer](w.store); ok {
			ctx, cancel := context.WithTimeout(context.Background(), w.setup.Drain)
			defer cancel()
			if err := d.Drain(ctx); err != nil && w.setup.Each > 0 {
				return fmt.Errorf("not all is returned: %w", err)
			}
		}
		return errors.Join(w.store.Close(), w.record.err, w.record.file.Close())
	}
	return nil
}

// drainer is a store that can return what it holds.
type drainer interface {
	Drain(ctx context.Context) error
}

type client struct {
	worker  *worker
	rnd     *rand.Rand
	charges []store.Charge
	results []algo.Result
	entries []entry
}

func (c *client) run(each int) {
	w := c.worker
	for i := 0; (each == 0 || i < each) && !w.stop.Load(); i++ {
		if w.setup.Pause > 0 {
			time.Sleep(time.Duration(c.rnd.Int64N(int64(w.setup.Pause))))
		}
		if w.setup.Moods && c.rnd.IntN(60) == 0 {
			time.Sleep(time.Duration(c.rnd.Int64N(int64(300 * time.Millisecond))))
		}
		c.call(&w.setup.Calls[c.rnd.IntN(len(w.setup.Calls))])
	}
}

func (c *client) call(call *callSpec) {
	w, counters := c.worker, *c.worker.counters.Load()
	c.charges, c.results = c.charges[:0], c.results[:0]
	for _, i := range call.Limits {
		c.charges = append(c.charges, store.Charge{
			Counter: counters[i], Limit: counters[i].Limit, Key: []byte(keyName(call.Key)),
			Ask: algo.Ask{Cost: call.Cost, MaxDelay: -1},
		})
		c.results = append(c.results, algo.Result{})
	}
	n, now := &notes{}, int64(0)
	asked := redistest.Clock()
	// Doors ask a store first what it can decide at once. (store/fallback decides nothing by itself
	// then, but what is under it does; nobody could tell who it was.)
	p, prompt := w.store.(store.Prompt)
	if prompt = prompt && !w.setup.Mode.has("fallback"); prompt {
		now, prompt = p.TakeNow(c.charges, c.results)
	}
	var err error
	if !prompt {
		now, err = w.store.Take(context.WithValue(context.Background(), notesKey{}, n), c.charges, c.results)
	}
	answered := redistest.Clock()
	switch {
	case err != nil:
		w.failed.Add(1)
		return
	case slices.ContainsFunc(c.results, func(r algo.Result) bool { return !r.Allowed }):
		w.refused.Add(1)
		return
	}
	c.entries = c.entries[:0]
	for i := range c.charges {
		ch := &c.charges[i]
		e := entry{
			By: leased, Limit: uint8(call.Limits[i]), Key: uint8(call.Key), Cost: uint8(call.Cost),
			Asked: asked, Answered: answered,
		}
		switch s := n.of(ch); {
		case s != nil:
			e.By, e.Now = s.by, s.now
			if e.Now != 0 && ch.Limit.Config().FirstRequest {
				e.Ends = e.Now + c.results[i].ResetAfter
			}
		case w.setup.Mode.has("fallback"):
			e.By = local
		}
		c.entries = append(c.entries, e)
	}
	// What is not in the record was not admitted: a worker that is killed has answered nobody yet.
	w.record.add(c.entries...)
	w.admitted.Add(1)
	if w.setup.Refunds && c.rnd.IntN(8) == 0 {
		for i := range c.charges {
			c.charges[i].Ask.Cost = -call.Cost
		}
		_, _ = w.store.Take(context.Background(), c.charges, c.results) // probed records it
	}
	if w.setup.CostsAfter && c.rnd.IntN(4) == 0 {
		c.settle(call, now)
	}
}

// settle says what a call has cost that was admitted, and records what goes back.
func (c *client) settle(call *callSpec, now int64) {
	var list []store.Settlement
	actual := c.rnd.Int64N(2*call.Cost + 1)
	for i := range c.charges {
		ch := &c.charges[i]
		list = append(list, store.Settlement{Counter: ch.Counter, Limit: ch.Limit, Key: ch.Key, At: now,
			Reserved: call.Cost, Actual: actual})
	}
	asked := redistest.Clock()
	r, ok := store.As[store.Reserver](c.worker.store)
	if !ok || r.Settle(context.Background(), list) != nil && actual >= call.Cost {
		return
	}
	c.entries = c.entries[:0]
	for _, i := range call.Limits {
		if actual < call.Cost {
			c.entries = append(c.entries, entry{
				By: refund, Limit: uint8(i), Key: uint8(call.Key), Cost: uint8(call.Cost - actual), Asked: asked, Answered: redistest.Clock(),
			})
		}
	}
	c.worker.record.add(c.entries...)
}

func keyName(i int) string { return fmt.Sprint("key ", i) }
