package broker

import "time"

// Limits whose generations are shorter than the life of an assignment cannot lend units to an
// Envoy: these would be over before it is. Such a bucket is given a rate. The units that it can use
// in the next moments are out in the store all the time: each tick, which is half of a generation,
// reports the rate's units since the last one as used, gives the rest back, and takes the next part
// ahead, in one call. A limit that lends less then makes the rate smaller at once.

// rateState is the state of a bucket with a rate.
type rateState struct {
	paid    int64 // until when it is paid, in ns
	carry   int64 // of a request, in fill × µs
	extra   int64 // requests to be paid beside: bursts, and a rate that Envoy may still have
	balance int64 // requests that were paid and not reported; below 0: reported and not paid
	slack   int64 // how far it may be below 0
	target  int64 // rate by the demand, in requests a second × 1000
	changed int64 // when the rate was changed last
}

// The bounds of a tick.
const (
	shortestTick = int64(50 * time.Millisecond)
	longestTick  = secondNs
)

// mustPace reports whether a bucket meets a limit whose units do not last as long as an assignment.
func (h *Holder) mustPace(b *Bucket) bool {
	for i := range b.terms.Charges {
		if b.terms.Charges[i].generation() < int64(TTL)+delayNs {
			return true
		}
	}
	return false
}

// tick is the time between two payments.
func (b *Bucket) tick() int64 {
	least := longestTick
	for i := range b.terms.Charges {
		least = min(least, b.terms.Charges[i].generation()/2)
	}
	return max(least, shortestTick)
}

// span is the time, in ms, for which a limit lends the rate: as long as the rate takes to fill all
// that the limit admits at once, so that the rates that are lent are the same share of its own as
// the units that may be out. A limit that could lend units for longer than that lends no more than
// covers the rate until it is paid again. Envoy's token bucket adds a quarter of a second.
func (b *Bucket) span(c *Charge) int64 {
	ms := 250 + 2*b.tick()/int64(time.Millisecond)
	if c.generation() < longestShort {
		ms = max(ms, c.whole())
	}
	return ms
}

// longestShort is the length of a generation from which on a limit is not a short one.
const longestShort = int64(Interval) + 2*delayNs

// whole is in how many ms a limit admits as much as it admits at once.
func (c *Charge) whole() int64 {
	cfg := c.Limit.Config()
	ms := cfg.Window.Milliseconds()
	if cfg.Algorithm.Refills() && cfg.N > 0 {
		ms = int64(float64(max(cfg.Burst, 1)) * float64(ms) / float64(cfg.N))
	}
	return ms
}

// cover is how many requests are to be out for a rate, in requests a second × 1000.
func (b *Bucket) cover(c *Charge, milli int64) int64 {
	return (milli*b.span(c)+999_999)/1_000_000 + 1
}

// covered reports whether so many requests cover a rate until it can be changed.
func (b *Bucket) covered(milli, got int64) bool {
	return got*1_000_000 >= milli*(250+2*b.tick()/int64(time.Millisecond))
}

// afford is the rate that so many requests cover.
func (b *Bucket) afford(c *Charge, got int64) int64 {
	if got < 2 {
		return 0
	}
	return (got - 1) * 1_000_000 / b.span(c)
}

// planPace pays due units, and plans how many to take ahead.
func (h *Holder) planPace(b *Bucket, p *bucketPlan, now int64) {
	p.kind = assignRate
	cur := b.current()
	running := cur != nil && cur.kind == assignRate && now < cur.deadline+delayNs
	if cur != nil && cur.kind == assignRate {
		b.pay(cur, now)
	}
	if p.report || b.pace.target == 0 {
		milli, ok := b.perSecond()
		if milli = milli * rateHeadroom / 100; !ok {
			milli = 0
		}
		b.pace.target = max(milli, h.s.First*1000*secondNs/int64(Interval))
	}
	if cur != nil && cur.kind == assignRate && !running && !p.report {
		return // Envoy does not report any more, and nothing is taken ahead for it
	}
	p.want = b.pace.target
}

// burst is the size of the token bucket for a rate: a quarter of a second of it.
func (h *Holder) burst(milli int64) int64 { return max(milli/4000, 1) }

// milli is the rate of an assignment of a rate, in requests a second × 1000.
func (e *assignment) milli() int64 { return e.fill * 1000 / e.every }

// smaller reports whether e may take the place of cur without a refusal in between: Envoy then has
// no more than the same share of a smaller token bucket.
func (e *assignment) smaller(cur *assignment, now int64) bool {
	return cur != nil && cur.kind == assignRate && e.burst <= cur.burst && now+2*delayNs <= cur.deadline
}

// pay charges the rate's units since the last time as used.
func (b *Bucket) pay(e *assignment, now int64) {
	p := &b.pace
	end := min(now, e.deadline+delayNs)
	n := p.extra
	if end > p.paid {
		per := e.every * 1_000_000
		sum := p.carry + e.fill*((end-p.paid)/1000)
		n += sum / per
		p.carry, p.paid = sum%per, end
	}
	p.extra = 0
	p.balance = min(p.balance+n, e.burst+e.fill*(int64(Interval)+2*delayNs)/secondNs/e.every+1)
	for i := range b.books[:b.met] {
		k := &b.books[i]
		units := mulCapped(n, k.charge.Cost)
		x := min(units, k.lapsed) // was counted as used already
		k.spend(units - x)
		k.lapsed = 0
	}
}

// used books requests beyond assigned units, and returns how many of them were neither paid nor may
// be paid with the next tick.
func (p *rateState) used(n int64) (over int64) {
	p.balance -= n
	if over = -p.slack - p.balance; over > 0 {
		p.balance = -p.slack
	}
	return max(over, 0)
}

// actPace decides which rate to assign. It returns false if there is nothing to say.
func (h *Holder) actPace(b *Bucket, a *Action, now int64) bool {
	p, cur, ttl := &b.plan, b.current(), TTL
	running := cur != nil && cur.kind == assignRate && now < cur.deadline+delayNs
	if p.want == 0 {
		return false
	}
	h.wakeAt(b, now+b.tick())
	milli := min(p.want, p.got)
	switch {
	case !running:
	case p.never: // between two windows: what goes on is counted in neither
		milli = cur.milli()
	case milli >= cur.milli()*6/5 && (p.report || now-b.pace.changed >= secondNs):
	case p.report && p.want < cur.milli()*4/5:
	case p.covers:
		milli = cur.milli()
	}
	if milli == 0 {
		if h.wakeAt(b, now+secondNs); cur != nil && cur.kind == assignNothing && !p.report {
			return false
		}
		p.renew = cur != nil && cur.kind == assignNothing
		return h.give(b, a, assignment{kind: assignNothing}, ttl, now)
	}
	e := assignment{kind: assignRate}
	e.fill, e.every = wholeFraction(milli, int64(ttl/time.Second))
	e.burst = h.burst(e.milli())
	if running && cur.fill == e.fill && cur.every == e.every && now+2*delayNs <= cur.deadline {
		if !p.report {
			return false
		}
		p.renew = true
		return h.give(b, a, *cur, ttl, now)
	}
	next := &b.pace
	if running {
		next.extra += max(0, cur.milli()-e.milli()) * delayNs / secondNs / 1000
	} else {
		next.paid, next.carry, next.balance = now, 0, 0
	}
	if !e.smaller(cur, now) {
		next.extra += e.burst
	}
	next.slack = e.burst + e.fill*(2*delayNs)/secondNs/e.every + 1
	next.changed = now
	return h.give(b, a, e, ttl, now)
}

// wholeFraction returns the largest fraction of whole requests in whole seconds, up to most
// seconds, that is not above a rate. It is 1 in most seconds if there is none.
func wholeFraction(milli, most int64) (fill, every int64) {
	for s := int64(1); s <= most; s++ {
		f := milli * s / 1000
		if f > 0 && (every == 0 || f*every > fill*s) {
			fill, every = f, s
		}
	}
	if fill == 0 {
		return 1, most
	}
	return fill, every
}
