package regions

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
	"github.com/weir-rl/weir/store"
)

// borrower takes units of keys whose ceiling here is nearly used up from regions that have some
// left. A loan is a lease at the other region whose use is never reported: so it counts as used
// there when it ends, in any case. Before that, and before it can count in another window than
// here, as many units are given back to the state of this region. An answer that is lost costs
// units, and never the bound. docs/proofs has the model.
type borrower struct {
	x     *exchange
	queue chan *loan

	mu    sync.Mutex
	loans map[string]*loan // by the Counter's ID and the key
	swept int64
}

// loan is the borrowing of a key by this node.
type loan struct {
	counter *rule.Counter
	key     []byte
	part    int

	busy  bool
	next  int64 // not before then, monotonic
	pause int64
	last  int64 // when the last one was asked for, monotonic
	share int64 // of the ceiling to ask for, in percent
	most  int64 // the units used of the ceiling: no more can be taken off
	used  int64 // when somebody wanted it last, monotonic
}

const (
	borrowersAtOnce = 8
	maxLoans        = 1 << 16
	// A key asks for so many percent of the ceiling of its region: twice as many each time that
	// they last for less than loanLasts, so that a fast key gets as much as it uses while the
	// answer is on its way.
	leastShare = 10
	mostShare  = 100
	loanLasts  = int64(2 * time.Second)
	loanIdle   = int64(10 * time.Second)
	// Pauses after a region has lent nothing.
	leastPause = int64(200 * time.Millisecond)
	mostPause  = int64(2 * time.Second)
	// loanWithin bounds the wait for another region.
	loanWithin = 1500 * time.Millisecond
)

func (b *borrower) init(x *exchange) {
	b.x, b.queue, b.loans = x, make(chan *loan, 1024), map[string]*loan{}
}

// low is called when little is left of the ceiling of a key, or nothing, and used of it is. It must
// be quick. Borrowed units are taken off the units used. So where nothing is used, as of a ceiling
// of 0 or by a request for more than there ever is, they would be lost to all.
func (b *borrower) low(c *rule.Counter, key []byte, used int64) {
	if c.Lease == nil || len(b.x.peers) == 0 || used <= 0 {
		return
	}
	var buf [128]byte
	name := appendName(buf[:0], c.ID, key)
	mono := store.Monotonic()
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.loans[string(name)]
	if n == nil {
		if b.sweep(mono); len(b.loans) >= maxLoans {
			return
		}
		n = &loan{counter: c, key: append([]byte(nil), key...), part: b.x.own.PartOf(c, key), share: leastShare}
		b.loans[string(name)] = n
	}
	n.used, n.counter, n.most = mono, c, used
	if n.busy || mono < n.next {
		return
	}
	select {
	case b.queue <- n:
		n.busy = true
	default: // others are before it; it comes again with its next request
	}
}

// sweep forgets idle entries, once a second.
func (b *borrower) sweep(mono int64) {
	if mono-b.swept < int64(time.Second) {
		return
	}
	b.swept = mono
	for name, n := range b.loans {
		if !n.busy && mono-n.used > loanIdle {
			delete(b.loans, name)
		}
	}
}

func (b *borrower) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case n := <-b.queue:
			began := store.Monotonic()
			b.mu.Lock()
			switch since := began - n.last; {
			case n.last == 0 || since > loanIdle:
				n.share = leastShare
			case since < loanLasts && n.pause == 0:
				n.share = min(2*n.share, mostShare)
			}
			n.last = began
			c, share, most := n.counter, n.share, n.most
			b.mu.Unlock()
			got := b.borrow(ctx, c, n, share, most)
			now := store.Monotonic()
			b.mu.Lock()
			n.busy = false
			if n.next = 0; got > 0 {
				n.pause = 0
			} else {
				n.pause = min(max(2*n.pause, leastPause), mostPause)
				n.next = now + n.pause
			}
			b.mu.Unlock()
		}
	}
}

// borrow asks up to two regions for a share of the ceiling, in percent, but no more than most. It
// returns how many units came of it.
func (b *borrower) borrow(ctx context.Context, c *rule.Counter, n *loan, share, most int64) (got int64) {
	x := b.x
	_, inForce, limit := x.o.Rules(c.ID, n.key)
	if limit == nil {
		return 0
	}
	switch {
	case allowsLess(inForce, limit, x.clock()):
		limit = inForce
	case !allowsLess(limit, inForce, x.clock()): // less of one number and more of another
		return 0
	}
	in, _ := limit.At(x.clock())
	if in == nil || !canLend(in) {
		return 0
	}
	want := min(max(1, atOnce(x.self.of(limit, c.Regions.Over).own, x.clock())*share/100/x.nodes()), most)
	for _, p := range x.lenders() {
		if p == nil || want <= 0 || ctx.Err() != nil {
			break
		}
		g := b.from(ctx, p, c, limit, n, want)
		got += g
		if 2*g >= want {
			break
		}
		want -= g
	}
	return got
}

// allowsLess reports whether a is no more than b at now. Units are moved by the lesser of the
// numbers in force and the rule's numbers: no more of them may come from elsewhere than a grant or
// a signal leaves, and the other region may know nothing of more than the rule gives.
func allowsLess(a, b *algo.Limit, now int64) bool {
	if a == nil || b == nil {
		return b == nil
	}
	x, _ := a.At(now)
	y, _ := b.At(now)
	return x == nil || y != nil && x.Config().N <= y.Config().N && atOnce(a, now) <= atOnce(b, now)
}

// canLend reports whether units of a limit can be moved between regions: the windows of all of
// them must begin at the same time.
func canLend(l *algo.Limit) bool {
	c := l.Config()
	return l.Lease() != nil && !c.FirstRequest
}

// lenders returns up to two regions to ask. Which is first depends on the time, so that none is
// asked by all.
func (x *exchange) lenders() (list [2]*peer) {
	mono, n := store.Monotonic(), 0
	from := int(mono / int64(100*time.Millisecond) % int64(len(x.peers)))
	for i := range x.peers {
		p := x.peers[(from+i)%len(x.peers)]
		if n < len(list) && mono < p.agrees.Load() {
			list[n] = p
			n++
		}
	}
	return list
}

// from borrows of one region.
func (b *borrower) from(ctx context.Context, p *peer, c *rule.Counter, limit *algo.Limit, n *loan, want int64) int64 {
	x, over := b.x, c.Regions.Over
	within, cancel := context.WithTimeout(ctx, loanWithin)
	defer cancel()
	// The clock of this region's store, on the server that has the state, is read before the other
	// region is asked. So as much later as it says there that the loan ends, it has not ended
	// there, however long this process stands still on the way; no other clock has a part in it.
	here, err := x.own.Change(within, n.part, "", "", "", nil, nil)
	if err != nil {
		return 0
	}
	there := p.parts.of(limit, over).own
	charges := []store.Charge{{Counter: c, Limit: there, Key: n.key, Mode: rule.Shadow}}
	ahead, results := []algo.Ahead{{Want: want, First: true}}, make([]algo.Result, 1)
	now, _, err := p.store.TakeAhead(within, 0, loanWithin, charges, ahead, results)
	s := &p.counts
	s.asked.Add(1)
	if err != nil {
		s.errors.Add(1)
		return 0
	}
	h := &ahead[0]
	if h.Got == 0 {
		return 0
	}
	lasts := h.Until - now
	since, until := int64(0), here+lasts-lasts/1000-time.Millisecond.Microseconds() // clocks go at nearly the same pace
	if limit.ResetsAtOnce() {                                                       // in the window in which it counts there
		from, to := windowSpan(limit, h.Until-1)
		since, until = from, min(until, to)
	}
	if _, bound := limit.At(here); bound < until {
		until = bound
	}
	own := store.Charge{Counter: c, Limit: x.self.of(limit, over).own, Key: n.key, Mode: rule.Shadow}
	use := min(b.usable(within, &own), h.Got)
	rest := h.Got - use
	if use > 0 {
		changes := []store.Change{{Counter: c, Limit: own.Limit, Key: n.key, Units: -use, Since: since, Until: until}}
		var done [1]store.Changed
		switch _, err := x.own.Change(within, n.part, "", "", "", changes, done[:]); {
		case err == nil && done[0].Made:
			if x.forget != nil {
				x.forget(c, n.key) // else this node would go on refusing
			}
			s.borrowed.Add(uint64(use))
			x.stats.limit(c).borrowed.Add(uint64(use))
		case err == nil, errors.Is(err, store.ErrNotCharged):
			use, rest = 0, h.Got
		default: // they may have been put to use, so they must not go back
			s.lost.Add(uint64(use))
			use = 0
		}
	}
	if rest > 0 && !b.back(ctx, p, charges, h.Until, rest) {
		s.lost.Add(uint64(rest))
	}
	return use
}

// usable returns how many borrowed units can be put to use: as many as the state here has used,
// since they are taken off the units used. Where a window has begun while the question was under
// way, that is none, and so it is where the state cannot be read.
func (b *borrower) usable(ctx context.Context, own *store.Charge) (units int64) {
	charges, ahead, results := []store.Charge{*own}, make([]algo.Ahead, 1), make([]algo.Result, 1)
	var err error
	if lender, ok := b.x.own.(store.Lender); ok {
		_, _, err = lender.TakeAhead(ctx, 0, loanWithin, charges, ahead, results)
	} else {
		_, err = b.x.own.Take(ctx, charges, results)
	}
	r := &results[0]
	if err != nil || r.Off {
		return 0
	}
	return max(0, r.Limit-r.Remaining-ahead[0].Out)
}

// back returns units that were not put to use to the region that lent them. It returns false if
// they may be lost, as they are if they have ended there. It has a time of its own: the store of
// this region may have taken up the rest.
func (b *borrower) back(ctx context.Context, p *peer, charges []store.Charge, end, units int64) bool {
	ctx, cancel := context.WithTimeout(ctx, loanWithin)
	defer cancel()
	ahead := []algo.Ahead{{Told: [2]algo.Told{{End: end, Returned: units}}}}
	now, _, err := p.store.TakeAhead(ctx, 0, loanWithin, charges, ahead, make([]algo.Result, 1))
	return err == nil && now < end
}
