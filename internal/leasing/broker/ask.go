package broker

import (
	"slices"
	"time"

	"github.com/weir-rl/weir/algo"
	"github.com/weir-rl/weir/rule"
)

// The share of the recent rate that is asked for, in percent: the unused part goes back to the
// store if it was units, and is lost if it was a rate.
const (
	unitHeadroom = 150
	rateHeadroom = 125
)

// Ask is a Holder's question to a store.Lender about one state, with a report on it: a charge of
// nothing, by itself. Pass it to the Lender in mode rule.Shadow, so that one refused charge does
// not keep the others from their units.
type Ask struct {
	Counter *rule.Counter
	Limit   *algo.Limit
	Key     []byte
	Ahead   algo.Ahead

	// Filled in by who has asked, as the Lender said.
	Result     algo.Result
	Now, Asked int64
	Failed     bool // the Lender did not answer

	of    *heldState
	parts []bucketPart
	bound int64 // Ahead.Want as Pool.Bound left it; 0 if that was not asked
}

// bucketPart is the share of a bucket in an Ask.
type bucketPart struct {
	b    *Bucket
	book int
	want int64 // units
}

// bucketPlan says how to proceed with a bucket.
type bucketPlan struct {
	kind    assignmentKind
	renew   bool  // the assignment stays, and lives longer
	abandon bool  // Envoy is to forget it
	retire  bool  // it loses its assignment before the next report
	report  bool  // there was a report
	want    int64 // requests; of a pace, in a second × 1000
	got     int64 // what all limits lend of it
	until   int64 // when the units got end
	never   bool  // a limit can lend nothing at the moment
	single  bool  // a limit has a single unit left
	short   bool  // it was refused, and all limits had room
	failed  bool
	covers  bool // the units got cover the rate that is assigned
}

// Ask returns the questions for the buckets that were reported or looked at since the last one;
// Granted comes next, always. The list is valid until the next Ask.
func (h *Holder) Ask(now int64) []Ask {
	h.round++
	asks := h.free[:0]
	for _, b := range h.due {
		b.lapse(now)
		b.plan = h.plan(b, now)
		for i := range b.books {
			asks = h.ask(asks, b, i, now)
		}
		if len(b.books) > b.met {
			b.books = slices.DeleteFunc(b.books, func(k unitBook) bool {
				done := k.done()
				if done {
					h.release(&k)
				}
				return done
			})
		}
	}
	h.free = asks
	return asks
}

// ask adds the bucket's question and report about its i-th book.
func (h *Holder) ask(asks []Ask, b *Bucket, i int, now int64) []Ask {
	k := &b.books[i]
	keep, want := max(0, mulCapped(b.owed, k.charge.Cost)-k.credit), int64(0)
	switch {
	case i < b.met:
		n := b.plan.want
		if b.plan.kind == assignRate { // all that was let through is paid by its time
			if k.kept = 0; n > 0 {
				n = b.cover(&k.charge, n)
			}
		}
		if want = mulCapped(n, k.charge.Cost); k.single {
			want, k.single = min(want, 1), false
		}
	case len(b.entries) == 0 || b.entries[0].serial > k.last:
		k.spend(k.kept) // nothing more will be used, but these may have been
		keep, k.kept = 0, 0
	default:
		keep = k.held()
	}
	told := k.told(keep)
	if told == ([2]algo.Told{}) && want == 0 {
		return asks
	}
	if k.of.round != h.round {
		n := len(asks)
		k.of.round, k.of.ask = h.round, n
		asks = slices.Grow(asks, 1)[:n+1]
		asks[n] = Ask{Counter: k.charge.Counter, Limit: k.charge.Limit, Key: k.of.key, of: k.of,
			parts: asks[n].parts[:0]}
	}
	a := &asks[k.of.ask]
	a.tell(told)
	if want > 0 {
		a.Ahead.Want += want
		a.Ahead.First = a.Ahead.First || now >= k.fresh
		a.parts = append(a.parts, bucketPart{b, i, want})
	}
	return asks
}

// tell adds a bucket's report. A state has two generations at most, so one that does not fit is
// over.
func (a *Ask) tell(told [2]algo.Told) {
	for _, t := range told {
		if t.End == 0 {
			continue
		}
		for i := range a.Ahead.Told {
			if o := &a.Ahead.Told[i]; o.End == t.End || o.End == 0 {
				o.End, o.Used, o.Returned = t.End, o.Used+t.Used, o.Returned+t.Returned
				break
			}
		}
	}
}

// plan decides how to proceed with a bucket.
func (h *Holder) plan(b *Bucket, now int64) (p bucketPlan) {
	p.report, b.heard = b.heard, false
	cur := b.current()
	switch retireAt := b.retireAt; {
	case h.idle(b, cur):
		p.abandon = true
		return p
	case b.zeros < idleReports:
		b.retireAt = 0
	case p.report:
		p.retire, b.retireAt = true, now+retireAfter
	case retireAt != 0 && now >= retireAt:
		p.kind, p.renew, b.retireAt = assignNothing, cur != nil && cur.kind == assignNothing, 0
		return p
	}
	switch v := b.terms.Verdict; {
	case v == DenyAll:
		p.kind = assignNothing
	case v == AllowAll || len(b.terms.Charges) == 0:
		p.kind = assignAll
	case h.mustPace(b):
		h.planPace(b, &p, now)
		return p
	default:
		p.kind, p.want = assignUnits, h.want(b)
		p.renew = h.renewable(b, cur, p.want, now)
		if p.renew {
			p.want = 0
		}
		return p
	}
	p.renew = cur != nil && cur.kind == p.kind
	return p
}

// retireAfter is how long after a report an idle bucket loses its assignment: so soon that the next
// report surely covers all requests that it let through (see Bucket.bury), and no sooner, since its
// requests are refused meanwhile.
const retireAfter = int64(Interval) - 2*delayNs - delayNs/2

// idle reports whether a bucket is to be forgotten. Envoy then loses its counts since its last
// report, so that the units it may still use would be lost to all others until the generation ends,
// which a long window may have. So it loses these first, and unused ones are given back.
func (h *Holder) idle(b *Bucket, cur *assignment) bool {
	if b.zeros < idleReports {
		return false
	}
	return cur == nil || cur.kind == assignAll || b.owed == 0 || b.zeros >= idleReports+3
}

// want is how many requests a bucket should be able to let through until its next report and a half
// more.
func (h *Holder) want(b *Bucket) int64 {
	milli, ok := b.perSecond()
	if !ok {
		return h.s.First
	}
	const per = 1000 * 100 * secondNs / int64(Interval)
	return min(max((milli*unitHeadroom+per-1)/per, h.s.First), unbounded>>1)
}

// renewable reports whether the assignment of units may just live longer: it fits the demand, there
// is enough of it left, it is certainly still there when Envoy hears of it, and its units last.
func (h *Holder) renewable(b *Bucket, cur *assignment, want, now int64) bool {
	if cur == nil || cur.kind != assignUnits || cur.used*2 >= cur.g || now+2*delayNs > cur.deadline {
		return false
	}
	if cur.g*10 < want*8 || cur.g*8 > want*10 {
		return false
	}
	for i := range b.books[:b.met] {
		if k := &b.books[i]; k.since >= cur.serial || k.held()+k.credit < mulCapped(b.owed, k.charge.Cost) ||
			k.lasts() < now+int64(TTL)+delayNs {
			return false
		}
	}
	return true
}

// until translates the end of a generation to the clock here: it is never after the true end.
func (a *Ask) until() int64 {
	left := (a.Ahead.Until - a.Now) * int64(time.Microsecond)
	return a.Asked + left - left/1000 - int64(time.Millisecond)
}

// Granted takes down the answers to the last Ask, and returns the actions for Envoy, in this order.
// Buckets whose Lender failed are not among them; see Failed. The list is valid until the next
// call.
func (h *Holder) Granted(now int64, asks []Ask) []Action {
	for _, b := range h.due {
		b.plan.got, b.plan.until, b.plan.short, b.plan.covers = unbounded, forever, b.denied, true
	}
	var wants, shares []int64
	for i := range asks {
		a := &asks[i]
		if len(a.parts) == 0 {
			continue
		}
		if a.Failed {
			for _, p := range a.parts {
				p.b.plan.failed = true
			}
			continue
		}
		wants, shares = wants[:0], shares[:0]
		for _, p := range a.parts {
			wants, shares = append(wants, p.want), append(shares, 0)
		}
		maxMinShares(wants, a.Ahead.Got, shares)
		until := a.until()
		for j, p := range a.parts {
			k, plan := &p.b.books[p.book], &p.b.plan
			k.got(shares[j], a.Ahead.Until, until)
			got := shares[j] / k.charge.Cost
			if plan.kind == assignRate {
				if cur := p.b.current(); cur != nil && cur.kind == assignRate {
					plan.covers = plan.covers && p.b.covered(cur.milli(), got)
				}
				got = p.b.afford(&k.charge, got)
			}
			plan.got = min(plan.got, got)
			plan.short = plan.short && a.Result.Remaining > 0
			if a.Ahead.Until == 0 {
				plan.never = true
				continue
			}
			plan.until = min(plan.until, until)
			k.single = a.Ahead.Got == 0 && a.Result.Remaining == 1 && p.want > 1 && k.charge.Cost == 1 &&
				plan.kind == assignUnits
			plan.single = plan.single || k.single
			k.fresh = now + (a.Ahead.Until-a.Now)*int64(time.Microsecond) - k.charge.generation()
		}
	}
	actions, failed := h.actions[:0], h.due[:0]
	for _, b := range h.due {
		if b.plan.failed {
			failed = append(failed, b)
			continue
		}
		b.dirty = false
		if a, ok := h.act(b, now); ok {
			actions = append(actions, a)
		}
		if b.plan.retire && (b.wake == 0 || b.wake > b.retireAt) {
			h.wakeAt(b, b.retireAt)
		}
	}
	h.due, h.actions = failed, actions
	return actions
}

// Failed calls f for each bucket whose Lender has not answered, with the requests that it wants,
// after Granted. f returns how many of these were charged to all its limits, once and for all, and
// 0 if none were. The actions follow from that.
func (h *Holder) Failed(now int64, f func(name string, want int64) (charged int64)) []Action {
	var actions []Action
	for _, b := range h.due {
		b.dirty = false
		got := f(b.name, h.want(b))
		b.plan = bucketPlan{kind: assignUnits, got: got, until: now + int64(TTL) + 2*delayNs}
		if a, ok := h.act(b, now); ok {
			actions = append(actions, a)
		}
		if got > 0 {
			for i := range b.books[:b.met] { // paid, and nothing of it is held
				k := &b.books[i]
				k.credit += mulCapped(got, k.charge.Cost)
			}
		}
	}
	h.due = h.due[:0]
	return actions
}

// Leave returns the final reports, when nothing more will be heard of Envoy: on the units it used,
// and those that it certainly has not. The Holder must not be used afterwards.
func (h *Holder) Leave(now int64) []Ask {
	h.due = h.due[:0]
	for _, b := range h.buckets {
		h.due = append(h.due, b)
	}
	h.round++
	asks := h.free[:0]
	for _, b := range h.due {
		b.lapse(now)
		b.plan = bucketPlan{}
		for i := range b.books {
			asks = h.ask(asks, b, i, now)
		}
	}
	return asks
}

// generation is the length of a generation of the limit, in ns.
func (c *Charge) generation() int64 { return int64(c.Limit.Lease().Config().Timeout) }

// act returns the action for a bucket.
func (h *Holder) act(b *Bucket, now int64) (a Action, ok bool) {
	p, ttl := &b.plan, TTL
	a = Action{Bucket: b.name, Short: p.short && p.report && p.kind == assignUnits && p.got >= p.want && p.want > 0}
	if p.abandon {
		h.wakeAt(b, 0)
		delete(h.buckets, b.name)
		for i := range b.books {
			h.release(&b.books[i])
		}
		a.Abandon = true
		return a, true
	}
	cur := b.current()
	switch p.kind {
	case assignAll:
		return a, h.give(b, &a, assignment{kind: assignAll, g: unbounded}, ttl, now)
	case assignNothing:
		h.wakeAt(b, b.terms.Until)
		return a, h.give(b, &a, assignment{kind: assignNothing}, ttl, now)
	case assignRate:
		return a, h.actPace(b, &a, now)
	}
	if p.renew {
		return a, h.give(b, &a, *cur, ttl, now)
	}
	if p.never {
		p.until = now
	}
	wake := int64(0)
	if last := time.Duration((p.until-now-delayNs)/secondNs) * time.Second; last < ttl {
		ttl = last
		wake = now + int64(ttl) - min(secondNs, int64(ttl)/2)
	}
	none, again := p.got < 1 || ttl < time.Second, int64(0)
	switch {
	case none && p.single:
		wake = now
	case none && (p.got >= 1 || p.never):
		wake = max(p.until, now) + secondNs/10 + h.later(secondNs/5)
	case p.got < p.want:
		if again = h.lookAgain(b, p.got, now); none || wake == 0 || again != 0 && again < wake {
			wake = again
		}
	}
	h.wakeAt(b, wake)
	if !none {
		return a, h.give(b, &a, assignment{kind: assignUnits, g: p.got}, ttl, now)
	}
	if !p.report && b.keeps(cur, now) {
		return a, false
	}
	p.renew = cur != nil && cur.kind == assignNothing
	return a, h.give(b, &a, assignment{kind: assignNothing}, TTL, now)
}

// give makes an assignment, or lets the current one live longer if the plan is to renew it, and
// says so in a. It returns true.
func (h *Holder) give(b *Bucket, a *Action, e assignment, ttl time.Duration, now int64) bool {
	cur := b.current()
	a.TTL, a.New = ttl, !b.plan.renew
	if b.plan.renew {
		cur.deadline = now + int64(ttl)
		a.assignment = *cur
		return true
	}
	h.serial++
	e.serial, e.sent, e.deadline = h.serial, now, now+int64(ttl)
	a.Clear = e.kind == assignUnits || e.kind == assignRate && !e.smaller(cur, now)
	b.assign(e)
	if e.kind == assignUnits {
		b.handed += e.g
	}
	a.assignment = e
	return true
}
