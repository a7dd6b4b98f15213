package orders

import (
	"context"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// In the background denials are counted in groups: all of a key within gatherFor become one charge,
// and denialBatch keys one call.
const (
	gatherFor      = 50 * time.Millisecond
	denialBatch    = 128
	denialPatience = 5 * time.Second // for a call in the background
)

// denials counts denials of keys towards a ban.
type denials struct {
	bans    *Bans
	async   bool
	max     int // keys that may wait
	dropped atomic.Uint64

	// What waits to be counted in the background. A worker runs while there is something.
	mu      sync.Mutex
	pending map[denialKey]*denial
	working bool
}

type denialKey struct {
	counter *rule.Counter // of the ban
	key     string
}

type denial struct {
	window *rule.Window
	n      int64
	first  int64 // when the first of them was
	until  int64 // the latest instant until which the rule itself refuses
}

// denialCharge is a charge of one denial.
type denialCharge struct {
	charge [1]store.Charge
	result [1]algo.Result
}

var denialCharges = sync.Pool{New: func() any { return new(denialCharge) }}

// CountDenial counts a denial, now, of a key by w's rule, which has a ban; the rule itself refuses
// the key until an instant. Once there are enough, the key is banned. key is not kept.
func (b *Bans) CountDenial(ctx context.Context, w *rule.Window, key []byte, now, until int64) {
	d := &b.denials
	if d.async {
		d.enqueue(w, key, now, until)
		return
	}
	c := denialCharges.Get().(*denialCharge)
	c.charge[0] = chargeOf(w.Rule.Ban, key, 1)
	_, err := b.orders.store.Take(ctx, c.charge[:], c.result[:])
	result := c.result[0]
	*c = denialCharge{}
	denialCharges.Put(c)
	if err != nil {
		d.dropped.Add(1)
		return
	}
	if reached(&result) {
		b.ban(w, key, now, until)
	}
}

// chargeOf charges n denials. While a shared store is away, this node counts its share.
func chargeOf(b *rule.Ban, key []byte, n int64) store.Charge {
	return store.Charge{Counter: b.Counter, Limit: b.Counter.Limit, Key: key, Ask: algo.Ask{Cost: n}, Mode: rule.Shadow,
		OnStoreError: rule.Local}
}

// reached reports whether the denials counted so far are enough for a ban.
func reached(r *algo.Result) bool { return !r.Allowed || r.Remaining == 0 }

// enqueue makes one denial of a key wait to be counted.
func (d *denials) enqueue(w *rule.Window, key []byte, now, until int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.pending[denialKey{w.Rule.Ban.Counter, string(key)}]; e != nil {
		e.n++
		e.until = max(e.until, until)
		return
	}
	if len(d.pending) >= d.max {
		d.dropped.Add(1)
		return
	}
	if d.pending == nil {
		d.pending = map[denialKey]*denial{}
	}
	d.pending[denialKey{w.Rule.Ban.Counter, string(key)}] = &denial{window: w, n: 1, first: now, until: until}
	if !d.working {
		d.working = true
		go d.work()
	}
}

// forget drops the denials of a key that wait.
func (d *denials) forget(b *rule.Ban, key []byte) {
	d.mu.Lock()
	delete(d.pending, denialKey{b.Counter, string(key)})
	d.mu.Unlock()
}

// work counts what waits, until nothing does.
func (d *denials) work() {
	for {
		time.Sleep(gatherFor)
		d.mu.Lock()
		batch := d.pending
		d.pending = nil
		d.working = len(batch) > 0
		d.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		for keys := range slices.Chunk(slices.Collect(maps.Keys(batch)), denialBatch) {
			d.count(keys, batch)
		}
	}
}

// count counts the denials of some keys in one call.
func (d *denials) count(keys []denialKey, batch map[denialKey]*denial) {
	ctx, cancel := context.WithTimeout(context.Background(), denialPatience)
	defer cancel()
	charges, n := make([]store.Charge, len(keys)), uint64(0)
	for i, k := range keys {
		e := batch[k]
		charges[i] = chargeOf(e.window.Rule.Ban, []byte(k.key), min(e.n, algo.MaxCost))
		n += uint64(e.n)
	}
	results := make([]algo.Result, len(charges))
	if _, err := d.bans.orders.store.Take(ctx, charges, results); err != nil {
		d.dropped.Add(n)
		return
	}
	for i, k := range keys {
		if reached(&results[i]) {
			d.bans.ban(batch[k].window, charges[i].Key, batch[k].first, batch[k].until)
		}
	}
}
