package weir

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// Denials counted in the background leave in groups: all of a key within gatherFor as one charge, denialBatch keys in a call.
const (
	gatherFor      = 50 * time.Millisecond
	denialBatch    = 128
	denialPatience = 5 * time.Second // for a call in the background
)

// count counts the denials that d is, one for each rule with a ban whose own windows denied it.
func (l *Limiter) count(ctx context.Context, d *Decision) {
	hits := d.Matches.Hits
next:
	for i := range d.results {
		b := hits[i].Window.Rule.Ban
		if b == nil || b.Counter == nil || d.results[i].Allowed || d.charges[i].Mode != rule.Enforce || d.charges[i].Ask.Cost <= 0 {
			continue
		}
		for j := i - 1; j >= 0 && sameKey(&hits[i], &hits[j]); j-- {
			if !d.results[j].Allowed {
				continue next
			}
		}
		if l.bans.o.Async {
			l.bans.pending.add(l, hits[i].Window, hits[i].Key)
			continue
		}
		l.countNow(ctx, hits[i].Window, hits[i].Key)
	}
}

// denialCharge is a charge of one denial.
type denialCharge struct {
	charge [1]Charge
	result [1]algo.Result
}

var denialCharges = sync.Pool{New: func() any { return new(denialCharge) }}

func (l *Limiter) countNow(ctx context.Context, w *rule.Window, key []byte) {
	c := denialCharges.Get().(*denialCharge)
	c.charge[0] = chargeOf(w.Rule.Ban, key, 1)
	_, err := l.store.Take(ctx, c.charge[:], c.result[:])
	result := c.result[0]
	*c = denialCharge{}
	denialCharges.Put(c)
	if err != nil {
		l.bans.pending.dropped.Add(1)
		return
	}
	if reached(&result) {
		l.banFor(w, key)
	}
}

// chargeOf charges n denials. While a shared store is away this node counts its share.
func chargeOf(b *rule.Ban, key []byte, n int64) Charge {
	return Charge{Counter: b.Counter, Limit: b.Counter.Limit, Key: key, Ask: algo.Ask{Cost: n}, Mode: rule.Shadow, OnStoreError: rule.Local}
}

// reached reports whether the denials that were counted so are enough for a ban.
func reached(r *algo.Result) bool { return !r.Allowed || r.Remaining == 0 }

// banFor bans a key of w's rule for its denials, unless it is banned.
func (l *Limiter) banFor(w *rule.Window, key []byte) {
	now := l.bans.now()
	group := w.Counter.Keys
	if _, _, ok := l.bans.table.find(group, key, now); ok {
		return
	}
	r := w.Rule
	until := now + r.Ban.For.Microseconds()
	b := newBan(r, w.KeyParts(key), now, until)
	b.Reason = fmt.Sprintf("%d denials within %s", r.Ban.After, r.Ban.Within)
	l.place(group, key, until, b)
	l.bans.set.Add(1)
	l.share.later(kindBan, factID(group, key))
}

// pending holds denials that are to be counted in the background. Its worker runs while there are any.
type pending struct {
	dropped atomic.Uint64

	mu      sync.Mutex
	m       map[denialKey]*denial
	working bool
}

type denialKey struct {
	counter *rule.Counter // of the ban
	key     string
}

type denial struct {
	window *rule.Window
	n      int64
}

// add notes one denial.
func (p *pending) add(l *Limiter, w *rule.Window, key []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.m[denialKey{w.Rule.Ban.Counter, string(key)}]; e != nil {
		e.n++
		return
	}
	if len(p.m) >= l.bans.o.Pending {
		p.dropped.Add(1)
		return
	}
	if p.m == nil {
		p.m = map[denialKey]*denial{}
	}
	p.m[denialKey{w.Rule.Ban.Counter, string(key)}] = &denial{window: w, n: 1}
	if !p.working {
		p.working = true
		go l.work()
	}
}

// forget drops the denials of a key that wait.
func (p *pending) forget(b *rule.Ban, key []byte) {
	p.mu.Lock()
	delete(p.m, denialKey{b.Counter, string(key)})
	p.mu.Unlock()
}

// work counts what waits, until nothing does.
func (l *Limiter) work() {
	p := &l.bans.pending
	for {
		time.Sleep(gatherFor)
		p.mu.Lock()
		some := p.m
		p.m = nil
		p.working = len(some) > 0
		p.mu.Unlock()
		if len(some) == 0 {
			return
		}
		for keys := range slices.Chunk(slices.Collect(maps.Keys(some)), denialBatch) {
			l.countAll(keys, some)
		}
	}
}

// countAll counts the denials of some keys in one call.
func (l *Limiter) countAll(keys []denialKey, of map[denialKey]*denial) {
	ctx, cancel := context.WithTimeout(context.Background(), denialPatience)
	defer cancel()
	charges, n := make([]Charge, len(keys)), uint64(0)
	for i, k := range keys {
		e := of[k]
		charges[i] = chargeOf(e.window.Rule.Ban, []byte(k.key), min(e.n, algo.MaxCost))
		n += uint64(e.n)
	}
	results := make([]algo.Result, len(charges))
	if _, err := l.store.Take(ctx, charges, results); err != nil {
		l.bans.pending.dropped.Add(n)
		return
	}
	for i, k := range keys {
		if reached(&results[i]) {
			l.banFor(of[k].window, charges[i].Key)
		}
	}
}
