package fallback

import (
	"hash/maphash"
	"math"
	"sync"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// known remembers the primary's last answer for each key, so that a share never admits units that
// this answer rules out. It holds a bounded number of keys, and prefers those near their limit.
// Recording allocates nothing. Safe for concurrent use.
type known struct {
	seed   maphash.Seed
	begun  time.Time
	shards [knownShards]knownShard
}

const (
	knownShards = 64
	knownSets   = 128 // of a shard
	knownWays   = 4   // keys of a set; there is room for 32,768 of all sets
)

// disorder is how much later than another one made after it an answer may come, in µs.
const disorder = int64(2 * time.Second / time.Microsecond)

type knownShard struct {
	mu   sync.Mutex
	sets [knownSets][knownWays]lastAnswer
}

// lastAnswer is the primary's last answer for a key. Durations and instants are in µs.
type lastAnswer struct {
	id, hash  uint64 // of the counter and of the key; both 0: an empty place
	at        int64  // when it was heard, by known's clock
	now       int64  // when it was so, by the primary's
	limit     int64  // capacity
	remaining int64
	margin    int64 // that is certain to be left above it
	cost      int64 // that was refused; 0 if nothing was
	retry     int64 // after which it would be admitted
	reset     int64 // after which nothing counts any more
	open      int64 // units that were admitted on the share and are not known to be counted in it
}

func newKnown() *known { return &known{seed: maphash.MakeSeed(), begun: time.Now()} }

// clock is in µs.
func (k *known) clock() int64 { return int64(time.Since(k.begun) / time.Microsecond) }

func (k *known) hash(c *rule.Counter, key []byte) uint64 {
	return (maphash.Bytes(k.seed, key) ^ c.ID*0x9E3779B97F4A7C15) | 1
}

// set returns the shard and the set of places for a key. Hold the shard's lock to use the set.
func (k *known) set(h uint64) (*knownShard, *[knownWays]lastAnswer) {
	sh := &k.shards[h>>58]
	return sh, &sh.sets[h>>51%knownSets]
}

func find(set *[knownWays]lastAnswer, id, h uint64) *lastAnswer {
	for i := range set {
		if f := &set[i]; f.hash == h && f.id == id {
			return f
		}
	}
	return nil
}

// record keeps an answer that the primary gave at now, by its own clock.
func (k *known) record(charges []store.Charge, results []algo.Result, now int64) {
	at := k.clock()
	for i := range charges {
		if c, r := &charges[i], &results[i]; !uncounted(c) && !r.Off {
			k.recordOne(c, r, now, at)
		}
	}
}

func (k *known) recordOne(c *store.Charge, r *algo.Result, now, at int64) {
	h := k.hash(c.Counter, c.Key)
	sh, set := k.set(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	f := find(set, c.Counter.ID, h)
	switch {
	case f == nil:
		if f = room(set, r, at); f == nil {
			return
		}
		*f = lastAnswer{id: c.Counter.ID, hash: h}
	case at-f.at > disorder: // else the clock of the primary may have gone back
	case f.now > now, f.now == now && f.remaining <= r.Remaining && (r.Allowed || f.cost > 0):
		return
	}
	f.at, f.now, f.limit, f.remaining, f.reset = at, now, r.Limit, r.Remaining, r.ResetAfter
	f.cost, f.retry, f.margin = 0, 0, 0
	if f.reset == algo.Never {
		f.reset = math.MaxInt64
	}
	switch {
	case !r.Allowed && r.Remaining < c.Ask.Needs(): // else the wait was too long, with room left
		f.cost, f.retry = c.Ask.Needs(), r.RetryAfter
		if f.retry == algo.Never {
			f.retry = math.MaxInt64
		}
	case !r.Soft:
		f.margin = r.SoftLimit - r.Limit
	}
}

// room returns the place for a key with the result r: an empty or expired place, or else the place
// of the key that is furthest from its limit. It returns nil if the new key is further from its
// own.
func room(set *[knownWays]lastAnswer, r *algo.Result, at int64) *lastAnswer {
	var fullest *lastAnswer
	for i := range set {
		f := &set[i]
		if f.hash == 0 || f.over(at-f.at) {
			return f
		}
		if fullest == nil || f.fullness() > fullest.fullness() {
			fullest = f
		}
	}
	if float64(r.Remaining) > fullest.fullness()*float64(max(1, r.Limit)) {
		return nil
	}
	return fullest
}

// fullness is the fraction of the limit that is left.
func (f *lastAnswer) fullness() float64 { return float64(f.remaining) / float64(max(1, f.limit)) }

// over reports whether the key's state is back at its start after a time, so that it need not be
// known.
func (f *lastAnswer) over(elapsed int64) bool { return elapsed >= f.reset }

// left is the number of units that may be left some time after the answer, if no other node has
// taken any. It counts only units that are certainly free again.
func (f *lastAnswer) left(l *algo.Limit, capacity, elapsed int64) int64 {
	used := f.limit - f.remaining
	c, gained := l.Config(), int64(0)
	switch a := l.Algorithm(); {
	case a.HasBurst() && !c.RefillInterval:
		gained = int64(float64(c.N) * (float64(elapsed) / float64(c.Window.Microseconds())))
	case a.Slides() && f.cost > 0 && elapsed >= f.retry:
		// The refused units were free from then on, and all are when it is over: evenly between.
		part := float64(elapsed-f.retry) / float64(max(1, f.reset-f.retry))
		gained = f.cost + int64(part*float64(max(0, used-f.cost)))
	}
	left := capacity - max(0, used-gained)
	if f.cost > 0 && capacity == f.limit {
		if elapsed < f.retry {
			return min(left, f.cost-1)
		}
		return max(left, f.cost)
	}
	return left + f.margin
}

// claim is how much a share may admit of a key, according to known.
type claim struct {
	known  bool
	denied bool
	left   int64 // that the next request could still take
	retry  int64 // µs; set if denied
	reset  int64 // µs
}

// claim takes a charge's cost from this node's share of a key. Each node may admit its part of the
// units that are left, rounded up.
func (k *known) claim(c *store.Charge, nodes int64) (out claim) {
	h := k.hash(c.Counter, c.Key)
	sh, set := k.set(h)
	at := k.clock()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	f := find(set, c.Counter.ID, h)
	if f == nil {
		return out
	}
	elapsed := max(0, at-f.at)
	in, _ := c.Limit.At(f.now + elapsed)
	if in == nil || f.over(elapsed) {
		return out
	}
	if in.HasSlots() && elapsed > disorder {
		// Slots come and go with requests, and this node does not learn of slots that other nodes
		// give back. So the answer holds only while another may still be on its way.
		f.open = 0
		return out
	}
	cost, needs := max(0, c.Ask.Cost), max(0, c.Ask.Needs())
	var fresh algo.State
	all := f.left(in, in.Check(&fresh, f.now+elapsed, algo.Ask{}).Limit, elapsed)
	left := ceil(max(0, all), nodes) - f.open
	out = claim{known: true, left: max(0, left), reset: f.reset - elapsed}
	if f.reset == math.MaxInt64 {
		out.reset = algo.Never
	}
	if needs <= left || needs == 0 {
		f.open += cost
		out.left = max(0, left-cost)
		return out
	}
	missing := float64(f.open+needs-1)*float64(nodes) + 1 - float64(all)
	out.denied, out.retry = true, f.until(in, missing, needs, elapsed)
	return out
}

// until is how long it takes until more is left that was not enough, as far as that is known.
func (f *lastAnswer) until(l *algo.Limit, missing float64, cost, elapsed int64) int64 {
	c := l.Config()
	wait := f.reset - elapsed
	switch a := l.Algorithm(); {
	case a.HasBurst() && !c.RefillInterval:
		if c.N > 0 {
			after := math.Ceil(missing * (float64(c.Window.Microseconds()) / float64(c.N)))
			wait = int64(min(float64(wait), after))
		}
	case f.cost >= cost && f.retry > elapsed && f.open == 0:
		wait = min(wait, f.retry-elapsed)
	}
	if f.reset == math.MaxInt64 && wait > math.MaxInt64/2 {
		return algo.Never
	}
	return max(1, wait)
}

// free releases units that a share has claimed: they were not charged after all, or their fate is
// known.
func (k *known) free(c *rule.Counter, key []byte, units int64) {
	h := k.hash(c, key)
	sh, set := k.set(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if f := find(set, c.ID, h); f != nil {
		f.open = max(0, f.open-units)
	}
}

// gain notes that a slot which the primary had given was given back.
func (k *known) gain(c *rule.Counter, key []byte) {
	h := k.hash(c, key)
	sh, set := k.set(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if f := find(set, c.ID, h); f != nil && f.remaining < f.limit {
		f.remaining++
		f.cost = 0
	}
}

// settle notes that the primary was asked, at begun by known's clock, to replace a charge by the
// request's real cost. Without an answer, units are not assumed to have gone back.
func (k *known) settle(e *store.Settlement, begun int64, answered bool) {
	if !e.Limit.Settles() {
		return // it changes nothing there
	}
	h := k.hash(e.Counter, e.Key)
	sh, set := k.set(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	f := find(set, e.Counter.ID, h)
	if f == nil {
		return
	}
	if more := e.Actual - e.Reserved; more >= 0 {
		f.remaining -= more // below 0: a debt
		return
	}
	if !answered || f.at >= begun { // an answer recorded since then may already count it
		return
	}
	if back := goesBack(e, f.now+k.clock()-f.at); back > 0 {
		f.remaining, f.cost, f.retry = min(f.limit, f.remaining+back), 0, 0
	}
}

// goesBack is how many units a settlement certainly sets free at an instant of the primary's clock:
// as many as if the key had nothing but that charge.
func goesBack(e *store.Settlement, now int64) int64 {
	in, _ := e.Limit.At(now)
	if in == nil || in.Config().FirstRequest || in.Config().RefillInterval {
		return 0 // which requests its window began with is not known
	}
	var st algo.State
	e.Limit.Take(&st, e.At, algo.Ask{Cost: e.Reserved, MaxDelay: -1})
	before := e.Limit.Check(&st, now, algo.Ask{}).Remaining
	e.Limit.Settle(&st, nil, now, e.At, e.Reserved, e.Actual)
	return e.Limit.Check(&st, now, algo.Ask{}).Remaining - before
}

// reopen forgets that a key was refused, because its limit may have changed. The units it has used
// stay known.
func (k *known) reopen(c *rule.Counter, key []byte) {
	h := k.hash(c, key)
	sh, set := k.set(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if f := find(set, c.ID, h); f != nil {
		f.cost, f.retry = 0, 0
	}
}

// forget forgets a key.
func (k *known) forget(c *rule.Counter, key []byte) {
	h := k.hash(c, key)
	sh, set := k.set(h)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if f := find(set, c.ID, h); f != nil {
		*f = lastAnswer{}
	}
}
