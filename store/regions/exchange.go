package regions

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/util/sparselog"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// Neighbour is the store of another region: its log is read, and units are borrowed from its
// states. Nothing else is asked of it.
type Neighbour interface {
	store.Regional
	store.Lender
}

// exchange connects this region with the others, beside the decisions: it reports this node's use,
// charges the reports of the others, and borrows. No decision waits for it.
type exchange struct {
	own  store.Regional // the store of this region
	o    *Options
	self *ceilings // of this region
	log  *slog.Logger
	seen *clock // the clock of the store
	// forget drops refusals of a key that are repeated without asking; nil if none are
	forget func(c *rule.Counter, key []byte)

	ledger ledger
	wake   chan struct{} // there is something to report

	borrower borrower
	peers    []*peer
	leads    atomic.Int64 // since when this node leads, monotonic; 0: it does not
	name     string       // of this node, within the region

	stats  regionCounts
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// peer is another region.
type peer struct {
	name  string
	store Neighbour
	parts *ceilings // of that region

	// heardTo is until when, by the monotonic clock, all reports of the region were heard; 0 if
	// they never were, since this node began to hear.
	heardTo atomic.Int64
	// agrees is until when, by the monotonic clock, it is certain enough that it has the same table
	// and the same rules.
	agrees atomic.Int64
	// differs says in which way it is set up otherwise, as it said last.
	differs  atomic.Pointer[Differs]
	posted   atomic.Int64 // when it last told the other nodes that it agrees, monotonic
	problems sparselog.Line
	gaps     sparselog.Line
	other    sparselog.Line
	counts   peerCounts
}

// The cadence of the work beside decisions.
const (
	leadTerm   = 3 * time.Second // after which another node takes over
	leadEvery  = time.Second / 2
	tellPause  = 10 * time.Millisecond // uses within it go into one entry
	tellMost   = 100                   // uses in an entry
	tellWithin = 2 * time.Second
	sweepEvery = time.Second / ledgerShards
	hearLeast  = 5    // entries that are read at a time
	hearMost   = 500  // the same, where they are small
	hearUses   = 1000 // uses in them that are charged in one call, if there are more than hearLeast
	hearWait   = time.Second / 2
	hearEvery  = 50 * time.Millisecond // between two looks at the parts of a log that has several
	seldomLog  = time.Minute
)

func newExchange(self *ceilings, seen *clock, o *Options) (*exchange, error) {
	x := &exchange{own: o.Own, self: self, seen: seen, o: o, log: o.Logger, wake: make(chan struct{}, 1)}
	if x.log == nil {
		x.log = slog.New(slog.DiscardHandler)
	}
	var id [8]byte
	_, _ = rand.Read(id[:]) // it never fails
	x.name = hex.EncodeToString(id[:])
	for _, r := range self.table {
		s := o.Peers[r.Name]
		if s == nil || r.Name == o.Region {
			continue
		}
		parts, err := newCeilings(self.table, r.Name)
		if err != nil {
			return nil, err
		}
		x.peers = append(x.peers, &peer{name: r.Name, store: s, parts: parts})
	}
	for name := range o.Peers {
		if !slices.ContainsFunc(x.peers, func(p *peer) bool { return p.name == name }) {
			return nil, fmt.Errorf("%q is no other region of the table: %s", name, self.names())
		}
	}
	x.borrower.init(x)
	return x, nil
}

// nodes is how many nodes this region has.
func (x *exchange) nodes() int64 {
	if x.o.Nodes == nil {
		return 1
	}
	return int64(max(x.o.Nodes(), 1))
}

// start begins the exchange, which ends with close.
func (x *exchange) start() {
	ctx, cancel := context.WithCancel(context.Background())
	x.cancel = cancel
	x.done.Go(func() { x.telling(ctx) })
	x.done.Go(func() { x.leading(ctx) })
	x.done.Go(func() { x.watchAgreement(ctx) })
	for range borrowersAtOnce {
		x.done.Go(func() { x.borrower.run(ctx) })
	}
}

// close ends the exchange, after it has reported the rest.
func (x *exchange) close() {
	x.cancel()
	x.done.Wait()
	x.ledger.rest()
	ctx, cancel := context.WithTimeout(context.Background(), tellWithin)
	defer cancel()
	x.tell(ctx)
}

// clock returns the store's time, in µs, as decisions show it; 0 if there was none.
func (x *exchange) clock() int64 { return x.seen.now() }

// used takes down units that were charged at an instant of the store, or given back. own is the
// ceiling's result, or with sync the limit's; nil if nothing was asked, as where a cost is settled.
func (x *exchange) used(c *rule.Counter, l *algo.Limit, key []byte, units, now int64, own *algo.Result) {
	mono := store.Monotonic()
	x.stats.limit(c).used.add(units)
	heard := c.Heard()
	if heard == nil {
		return
	}
	u := unitUse{
		heard: heard, limit: l, key: key, part: int32(x.own.PartOf(heard, key)), units: units, now: now, mono: mono,
		most: max(1, atOnce(l, now)*int64(c.Regions.Tell)/100/x.nodes()), settled: own == nil,
	}
	if own != nil {
		// The others need to know of a key that has used half of this region's part of N.
		used, part := own.Limit-own.Remaining, own.Limit*100/int64(100+c.Regions.Over)
		if c.Regions.Sync {
			part = own.Limit * int64(x.self.table[x.self.at].Weight) / x.self.sum
		}
		u.busy = 2*used >= part
	}
	if x.ledger.add(&u) {
		select {
		case x.wake <- struct{}{}:
		default:
		}
	}
}

// atOnce is how many units a limit admits at once.
func atOnce(l *algo.Limit, now int64) int64 {
	in, _ := l.At(now)
	if in == nil {
		return 0
	}
	c := in.Config()
	if c.Burst > 0 {
		return c.Burst
	}
	return c.N
}

// short is called when little is left of the ceiling of a key, or nothing, though the limit has
// room.
func (x *exchange) short(c *rule.Counter, _ *algo.Limit, key []byte, _, _ int64, own *algo.Result) {
	if !own.Allowed {
		x.stats.limit(c).ceiling.Add(1)
	}
	x.borrower.low(c, key, own.Limit-own.Remaining)
}

// telling writes this node's use into the log.
func (x *exchange) telling(ctx context.Context) {
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-sweep.C:
			if now := x.clock(); now != 0 {
				x.ledger.sweep(now, store.Monotonic())
			}
		case <-x.wake:
			select { // what comes now goes with it
			case <-ctx.Done():
				return
			case <-time.After(tellPause):
			}
		}
		within, cancel := context.WithTimeout(ctx, tellWithin)
		x.tell(within)
		cancel()
	}
}

// tell writes the reports that are due. A report that certainly was not written is written later.
// One that may have been written is not: it would count twice, and a use that nobody hears of costs
// the soft bound alone.
func (x *exchange) tell(ctx context.Context) {
	for part, list := range x.ledger.take() {
		for len(list) > 0 {
			some := list[:min(len(list), tellMost)]
			told := make([]store.Told, len(some))
			for i := range told {
				told[i] = some[i].told
			}
			switch err := x.own.Tell(ctx, part, told); {
			case errors.Is(err, store.ErrNotCharged):
				some = list // nor is the rest of this part
				x.stats.untold.Add(uint64(x.ledger.back(list, store.Monotonic())))
			case err != nil:
				x.stats.untold.Add(uint64(len(some)))
			default:
				for i := range some {
					x.stats.limit(some[i].counter).told.add(some[i].told.Units)
				}
			}
			list = list[len(some):]
		}
	}
}

// leading makes this node hear the other regions for all nodes of its own, while no other does.
func (x *exchange) leading(ctx context.Context) {
	t := time.NewTicker(leadEvery)
	defer t.Stop()
	var now *hearing
	defer func() {
		now.end()
		// So that another node need not wait until the term is over.
		within, cancel := context.WithTimeout(context.Background(), leadEvery)
		defer cancel()
		_, _ = x.own.Lead(within, leadTask, x.name, 0)
	}()
	for {
		var leads bool
		var err error
		if x.o.Ready == nil || x.o.Ready() {
			within, cancel := context.WithTimeout(ctx, leadTerm-leadEvery)
			leads, err = x.own.Lead(within, leadTask, x.name, leadTerm)
			cancel()
		}
		switch {
		case err != nil || !leads: // while the store is away nothing can be charged to it
			now.end()
			now = nil
		case now == nil:
			now = x.begin(ctx)
		}
		if now != nil {
			x.greet(ctx)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

// leadTask is the task of the node that hears for its region.
const leadTask = "regions"

// hearing is the work of a node for its region.
type hearing struct {
	x       *exchange
	cancel  context.CancelFunc
	running sync.WaitGroup
}

// begin begins to hear the other regions.
func (x *exchange) begin(ctx context.Context) *hearing {
	h := &hearing{x: x}
	ctx, h.cancel = context.WithCancel(ctx)
	for _, p := range x.peers {
		p.heardTo.Store(0) // another node may have heard meanwhile
		h.running.Go(func() { x.hear(ctx, p) })
	}
	x.relayOrders(ctx, &h.running)
	x.leads.Store(store.Monotonic())
	return h
}

// end ends what begin began; h may be nil.
func (h *hearing) end() {
	if h != nil {
		h.x.leads.Store(0)
		h.cancel()
		h.running.Wait()
	}
}
