package simulation

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/rule/file"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/cas"
	"github.com/weir-rl/weir/store/fallback"
	"github.com/weir-rl/weir/store/lease"
	"github.com/weir-rl/weir/store/memory"
)

// deadline is for how long a decision waits for the server.
const deadline = fallback.DefaultDeadline

// node is a node from its start to its end.
type node struct {
	w      *world
	id     int
	life   int
	clock  *clock // of its machine, which goes on from one life to the next
	behind int    // how often that was set back before this life
	link   *link  // nil in mode swaps
	leases *lease.Store
	store  *fallback.Store
	limits *weir.Limiter
	stop   context.CancelFunc
	follow sync.WaitGroup
	gone   atomic.Bool // it has crashed, or ended
	flying sync.WaitGroup

	mu      sync.Mutex
	version int // of the rules
}

// machineClock returns the clock of a node's machine: up to a second off, and too fast or slow.
func machineClock(w *world, id int) *clock {
	r := w.random("clock", id)
	return &clock{from: time.Now(), base: start + r.Int64N(2_000_000) - 1_000_000, ppm: int64(r.IntN(401) - 200)}
}

// newNode starts a node.
func newNode(w *world, id, life int, c *clock) (*node, error) {
	n := &node{w: w, id: id, life: life, clock: c, behind: c.setBack()}
	local, err := memory.New(memory.Options{Clock: n.clock.now})
	if err != nil {
		return nil, err
	}
	var primary store.Store
	switch w.plan.mode {
	case swaps:
		c, err := cas.New(&wire{w, n}, cas.Options{Connections: 1})
		if err != nil {
			return nil, err
		}
		primary = patient{c}
	case leased:
		n.link = &link{w: w, node: n}
		n.leases, err = lease.New(n.link, lease.Options{Clock: store.Monotonic})
		primary = n.leases
	default:
		n.link = &link{w: w, node: n}
		primary = n.link
	}
	if err != nil {
		return nil, err
	}
	nodes := w.plan.nodes
	if w.mistake == wholeShare {
		nodes = 1
	}
	n.store, err = fallback.New(primary, fallback.Options{
		Local: &local1{local, n}, FixedNodes: nodes, Deadline: deadline,
		Random: func(most int64) int64 { return w.random("probe", id, life, w.now()).Int64N(most) },
		Transition: func(from, to fallback.State, _ error) {
			w.note("node %d: %v to %v", id, from, to)
			if to == fallback.Open {
				w.count(&w.seen.Trips)
			}
			w.disturb()
		},
	})
	if err != nil {
		return nil, err
	}
	if n.limits, err = weir.New(n.store, weir.WithClock(n.clock.now)); err != nil {
		return nil, err
	}
	n.mu.Lock()
	n.version = -1
	n.mu.Unlock()
	var ctx context.Context
	ctx, n.stop = context.WithCancel(nobody)
	if w.plan.mode != swaps {
		n.follow.Go(func() { _ = n.limits.Follow(ctx) })
	}
	return n, nil
}

// load puts a version of the rules in force.
func (n *node) load(version int) error {
	set, _, err := file.Load(n.w.plan.source(version), file.Options{})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, n.w.plan.rules(version))
	}
	if n.w.mistake != staleRules || version == 0 || n.id != 0 {
		n.limits.SetRules(set)
	}
	n.mu.Lock()
	n.version = version
	n.mu.Unlock()
	return nil
}

func (n *node) rules() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.version
}

// crash ends a node at once: nothing of it is sent any more, and nobody hears what it says. What it
// holds is cleaned up, of which nobody knows.
func (n *node) crash() error {
	n.gone.Store(true)
	if n.link != nil {
		n.link.dead.Store(true)
	}
	return n.end()
}

// end ends a node in order.
func (n *node) end() error {
	n.stop()
	n.follow.Wait()
	err := n.store.Close()
	n.flying.Wait()
	n.gone.Store(true)
	return err
}

// patient is a store/cas without the deadlines of its own, which it keeps by timers that outlive a
// bubble.
type patient struct{ store.Store }

// Remote implements store.Remote.
func (patient) Remote() bool { return true }

// Inspect, Scan and Reset implement store.Inspector.
func (p patient) Inspect(ctx context.Context, v *store.View, keys [][]byte, visit func(store.KeyState)) error {
	return p.Store.(store.Inspector).Inspect(ctx, v, keys, visit)
}

func (p patient) Scan(ctx context.Context, v *store.View, from string, most int,
	visit func(store.KeyState)) (store.Scanned, error) {
	return p.Store.(store.Inspector).Scan(ctx, v, from, most, visit)
}

func (p patient) Reset(ctx context.Context, c *rule.Counter, key []byte) (bool, error) {
	return p.Store.(store.Inspector).Reset(ctx, c, key)
}

// local1 is the store in a node, which notes what it decides.
type local1 struct {
	*memory.Store
	node *node
}

func (s *local1) Take(ctx context.Context, charges []store.Charge, results []algo.Result) (int64, error) {
	now, err := s.Store.Take(ctx, charges, results)
	if o := opOf(ctx); o != nil && err == nil && len(charges) > 0 {
		o.mu.Lock()
		o.local, o.localTime = true, now
		o.mu.Unlock()
	}
	return now, err
}

func (s *local1) Reset(ctx context.Context, c *rule.Counter, key []byte) (bool, error) {
	s.node.w.localReset(s.node, accountOf(c, key))
	return s.Store.Reset(ctx, c, key)
}

// op is what a client or an operator asks of a node.
type op struct {
	w    *world
	step *step
	name string
	node *node
	rq   weir.Request

	mu        sync.Mutex
	local     bool // the node decided by itself
	localTime int64
	charged   map[account]*charge // at the server, for this request
	before    map[account]int     // what had touched the accounts before it
	after     map[account]int     // and with it

	began, ended     time.Duration
	beganAt, endedAt int64 // by the server's clock
	begin, finish    epoch
	disturbed        int // as it began
	done             bool
	gone             bool // its node was gone before it was answered
	err              error
	allowed          bool
	without          bool // admitted although the store failed
	banned           string
	time             int64
	retry, delay     int64
	limits           []said
	slots            []string
	reserved         bool
}

// said is what one limit said.
type said struct {
	limit int // in the plan
	account
	cost int64
	algo.Result
}

// charge is what the server has charged for an op.
type charge struct {
	units, at    int64
	life, forgot int
	epoch        int // of the account: how often it was reset
}

// epoch is what ends all that is known of a server's states.
type epoch struct{ life, forgot, behind int }

type opKey struct{}

func opOf(ctx context.Context) *op {
	o, _ := ctx.Value(opKey{}).(*op)
	return o
}

// newOp returns an op of a step, of a node as it is.
func (w *world) newOp(s *step, n *node, name string) *op {
	o := &op{w: w, step: s, node: n, name: name, charged: map[account]*charge{}, before: map[account]int{},
		after: map[account]int{}}
	attributes := rule.Map{"user": userOf(s.key), "tenant": tenantOf(s.key)}
	for i := range w.plan.limits {
		if s.limits>>i&1 == 1 {
			attributes[w.plan.limits[i].name] = "yes"
		}
	}
	o.rq = weir.Request{Attributes: attributes, Hits: s.hits, MaxDelay: weir.AnyDelay, Peek: s.what == peek}
	w.mu.Lock()
	w.ops = append(w.ops, o)
	w.mu.Unlock()
	return o
}

func (w *world) epochNow() epoch {
	life, forgot := w.server.lives()
	return epoch{life, forgot, w.server.clock.setBack()}
}

// decide lets the node decide, and notes what it says.
func (o *op) decide(reserveFor time.Duration) (reservation string) {
	w := o.w
	ctx := context.WithValue(context.Background(), opKey{}, o)
	if o.step.timeout > 0 {
		limited, cancel := context.WithTimeout(ctx, o.step.timeout)
		defer cancel()
		ctx = limited
	}
	w.mu.Lock()
	o.disturbed = w.disturbed
	w.mu.Unlock()
	version := o.node.rules()
	o.began, o.beganAt, o.begin = w.now(), w.server.clock.now(), w.epochNow()
	var d weir.Decision
	if reserveFor > 0 {
		reservation, o.err = o.node.limits.Reserve(ctx, &o.rq, &d, reserveFor)
	} else {
		o.err = o.node.limits.Decide(ctx, &o.rq, &d)
	}
	o.ended, o.endedAt, o.finish = w.now(), w.server.clock.now(), w.epochNow()
	o.gone = o.node.gone.Load()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.done = true
	o.allowed, o.time, o.retry, o.delay, o.without = d.Allowed, d.Time, d.RetryAfter, d.Delay, d.WithoutStore != nil
	if d.Banned.Rule != nil {
		o.banned = d.Banned.Rule.Name
	}
	line := fmt.Sprintf("%s on node %d: %v local %v banned %q at %d retry %d delay %d:", o.name, o.node.id, o.allowed,
		o.local, o.banned, o.time, o.retry, o.delay)
	for i := range d.Limits {
		l := &d.Limits[i]
		hit := &d.Matches.Hits[i]
		cost := o.rq.Cost()
		o.limits = append(o.limits, said{w.plan.indexOf(l.Window.Rule.Name), accountOf(l.Window.Counter, hit.Key), cost,
			l.Result})
		if l.Slot != "" {
			o.slots = append(o.slots, l.Slot)
		}
		line += fmt.Sprintf(" %s %v %d/%d", l.Window.Name, l.Allowed, l.Remaining, l.Limit)
	}
	if o.err != nil {
		line += " failed"
		if !errors.Is(o.err, fallback.ErrUnavailable) && !errors.Is(o.err, context.DeadlineExceeded) && !o.gone {
			w.wrong("%s: %v", o.name, o.err)
		}
	}
	w.note("%s", line)
	o.judge(&d, version)
	return reservation
}
