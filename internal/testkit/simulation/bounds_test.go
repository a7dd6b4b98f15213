package simulation

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/internal/testkit/leasecheck"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/cas"
)

// What is held against all answers of a key together: what may be admitted in a span of time, on
// the server and on a node's share; and the server's books against what clients were told.

// books are what the server has done with an account.
type books struct {
	touches    int
	epoch      int   // resets
	debts      int64 // charged in the background: what nodes had admitted by themselves
	backs      int64 // given back in the background
	settled    map[settlement]int
	settledBy  int64           // what settlements added, all together
	settleDown int64           // what they gave back
	local      map[*node]int   // resets of the node's share
	slots      map[uint64]held // of a concurrency limit
}

type settlement struct{ at, reserved int64 }

// held are slots that were taken. A clock that was set back makes them last longer, and one that
// was set ahead shorter.
type held struct {
	n            int64
	until        int64 // by clock.elapsed
	began, ahead int   // as they were taken
}

// of returns the books of an account. w.mu is held.
func (w *world) of(a account) *books {
	b := w.accounts[a]
	if b == nil {
		b = &books{settled: map[settlement]int{}, local: map[*node]int{}, slots: map[uint64]held{}}
		w.accounts[a] = b
	}
	return b
}

// touched notes that a charge was decided at the server.
func (w *world) touched(o *op, c *store.Charge) {
	a := accountOf(c.Counter, c.Key)
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.of(a)
	if o != nil {
		o.mu.Lock()
		if _, had := o.before[a]; !had {
			o.before[a] = b.touches
		}
		o.after[a] = b.touches + 1
		o.mu.Unlock()
	}
	b.touches++
}

// charged notes that the server has charged units, or given them back.
func (w *world) charged(_ *link, o *op, c *store.Charge, units, at int64, forgot, life int) {
	a := accountOf(c.Counter, c.Key)
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.of(a)
	switch {
	case o != nil:
		o.mu.Lock()
		defer o.mu.Unlock()
		if had := o.charged[a]; had != nil {
			had.units += units
			return
		}
		o.charged[a] = &charge{units: units, at: at, life: life, forgot: forgot, epoch: b.epoch}
	case units > 0:
		b.debts += units
		w.seen.Debts++
	default:
		b.backs -= units
	}
}

func (w *world) wasReset(a account) {
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.of(a)
	b.epoch++
	b.touches++
	clear(b.slots)
}

func (w *world) localReset(n *node, a account) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.of(a).local[n]++
}

// settled notes settlements that the server makes: each charge is settled once.
func (w *world) settled(list []store.Settlement) {
	for i := range list {
		s := &list[i]
		a := accountOf(s.Counter, s.Key)
		w.mu.Lock()
		b := w.of(a)
		b.touches++
		if more := s.Actual - s.Reserved; more > 0 {
			b.settledBy += more
		} else {
			b.settleDown -= more
		}
		name := settlement{s.At, s.Reserved}
		b.settled[name]++
		n := b.settled[name]
		w.mu.Unlock()
		if made := w.reservedAt(a, name); n > made {
			w.wrong("%v: %d settlements of %+v, %d reservations", a, n, name, made)
		}
	}
}

// reservedAt counts the reservations whose charge a settlement can be of.
func (w *world) reservedAt(a account, s settlement) (n int) {
	w.mu.Lock()
	ops := slices.Clone(w.ops)
	w.mu.Unlock()
	for _, o := range ops {
		if o.step.what != reserve {
			continue
		}
		o.mu.Lock()
		c := o.charged[a]
		if c != nil && c.at == s.at || o.local && o.localTime == s.at || w.plan.mode == leased && o.time == s.at {
			n++
		}
		o.mu.Unlock()
	}
	return n
}

// isHeld reports whether slots are held for certain.
func (w *world) isHeld(h held, began int) bool {
	clock := &w.server.clock
	return h.began == began && h.ahead == clock.setAhead() && h.until > clock.elapsed()
}

// slotTaken holds a concurrency limit, as it was when the server admitted: no more are held than it
// has. Slots outlast all but the server's memory: they are not part of snapshots.
func (w *world) slotTaken(c *store.Charge, slot uint64, began int) {
	a := accountOf(c.Counter, c.Key)
	config := c.Limit.Config()
	clock := &w.server.clock
	w.mu.Lock()
	b := w.of(a)
	_, had := b.slots[slot]
	b.slots[slot] = held{c.Ask.Cost, clock.elapsed() + config.Timeout.Microseconds(), began, clock.setAhead()}
	sum := int64(0)
	for _, h := range b.slots {
		if w.isHeld(h, began) {
			sum += h.n
		}
	}
	w.mu.Unlock()
	if had || slot == 0 {
		w.wrong("%v: slots have the name %d, which others had: %v", a, slot, had)
	}
	if sum > config.N {
		w.wrong("%v: %d slots are held, of %d", a, sum, config.N)
	}
}

// slotFreed holds a release: it is one if the slot is held, and only the first one.
func (w *world) slotFreed(a account, slot uint64, freed bool, began int) {
	w.mu.Lock()
	b := w.of(a)
	b.touches++
	h, there := b.slots[slot]
	delete(b.slots, slot)
	w.mu.Unlock()
	if there && !freed && w.isHeld(h, began) {
		w.wrong("%v: slots that are held cannot be given back", a)
	}
	if freed && !(there && h.began == began) {
		w.wrong("%v: slots are given back that are not held", a)
	}
}

// most is a limit with the largest number that it had, or was granted.
func (w *world) most(limit int) algo.Config {
	c := w.plan.limits[limit].config
	for version := range w.plan.versions {
		c.N = max(c.N, w.plan.versions[version][limit])
	}
	for _, s := range w.plan.steps {
		if s.what == grants && s.limit == limit && c.Algorithm != algo.Concurrency {
			c.N = max(c.N, 2*w.plan.limits[limit].config.N)
		}
	}
	if c.Algorithm == algo.TokenBucket && c.Burst == 0 {
		c.Burst = w.plan.limits[limit].config.N
	}
	return c
}

// group is what admissions have in common whose sum is bounded.
type group struct {
	account
	limit int
	node  *node // nil: the server
	epoch
	resets int
}

// finish holds all answers against the bounds, and the books against the answers.
func (w *world) finish() {
	groups := map[group][]leasecheck.Admission{}
	delays := map[group][]int64{}
	refunds := map[account]int64{}
	owed, vain := map[account]int64{}, map[account]int64{}
	for _, o := range w.ops {
		if !o.done {
			continue
		}
		if o.step.what == refund { // made or not
			for i := range w.plan.limits {
				if o.step.limits>>i&1 == 1 {
					refunds[account{w.plan.limits[i].name, w.keyOf(i, o.step.key)}]++
				}
			}
		}
		if len(o.limits) == 0 { // what the server did for one that failed may come back
			for a, c := range o.charged {
				vain[a] += max(0, c.units)
				owed[a] += max(0, -c.units)
			}
		}
		if w.plan.mode == swaps && (o.err != nil || o.local && !o.allowed) { // made there, perhaps, and given back
			for i := range w.plan.limits {
				if o.step.limits>>i&1 == 1 {
					refunds[account{w.plan.limits[i].name, w.keyOf(i, o.step.key)}] += max(0, o.rq.Cost())
				}
			}
		}
		for i := range o.limits {
			l := &o.limits[i]
			l.cost = o.rq.Cost()
			o.balance(l, owed, vain)
			if o.step.what == reserve && o.local && o.allowed { // what it did not cost comes back to the node's share
				refunds[l.account] += l.cost
			}
			if !o.allowed || l.cost <= 0 || o.without {
				continue
			}
			g, a, ok := o.admission(l)
			if ok {
				groups[g] = append(groups[g], a)
				delays[g] = append(delays[g], a.Lo+l.Delay)
			}
		}
	}
	for _, g := range slices.SortedFunc(maps.Keys(groups),
		func(a, b group) int { return cmp.Compare(fmt.Sprint(a.account), fmt.Sprint(b.account)) }) {
		w.bound(g, groups[g], delays[g], refunds[g.account])
	}
	for a, b := range w.accounts {
		if w.plan.mode != exact || w.plan.indexOf(a.window) < 0 {
			continue
		}
		if b.debts > owed[a] {
			w.wrong("%v: nodes owed %d, and charged %d", a, owed[a], b.debts)
		}
		if b.backs > vain[a] {
			w.wrong("%v: %d were charged in vain, and %d given back", a, vain[a], b.backs)
		}
	}
	w.balanceBooks()
}

// balance holds what one answer said against what the server charged for it. It adds what the node
// owes the server for it, or the server the node.
func (o *op) balance(l *said, owed, vain map[account]int64) {
	w := o.w
	if w.plan.mode != exact {
		return
	}
	charged := int64(0)
	if c := o.charged[l.account]; c != nil {
		charged = c.units
	}
	limit := &w.plan.limits[l.limit]
	counts := limit.config.CountDenied
	switch {
	case o.err != nil || o.gone || o.without || o.banned != "":
	case !o.local && o.allowed && charged != l.cost:
		w.wrong("%s was admitted for %d by %v, which was charged %d", o.name, l.cost, l.account, charged)
	case !o.local && !o.allowed && charged != 0 && !counts:
		w.wrong("%s was refused, and %v was charged %d", o.name, l.account, charged)
	case o.local && charged != 0 && charged != l.cost:
		w.wrong("%s costs %d, and %v was charged %d", o.name, l.cost, l.account, charged)
	}
	switch {
	case !o.local || limit.policy == rule.AllowAll || limit.config.Algorithm == algo.Concurrency:
	case o.allowed && charged == 0:
		owed[l.account] += max(0, l.cost)
		vain[l.account] += max(0, -l.cost)
	case !o.allowed:
		vain[l.account] += charged
	}
}

// admission returns an admission, and what it counts with. ok is false if that is not known.
func (o *op) admission(l *said) (g group, a leasecheck.Admission, ok bool) {
	w := o.w
	g, a = group{account: l.account, limit: l.limit}, leasecheck.Admission{Lo: o.time, Hi: o.time, Cost: l.cost}
	policy := w.plan.limits[l.limit].policy
	if o.local {
		if policy == rule.AllowAll {
			return g, a, false
		}
		g.node, a.Lo, a.Hi = o.node, o.localTime, o.localTime
		// Of its whole life: what lay before is not known to lie before.
		g.behind = o.node.clock.setBack() - o.node.behind
		g.resets = w.accounts.resets(l.account, o.node)
		return g, a, g.behind == 0 && g.resets == 0
	}
	switch w.plan.mode {
	case exact:
		c := o.charged[l.account]
		if c == nil {
			return g, a, false // balance reports it
		}
		g.forgot, g.resets = c.forgot, c.epoch
		g.behind = o.begin.behind
		if w.plan.limits[l.limit].config.Algorithm == algo.Concurrency {
			return g, a, false
		}
	case leased:
		g.epoch = epoch{forgot: o.begin.forgot, behind: o.begin.behind}
		a.Lo, a.Hi = o.beganAt, o.endedAt
	default:
		g.epoch = epoch{forgot: o.begin.forgot, behind: o.begin.behind}
	}
	return g, a, o.begin == o.finish
}

type allBooks map[account]*books

func (w allBooks) resets(a account, n *node) int {
	if b := w[a]; b != nil {
		return b.local[n]
	}
	return 0
}

// bound holds admissions against what the limit, or a node's share of it, may admit in any span.
func (w *world) bound(g group, list []leasecheck.Admission, turns []int64, refunded int64) {
	c := w.most(g.limit)
	where := "the server"
	extra := refunded
	if b := w.accounts[g.account]; b != nil {
		extra += b.backs + b.settleDown
	}
	if g.node != nil {
		where = fmt.Sprintf("node %d.%d", g.node.id, g.node.life)
		share := func(n int64) int64 { return (n + int64(w.plan.nodes) - 1) / int64(w.plan.nodes) }
		if c.N = share(c.N); c.Burst > 0 {
			c.Burst = share(c.Burst)
		}
	} else if w.plan.mode == leased && c.Lease > 0 && (g.forgot > 0 || w.leapt()) {
		// Nodes go on with units lent by a server that does not know of them any more.
		extra += c.N*int64(c.Lease)/100 + 1
	}
	if w.plan.mode == leased && c.Lease > 0 && w.changes(g.limit) {
		return // units that were lent by larger numbers are used up
	}
	if c.Algorithm == algo.Concurrency {
		return
	}
	if c.Algorithm == algo.LeakyBucket {
		w.spaced(g, c, where, turns, extra)
		return
	}
	v, err := leasecheck.Check(c, extra, list)
	if err != nil {
		w.wrong("%v: %v", g.account, err)
		return
	}
	if v != nil {
		w.wrong("%v, by %s: %v", g.account, where, v)
	}
}

func (w *world) leapt() bool {
	return slices.ContainsFunc(w.plan.steps, func(s step) bool { return s.what == steps })
}

// changes reports whether a limit has not the same numbers all the time.
func (w *world) changes(limit int) bool {
	return slices.ContainsFunc(w.plan.versions,
		func(v []int64) bool { return v[limit] != w.plan.versions[0][limit] }) ||
		slices.ContainsFunc(w.plan.steps, func(s step) bool { return s.what == grants && s.limit == limit })
}

// spaced holds a leaky bucket: turns lie W/N apart.
func (w *world) spaced(g group, c algo.Config, where string, turns []int64, extra int64) {
	if extra > 0 || w.changes(g.limit) { // a turn that was given back is had by another
		return
	}
	slices.Sort(turns)
	least := c.Window.Microseconds()/c.N - 1
	for i := 1; i < len(turns); i++ {
		if apart := turns[i] - turns[i-1]; apart < least {
			w.wrong("%v, by %s: turns at %d and %d, which must be %d apart", g.account, where, turns[i-1], turns[i],
				least)
			return
		}
	}
}

// balanceBooks holds what the server has in the end of the limit in whose window everything counts
// against what clients were told.
func (w *world) balanceBooks() {
	limit := len(w.plan.limits) - 1
	_, forgot := w.server.lives()
	if forgot > 0 || w.leapt() {
		return
	}
	least, most := map[account]int64{}, map[account]int64{}
	for _, o := range w.ops {
		if o.step.what == refund && o.step.limits>>limit&1 == 1 { // made or not
			least[account{w.plan.limits[limit].name, w.keyOf(limit, o.step.key)}]--
		}
		for i := range o.limits {
			l := &o.limits[i]
			if l.limit != limit {
				continue
			}
			switch cost := o.rq.Cost(); {
			case o.step.what == reserve:
				most[l.account] += 3 * cost
			case cost < 0:
			case !o.allowed && !o.local || o.banned != "":
			case o.allowed && !o.local:
				least[l.account] += cost
				most[l.account] += cost
			default:
				most[l.account] += cost
			}
		}
		if !o.done || o.err != nil || o.gone {
			if o.step.limits>>limit&1 == 1 {
				a := account{w.plan.limits[limit].name, w.keyOf(limit, o.step.key)}
				most[a] += max(0, o.rq.Cost()) * 3
			}
		}
	}
	for a := range most {
		used, ok := w.used(limit, a.key)
		if !ok {
			continue
		}
		if w.plan.mode == leased {
			continue
		}
		if used < least[a] || used > most[a] {
			w.wrong("%v: the server counts %d, clients were admitted for %d to %d", a, used, least[a], most[a])
		}
	}
}

// inspectSwaps reads a key of the engine in memory, as a node that has just begun.
func inspectSwaps(w *world, v *store.View, key string, look func(store.KeyState)) error {
	c, err := cas.New(w.server.engine, cas.Options{})
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(nobody, time.Second)
	defer cancel()
	return c.Inspect(ctx, v, [][]byte{[]byte(key)}, look)
}

func userOf(key int) string { return fmt.Sprintf("u%d", key) }

func tenantOf(key int) string {
	if key >= keysOfAll {
		return fmt.Sprintf("t-lone-%d", key)
	}
	return fmt.Sprintf("t%d", key/2)
}

// windowText is an allow entry.
func windowText(n, ms, burst int64) string {
	if burst > 0 {
		return fmt.Sprintf("{rate: %d/%dms, burst: %d}", n, ms, burst)
	}
	return fmt.Sprintf("%d/%dms", n, ms)
}
