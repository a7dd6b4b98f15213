package simulation

import (
	"context"
	"errors"
	"time"

	"github.com/weir-rl/weir"
	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
	"github.com/weir-rl/weir/store/fallback"
)

// What is held against single answers: their numbers, how long they took, bans, grants, and
// whether retry_after is true.

// order is a ban or a grant, as the operator who made it knows it.
type order struct {
	ban       bool
	known     time.Duration // since when all nodes know it, if nothing is disturbed
	until     time.Duration // when it begins to end, in any way
	gone      time.Duration // from when on no node can know it any more
	n         int64         // of a grant
	disturbed int
}

// spread is how long an order may take to all nodes: a second, and the way.
const spread = 1100 * time.Millisecond

// expected returns the numbers that a limit may say on a node, and how many there are of it.
func (o *op) expected(version int, s *said, localCounts bool) (n []int64) {
	w := o.w
	c, ok := w.plan.config(version, s.limit)
	if !ok {
		return nil
	}
	capacity := func(v int64) int64 {
		size := v
		if c.Burst > 0 {
			size = c.Burst
		}
		if localCounts {
			size = (size + int64(w.plan.nodes) - 1) / int64(w.plan.nodes)
		}
		if c.Algorithm == algo.LeakyBucket {
			size++
		}
		return size
	}
	n = append(n, capacity(c.N))
	if g := w.orderOn(w.plan.limits[s.limit].name, s.key, false); g != nil && o.ended >= g.known-spread &&
		o.began <= g.gone {
		n = append(n, capacity(g.n))
		if o.began > g.known && o.ended < g.until && g.disturbed == o.disturbed {
			return n[1:]
		}
	}
	return n
}

// orderOn returns the last order on a key, as it is known now; nil if there is none.
func (w *world) orderOn(limit, key string, ban bool) *order {
	w.mu.Lock()
	defer w.mu.Unlock()
	name := account{"grant " + limit, key}
	if ban {
		name.window = "ban " + limit
	}
	if o := w.orders[name]; o != nil {
		now := *o
		return &now
	}
	return nil
}

// judge holds an answer against what must be true of it by itself. o.mu is held.
func (o *op) judge(d *weir.Decision, version int) {
	w := o.w
	w.mu.Lock()
	seen := &w.seen
	seen.Ops++
	switch {
	case o.err != nil:
		seen.Failed++
	case o.banned != "":
		seen.Banned++
	case o.allowed:
		seen.Admitted++
	default:
		seen.Refused++
	}
	if o.local {
		seen.Local++
	}
	if len(o.charged) == 0 && w.plan.mode == leased && o.err == nil && !o.local && len(o.limits) > 0 {
		seen.Leased++
	}
	calm := w.disturbed == o.disturbed
	w.mu.Unlock()
	most := deadline
	if o.step.timeout > 0 {
		most = min(most, o.step.timeout*3/4)
	}
	if took := o.ended - o.began; took > most && o.step.what != reserve {
		w.wrong("%s took %v, at most %v", o.name, took, most)
	}
	if o.banned != "" {
		o.judgeBan()
		return
	}
	if o.err != nil || o.gone {
		return
	}
	o.judgeUnbanned(calm)
	if version != o.node.rules() || !calm {
		return
	}
	met := 0
	for i := range w.plan.limits {
		if _, ok := w.plan.config(version, i); ok && o.step.limits>>i&1 == 1 {
			met++
		}
	}
	if len(o.limits) != met && !o.without {
		w.wrong("%s met %d limits, want %d", o.name, len(o.limits), met)
	}
	refuses := false
	for i := range o.limits {
		l := &o.limits[i]
		refuses = refuses || !l.Allowed
		if l.Remaining < 0 || l.Remaining > l.Limit {
			w.wrong("%s: %v has %d of %d left", o.name, l.account, l.Remaining, l.Limit)
		}
		if !o.rq.Peek && l.Allowed == (l.RetryAfter != 0) {
			w.wrong("%s: %v allowed %v, and to retry after %d", o.name, l.account, l.Allowed, l.RetryAfter)
		}
		local := o.local && w.plan.limits[l.limit].policy != rule.AllowAll
		want := o.expected(version, l, local)
		ok := false
		for _, n := range want {
			ok = ok || n == l.Limit
		}
		if !ok {
			w.wrong("%s: %v says %d (local %v), want %v of version %d", o.name, l.account, l.Limit, local, want,
				version)
		}
	}
	if refuses == o.allowed {
		w.wrong("%s: allowed %v, and a limit refuses: %v", o.name, o.allowed, refuses)
	}
	if o.allowed && d.RetryAfter != 0 {
		w.wrong("%s: allowed, and to retry after %d", o.name, d.RetryAfter)
	}
}

// judgeBan: nobody is refused by a ban that was not made.
func (o *op) judgeBan() {
	w := o.w
	i := w.plan.indexOf(o.banned)
	if w.plan.limits[i].bans {
		return // its denials may have brought it
	}
	key := w.keyOf(i, o.step.key)
	if b := w.orderOn(o.banned, key, true); b == nil || o.ended < b.known-spread || o.began > b.gone {
		w.wrong("%s: banned by %s, and there is no ban on %s: %+v", o.name, o.banned, key, b)
	}
}

// judgeUnbanned: whoever all nodes know to be banned is.
func (o *op) judgeUnbanned(calm bool) {
	for i := range o.w.plan.limits {
		l := &o.w.plan.limits[i]
		if _, there := o.w.plan.config(o.node.rules(), i); !there || o.step.limits>>i&1 == 0 {
			continue
		}
		b := o.w.orderOn(l.name, o.w.keyOf(i, o.step.key), true)
		if b != nil && calm && o.rq.Cost() >= 0 && b.disturbed == o.disturbed && o.began > b.known &&
			o.ended < b.until {
			o.w.wrong("%s passes, and %s bans it since %v: %+v now %v", o.name, l.name, b.known-spread,
				o.node.limits.Bans().List(), time.UnixMicro(o.node.clock.now()))
		}
	}
}

// keyOf returns the key of a limit, as counters have it, that the key of a step has.
func (w *world) keyOf(limit, key int) string {
	own, err := w.first.Rules()[limit].Windows[0].AppendKey(nil, w.keyParts(limit, key))
	if err != nil {
		w.wrong("%v", err)
	}
	return string(own)
}

func (w *world) keyParts(limit, key int) []string {
	if w.plan.limits[limit].per == "tenant" {
		return []string{tenantOf(key)}
	}
	return []string{userOf(key)}
}

// honest holds retry_after: the request was refused, and comes again when it was told. Where
// nothing else has touched its keys, it is admitted.
func (w *world) honest(was, again *op) {
	if !again.done || again.err != nil || again.local || again.gone || again.banned != "" ||
		was.disturbed != again.disturbed || w.plan.mode != exact {
		return
	}
	if _, gone := w.lateDisturbed(again.disturbed); gone || again.time < was.time+was.retry {
		return
	}
	was.mu.Lock()
	again.mu.Lock()
	defer was.mu.Unlock()
	defer again.mu.Unlock()
	for _, l := range was.limits {
		if l.Allowed && w.plan.limits[l.limit].config.CountDenied {
			return // it counts the refusal, which may be one too many for the next one
		}
		after, ok := was.after[l.account]
		if before, ok2 := again.before[l.account]; !ok || !ok2 || before != after {
			return
		}
	}
	w.count(&w.seen.Honest)
	if !again.allowed {
		w.wrong("%s was told at %d to come after %d, and is refused at %d", was.name, was.time, was.retry, again.time)
	}
}

func (w *world) lateDisturbed(was int) (now int, changed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.disturbed, w.disturbed != was
}

// operate bans, grants and resets.
func (w *world) operate(s *step, n *node) {
	l := &w.plan.limits[s.limit]
	version := n.rules()
	if _, there := w.plan.config(version, s.limit); !there ||
		l.config.Algorithm == algo.Concurrency && s.what == grants {
		return
	}
	parts, key := w.keyParts(s.limit, s.key), w.keyOf(s.limit, s.key)
	o := &op{w: w, step: s, node: n, charged: map[account]*charge{}, before: map[account]int{},
		after: map[account]int{}}
	ctx := context.WithValue(nobody, opKey{}, o)
	until := time.UnixMicro(n.clock.now()).Add(s.lasts)
	name := account{"ban " + l.name, key}
	var err error
	next := &order{ban: s.what == bans, n: 2 * l.config.N, known: time.Hour, until: time.Hour, gone: time.Hour * 2}
	w.mu.Lock()
	if next.disturbed = w.disturbed; w.faults > 0 {
		next.disturbed = -1
	}
	if s.what == grants {
		name.window = "grant " + l.name
	}
	if s.what != resets {
		if had := w.orders[name]; had != nil {
			w.mu.Unlock()
			return // one at a time, so that it is known which holds
		}
		next.known = w.now() + spread // as far as it can be known yet
		w.orders[name] = next
	}
	w.mu.Unlock()
	switch s.what {
	case bans:
		_, err = n.limits.Bans().Set(ctx, "", l.name, parts, until, "simulated")
	case grants:
		window := l.config.Window.Milliseconds()
		allow := windowText(next.n, window, l.config.Burst)
		_, err = n.limits.Grants().Set(ctx, "", l.name, parts, allow, until, "simulated")
	case resets:
		w.disturb()
		_, err = n.limits.Keys().Reset(ctx, "", l.name, parts)
		w.disturb()
		w.note("reset of %s %s: error %v", l.name, parts, err != nil)
		return
	}
	w.note("order on %s %s: error %v", l.name, parts, err)
	if err != nil && !errors.Is(err, weir.ErrNotShared) && !n.gone.Load() {
		w.wrong("an order on %s: %v", l.name, err)
	}
	w.mu.Lock()
	if err != nil {
		next.disturbed = -1
	}
	next.known = w.now() + spread
	next.until = w.now() + s.lasts*8/10
	w.mu.Unlock()
	if s.lasts > 6*time.Second && s.what == bans { // it is lifted before its end
		time.Sleep(s.lasts / 2)
		w.mu.Lock()
		next.until = w.now()
		w.mu.Unlock()
		_, err := n.limits.Bans().Lift(ctx, "", l.name, parts)
		w.note("lifted on %s %s: error %v", l.name, parts, err != nil)
	}
}

// calm holds what must be true once all faults are over, and 20 s have passed.
func (w *world) calm() {
	for _, n := range w.nodes {
		if state, _, cause := n.store.State(); state != fallback.Closed {
			w.wrong("node %d: the breaker is %v: %v", n.id, state, cause)
		}
		s := n.store.Stats()
		if sum := s.Settled + s.Excess + s.Lost + s.Lapsed + s.Returned + s.Open; s.Admitted != sum || s.Open != 0 {
			w.wrong("node %d: what shares admitted is not accounted for: %+v", n.id, s)
		}
		w.mu.Lock()
		w.seen.Settled += int(s.Settled)
		w.mu.Unlock()
	}
}

// used returns what the server has of an account of the limit in whose window everything counts.
func (w *world) used(limit int, key string) (int64, bool) {
	n := w.nodes[0]
	rules, _ := n.limits.Rules()
	var c *rule.Counter
	for _, r := range rules.Rules() {
		if r.Name == w.plan.limits[limit].name {
			c = r.Windows[0].Counter
		}
	}
	if c == nil {
		return 0, false
	}
	view := &store.View{Counter: c, Limit: func([]byte) *algo.Limit { return c.Limit }}
	var used int64
	look := func(k store.KeyState) { used = k.Used }
	var err error
	if w.plan.mode == swaps {
		err = inspectSwaps(w, view, key, look)
	} else {
		err = w.server.mem.Inspect(nobody, view, [][]byte{[]byte(key)}, look)
	}
	if err != nil {
		w.wrong("%v", err)
		return 0, false
	}
	return used, true
}
